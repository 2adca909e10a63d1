//! Transfers that succeed.

use std::fs;
use std::io::{Read as _, Write as _};
use std::process::Stdio;

use crate::common::{Listener, listing, make_tree, mz, names, octets, run, succeed, wait};

/// Ways of the data.
const WAYS: [&[&str]; 2] = [&[], &["--tcp"]];

#[test]
fn a_tree_arrives_as_it_is_and_is_not_sent_twice() {
    let here = tempfile::tempdir().unwrap();
    let tree = here.path().join("tree");
    fs::create_dir(&tree).unwrap();
    make_tree(&tree);
    let tree_name = tree.to_str().unwrap();
    for way in WAYS {
        let there = tempfile::tempdir().unwrap();
        let folder = there.path().join("made");
        let arguments = [&["recv", folder.to_str().unwrap()], way].concat();
        for again in [false, true] {
            let mut receiver = Listener::start(&arguments);
            let said = succeed(&mut receiver.send(&[way, &[tree_name]].concat()));
            let (status, received) = receiver.ended();
            assert!(status.success(), "{received}");
            let got = listing(&folder.join("tree"));
            assert_eq!(listing(&tree), got, "{way:?}");
            assert_eq!(said.contains("mz: 0 B in"), again, "{said}");
            assert_eq!(said.contains("; limited by "), !again, "{said}");
            assert_eq!(names(&folder).len(), 1);
        }
    }
}

#[test]
fn ten_thousand_small_files_arrive() {
    let here = tempfile::tempdir().unwrap();
    let tree = here.path().join("many");
    for folder in 0..20 {
        fs::create_dir_all(tree.join(folder.to_string())).unwrap();
        for file in 0..500 {
            let path = tree.join(format!("{folder}/{file}"));
            let length = usize::try_from(file % 40 * 100).unwrap();
            fs::write(path, octets(folder * 500 + file, length)).unwrap();
        }
    }
    for way in WAYS {
        let there = tempfile::tempdir().unwrap();
        let folder = there.path().to_str().unwrap();
        let mut receiver = Listener::start(&[&["recv", folder], way].concat());
        let said = succeed(&mut receiver.send(&[way, &[tree.to_str().unwrap()]].concat()));
        assert!(said.contains("10021 entries"), "{said}");
        let (status, received) = receiver.ended();
        assert!(status.success(), "{received}");
        assert_eq!(listing(&tree), listing(&there.path().join("many")));
    }
}

#[test]
fn a_server_takes_transfers_side_by_side_and_files_that_changed() {
    let here = tempfile::tempdir().unwrap();
    let there = tempfile::tempdir().unwrap();
    let server = Listener::start(&["serve", "--code", "Word", there.path().to_str().unwrap()]);
    assert_eq!(server.code, "word");
    let mut children = Vec::new();
    for index in 0..4 {
        let path = here.path().join(format!("file {index}"));
        fs::write(&path, octets(index, 3_000_000)).unwrap();
        let mut command = server.send(&["-q", path.to_str().unwrap()]);
        children.push(command.spawn().unwrap());
    }
    assert!(children.iter_mut().all(|child| wait(child).success()));
    assert_eq!(listing(here.path()), listing(there.path()));
    let path = here.path().join("file 0");
    for content in ["short", "sh0rt"] {
        fs::write(&path, content).unwrap();
        succeed(&mut server.send(&[path.to_str().unwrap()]));
        let got = fs::read(there.path().join("file 0")).unwrap();
        assert_eq!(got, content.as_bytes());
    }
}

#[test]
fn events_are_lines_of_json() {
    let here = tempfile::tempdir().unwrap();
    let there = tempfile::tempdir().unwrap();
    fs::write(here.path().join("a \"b\""), "abc").unwrap();
    let server = Listener::start(&["serve", there.path().to_str().unwrap()]);
    let path = here.path().join("a \"b\"");
    let output = server.send(&["--json", path.to_str().unwrap()]).output();
    let output = String::from_utf8(output.unwrap().stdout).unwrap();
    let lines: Vec<serde_json::Value> = output
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 2, "{output}");
    assert_eq!(lines[0]["event"], "entry");
    assert_eq!(lines[0]["name"], "a \"b\"");
    assert_eq!(lines[0]["status"], "stored");
    assert_eq!(
        (&lines[1]["stored"], &lines[1]["octets"]),
        (&1.into(), &3.into())
    );
    let parts = ["disk", "processor", "network", "peer"];
    let seconds = parts.map(|it| lines[1]["waits"][it].as_f64().unwrap());
    let all: f64 = seconds.iter().sum();
    assert!(0.0 < all && all <= lines[1]["seconds"].as_f64().unwrap());
}

#[test]
fn a_stream_comes_out_as_it_went_in() {
    let content = octets(5, 20_000_000);
    for way in WAYS {
        let mut command = mz(&[&["pipe", "--listen", "--bind", "127.0.0.1:0"], way].concat());
        let mut receiver = Listener::of(command.stdout(Stdio::piped()));
        let mut output = receiver.child.stdout.take().unwrap();
        let host = receiver.host.clone();
        let mut command = mz(&[&["pipe", "--code", &receiver.code, &host], way].concat());
        let mut sender = command.stdin(Stdio::piped()).spawn().unwrap();
        let mut input = sender.stdin.take().unwrap();
        // A line comes through though nothing follows it yet.
        input.write_all(b"first\n").unwrap();
        let mut first = [0; 6];
        output.read_exact(&mut first).unwrap();
        assert_eq!(&first, b"first\n");
        let sent = content.clone();
        let writer = std::thread::spawn(move || input.write_all(&sent).unwrap());
        let mut got = Vec::new();
        output.read_to_end(&mut got).unwrap();
        writer.join().unwrap();
        assert!(got == content, "{} octets", got.len());
        assert!(wait(&mut sender).success());
        assert!(receiver.ended().0.success());
    }
}

/// A peer that ends is noticed though standard input has nothing.
#[test]
fn a_stream_whose_reader_ends_is_an_error() {
    let mut command = mz(&["pipe", "--listen", "--bind", "127.0.0.1:0"]);
    let mut receiver = Listener::of(command.stdout(Stdio::piped()));
    let mut output = receiver.child.stdout.take().unwrap();
    let mut command = mz(&["pipe", "--code", &receiver.code, &receiver.host]);
    let mut sender = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut input = sender.stdin.take().unwrap();
    input.write_all(b"x").unwrap();
    output.read_exact(&mut [0]).unwrap();
    receiver.kill();
    assert_eq!(wait(&mut sender).code(), Some(1));
    drop(input);
    let (code, said) = run(&mut mz(&["pipe", "--code", "x", "127.0.0.1:1"]));
    assert_eq!(code, Some(1));
    assert!(said.contains("refused"), "{said}");
}

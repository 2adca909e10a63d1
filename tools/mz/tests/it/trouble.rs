//! Transfers that fail: with a reason, and nothing lost.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use dgiwarp_mz::Code;

use crate::common::{
    Listener, SOON, attributes, fail, listing, listing_with_left, mz, names, octets, run,
    set_attribute, succeed, wait,
};

#[test]
fn a_wrong_code_is_no_entry_and_costs_time() {
    let here = tempfile::tempdir().unwrap();
    let file = here.path().join("file");
    fs::write(&file, "f").unwrap();
    let file = file.to_str().unwrap();
    for way in [&[][..], &["--tcp"]] {
        let there = tempfile::tempdir().unwrap();
        let folder = there.path().to_str().unwrap();
        let mut receiver = Listener::start(&[&["recv", folder], way].concat());
        let begun = Instant::now();
        for _ in 0..3 {
            let wrong = ["send", "--code", "wrong", file, &receiver.host];
            fail(&mut mz(&[&wrong, way].concat()), "is the code right?");
        }
        // A quarter, a half and a whole second.
        assert!(begun.elapsed() > Duration::from_millis(1750));
        assert_eq!(names(Path::new(folder)).len(), 0);
        succeed(&mut receiver.send(&[way, &[file]].concat()));
        assert!(receiver.ended().0.success());
    }
}

/// Somebody between both ends reads neither the code, nor what is made of it, nor names; contents where their encryption is not asked for, as within a host.
#[test]
fn what_passes_between_both_ends_is_not_legible() {
    let here = tempfile::tempdir().unwrap();
    let file = here.path().join("a name to be seen");
    fs::write(&file, "contents to be seen").unwrap();
    let file = file.to_str().unwrap();
    for (own, peer) in [("auto", "always"), ("always", "never"), ("auto", "auto")] {
        let there = tempfile::tempdir().unwrap();
        let folder = there.path().to_str().unwrap();
        let mut receiver = Listener::start(&["recv", "--tcp", "--encrypt", peer, folder]);
        let between = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = std::mem::replace(
            &mut receiver.host,
            between.local_addr().unwrap().to_string(),
        );
        let between = thread::spawn(move || {
            let (near, _) = between.accept().unwrap();
            let far = TcpStream::connect(to).unwrap();
            let back = (far.try_clone().unwrap(), near.try_clone().unwrap());
            let back = thread::spawn(move || hand_on(back.0, back.1));
            [hand_on(near, far), back.join().unwrap()].concat()
        });
        succeed(&mut receiver.send(&["--tcp", "--encrypt", own, file]));
        assert!(receiver.ended().0.success());
        let seen = between.join().unwrap();
        let saw = |octets: &[u8]| seen.windows(octets.len()).any(|it| it == octets);
        let code = Code::given(&receiver.code).unwrap();
        assert!(!saw(receiver.code.as_bytes()) && !saw(&code.files()));
        assert!(!saw(b"a name to be seen"));
        assert_eq!(saw(b"contents to be seen"), peer == own);
    }
}

fn hand_on(mut from: TcpStream, mut to: TcpStream) -> Vec<u8> {
    let (mut seen, mut octets) = (Vec::new(), vec![0; 1 << 16]);
    while let Ok(count @ 1..) = from.read(&mut octets) {
        seen.extend_from_slice(&octets[..count]);
        if to.write_all(&octets[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
    seen
}

#[test]
fn octets_that_are_no_frames_hold_nobody_up() {
    let here = tempfile::tempdir().unwrap();
    let file = here.path().join("file");
    fs::write(&file, "f").unwrap();
    for way in [&[][..], &["--tcp"]] {
        let there = tempfile::tempdir().unwrap();
        let folder = there.path().to_str().unwrap();
        let mut receiver = Listener::start(&[&["recv", folder], way].concat());
        let silent = TcpStream::connect(&receiver.host).unwrap();
        for seed in 0..5 {
            let mut stream = TcpStream::connect(&receiver.host).unwrap();
            // It may be closed already.
            let _ = stream.write_all(&octets(seed, 10_000));
            stream.set_read_timeout(Some(SOON)).unwrap();
            let _ = stream.read_to_end(&mut Vec::new());
        }
        succeed(&mut receiver.send(&[way, &[file.to_str().unwrap()]].concat()));
        assert!(receiver.ended().0.success());
        drop(silent);
    }
}

#[test]
fn failures_have_their_reasons() {
    let here = tempfile::tempdir().unwrap();
    let file = here.path().join("file");
    fs::write(&file, "f").unwrap();
    let file = file.to_str().unwrap();
    let there = tempfile::tempdir().unwrap();
    fs::create_dir_all(there.path().join("file/directory")).unwrap();
    let server = Listener::start(&["serve", there.path().to_str().unwrap()]);
    fail(&mut server.send(&[file]), "file");
    assert!(there.path().join("file/directory").is_dir());
    fail(&mut server.send(&["/missing"]), "No such file or directory");
    fail(
        &mut mz(&["send", "--code", "x", file, "127.0.0.1:1"]),
        "refused",
    );
    fail(
        &mut mz(&["recv", "/missing/folder"]),
        "No such file or directory",
    );
    let taken = [
        "recv",
        here.path().to_str().unwrap(),
        "--bind",
        &server.host,
    ];
    fail(&mut mz(&taken), &server.host);
    for usage in [
        &["recv", "x", "--bind", "host"][..],
        &["recv", "x", "--block", "7"],
    ] {
        assert_eq!(run(&mut mz(usage)).0, Some(2), "{usage:?}");
    }
    // The others of a transfer arrive.
    let tree = here.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("good"), "g").unwrap();
    let listener = std::os::unix::net::UnixListener::bind(tree.join("socket")).unwrap();
    fail(&mut server.send(&[tree.to_str().unwrap()]), "socket");
    drop(listener);
    assert_eq!(fs::read(there.path().join("tree/good")).unwrap(), b"g");
}

#[test]
fn a_file_that_cannot_be_written_does_not_stop_the_others() {
    let here = tempfile::tempdir().unwrap();
    let tree = here.path().join("tree");
    fs::create_dir(&tree).unwrap();
    for index in 0..200_u64 {
        fs::write(tree.join(index.to_string()), octets(index, 3000)).unwrap();
    }
    fs::write(tree.join("long"), octets(1, 70_000)).unwrap();
    let there = tempfile::tempdir().unwrap();
    // A limit of the size of files; the signal of one that would be longer is ignored.
    let script = "trap '' XFSZ; ulimit -f 100; exec \"$@\"";
    let mut command = Command::new("bash");
    command.args(["-c", script, "bash", env!("CARGO_BIN_EXE_mz"), "serve"]);
    command.args([there.path().to_str().unwrap(), "--bind", "127.0.0.1:0"]);
    let server = Listener::of(&mut command);
    fs::write(tree.join("longer"), octets(1, 200_000)).unwrap();
    fs::write(tree.join("longest"), octets(1, 2_000_000)).unwrap();
    let (code, said) = run(&mut server.send(&[tree.to_str().unwrap()]));
    assert_eq!(code, Some(1), "{said}");
    assert_eq!(said.matches("no space").count(), 2, "{said}");
    let mut expected = listing(&tree);
    expected.retain(|line| !line.contains("\"longe"));
    assert_eq!(listing(&there.path().join("tree")), expected);
    assert_eq!(names(there.path()).len(), 1);
}

/// Waits until so many entries are in a folder, or the child has ended.
fn await_entries(folder: &Path, count: usize, child: &mut std::process::Child) {
    let end = Instant::now() + SOON;
    let there = || fs::read_dir(folder).map_or(0, Iterator::count);
    while there() < count && child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < end, "no entries");
        thread::sleep(Duration::from_millis(1));
    }
}

/// After `kill -9` of either end, at several points, all files are whole, and a further run has them all.
#[test]
fn small_files_go_on_after_kill_9_of_either_end() {
    let here = tempfile::tempdir().unwrap();
    let tree = here.path().join("tree");
    fs::create_dir(&tree).unwrap();
    for index in 0..6000_u64 {
        fs::write(tree.join(index.to_string()), octets(index, 4000)).unwrap();
    }
    let expected = listing(&tree);
    let tree = tree.to_str().unwrap();
    for (round, kill_sender) in [(0, true), (1, false), (2, true), (3, false)] {
        let way: &[&str] = if round < 2 { &[] } else { &["--tcp"] };
        let there = tempfile::tempdir().unwrap();
        let folder = there.path().to_str().unwrap();
        let receive = [&["recv", folder, "--no-sync"], way].concat();
        let mut receiver = Listener::start(&receive);
        let mut command = receiver.send(&[way, &["-q", tree]].concat());
        let mut sender = command.stderr(Stdio::null()).spawn().unwrap();
        await_entries(&there.path().join("tree"), 1 + 1500 * round, &mut sender);
        if kill_sender {
            sender.kill().unwrap();
        } else {
            receiver.kill();
        }
        let status = wait(&mut sender);
        let whole = status.success();
        if kill_sender && !whole {
            let (status, said) = receiver.ended();
            assert_eq!(status.code(), Some(1), "{said}");
        }
        // Nothing that has its name is less than whole.
        for line in listing_with_left(there.path()) {
            if line.starts_with("\"tree/") {
                let line = line.replace("\"tree/", "\"");
                assert!(expected.contains(&line), "{line}");
            }
        }
        let mut receiver = Listener::start(&receive);
        let said = succeed(&mut receiver.send(&[way, &[tree]].concat()));
        assert!(receiver.ended().0.success());
        assert!(round == 0 || said.contains("were there"), "{said}");
        assert_eq!(listing(&there.path().join("tree")), expected);
        assert_eq!(names(there.path()).len(), 1);
    }
}

#[test]
fn a_large_file_goes_on_after_kill_9() {
    let here = tempfile::tempdir().unwrap();
    let file = here.path().join("file");
    fs::write(&file, octets(7, 300 << 20)).unwrap();
    // Where there are none, it goes without.
    let _ = set_attribute(&file, "user.a", b"1");
    let there = tempfile::tempdir().unwrap();
    let folder = there.path().to_str().unwrap();
    let receive = ["recv", folder, "--no-sync"];
    let mut receiver = Listener::start(&receive);
    let mut command = receiver.send(&["-q", file.to_str().unwrap()]);
    let mut sender = command.stderr(Stdio::null()).spawn().unwrap();
    let journal = there.path().join(".file.rftp-journal");
    let end = Instant::now() + SOON;
    while fs::metadata(&journal).map_or(0, |it| it.len()) < 2000 {
        assert!(Instant::now() < end, "no journal");
        if sender.try_wait().unwrap().is_some() {
            break;
        }
        thread::sleep(Duration::from_millis(1));
    }
    receiver.kill();
    let whole = wait(&mut sender).success();
    let mut receiver = Listener::start(&receive);
    let said = succeed(&mut receiver.send(&[file.to_str().unwrap()]));
    assert!(receiver.ended().0.success());
    assert!(whole || said.contains("from an earlier run"), "{said}");
    assert!(fs::read(there.path().join("file")).unwrap() == fs::read(&file).unwrap());
    assert_eq!(attributes(there.path()), attributes(here.path()));
    assert_eq!(names(there.path()).len(), 1);
}

#[test]
fn files_that_cannot_be_read_are_reported() {
    let here = tempfile::tempdir().unwrap();
    let tree = here.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("good"), "g").unwrap();
    fs::write(tree.join("bad"), "b").unwrap();
    fs::set_permissions(tree.join("bad"), fs::Permissions::from_mode(0o000)).unwrap();
    let there = tempfile::tempdir().unwrap();
    let server = Listener::start(&["serve", there.path().to_str().unwrap()]);
    let sender = server.send(&[tree.to_str().unwrap()]);
    // Root reads all files by capabilities.
    let mut without = Command::new("setpriv");
    if fs::read(tree.join("bad")).is_ok() {
        without.args(["--bounding-set", "-dac_override,-dac_read_search"]);
    }
    without.arg(sender.get_program()).args(sender.get_args());
    fail(&mut without, "not permitted");
    assert_eq!(fs::read(there.path().join("tree/good")).unwrap(), b"g");
}

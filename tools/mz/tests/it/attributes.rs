//! Extended attributes of files and directories.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{
    Listener, SOON, attributes, fail, listing, make_tree, mz, octets, set_attribute, succeed, wait,
};

/// A tree with attributes; `None`, and the test is skipped, where the file system of temporary files has none.
fn tree(test: &str, outer: &Path) -> Option<PathBuf> {
    let tree = outer.join("tree");
    fs::create_dir(&tree).unwrap();
    make_tree(&tree);
    if !set_attribute(&tree, "user.top", b"t") {
        xtask::skips::skip(test, "the file system has no extended attributes");
        return None;
    }
    for (name, attribute, value) in [
        ("a/large", "user.origin", &b"https://example.org"[..]),
        ("a/large", "user.empty", b""),
        ("a/b/7", "user.checksum", &[0, 255, 10]),
        ("nothing", "user.\u{e4} \n", b"1"),
        ("a/b", "user.b", b"b"),
    ] {
        assert!(set_attribute(&tree.join(name), attribute, value));
    }
    Some(tree)
}

#[test]
fn attributes_are_kept_and_those_that_change_go_alone() {
    let test = "attributes_are_kept_and_those_that_change_go_alone";
    let here = tempfile::tempdir().unwrap();
    let Some(tree) = tree(test, here.path()) else {
        return;
    };
    for way in [&[][..], &["--tcp"], &["--encrypt", "always"]] {
        let there = tempfile::tempdir().unwrap();
        let server = Listener::start(&[&["serve", there.path().to_str().unwrap()], way].concat());
        let copy = there.path().join("tree");
        let send = |more: &[&str]| {
            let paths = &[tree.to_str().unwrap()];
            succeed(&mut server.send(&[way, more, paths].concat()))
        };
        send(&["--no-xattrs"]);
        assert_eq!(attributes(&copy).len(), 0);
        // All files are there: attributes alone are missing.
        let said = send(&["-v"]);
        assert!(said.contains("mz: 0 B in"), "{said}");
        assert_eq!(attributes(&copy), attributes(&tree));
        for name in ["tree/a/large\n", "tree/a/b/7\n", "tree/nothing\n"] {
            assert!(said.contains(name), "{said}");
        }
        assert!(!said.contains("tree/a/b/8\n"), "{said}");
        assert_eq!(listing(&copy), listing(&tree));
        assert!(set_attribute(&copy.join("a/b/8"), "user.other", b"o"));
        send(&["--no-xattrs"]);
        assert!(attributes(&copy).contains_key(Path::new("a/b/8")));
        send(&[]);
        assert_eq!(attributes(&copy), attributes(&tree));
        fs::remove_dir_all(&copy).unwrap();
        send(&["--streams", "4"]);
        assert_eq!(attributes(&copy), attributes(&tree));
    }
}

/// `mz sync` with either end as source; without change nothing shows that a copy would set attributes.
#[test]
fn a_directory_becomes_like_another_with_its_attributes() {
    let test = "a_directory_becomes_like_another_with_its_attributes";
    let here = tempfile::tempdir().unwrap();
    let Some(tree) = tree(test, here.path()) else {
        return;
    };
    let there = tempfile::tempdir().unwrap();
    let server = Listener::start(&["serve", "--code", "c", there.path().to_str().unwrap()]);
    let sync = ["sync", "--code", "c", tree.to_str().unwrap(), &server.host];
    succeed(&mut mz(&sync));
    assert_eq!(attributes(there.path()), attributes(&tree));
    assert!(set_attribute(&tree.join("a/b/9"), "user.late", b"l"));
    let said = succeed(mz(&sync).arg("--dry-run"));
    assert!(
        said.contains("a/b/9\n") && !said.contains("a/b/7\n"),
        "{said}"
    );
    assert_ne!(attributes(there.path()), attributes(&tree));
    let server = Listener::start(&["serve", "--read", "--code", "c", tree.to_str().unwrap()]);
    let from = ["sync", "--code", "c", "--from", &server.host];
    succeed(mz(&from).arg(there.path()));
    assert_eq!(attributes(there.path()), attributes(&tree));
}

/// After `kill -9` of the receiving end no file has its name and lacks attributes, and a further run has them all.
#[test]
fn attributes_are_there_after_kill_9() {
    let here = tempfile::tempdir().unwrap();
    let tree = here.path().join("tree");
    fs::create_dir(&tree).unwrap();
    for index in 0..3000_u64 {
        let name = tree.join(index.to_string());
        let length = if index % 500 == 0 { 3_000_000 } else { 2000 };
        fs::write(&name, octets(index, length)).unwrap();
        if !set_attribute(&name, "user.index", &index.to_be_bytes()) {
            let test = "attributes_are_there_after_kill_9";
            return xtask::skips::skip(test, "the file system has no extended attributes");
        }
    }
    let expected = attributes(&tree);
    for (round, way) in [(0, &[][..]), (1, &["--tcp"]), (2, &[])] {
        let there = tempfile::tempdir().unwrap();
        let receive = [&["recv", "--no-sync", there.path().to_str().unwrap()], way].concat();
        let mut receiver = Listener::start(&receive);
        let mut command = receiver.send(&[way, &["-q", tree.to_str().unwrap()]].concat());
        let mut sender = command.stderr(Stdio::null()).spawn().unwrap();
        let copy = there.path().join("tree");
        let end = Instant::now() + SOON;
        let count = || fs::read_dir(&copy).map_or(0, Iterator::count);
        while count() < 1 + 800 * round && sender.try_wait().unwrap().is_none() {
            assert!(Instant::now() < end, "no entries");
            thread::sleep(Duration::from_millis(1));
        }
        receiver.kill();
        wait(&mut sender);
        let there_now = attributes(&copy);
        for entry in fs::read_dir(&copy).unwrap() {
            let name = PathBuf::from(entry.unwrap().file_name());
            if !name.to_str().unwrap().starts_with('.') {
                assert_eq!(there_now.get(&name), expected.get(&name), "{name:?}");
            }
        }
        let mut receiver = Listener::start(&receive);
        succeed(&mut receiver.send(&[way, &[tree.to_str().unwrap()]].concat()));
        assert!(receiver.ended().0.success());
        assert_eq!(attributes(&copy), expected);
        assert_eq!(listing(&copy), listing(&tree));
    }
}

/// A file system without attributes costs one message at each end, and no file.
#[test]
fn a_file_system_without_attributes_costs_one_message() {
    let test = "a_file_system_without_attributes_costs_one_message";
    let here = tempfile::tempdir().unwrap();
    let Some(tree) = tree(test, here.path()) else {
        return;
    };
    let there = tempfile::tempdir().unwrap();
    // ramfs has none. It may be mounted in a namespace of one's own.
    let script = "mount -t ramfs none \"$0\" && exec \"$@\"";
    let inside = |rest: &[&str]| {
        let mut command = Command::new("unshare");
        let folder = there.path().to_str().unwrap();
        command.args(["-rm", "sh", "-c", script, folder]).args(rest);
        command
    };
    let probe = inside(&["true"]).output();
    if !probe.is_ok_and(|it| it.status.success()) {
        return xtask::skips::skip(test, "no ramfs can be mounted");
    }
    let program = env!("CARGO_BIN_EXE_mz");
    let folder = there.path().to_str().unwrap();
    let serve = ["serve", folder, "--bind", "127.0.0.1:0"];
    let mut server = Listener::of(&mut inside(&[&[program], &serve[..]].concat()));
    let inside = PathBuf::from(format!("/proc/{}/root", server.child.id()));
    let copy = inside.join(there.path().join("tree").strip_prefix("/").unwrap());
    for again in [false, true] {
        let said = succeed(&mut server.send(&[tree.to_str().unwrap()]));
        let remarks = said.matches("extended attributes are not kept").count();
        assert_eq!(remarks, 1, "{said}");
        assert_eq!(said.contains("mz: 0 B in"), again, "{said}");
        assert_eq!(listing(&copy), listing(&tree));
    }
    server.child.kill().unwrap();
    let (_, said) = server.ended();
    assert_eq!(
        said.matches("extended attributes are not kept").count(),
        2,
        "{said}"
    );
}

/// Files and directories that their owner may not write have their attributes, too.
#[test]
fn attributes_of_what_may_not_be_written_are_kept() {
    let test = "attributes_of_what_may_not_be_written_are_kept";
    let here = tempfile::tempdir().unwrap();
    let Some(tree) = tree(test, here.path()) else {
        return;
    };
    let there = tempfile::tempdir().unwrap();
    // Root writes all files by capabilities.
    let mut server = Command::new("setpriv");
    if nix::unistd::geteuid().is_root() {
        server.args(["--bounding-set", "-dac_override,-dac_read_search"]);
    }
    server.arg(env!("CARGO_BIN_EXE_mz"));
    server
        .args(["serve", "--bind", "127.0.0.1:0"])
        .arg(there.path());
    let server = Listener::of(&mut server);
    let set_mode = |mode| {
        let done = Command::new("chmod").args(["-R", mode]).arg(&tree).status();
        assert!(done.unwrap().success());
    };
    set_mode("a-w");
    let copy = there.path().join("tree");
    succeed(&mut server.send(&[tree.to_str().unwrap()]));
    assert_eq!(attributes(&copy), attributes(&tree));
    set_mode("u+w");
    assert!(set_attribute(
        &tree.join("a/b/7"),
        "user.checksum",
        b"another"
    ));
    assert!(set_attribute(&tree.join("empty"), "user.new", b"n"));
    set_mode("a-w");
    let said = succeed(&mut server.send(&[tree.to_str().unwrap()]));
    assert!(said.contains("mz: 0 B in"), "{said}");
    assert_eq!(attributes(&copy), attributes(&tree));
    assert_eq!(listing(&copy), listing(&tree));
    for path in [&tree, &copy] {
        // So that they can be removed.
        let done = Command::new("chmod").args(["-R", "u+w"]).arg(path).status();
        assert!(done.unwrap().success());
    }
}

/// Attributes that the file system has no room for fail their file, with the reason.
#[test]
fn attributes_without_room_are_named() {
    let test = "attributes_without_room_are_named";
    let there = tempfile::tempdir().unwrap();
    // The file system of shared memory has room, that of temporary files may not.
    let Ok(here) = tempfile::tempdir_in("/dev/shm") else {
        return xtask::skips::skip(test, "no /dev/shm");
    };
    let file = here.path().join("file");
    fs::write(&file, "f").unwrap();
    let large = vec![7; 60_000];
    let probe = there.path().join("probe");
    fs::write(&probe, "").unwrap();
    let fits = |path: &Path| set_attribute(path, "user.large", &large);
    if !fits(&file) || fits(&probe) {
        return xtask::skips::skip(
            test,
            "both file systems have room for 60,000 bytes, or neither",
        );
    }
    let server = Listener::start(&["serve", there.path().to_str().unwrap()]);
    let reason = "file: no space for the extended attribute user.large of 60000 octets";
    fail(&mut server.send(&[file.to_str().unwrap()]), reason);
    assert!(!there.path().join("file").exists());
    succeed(&mut server.send(&["--no-xattrs", file.to_str().unwrap()]));
    assert_eq!(fs::read(there.path().join("file")).unwrap(), b"f");
}

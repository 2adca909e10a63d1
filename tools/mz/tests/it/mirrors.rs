//! `mz get` and `mz sync`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::common::{Listener, fail, listing, make_tree, mz, names, octets, run, succeed};

/// A server of a directory, with the code `c`.
fn serve(folder: &Path, options: &[&str]) -> Listener {
    let folder = folder.to_str().unwrap();
    Listener::start(&[&["serve", "--code", "c", folder], options].concat())
}

fn sync(server: &Listener, folder: &Path, options: &[&str]) -> Command {
    let folder = folder.to_str().unwrap();
    mz(&[&["sync", "--code", "c", folder, &server.host], options].concat())
}

fn sync_from(server: &Listener, folder: &Path, options: &[&str]) -> Command {
    let folder = folder.to_str().unwrap();
    mz(&[
        &["sync", "--code", "c", "--from", &server.host, folder],
        options,
    ]
    .concat())
}

fn get(server: &Listener, paths: &[&str], folder: &Path) -> Command {
    let folder = folder.to_str().unwrap();
    mz(&[&["get", "--code", "c", &server.host], paths, &[folder]].concat())
}

#[test]
fn trees_and_files_are_fetched_from_a_server_that_gives_them() {
    let there = tempfile::tempdir().unwrap();
    fs::create_dir(there.path().join("tree")).unwrap();
    make_tree(&there.path().join("tree"));
    fs::write(there.path().join("file"), "f").unwrap();
    for way in [&[][..], &["--tcp"]] {
        let server = serve(there.path(), &[&["--read"], way].concat());
        let here = tempfile::tempdir().unwrap();
        let folder = here.path().join("made");
        for again in [false, true] {
            let mut command = get(&server, &["/tree", "./file"], &folder);
            let said = succeed(command.args(way));
            assert_eq!(listing(there.path()), listing(&folder));
            assert_eq!(said.contains("mz: 0 B in"), again, "{said}");
        }
        // The whole directory.
        let whole = here.path().join("whole");
        succeed(get(&server, &["."], &whole).args(way));
        assert_eq!(listing(there.path()), listing(&whole));
    }
}

#[test]
fn nothing_is_read_or_removed_without_leave_nor_outside() {
    let outer = tempfile::tempdir().unwrap();
    let there = outer.path().join("root");
    fs::create_dir(&there).unwrap();
    fs::write(there.join("mine"), "m").unwrap();
    fs::write(outer.path().join("secret"), "s").unwrap();
    symlink("../secret", there.join("out")).unwrap();
    symlink("..", there.join("up")).unwrap();
    let here = tempfile::tempdir().unwrap();
    let server = serve(&there, &[]);
    fail(&mut get(&server, &["mine"], here.path()), "serve --read");
    fail(&mut sync_from(&server, here.path(), &[]), "serve --read");
    fail(
        &mut sync(&server, here.path(), &["--delete"]),
        "serve --delete",
    );
    assert_eq!(names(&there), ["mine", "out", "up"]);
    let server = serve(&there, &["--read", "--delete"]);
    for (path, reason) in [
        ("../secret", "leaves the directory\n"),
        ("up/secret", "leaves the directory\n"),
        ("missing", "No such file or directory (os error 2)\n"),
        ("mine/x", "Not a directory (os error 20)\n"),
    ] {
        let text = format!("{path}: {reason}");
        fail(&mut get(&server, &[path], here.path()), &text);
    }
    // A link is fetched as a link.
    succeed(&mut get(&server, &["out", "mine"], here.path()));
    assert!(fs::read_link(here.path().join("out")).is_ok());
    assert_eq!(names(here.path()), ["mine", "out"]);
    let wrong = ["get", "--code", "wrong", &server.host, "mine", "x"];
    fail(&mut mz(&wrong), "is the code right?");
    // Through a link that leads out nothing is removed.
    fail(
        &mut sync(&server, here.path(), &["--delete", "--path", "up"]),
        "",
    );
    assert!(outer.path().join("secret").exists());
    fail(
        &mut sync(&server, here.path(), &["--delete", "--path", "../root"]),
        "",
    );
    let usage = ["sync", "--code", "c", "only"];
    assert_eq!(run(&mut mz(&usage)).0, Some(2));
    let pattern = ["sync", "--code", "c", "--exclude", "[", ".", &server.host];
    assert_eq!(run(&mut mz(&pattern)).0, Some(2));
}

/// The target has other entries, others of the same name and such of another kind.
fn make_other(target: &Path) {
    fs::create_dir_all(target.join("old/er")).unwrap();
    fs::write(target.join("old/er/file"), "o").unwrap();
    fs::create_dir_all(target.join("a/large/directory")).unwrap();
    fs::write(target.join("a/large/directory/x"), "x").unwrap();
    fs::write(target.join("a/b"), "not a directory").unwrap();
    fs::create_dir(target.join("elsewhere")).unwrap();
    fs::write(target.join("elsewhere/stays"), "s").unwrap();
    symlink("elsewhere", target.join("empty")).unwrap();
    fs::write(target.join("keep.log"), "kept").unwrap();
    fs::write(target.join("elsewhere/keep.log"), "kept").unwrap();
    fs::write(target.join("nothing"), "something").unwrap();
}

#[test]
fn a_directory_becomes_like_another_in_both_directions() {
    let here = tempfile::tempdir().unwrap();
    make_tree(here.path());
    fs::write(here.path().join("a/debug.log"), "left out").unwrap();
    fs::write(here.path().join("a/main.log"), "taken").unwrap();
    let expected = || {
        let mut expected = listing(here.path());
        expected.retain(|line| !line.contains("debug.log"));
        expected
    };
    let options = [
        "--delete",
        "--exclude=*.log",
        "--include=main.log",
        "--exclude=nowhere/",
    ];
    for way in [&[][..], &["--tcp"]] {
        for push in [true, false] {
            let target = tempfile::tempdir().unwrap();
            make_other(target.path());
            let server = if push {
                serve(target.path(), &[&["--delete"], way].concat())
            } else {
                serve(here.path(), &[&["--read"], way].concat())
            };
            let command = |more: &[&str]| {
                let options = [&options[..], way, more].concat();
                if push {
                    sync(&server, here.path(), &options)
                } else {
                    sync_from(&server, target.path(), &options)
                }
            };
            let before = listing(target.path());
            let said = succeed(&mut command(&["--dry-run"]));
            assert_eq!(listing(target.path()), before);
            for line in [
                "removed old/er/file\n",
                "removed old\n",
                "a/large\n",
                "a/main.log\n",
            ] {
                assert!(said.contains(line), "{line}: {said}");
            }
            assert!(!said.contains("debug.log"), "{said}");
            let said = succeed(&mut command(&["-v"]));
            assert!(said.contains("removed old\n"), "{said}");
            let mut got = listing(target.path());
            // Left out, and so neither sent nor removed.
            got.retain(|line| !line.contains("keep.log") && !line.starts_with("\"elsewhere\""));
            assert_eq!(got, expected(), "{said}");
            let kept = fs::read(target.path().join("elsewhere/keep.log")).unwrap();
            assert_eq!(kept, b"kept");
            let said = succeed(&mut command(&[]));
            assert!(said.contains("mz: 0 B in"), "{said}");
            assert!(!said.contains("removed"), "{said}");
        }
    }
}

#[test]
fn nothing_is_removed_where_a_directory_cannot_be_read() {
    if nix::unistd::geteuid().is_root() {
        // Root reads all: a name that no frame holds stands for it.
        let here = tempfile::tempdir().unwrap();
        let target = tempfile::tempdir().unwrap();
        fs::write(target.path().join("old"), "o").unwrap();
        fs::write(here.path().join("new"), "n").unwrap();
        let socket = here.path().join("socket");
        let listener = std::os::unix::net::UnixListener::bind(socket).unwrap();
        let server = serve(target.path(), &["--delete"]);
        fail(&mut sync(&server, here.path(), &["--delete"]), "socket");
        assert_eq!(names(target.path()), ["new", "old"]);
        // The end that fetches learns of it.
        let server = serve(here.path(), &["--read"]);
        fail(
            &mut sync_from(&server, target.path(), &["--delete"]),
            "socket",
        );
        assert_eq!(names(target.path()), ["new", "old"]);
        drop(listener);
    }
}

#[test]
fn many_entries_are_removed_and_reported() {
    let here = tempfile::tempdir().unwrap();
    let target = tempfile::tempdir().unwrap();
    for index in 0..2000_u64 {
        let name = format!("{index}-{}", "n".repeat(60));
        fs::write(target.path().join(&name), octets(index, 10)).unwrap();
        if index % 2 == 0 {
            fs::copy(target.path().join(&name), here.path().join(&name)).unwrap();
        }
    }
    let server = serve(target.path(), &["--delete"]);
    let said = succeed(&mut sync(&server, here.path(), &["--delete", "-v"]));
    assert_eq!(said.matches("removed ").count(), 1000, "{said}");
    assert!(said.contains("1000 removed"), "{said}");
    assert_eq!(listing(here.path()), listing(target.path()));
}

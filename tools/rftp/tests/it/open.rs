//! `rftp open`, with commands from a pipe.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::certificates::Certificates;
use crate::common::{Server, names, octets, succeed};
use crate::hostile_server::{listed, serve};

/// Runs commands in a directory: exit status, and all that was said.
fn converse(here: &Path, arguments: &[&str], commands: &str) -> (Option<i32>, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_rftp"))
        .arg("open")
        .args(arguments)
        .current_dir(here)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(commands.as_bytes()).unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    (output.status.code(), said)
}

#[test]
fn commands_do_what_they_say() {
    let folder = tempfile::tempdir().unwrap();
    let (root, here) = (folder.path().join("root"), folder.path().join("here"));
    fs::create_dir_all(root.join("a b/deep")).unwrap();
    fs::create_dir_all(here.join("sub")).unwrap();
    for name in ["one.txt", "two.txt", "three"] {
        fs::write(root.join("a b/deep").join(name), octets(1, 2_000_000)).unwrap();
        fs::write(here.join(name), octets(2, 1000)).unwrap();
    }
    let server = Server::start(&root, &["--write"]);
    let host = format!("127.0.0.1:{}", server.port);
    let commands = "pwd\ncd \"a b\"\npwd\nls deep\nget deep/three\nlcd sub\nlcd\nget deep/one.txt first\n\
        mget deep/t*\nrget deep\nlcd ..\nput one.txt\nput two.txt new\nmput one.txt two.txt\nrput sub copied\n\
        rmput sub one.txt\nmkdir made\nrmdir made\nrename new newer\nrm one.txt\nhelp\nquit\nnothing\n";
    let (status, said) = converse(&here, &[&host], commands);
    assert_eq!(status, Some(0), "{said}");
    for expected in ["/\n/a b\n", "2000000", " one.txt\n", "here/sub\n", "rmput"] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    let sub = here.join("sub");
    assert_eq!(names(&sub), ["deep", "first", "three", "two.txt"]);
    assert_eq!(names(&sub.join("deep")), ["one.txt", "three", "two.txt"]);
    assert_eq!(fs::read(here.join("three")).unwrap(), octets(1, 2_000_000));
    let there = root.join("a b");
    assert_eq!(names(&there), ["copied", "deep", "newer", "sub", "two.txt"]);
    assert_eq!(fs::read(there.join("newer")).unwrap(), octets(2, 1000));
    succeed(
        Command::new("diff")
            .arg("-r")
            .arg(&sub)
            .arg(there.join("copied")),
    );
    // By a session at once, as another URL has it.
    let url = server.url("a%20b");
    let (status, said) = converse(&here, &[&url], "rget newer\n");
    assert_eq!(status, Some(0), "{said}");
    assert_eq!(fs::read(here.join("newer")).unwrap(), octets(2, 1000));
}

#[test]
fn commands_that_fail_are_counted() {
    let root = tempfile::tempdir().unwrap();
    let here = tempfile::tempdir().unwrap();
    let server = Server::start(root.path(), &[]);
    let host = format!("127.0.0.1:{}", server.port);
    let commands = format!(
        "pwd\nxyzzy\nget\ncd 'a\nopen ftp://{host}/none\nopen {host}\nget none\nmkdir x\nmget x*\nlcd none\ncd x\\\nuser ann b\npwd\n"
    );
    let (status, said) = converse(here.path(), &[], &commands);
    assert_eq!(status, Some(1), "{said}");
    for expected in [
        "not connected",
        "xyzzy: not a command",
        "a quote without its end",
        "No such file or directory (550)",
        "Only reading is permitted (550)",
        "nothing matches",
        "not logged in",
        "12 commands failed",
    ] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    assert!(names(here.path()).is_empty());
    let (status, said) = converse(here.path(), &["sftp://x"], "");
    assert_eq!(status, Some(2), "{said}");
}

/// Sessions are for `rftpd`; the other commands are for all servers.
#[test]
fn other_servers_have_no_sessions() {
    let here = tempfile::tempdir().unwrap();
    let host = serve(listed("")).to_string();
    let commands = "rget f\nrget f y\nrput f\nrput f y\nrmput f\nget f\nget f y\n";
    let (status, said) = converse(here.path(), &[&host], commands);
    assert_eq!(status, Some(1), "{said}");
    assert_eq!(said.matches("the server is no rftpd").count(), 5, "{said}");
    assert!(said.contains("rftp: 5 commands failed"), "{said}");
    assert_eq!(names(here.path()), ["f", "y"]);
}

#[test]
fn conversations_go_under_tls() {
    let certificates = Certificates::new();
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("x"), "x").unwrap();
    let here = tempfile::tempdir().unwrap();
    let tls = certificates.server("server");
    let tls: Vec<_> = tls.iter().map(String::as_str).collect();
    let server = Server::start(root.path(), &[&["--tls-required"], &tls[..]].concat());
    let host = format!("127.0.0.1:{}", server.port);
    let arguments = ["--tls", "--ca", &certificates.path("ca.pem"), &host];
    let (status, said) = converse(here.path(), &arguments, "ls\nget x\nrget x y\n");
    assert_eq!(status, Some(0), "{said}");
    assert_eq!(names(here.path()), ["x", "y"]);
    let (status, said) = converse(here.path(), &[&host], "ls\n");
    assert_eq!(status, Some(1), "{said}");
}

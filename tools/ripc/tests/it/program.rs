//! Subcommands.

use std::fs;

use super::{Server, ripc};

#[test]
fn files_are_served_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let big: Vec<_> = (0..3_000_000_u32)
        .map(|at| (at % 251).to_le_bytes()[0])
        .collect();
    fs::write(folder.path().join("big"), &big).unwrap();
    fs::write(folder.path().join("small"), "few\n").unwrap();
    fs::write(folder.path().join("empty"), "").unwrap();
    std::os::unix::fs::symlink("/etc/passwd", folder.path().join("out")).unwrap();
    let server = Server::start(folder.path());
    let call = |words: &[&str]| {
        let at = ["call", "--timeout", "60", "--at", &server.address, "files"];
        ripc().args(at).args(words).output().unwrap()
    };
    // Read, and written into memory of the caller's.
    for words in [&["get", "big"][..], &["get", "big", "--room", "3000000"]] {
        let output = call(words);
        assert!(output.status.success(), "{output:?}");
        assert!(output.stdout == big, "{words:?}");
    }
    assert_eq!(call(&["get", "small"]).stdout, b"few\n");
    assert_eq!(call(&["get", "empty"]).stdout, b"");
    for (urgency, status) in [("0", 0), ("7", 0), ("8", 2), ("", 2)] {
        let output = call(&["get", "small", "--urgency", urgency]);
        assert_eq!(output.status.code(), Some(status), "{urgency} {output:?}");
    }
    assert_eq!(call(&["list"]).stdout, b"big\nempty\nsmall\n");
    for (words, status) in [
        (&["get", "none"][..], 64 + 5),
        (&["get", "../x"], 64 + 3),
        (&["get", "/etc/passwd"], 64 + 3),
        (&["get", "out"], 64 + 3),
        (&["get", ""], 64 + 3),
        (&["put", "x"], 64 + 12),
    ] {
        let output = call(words);
        assert_eq!(output.status.code(), Some(status), "{words:?} {output:?}");
        assert!(output.stdout.is_empty() && output.stderr.starts_with(b"ripc: "));
    }
}

#[test]
fn pings_are_answered() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let output = ripc()
        .args([
            "ping",
            "--at",
            &server.address,
            "files",
            "-c",
            "3",
            "-i",
            "0.01",
            "--urgency",
            "0",
        ])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(text.ends_with("3 of 3 answered\n"), "{text}");
}

#[test]
fn a_file_of_services_and_the_group_name_the_address() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("small"), "few\n").unwrap();
    let server = Server::start(folder.path());
    let services = folder.path().join("services");
    fs::write(&services, format!("files {} # here\n", server.address)).unwrap();
    let call = |words: &[&str]| {
        ripc()
            .arg("call")
            .args(words)
            .args(["files", "get", "small"])
            .output()
    };
    let output = call(&["--file", services.to_str().unwrap()]).unwrap();
    assert_eq!(output.stdout, b"few\n", "{output:?}");
    let output = call(&["--interface", "127.0.0.1", "--resolve", "60"]).unwrap();
    // Another server of this name may be in the group: of tests, or of the machine's user.
    assert!(
        output
            .status
            .code()
            .is_some_and(|code| code == 0 || code == 69),
        "{output:?}"
    );
    let output = ripc()
        .args(["list", "--interface", "127.0.0.1", "--time", "3"])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains(&server.address), "{text}");
    fs::write(&services, "files nowhere\n").unwrap();
    let output = call(&["--file", services.to_str().unwrap()]).unwrap();
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn the_benchmark_has_its_rows() {
    let output = ripc()
        .args([
            "bench", "--rounds", "50", "--size", "50,1400", "--long", "1M",
        ])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success(),
        "{text} {:?}",
        String::from_utf8_lossy(&output.stderr)
    );
    for row in [
        "     50 ",
        "   1400 ",
        "     TCP ",
        " written ",
        "    read ",
    ] {
        assert!(text.contains(row), "{text}");
    }
}

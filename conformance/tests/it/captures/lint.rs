//! `dgiwarp-conform lint` as a program: what it prints, and its exit status.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dgiwarp-conform"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn lint(arguments: &[&str], file: &Path) -> Output {
    program(&["lint"])
        .args(arguments)
        .arg(file)
        .output()
        .unwrap()
}

#[test]
fn status_and_text_say_what_was_found() {
    let good = lint(&[], &super::folder().join("rping-default.pcap"));
    assert_eq!(good.status.code(), Some(0), "{good:?}");
    let text = String::from_utf8(good.stdout).unwrap();
    assert!(
        text.contains("1 iWARP connections of 1 by TCP, 21 FPDUs"),
        "{text}"
    );

    let bad = lint(&[], &super::folder().join("rping-terminate.pcap"));
    assert_eq!(bad.status.code(), Some(1), "{bad:?}");
    let text = String::from_utf8(bad.stdout).unwrap();
    assert!(
        text.starts_with("FAIL terminate-reserved RFC 5040 §4.8"),
        "{text}"
    );
    assert!(text.contains("deviates terminate-figure"), "{text}");
}

#[test]
fn json_is_one_document() {
    let done = lint(&["--json"], &super::folder().join("rping-terminate.pcap"));
    assert_eq!(done.status.code(), Some(1), "{done:?}");
    let document: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(document["fpdus"], 5);
    assert_eq!(document["connections"]["iwarp"], 1);
    assert_eq!(document["rules"]["terminate-reserved"], 1);
    let items = document["items"].as_array().unwrap();
    assert_eq!(items.len(), 2);
    assert_eq!(items[0]["clause"], "RFC 5040 §4.8");
    assert!(items[0]["octets"].as_str().unwrap().starts_with("00264147"));
}

#[test]
fn what_cannot_be_judged_at_all_has_a_status_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    assert_eq!(lint(&[], &file).status.code(), Some(3), "no file");
    std::fs::write(&file, "no capture").unwrap();
    assert_eq!(lint(&[], &file).status.code(), Some(3), "no capture");
    // The header of a capture file, and no packet.
    let whole = std::fs::read(super::folder().join("rping-default.pcap")).unwrap();
    std::fs::write(&file, &whole[..24]).unwrap();
    let empty = lint(&[], &file);
    assert_eq!(empty.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&empty.stderr).contains("no RDMA traffic"));
    assert_eq!(
        program(&["lint"]).output().unwrap().status.code(),
        Some(2),
        "usage"
    );
}

#[test]
fn whoever_has_seen_enough_may_go() {
    let capture = super::folder().join("rping-terminate.pcap");
    for arguments in [
        &["list"][..],
        &["list", "--json"],
        &["clauses"],
        &["lint", capture.to_str().unwrap()],
    ] {
        let mut child = program(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        // Findings from before its reader went count.
        assert!(
            matches!(output.status.code(), Some(0 | 1)) && output.stderr.is_empty(),
            "{arguments:?}: {output:?}"
        );
    }
}

//! The examples run, each as one command.

use std::env;
use std::path::PathBuf;
use std::process::Command;

/// The program of an example. `cargo test` compiles it, but not if this test alone was asked for.
fn program(name: &str) -> PathBuf {
    let test = env::current_exe().unwrap();
    let program = test.ancestors().nth(2).unwrap().join("examples").join(name);
    if !program.is_file() {
        let built = Command::new(env!("CARGO"))
            .args([
                "build",
                "--all-features",
                "--package",
                "dgiwarp",
                "--example",
                name,
            ])
            .status();
        assert!(built.unwrap().success());
    }
    program
}

/// Runs an example and returns what it prints.
#[track_caller]
fn run(name: &str) -> String {
    let output = Command::new(program(name)).output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{}: {printed}{errors}",
        output.status
    );
    printed
}

#[test]
fn send_recv() {
    let text = run("send_recv");
    assert!(
        text.contains("asks: six by seven?") && text.contains("answers: forty-two"),
        "{text}"
    );
}

#[test]
fn reliable() {
    let text = run("reliable");
    assert!(text.contains("60 answers of 3 peers"), "{text}");
}

#[test]
fn write_record() {
    let text = run("write_record");
    assert!(text.contains("of 100000 octets are valid"), "{text}");
}

#[test]
fn rdma_read() {
    let text = run("rdma_read");
    assert!(text.contains("1000000 octets read"), "{text}");
}

#[test]
fn multicast() {
    let text = run("multicast");
    for member in 1..=3 {
        assert!(
            text.contains(&format!("member {member}: 127.0.0.1:")),
            "{text}"
        );
    }
    assert_eq!(
        text.matches("says: news for everybody").count(),
        3,
        "{text}"
    );
}

#[test]
fn async_tokio() {
    assert_eq!(run("async_tokio").matches("100 right answers").count(), 3);
}

//! What `dgiwarp-run` says when it cannot or need not run anything.

#![allow(
    clippy::unwrap_used,
    reason = "a test stops where something is not as expected"
)]

mod common;

use common::{RUN, compile, scratch, succeed};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

fn fails(command: &mut Command, status: i32) -> String {
    let Output {
        status: got,
        stderr,
        ..
    } = command.output().unwrap();
    let text = String::from_utf8(stderr).unwrap();
    assert_eq!(got.code(), Some(status), "{text}");
    text
}

#[test]
fn alone_it_shows_the_device_and_three_programs() {
    let output = succeed(&mut Command::new(RUN));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("dgiwarp0: "), "{text}");
    assert_eq!(
        text.lines()
            .filter(|line| line.trim_start().starts_with("dgiwarp-run "))
            .count(),
        3,
        "{text}"
    );
}

#[test]
fn a_missing_program_names_its_package() {
    let text = fails(
        Command::new(RUN)
            .arg("ib_write_bw")
            .env("PATH", "/nonexistent"),
        127,
    );
    assert!(
        text.contains("not found") && text.contains("apt install perftest"),
        "{text}"
    );
    let text = fails(Command::new(RUN).arg("no-such-program-at-all"), 127);
    assert!(
        text.contains("not found") && !text.contains("apt"),
        "{text}"
    );
    fails(Command::new(RUN).arg("--no-such-option"), 2);
}

#[test]
fn programs_that_would_ignore_the_library_are_refused_with_the_reason() {
    let directory = scratch("refused");
    let plain = directory.join("plain");
    fs::write(&plain, "no program").unwrap();
    assert!(fails(Command::new(RUN).arg(&plain), 126).contains("not an executable"));
    fs::set_permissions(&plain, PermissionsExt::from_mode(0o755)).unwrap();
    assert!(
        fails(Command::new(RUN).arg(&plain), 126).contains("neither an ELF program nor a script")
    );

    // The wrapper itself with another machine in its ELF header.
    let mut foreign = fs::read(RUN).unwrap();
    foreign[18..20].copy_from_slice(&243_u16.to_le_bytes());
    let path = directory.join("foreign");
    fs::write(&path, foreign).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    let text = fails(Command::new(RUN).arg(&path), 126);
    assert!(text.contains("riscv64"), "{text}");

    let Some(program) = compile(
        "static",
        &directory,
        "int main(void) { return 0; }",
        &["-static"],
    ) else {
        return;
    };
    let text = fails(Command::new(RUN).arg(program), 126);
    assert!(text.contains("statically linked"), "{text}");
}

#[test]
fn a_script_runs_with_its_interpreter() {
    let directory = scratch("script");
    let script = directory.join("script");
    fs::write(&script, "#!/bin/sh\necho \"$LD_PRELOAD\"\n").unwrap();
    fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    let output = succeed(Command::new(RUN).arg(&script));
    assert!(
        String::from_utf8(output.stdout)
            .unwrap()
            .contains("libibverbs.so.1")
    );
}

#[test]
fn the_end_of_the_process_writes_statistics_and_the_log_says_what_fails() {
    const LEAVES_IT_OPEN: &str = "
        #include <infiniband/verbs.h>
        int main(void) {
            struct ibv_device **list = ibv_get_device_list(0);
            return list && ibv_open_device(list[0]) ? 0 : 1;
        }";
    let directory = scratch("statistics");
    let Some(program) = compile("leaves_it_open", &directory, LEAVES_IT_OPEN, &["-libverbs"])
    else {
        return;
    };
    let says = |file: &str, level: &str| {
        let mut command = Command::new(RUN);
        command.arg(&program);
        command.env("DGIWARP_STATS", file).env("DGIWARP_LOG", level);
        String::from_utf8(succeed(&mut command).stderr).unwrap()
    };
    let text = says("-", "warn");
    assert!(text.starts_with("{\"queue_pairs\":0,\"pid\":"), "{text}");
    assert_eq!(text.lines().count(), 1);
    let text = says("/nonexistent/file", "warn");
    assert!(
        text.contains("WARN") && text.contains("cannot write statistics"),
        "{text}"
    );
    assert_eq!(says("/nonexistent/file", "off"), "");
    let text = says("", "loud");
    assert!(
        text.contains("DGIWARP_LOG=loud is not understood"),
        "{text}"
    );
}

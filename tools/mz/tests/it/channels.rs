//! Channels of programs in C: the example of `verbs/channel`, with another of its kind and with a peer in Rust.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use dgiwarp_channel::{Channel, Config, Error, Listener};

const SOON: Duration = Duration::from_secs(30);
/// Seconds for the program in C.
const SECONDS: &str = "30";

fn libraries() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_mz"));
    program.with_file_name("deps")
}

fn compile(folder: &Path) -> PathBuf {
    let program = folder.join("blocks");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../verbs/channel");
    let output = Command::new("gcc")
        .args(["-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program)
        .arg(source.join("examples/blocks.c"))
        .arg("-I")
        .arg(source.join("include"))
        .arg("-L")
        .arg(libraries())
        .arg("-ldgiwarpchannel")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    program
}

fn start(program: &Path, words: &[&str]) -> Child {
    Command::new(program)
        .args(words)
        .env("LD_LIBRARY_PATH", libraries())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// A consumer and its port.
fn consumer(program: &Path) -> (Child, BufReader<ChildStdout>, u16) {
    let mut child = start(program, &["listen", SECONDS]);
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    (child, output, line.trim().parse().unwrap())
}

fn rest(mut output: impl std::io::Read) -> String {
    let mut text = String::new();
    output.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn programs_in_c_exchange_blocks() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path());
    let (mut child, output, port) = consumer(&program);
    let produced = start(&program, &["127.0.0.1", &port.to_string(), "100"]);
    let produced = produced.wait_with_output().unwrap();
    assert!(produced.status.success(), "{produced:?}");
    let numbers = 100 * 65_536 / 8_u64;
    let expected = format!("{numbers} numbers, sum {}\n", numbers * (numbers - 1) / 2);
    assert_eq!(rest(output), expected);
    assert!(child.wait().unwrap().success());
}

#[test]
fn programs_in_c_and_in_rust_exchange_blocks() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path());
    let mut config = Config::default();
    config.slot_size = 80;
    config.slots = 1;
    let listener = Listener::bind(([127, 0, 0, 1], 0).into(), config).unwrap();
    let port = listener.local_addr().port().to_string();
    let producer = start(&program, &["localhost", &port, "7"]);
    let channel = listener.accept(SOON).unwrap();
    let mut next = 0_u64;
    while let Some(block) = channel.next(SOON).unwrap() {
        for number in block.to_vec().as_chunks().0 {
            assert_eq!(u64::from_ne_bytes(*number), next);
            next += 1;
        }
    }
    assert_eq!(next, 70);
    assert!(producer.wait_with_output().unwrap().status.success());

    // A peer that goes without closing, and one that breaks off the connection of a program in C.
    let (mut child, output, port) = consumer(&program);
    let channel = Channel::connect(([127, 0, 0, 1], port).into(), Config::default()).unwrap();
    let mut slot = channel.acquire(SOON).unwrap();
    slot.write(0, &[1, 0, 0, 0, 0, 0, 0, 0]);
    channel.publish(slot, 8).unwrap();
    drop(channel);
    assert_eq!(rest(output), "");
    let message = rest(child.stderr.take().unwrap());
    assert_eq!(message, "next: Connection reset by peer\n");
    assert_eq!(child.wait().unwrap().code(), Some(1));

    let producer = start(&program, &["127.0.0.1", &port.to_string(), "1"]);
    let output = producer.wait_with_output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(message, "connect: Connection refused\n");

    let mut producer = start(
        &program,
        &[
            "127.0.0.1",
            &listener.local_addr().port().to_string(),
            "1000",
        ],
    );
    let channel = listener.accept(SOON).unwrap();
    assert!(channel.next(SOON).unwrap().is_some());
    producer.kill().unwrap();
    producer.wait().unwrap();
    let error = loop {
        if let Err(error) = channel.next(SOON) {
            break error;
        }
    };
    assert!(matches!(error, Error::Lost(_)), "{error}");
}

//! Our connected queue pairs and our datagrams as an independent decoder sees them: every FPDU is found, none is malformed, no CRC is bad.

mod datagrams;
mod decoded;
mod exchange;
mod reliable;

use std::env;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};

use decoded::Decoded;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use xtask::lab::Namespace;

/// Names what this process is, where a test started it.
const ROLE: &str = "TEST_ROLE";

fn skip(reason: &str) {
    xtask::skips::skip("tshark", reason);
}

/// Runs this test in a namespace with nobody else's traffic, captures it, and gives the number of FPDUs that were sent, and of those on
/// connections without CRCs.
fn captured(file: &Path) -> Option<(usize, usize)> {
    for (program, package) in [("tshark", "tshark"), ("dumpcap", "wireshark-common")] {
        if xtask::debian::find_program(program).is_none() {
            skip(&format!("{program} is missing (Debian package {package})"));
            return None;
        }
    }
    let namespace = xtask::skips::made("tshark", Namespace::new())?;
    let mut capture = start_capture(&namespace, file);
    let output = namespace
        .command(env::current_exe().unwrap())
        .args([
            "tshark::another_decoder_finds_every_fpdu",
            "--exact",
            "--nocapture",
        ])
        .env(ROLE, "exchange")
        .output()
        .unwrap();
    // dumpcap writes what the kernel still has, then ends.
    let pid = Pid::from_raw(i32::try_from(capture.id()).unwrap());
    kill(pid, Signal::SIGINT).unwrap();
    capture.wait().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}{complained}");
    let count = said.lines().find_map(|line| line.split_once("fpdus="));
    let (_, counts) = count.expect("the exchange says how many FPDUs there were");
    let (fpdus, without_crc) = counts.trim().split_once(' ').unwrap();
    Some((fpdus.parse().unwrap(), without_crc.parse().unwrap()))
}

fn start_capture(namespace: &Namespace, file: &Path) -> Child {
    let mut capture = namespace
        .command("dumpcap")
        .args(["-q", "-i", "lo", "-f", "tcp", "-B", "64", "-w"])
        .arg(file)
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It says which file it writes once it captures.
    let told = BufReader::new(capture.stderr.take().unwrap())
        .lines()
        .map_while(Result::ok)
        .any(|line| line.starts_with("File: "));
    assert!(told, "dumpcap does not capture");
    capture
}

#[test]
fn another_decoder_finds_every_fpdu() {
    if env::var_os(ROLE).is_some() {
        return exchange::run();
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("exchange.pcapng");
    let Some((said, without_crc)) = captured(&file) else {
        return;
    };
    let decoded = Decoded::read(&file);
    assert_eq!(decoded.malformed, Vec::<String>::new());
    assert_eq!(decoded.unexpected_experts(), Vec::<String>::new());
    assert_eq!(decoded.fpdus, said, "FPDUs found, and sent");
    assert_eq!(decoded.terminates, 1);
    assert!(without_crc > 0);
    let checked = said - without_crc;
    assert_eq!((decoded.good_crcs, decoded.bad_crcs), (checked, 0));

    // The decoder does look at CRCs: one octet of one payload, changed.
    let mut octets = std::fs::read(&file).unwrap();
    let payload: Vec<u8> = (200..232).map(exchange::pattern).collect();
    let found = octets
        .windows(payload.len())
        .position(|window| window == payload);
    octets[found.unwrap()] ^= 1;
    std::fs::write(&file, octets).unwrap();
    let decoded = Decoded::read(&file);
    assert_eq!((decoded.good_crcs, decoded.bad_crcs), (checked - 1, 1));
}

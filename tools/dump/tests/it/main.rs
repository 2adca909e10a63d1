//! The program on recorded traffic.

#![expect(clippy::unwrap_used, reason = "what the system refuses fails the test")]

mod qlog;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn capture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../conformance/interop/captures")
        .join(name)
}

fn dump(arguments: &[&str], file: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_dgiwarp-dump"))
        .args(arguments)
        .arg(file)
        .output()
        .unwrap()
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn one_line_for_each_frame_and_a_note_for_each_finding() {
    let shown = text(&dump(&[], &capture("rping-terminate.pcap")));
    let lines: Vec<_> = shown.lines().collect();
    // Two startup frames, five FPDUs, and two notes on siw's Terminate.
    assert_eq!(lines.len(), 9, "{shown}");
    assert!(lines[0].contains("MPA Request, revision 2"), "{shown}");
    assert!(
        lines[2].ends_with("Send, 16 octets, QN 0, MSN 1, MO 0; CRC off"),
        "{shown}"
    );
    assert!(
        lines
            .iter()
            .any(|line| line.starts_with("    ! RFC 5040 §4.8 MUST terminate-reserved"))
    );
    let findings = text(&dump(&["--findings"], &capture("rping-terminate.pcap")));
    assert_eq!(findings.lines().count(), 2);
    let none = text(&dump(&["--port", "9"], &capture("rping-terminate.pcap")));
    assert_eq!(none, "");
}

#[test]
fn fields_have_the_names_of_the_rfcs_in_text_and_json() {
    let shown = text(&dump(&["-v", "-x"], &capture("rping-terminate.pcap")));
    for field in [
        "    Data Sink STag = 0x",
        "    ULPDU_Length = ",
        "    Error Code = 0x01",
        "    IRD = ",
    ] {
        assert!(shown.contains(field), "{field}: {shown}");
    }
    assert!(
        shown.contains("    0000  4d 50 41 20 49 44 20 52 65 71"),
        "{shown}"
    );
    let json = text(&dump(&["--json"], &capture("rping-terminate.pcap")));
    let items: Vec<serde_json::Value> = json
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(items.len(), 9);
    let request = items
        .iter()
        .find(|item| item["fields"]["Opcode"] == "1")
        .unwrap();
    assert_eq!(
        (&request["kind"], &request["fields"]["QN"]),
        (&"fpdu".into(), &"1".into())
    );
    assert_eq!(
        items
            .iter()
            .filter(|item| item["kind"] == "finding")
            .count(),
        2
    );
}

/// A capture file of raw IP with these datagrams of UDP.
fn datagrams(path: &Path, all: &[Vec<u8>]) {
    let header: [u32; 6] = [0xa1b2_c3d4, 0x0002_0004, 0, 0, 262_144, 101];
    let mut file: Vec<u8> = header.into_iter().flat_map(u32::to_be_bytes).collect();
    for octets in all {
        let mut ip = etherparse::Ipv4Header::new(
            u16::try_from(8 + octets.len()).unwrap(),
            64,
            etherparse::IpNumber::UDP,
            [10, 0, 0, 1],
            [10, 0, 0, 2],
        )
        .unwrap();
        ip.dont_fragment = true;
        let mut packet = Vec::new();
        let builder = etherparse::PacketBuilder::ip(etherparse::IpHeaders::Ipv4(
            ip,
            etherparse::Ipv4Extensions::default(),
        ));
        builder
            .udp(40_000, 50_000)
            .write(&mut packet, octets)
            .unwrap();
        let length = u32::try_from(packet.len()).unwrap();
        file.extend(
            [0, 0, length, length]
                .into_iter()
                .flat_map(u32::to_be_bytes),
        );
        file.extend(packet);
    }
    std::fs::write(path, file).unwrap();
}

/// The examples of the specification of reliable datagrams.
#[test]
fn reliable_datagrams_are_shown_frame_by_frame() {
    let text_of = include_str!("../../../../rfc-notes/reliable-datagrams.md");
    let examples: Vec<Vec<u8>> = (text_of.split("```example ").skip(1))
        .map(|block| {
            let block = block.split("```").next().unwrap();
            let words = block.lines().filter(|line| line.starts_with("51 "));
            let from = words.map(|line| block.find(line).unwrap()).next().unwrap();
            let words = block[from..].split_whitespace();
            words
                .map(|word| u8::from_str_radix(word, 16).unwrap())
                .collect()
        })
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("reliable.pcap");
    datagrams(&file, &examples);
    let shown = text(&dump(&[], &file));
    assert_eq!(shown.lines().count(), examples.len(), "{shown}");
    for part in [
        "association 0x0, packet 0, eager; HELLO association 0xa0b0c0d, 16 receives, 262144 octets; SEGMENT 0 of message 0, index 0, last: Send, 5 octets",
        "; ACK 99-100 96-97 0-89, 250 µs, ECN 90/0/4; PLACED before 1000 and 0x1; CREDIT 24 receives, 131072 octets; CRC good",
        "RNR message 5 in packet 41",
        "CLOSE, unknown association",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let shown = text(&dump(&["-v"], &file));
    for field in [
        "    HELLO Cookie = 0x1111111122222222",
        "    SEGMENT Message Number = 511",
        "    ACK Ranges = 99-100 96-97 0-89",
        "    Packet Number = 4886718345",
        "    ERROR Message Number = 6",
    ] {
        assert!(shown.contains(field), "{field}: {shown}");
    }
    assert_eq!(text(&dump(&["--findings"], &file)), "");
}

#[test]
fn a_pipe_is_followed_and_shown_as_it_comes() {
    let whole = std::fs::read(capture("rping-crc.pcap")).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_dgiwarp-dump"))
        .arg("-")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = std::io::BufReader::new(child.stdout.take().unwrap());
    // The Request is shown while the writer is still there.
    input.write_all(&whole[..600]).unwrap();
    input.flush().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut output, &mut line).unwrap();
    assert!(line.contains("MPA Request"), "{line}");
    input.write_all(&whole[600..]).unwrap();
    drop(input);
    let lines = std::io::BufRead::lines(output).count();
    assert!(child.wait().unwrap().success());
    assert_eq!(lines, 22);
}

#[test]
fn whoever_has_seen_enough_may_go() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_dgiwarp-dump"))
        .arg("-x")
        .arg(capture("write_bw-lo64k.pcap"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
}

#[test]
fn what_is_no_capture_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("none");
    std::fs::write(&file, "nothing of the kind").unwrap();
    let output = dump(&[], &file);
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stderr).contains("not a capture file"));
    assert_eq!(
        dump(&[], &folder.path().join("absent")).status.code(),
        Some(3)
    );
}

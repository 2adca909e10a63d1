//! Capture files, read back.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::common::node::Node;
use crate::common::{crc32c, file_in, skip};
use dgiwarp::{Config, DropReason, Fault};
use etherparse::{NetHeaders, PacketHeaders};

/// A directory of its own, removed at the end.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A packet of a capture file.
#[derive(Debug)]
struct Captured {
    nanos: u64,
    sent: bool,
    source: (IpAddr, u16),
    destination: (IpAddr, u16),
    datagram: Vec<u8>,
    comment: Option<String>,
}

impl Captured {
    fn has_valid_crc(&self) -> bool {
        let (covered, crc) = self.datagram.split_last_chunk().unwrap();
        crc32c(covered).to_le_bytes() == *crc
    }
}

fn u16_at(octets: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes([octets[at], octets[at + 1]]))
}

fn u32_at(octets: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(octets[at..at + 4].try_into().unwrap())
}

/// The value of an option of a block.
fn option(mut options: &[u8], wanted: usize) -> Option<&[u8]> {
    loop {
        let (code, length) = (u16_at(options, 0), u16_at(options, 2));
        match code {
            0 => return None,
            code if code == wanted => return Some(&options[4..4 + length]),
            _ => options = &options[4 + length.next_multiple_of(4)..],
        }
    }
}

/// Reads a capture file, strictly.
fn read(path: &Path) -> Vec<Captured> {
    let file = std::fs::read(path).unwrap();
    let mut rest = &file[..];
    let mut packets = Vec::new();
    let mut kinds = Vec::new();
    while !rest.is_empty() {
        let (kind, length) = (u32_at(rest, 0), u32_at(rest, 4) as usize);
        assert_eq!(u32_at(rest, length - 4) as usize, length);
        let body = &rest[8..length - 4];
        rest = &rest[length..];
        kinds.push(kind);
        match kind {
            0x0a0d_0d0a => assert_eq!(u32_at(body, 0), 0x1a2b_3c4d),
            1 => {
                assert_eq!(u16_at(body, 0), 101, "raw IP");
                assert_eq!(option(&body[8..], 9), Some(&[9][..]), "nanoseconds");
            }
            6 => packets.push(packet(body)),
            other => panic!("block {other}"),
        }
    }
    assert_eq!(kinds[..2], [0x0a0d_0d0a, 1]);
    packets
}

fn packet(body: &[u8]) -> Captured {
    let length = u32_at(body, 12) as usize;
    assert_eq!(u32_at(body, 16) as usize, length, "whole");
    let options = &body[20 + length.next_multiple_of(4)..];
    let parsed = PacketHeaders::from_ip_slice(&body[20..20 + length]).unwrap();
    let udp = parsed.transport.unwrap().udp().unwrap();
    let datagram = parsed.payload.slice().to_vec();
    let (source, destination): (IpAddr, IpAddr) = match parsed.net.unwrap() {
        NetHeaders::Ipv4(ip, _) => {
            assert_eq!(
                udp.checksum,
                udp.calc_checksum_ipv4(&ip, &datagram).unwrap()
            );
            (ip.source.into(), ip.destination.into())
        }
        NetHeaders::Ipv6(ip, _) => {
            assert_eq!(
                udp.checksum,
                udp.calc_checksum_ipv6(&ip, &datagram).unwrap()
            );
            (ip.source.into(), ip.destination.into())
        }
        other => panic!("{other:?}"),
    };
    Captured {
        nanos: u64::from(u32_at(body, 4)) << 32 | u64::from(u32_at(body, 8)),
        sent: option(options, 2) == Some(&[2, 0, 0, 0]),
        source: (source, udp.source_port),
        destination: (destination, udp.destination_port),
        datagram,
        comment: option(options, 1).map(|text| String::from_utf8(text.to_vec()).unwrap()),
    }
}

fn config(directory: &Directory, fault: Option<&str>) -> Config {
    let mut config = Config::default();
    config.pcap = Some(directory.0.clone());
    config.fault = fault.map(|text| text.parse::<Fault>().unwrap());
    config.max_mtu = 1500;
    config
}

fn file_of(directory: &Directory, node: &Node) -> PathBuf {
    let begin = format!("qp-{}-{}-", std::process::id(), node.qp.qpn());
    file_in(&directory.0, &begin)
}

const LENGTH: usize = 100_000;

/// Small Sends, and a Write-Record of two trains; returns the files of source and target.
fn traffic(directory: &Directory, address: IpAddr, fault: Option<&str>) -> (Node, Node) {
    let source = Node::with(LENGTH, config(directory, None), |_| ());
    let target = Node::with(LENGTH, config(directory, fault), |attr| {
        attr.record_slots = 4
    });
    let to = source.to_port(address, target.qp.qpn());
    for number in 0..100 {
        target.post_recv(number, 0..64);
        source.send(number, &to, 0..64);
        source.wait();
        while target.cq.wait(Duration::from_millis(1)).unwrap().is_some() {}
    }
    let operation = source.write_to(&target, 0);
    source
        .post(100, operation, &to, &[source.mr.sge(..)])
        .unwrap();
    source.wait();
    while target
        .cq
        .wait(Duration::from_millis(400))
        .unwrap()
        .is_some()
    {}
    (source, target)
}

fn check(directory: &Directory, address: IpAddr, fault: Option<&str>) {
    let (source, target) = traffic(directory, address, fault);
    let (sent, received) = (source.qp.counters(), target.qp.counters());
    let (from, to) = ((address, source.qp.qpn()), (address, target.qp.qpn()));
    let captured = read(&file_of(directory, &source));
    assert_eq!(captured.len() as u64, sent.segments_sent);
    for packet in &captured {
        assert!(packet.sent && packet.comment.is_none() && packet.has_valid_crc());
        assert_eq!((packet.source, packet.destination), (from, to));
        assert!(packet.datagram.len() <= 1472);
    }
    assert!(captured.is_sorted_by_key(|packet| packet.nanos));
    // After 2020, in this unit and epoch.
    assert!(captured[0].nanos > 1_577_836_800_000_000_000);

    let arrived = read(&file_of(directory, &target));
    assert_eq!(arrived.len() as u64, sent.segments_sent);
    let with = |comment: Option<&str>| {
        let these = arrived
            .iter()
            .filter(move |packet| packet.comment.as_deref() == comment);
        these.count() as u64
    };
    let bad = with(Some("dropped: bad-crc"));
    assert_eq!(bad, received.dropped(DropReason::BadCrc));
    assert_eq!(with(Some("dropped: fault")), received.fault_dropped);
    assert_eq!(with(None), received.segments_received);
    assert_eq!(
        with(None) + bad + received.fault_dropped,
        sent.segments_sent
    );
    for packet in &arrived {
        assert!(!packet.sent);
        assert_eq!((packet.source, packet.destination), (from, to));
        let corrupt = packet.comment.as_deref() == Some("dropped: bad-crc");
        assert_eq!(packet.has_valid_crc(), !corrupt, "{:?}", packet.comment);
    }
    assert_eq!(fault.is_some(), bad > 0 && received.fault_dropped > 0);
}

#[test]
fn every_datagram_is_in_the_files_of_both_ends() {
    let directory = Directory::new("tap-v4");
    check(&directory, Ipv4Addr::LOCALHOST.into(), None);
}

#[test]
fn over_ipv6_too() {
    let directory = Directory::new("tap-v6");
    check(&directory, Ipv6Addr::LOCALHOST.into(), None);
}

#[test]
fn what_was_dropped_is_there_and_says_why() {
    let directory = Directory::new("tap-fault");
    check(
        &directory,
        Ipv4Addr::LOCALHOST.into(),
        Some("drop=0.1,corrupt=0.1,seed=3"),
    );
}

#[test]
fn wireshark_reads_the_files() {
    let directory = Directory::new("tap-tshark");
    let fault = Some("drop=0.1,corrupt=0.1,seed=3");
    let (source, target) = traffic(&directory, Ipv4Addr::LOCALHOST.into(), fault);
    let output = Command::new("tshark")
        .args([
            "-o",
            "udp.check_checksum:TRUE",
            "-o",
            "ip.check_checksum:TRUE",
            "-r",
        ])
        .arg(file_of(&directory, &target))
        .args([
            "-T",
            "fields",
            "-e",
            "udp.checksum.status",
            "-e",
            "ip.checksum.status",
        ])
        .args(["-e", "udp.dstport", "-e", "frame.comment"])
        .output();
    let output = match output {
        Ok(output) => output,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return skip("wireshark_reads_the_files", "there is no tshark");
        }
        Err(error) => panic!("{error}"),
    };
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let good = format!("1\t1\t{}\t", target.qp.qpn());
    for line in text.lines() {
        assert!(line.starts_with(&good), "{line}");
    }
    assert_eq!(
        text.lines().count() as u64,
        source.qp.counters().segments_sent
    );
    let dropped = text.lines().filter(|line| line.ends_with("dropped: fault"));
    assert_eq!(dropped.count() as u64, target.qp.counters().fault_dropped);
}

#[test]
fn traffic_goes_on_where_no_file_can_be_made() {
    let mut config = Config::default();
    // A directory that cannot be one.
    config.pcap = Some(PathBuf::from("/dev/null/captures"));
    let source = Node::with(64, config, |_| ());
    let target = Node::new(64);
    target.post_recv(1, 0..64);
    source.send(1, &source.to(&target.qp), 0..64);
    assert_eq!(target.wait().byte_len, 64);
}

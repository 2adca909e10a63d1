//! Datagrams that break no rule, and for every rule a change that breaks it and no other.

use std::collections::BTreeSet;

use etherparse::PacketBuilder;

use super::super::rules::ALL;
use super::{Came, ETHERNET, judged};
use crate::wire::datagram::{Datagram, Exchange, Extension, Lookup, Segment, opcode, sealed};
use crate::wire::ddp::ReadRequest;

/// A datagram between two ends (0 asks, 1 is asked, 2 is a group), without its CRC.
#[derive(Clone, Debug)]
struct Said {
    from: usize,
    to: usize,
    octets: Vec<u8>,
    /// Mask that is XORed to the CRC.
    wrong: u8,
    df: bool,
    checksum: bool,
    /// Whether the CRC is part of the octets.
    is_sealed: bool,
}

fn packet(said: &Said) -> Vec<u8> {
    let ends = [
        ([10, 0, 0, 1], 40_000),
        ([10, 0, 0, 2], 50_000),
        ([239, 1, 2, 3], 18_514),
    ];
    let ((from, from_port), (to, to_port)) = (ends[said.from], ends[said.to]);
    let mut octets = said.octets.clone();
    if !said.is_sealed {
        octets = sealed(octets);
    }
    *octets.last_mut().unwrap() ^= said.wrong;
    let udp = PacketBuilder::ethernet2([2; 6], [4; 6])
        .ipv4(from, to, 64)
        .udp(from_port, to_port);
    let mut packet = Vec::new();
    udp.write(&mut packet, &octets).unwrap();
    // The builder sets DF; IP's own checksum is nobody's concern here.
    packet[20] = if said.df { 0x40 } else { 0 };
    if !said.checksum {
        packet[40..42].fill(0);
    }
    packet
}

fn came(all: &[Said]) -> Came {
    judged(ETHERNET, &all.iter().map(packet).collect::<Vec<_>>())
}

const RECORD: usize = 1;
const SEGMENTED: usize = 4;
const GROUP: usize = 6;
const ASK: usize = 7;
const ANSWER: usize = 8;
const READ: usize = 9;
const RESPONSE: usize = 10;
const TERMINATE: usize = 14;
const LOOKUP: usize = 15;
const WAITING: usize = 17;

fn good() -> Vec<Said> {
    let extension = |number, offset, length| Extension {
        epoch: 0xaa,
        number,
        length,
        offset,
        ..Extension::default()
    };
    let record = |offset, payload: &[u8]| {
        Segment::write_record(0x61, 0x1000, extension(9, offset, 250), payload)
    };
    let group = Extension {
        epoch: 0xbb,
        ..extension(3, 0, 5)
    };
    let read = ReadRequest {
        sink_stag: 0x51,
        sink_to: 0x100,
        size: 150,
        source_stag: 0x52,
        source_to: 0,
    };
    let small = ReadRequest {
        sink_to: 0,
        size: 132,
        ..read
    };
    let mut terminate = vec![0x01, 0x02, 0x20, 0];
    terminate.extend(read.to_bytes());
    let waiting = Lookup {
        kind: 4,
        qpn: 0,
        qkey: 0,
        private_data: Vec::new(),
        length: 0,
        fill: Vec::new(),
        ..Lookup::question(77, 7174, b"hello")
    };
    let lines: Vec<(usize, usize, Datagram)> = vec![
        (0, 1, Segment::send(0x11, 5, b"hello").into()),
        (0, 1, record(0, &[1; 100]).into()),
        (0, 1, record(100, &[2; 100]).into()),
        (0, 1, record(200, &[3; 50]).into()),
        (
            0,
            1,
            Segment::segmented_send(0x11, extension(10, 0, 11), &[4; 10]).into(),
        ),
        (
            0,
            1,
            Segment::segmented_send(0x11, extension(10, 10, 11), &[4; 1]).into(),
        ),
        (0, 2, Segment::segmented_send(0x11, group, &[5; 5]).into()),
        (0, 1, Exchange::request(0xaa, 0x99).into()),
        (1, 0, Exchange::answer(0xaa, 0x99, 0xc00c).into()),
        (
            0,
            1,
            Segment::read_request(0xaa, 1, read)
                .with_cookie(0xc00c)
                .into(),
        ),
        (
            1,
            0,
            Segment::read_response(0x51, 0x100, false, &[6; 100]).into(),
        ),
        (
            1,
            0,
            Segment::read_response(0x51, 0x164, true, &[6; 50]).into(),
        ),
        (0, 1, Segment::read_request(0xaa, 2, small).into()),
        (
            1,
            0,
            Segment::read_response(0x51, 0, true, &[7; 132]).into(),
        ),
        (
            1,
            0,
            Segment::untagged(opcode::TERMINATE, 0xcc, 2, 1, &terminate).into(),
        ),
        (0, 1, Lookup::question(77, 7174, b"hello").into()),
        (0, 1, Lookup::question(77, 7174, b"hello").into()),
        (1, 0, waiting.into()),
    ];
    lines
        .into_iter()
        .map(|(from, to, datagram)| {
            let mut octets = datagram.to_bytes();
            octets.truncate(octets.len() - 4);
            Said {
                from,
                to,
                octets,
                wrong: 0,
                df: true,
                checksum: true,
                is_sealed: false,
            }
        })
        .collect()
}

type Mutation = Box<dyn Fn(&mut Vec<Said>)>;

fn of<F: Fn(&mut Vec<Said>) + 'static>(rule: &'static str, change: F) -> (&'static str, Mutation) {
    (rule, Box::new(change))
}

fn set(line: usize, octet: usize, value: u8) -> impl Fn(&mut Vec<Said>) {
    move |all| all[line].octets[octet] = value
}

fn mutations() -> Vec<(&'static str, Mutation)> {
    vec![
        of("datagram-crc", |all| all[RECORD].wrong = 1),
        of("datagram-checksum", |all| all[RECORD].checksum = false),
        of("datagram-format", set(0, 0, 0x41 | 6 << 2)),
        of("datagram-version", set(0, 0, 0x42)),
        of("datagram-version", set(0, 1, 0x83)),
        of("datagram-opcode", set(0, 1, 0x44)),
        of("datagram-reserved", set(0, 1, 0x53)),
        of("datagram-layout", set(0, 0, 0x01)),
        of("datagram-layout", set(0, 9, 1)),
        of("datagram-layout", |all| all[0].octets.truncate(17)),
        of("extension-reserved", set(RECORD, 14, 8)),
        of("extension-reserved", set(RECORD, 15, 1)),
        of("extension-reserved", set(RECORD, 37, 1)),
        of("message-constant", set(RECORD + 1, 5, 0x62)),
        of("message-constant", set(RECORD + 1, 29, 251)),
        of("message-equal", |all| {
            all[RECORD + 1].octets.pop();
        }),
        of("cookie-layout", set(ASK, 1, 3)),
        of("cookie-layout", |all| all[ASK].octets.push(0)),
        of("cookie-reserved", set(ASK, 2, 1)),
        of("cookie-reserved", set(ASK, 20, 1)),
        of("cookie-reserved", set(ANSWER, 31, 1)),
        of("cookie-answer", set(ANSWER, 7, 0xab)),
        of("amplification", |all| {
            let line = &mut all[READ];
            line.octets[0] = 0x41;
            line.octets.drain(18..26);
        }),
        of("read-request", set(READ, 18 + 8 + 12, 0x80)),
        of("read-response", |all| all[RESPONSE + 1].octets.push(0)),
        of("read-response", set(RESPONSE + 1, 0, 0x81)),
        of("read-response", |all| {
            all[RESPONSE].octets[0] |= 4;
            for _ in 0..8 {
                all[RESPONSE].octets.insert(14, 0);
            }
        }),
        of("terminate-datagram", set(TERMINATE, 20, 0xa0)),
        of("terminate-control", set(TERMINATE, 19, 5)),
        of("terminate-reserved", set(TERMINATE, 21, 1)),
        of("datagram-length", |all| all[0].octets.resize(65_001, 0)),
        of("datagram-fragment", |all| all[RECORD].df = false),
        of("group-epoch", set(GROUP, 25, 0xaa)),
        of("group-answer", |all| {
            all[READ].to = 2;
            all.truncate(RESPONSE + 1);
        }),
        of("service-layout", set(LOOKUP, 1, 5)),
        of("service-layout", |all| {
            all[LOOKUP].octets.pop();
        }),
        of("service-reserved", set(WAITING, 19, 1)),
        of("service-reserved", set(WAITING, 3, 1)),
        of("service-repeat", set(LOOKUP, 25, b'a')),
    ]
}

#[test]
fn good_datagrams_have_no_findings() {
    let good = good();
    let found = came(&good);
    assert!(found.broken.is_empty(), "{found:?}");
    assert_eq!(found.datagrams, good.len());
    // Nor do any that the network loses, repeats or brings in another order.
    for first in 0..good.len() {
        for second in 0..good.len() {
            let mut some = good.clone();
            some.swap(first, second);
            let found = came(&some);
            // Without its request an answer is not judged.
            assert!(found.broken.is_empty(), "{first} and {second}: {found:?}");
            some.truncate(second);
            some.extend_from_slice(&good[first..]);
            let found = came(&some);
            assert!(found.broken.is_empty(), "{first} and {second}: {found:?}");
        }
    }
}

#[test]
fn every_rule_is_broken_by_its_change_and_by_no_other() {
    let mut seen = BTreeSet::new();
    for (number, (rule, change)) in mutations().iter().enumerate() {
        let mut all = good();
        change(&mut all);
        let found = came(&all);
        assert_eq!(
            found.rules(),
            [*rule],
            "change {number}: {:?}",
            found.broken
        );
        seen.insert(*rule);
    }
    let of_datagrams = ALL
        .iter()
        .filter(|rule| rule.clause.starts_with("Datagram"));
    for rule in of_datagrams {
        assert!(seen.contains(rule.id), "{}", rule.id);
    }
}

#[test]
fn a_train_that_was_recorded_uncut_is_cut() {
    let good = good();
    let mut train = good[0].clone();
    train.octets = good[RECORD..SEGMENTED]
        .iter()
        .flat_map(|said| sealed(said.octets.clone()))
        .collect();
    train.is_sealed = true;
    let found = came(&[train.clone()]);
    assert_eq!((found.datagrams, found.broken.len()), (3, 0), "{found:?}");
    train.octets[150] ^= 1;
    let found = came(&[train]);
    assert_eq!(
        (found.datagrams, found.broken.len()),
        (0, 0),
        "from nobody known"
    );
}

#[test]
fn other_datagrams_are_none_of_ours() {
    let dns = Said {
        octets: b"\x41\x43 whatever somebody says to somebody".to_vec(),
        wrong: 0x55,
        ..good()[0].clone()
    };
    let found = came(&[dns]);
    assert_eq!((found.datagrams, found.broken.len()), (0, 0));
}

/// A requester that begins anew may draw a nonce again: an answer repeats either epoch.
#[test]
fn a_nonce_is_used_again_with_a_new_epoch() {
    for answered in [0xaa, 0xab] {
        let mut all = good();
        let mut again = all[ASK].clone();
        again.octets[7] = 0xab;
        all.insert(ASK + 1, again);
        all[ANSWER + 1].octets[7] = answered;
        let found = came(&all);
        assert!(found.broken.is_empty(), "{answered:#x}: {found:?}");
        // The second request is not in the file, and something else of that epoch is.
        all.remove(ASK + 1);
        let mut segment = all[RECORD].clone();
        segment.octets[21] = 0xab;
        all.insert(ASK, segment);
        let found = came(&all);
        assert!(found.broken.is_empty(), "{answered:#x}: {found:?}");
    }
}

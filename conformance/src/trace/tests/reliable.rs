//! Reliable datagrams that break no rule, and for every rule a change that breaks it and no other.

use std::collections::BTreeSet;

use etherparse::PacketBuilder;

use super::super::rules::ALL;
use super::{Came, ETHERNET, judged};
use crate::wire::datagram::Datagram;
use crate::wire::reliable::{Ack, Frame, Hello, Reliable, SegmentFrame};

const OPENER: u32 = 0x0a0b_0c0d;
const ACCEPTOR: u32 = 0x0102_0304;

/// A datagram of the opener, or of the acceptor.
#[derive(Clone, Debug)]
struct Sent {
    by_opener: bool,
    datagram: Reliable,
    /// An octet, and its value in place of the one that it has.
    octet: Option<(usize, u8)>,
}

fn packet(sent: &Sent) -> Vec<u8> {
    let mut octets = Datagram::Reliable(sent.datagram.clone()).to_bytes();
    if let Some((at, value)) = sent.octet {
        octets.truncate(octets.len() - 4);
        octets[at] = value;
        octets = crate::wire::datagram::sealed(octets);
    }
    let ends = [([10, 0, 0, 1], 40_000), ([10, 0, 0, 2], 50_000)];
    let (from, to) = if sent.by_opener {
        (ends[0], ends[1])
    } else {
        (ends[1], ends[0])
    };
    let udp = PacketBuilder::ethernet2([2; 6], [4; 6])
        .ipv4(from.0, to.0, 64)
        .udp(from.1, to.1);
    let mut packet = Vec::new();
    udp.write(&mut packet, &octets).unwrap();
    // The builder sets DF.
    packet[20] = 0x40;
    packet
}

fn came(all: &[Sent]) -> Came {
    judged(ETHERNET, &all.iter().map(packet).collect::<Vec<_>>())
}

fn sent(by_opener: bool, association: u32, number: u64, frames: Vec<Frame>) -> Sent {
    let hello = matches!(frames.first(), Some(Frame::Hello(_)));
    Sent {
        by_opener,
        datagram: Reliable {
            flags: u8::from(hello) << 1,
            association,
            number,
            time: u32::try_from(number).unwrap(),
            epoch: if by_opener { 7 } else { 8 },
            frames,
        },
        octet: None,
    }
}

fn segment(number: u32, message: u32, index: u32, last: bool) -> Frame {
    Frame::Segment(SegmentFrame {
        last,
        receive: true,
        number,
        message,
        index,
        stream: 3,
        after: u16::from(message > 0),
        octets: vec![0x41, 0x43, 1, 2, 3],
    })
}

fn hello(association: u32, retry: bool) -> Frame {
    Frame::Hello(Hello {
        retry,
        features: 0,
        association,
        receives: 4,
        window: 65_536,
        proof: 0,
        cookie: 9,
    })
}

fn ack(to: u64) -> [Frame; 2] {
    let ack = Ack {
        ranges: vec![(0, to)],
        delay: 5,
        echo: 1,
        counts: None,
    };
    [Frame::Ack(ack), Frame::Placed { next: 1, map: 0 }]
}

fn credit(receives: u32) -> Frame {
    Frame::Credit {
        receives,
        window: 65_536,
    }
}

const RETRY: usize = 1;
const FIRST: usize = 4;
const AGAIN: usize = 6;
const CREDITS: usize = 7;
const CLOSE: usize = 9;

fn good() -> Vec<Sent> {
    let close = Frame::Close {
        reason: 1,
        association: 0,
        packet: 0,
    };
    let unknown = Frame::Close {
        reason: 2,
        association: ACCEPTOR,
        packet: 6,
    };
    let [acked, placed] = ack(3);
    vec![
        sent(
            true,
            0,
            0,
            vec![hello(OPENER, false), segment(0, 0, 0, true)],
        ),
        sent(false, OPENER, 0, vec![hello(0, true)]),
        sent(
            true,
            0,
            1,
            vec![hello(OPENER, false), segment(0, 0, 0, true)],
        ),
        sent(
            false,
            OPENER,
            0,
            [vec![hello(ACCEPTOR, false)], ack(1).to_vec()].concat(),
        ),
        sent(true, ACCEPTOR, 2, vec![segment(1, 1, 0, false)]),
        sent(true, ACCEPTOR, 3, vec![segment(2, 1, 1, true)]),
        // The first one was lost.
        sent(true, ACCEPTOR, 4, vec![segment(1, 1, 0, false)]),
        sent(false, OPENER, 1, vec![acked, placed, credit(6)]),
        sent(false, OPENER, 2, vec![credit(8)]),
        sent(true, ACCEPTOR, 6, vec![close]),
        sent(false, 0, 0, vec![unknown]),
    ]
}

fn frames(all: &mut [Sent], line: usize) -> &mut Vec<Frame> {
    &mut all[line].datagram.frames
}

/// Changes a segment.
fn change(all: &mut [Sent], line: usize, with: impl FnOnce(&mut SegmentFrame)) {
    let Some(Frame::Segment(segment)) = frames(all, line).first_mut() else {
        panic!("no segment in line {line}");
    };
    with(segment);
}

type Mutation = fn(&mut Vec<Sent>);

const MUTATIONS: &[(&str, Mutation)] = &[
    ("reliable-reserved", |all| all[FIRST].octet = Some((1, 4))),
    ("reliable-reserved", |all| all[FIRST].octet = Some((3, 1))),
    ("reliable-reserved", |all| all[FIRST].octet = Some((25, 6))),
    ("reliable-reserved", |all| all[CLOSE].octet = Some((25, 1))),
    ("reliable-reserved", |all| all[0].octet = Some((30, 1))),
    ("reliable-number", |all| {
        all[AGAIN].datagram.number = 3;
    }),
    ("reliable-hello", |all| all[FIRST].datagram.flags = 2),
    ("reliable-hello", |all| all[0].datagram.flags = 0),
    ("reliable-hello", |all| {
        frames(all, RETRY)[0] = hello(5, true);
    }),
    ("reliable-hello", |all| {
        frames(all, RETRY).push(Frame::Ping(1));
    }),
    ("reliable-segment", |all| {
        change(all, AGAIN, |it| it.octets[3] ^= 1);
    }),
    ("reliable-segment", |all| {
        change(all, AGAIN, |it| it.index = 7);
    }),
    ("reliable-message", |all| {
        change(all, FIRST + 1, |it| it.receive = false);
    }),
    ("reliable-message", |all| {
        change(all, FIRST + 1, |it| it.stream = 4);
    }),
    ("reliable-message", |all| {
        change(all, FIRST + 1, |it| it.after = 0);
    }),
    ("reliable-message", |all| {
        all.truncate(AGAIN);
        change(all, FIRST, |it| it.last = true);
    }),
    ("reliable-after", |all| {
        for line in FIRST..=AGAIN {
            change(all, line, |it| it.after = 4_096);
        }
        all.drain(FIRST + 1..=AGAIN);
    }),
    ("reliable-placed", |all| {
        frames(all, CREDITS).remove(1);
    }),
    ("reliable-placed", |all| frames(all, CREDITS).swap(1, 2)),
    ("reliable-credit", |all| {
        frames(all, CREDITS)[2] = credit(9);
    }),
    ("reliable-close", |all| {
        frames(all, CLOSE)[0] = Frame::Close {
            reason: 1,
            association: 0,
            packet: 5,
        };
    }),
];

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
    for (number, (rule, change)) in MUTATIONS.iter().enumerate() {
        let mut all = good();
        change(&mut all);
        let found = came(&all);
        assert_eq!(found.rules(), [*rule], "{number}: {:?}", found.broken);
        seen.insert(*rule);
    }
    for rule in ALL.iter().filter(|it| it.clause.starts_with("Reliable")) {
        assert!(seen.contains(rule.id), "{}", rule.id);
    }
}

/// Receives are serial.
#[test]
fn credit_goes_on_beyond_the_end_of_its_numbers() {
    let mut all = good();
    frames(&mut all, CREDITS)[2] = credit(u32::MAX - 1);
    frames(&mut all, CREDITS + 1)[0] = credit(3);
    let found = came(&all);
    assert!(found.broken.is_empty(), "{found:?}");
}

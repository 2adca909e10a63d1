//! For every rule a mutation of a good conversation that breaks it and nothing else.

use std::collections::BTreeSet;

use super::super::rules::ALL;
use super::talk::{Talk, at, depths};
use super::{ETHERNET, judged};
use crate::wire::framing::Wrong;
use crate::wire::startup::{C, Depths, NOT_NEGOTIATED, REQUEST, S};

/// Changes octets of a ULPDU.
fn set(index: usize, octet: usize, value: u8) -> impl Fn(&mut Talk) {
    move |talk| talk.said[index].ulpdu[octet] = value
}

fn reply(depths: Depths) -> impl Fn(&mut Talk) {
    move |talk| talk.reply.private_data = depths.to_bytes().to_vec()
}

fn drop_line(index: usize) -> impl Fn(&mut Talk) {
    move |talk| {
        talk.said.remove(index);
    }
}

type Mutation = Box<dyn Fn(&mut Talk)>;

fn of<F: Fn(&mut Talk) + 'static>(rule: &'static str, change: F) -> (&'static str, Mutation) {
    (rule, Box::new(change))
}

/// The octets of a header: DDP's and RDMAP's control, RsvdULP, QN, MSN, MO; STag and TO.
const DDP: usize = 0;
const RDMAP: usize = 1;
const RSVD: usize = 5;
const QN: usize = 9;
const MSN: usize = 13;
const MO: usize = 17;
const STAG: usize = 5;
const TO: usize = 13;
const BODY: usize = 18;

fn of_startup() -> Vec<(&'static str, Mutation)> {
    vec![
        of("mpa-reserved", |talk| talk.request.flags |= 4),
        of("mpa-revision", |talk| {
            talk.request.flags = C;
            talk.reply.flags = C;
            talk.reply.revision = 3;
        }),
        of("mpa-reply-key", |talk| talk.reply.key = REQUEST),
        of("mpa-pd-length", |talk| talk.request.pd_length = 513),
        of("mpa-early", |talk| {
            let mut first = talk.said[at::INVALIDATE].clone();
            (first.way, first.ulpdu[MSN]) = (1, 1);
            talk.said.insert(0, first);
        }),
        of("enhanced-revision", |talk| {
            talk.request.revision = 1;
            talk.reply.revision = 1;
            talk.reply.flags = C;
        }),
        of("enhanced-data", |talk| {
            talk.reply.private_data.clear();
            talk.reply.pd_length = 0;
        }),
        of("enhanced-reply", |talk| talk.reply.flags = C),
        of("enhanced-model", reply(Depths::client_server(2, 2))),
        of("enhanced-flags", |talk| {
            let depths = Depths {
                read: true,
                ..Depths::client_server(2, 2)
            };
            talk.request.private_data = depths.to_bytes().to_vec();
            talk.reply.private_data = Depths::client_server(2, 2).to_bytes().to_vec();
        }),
        of("enhanced-none", |talk| {
            let none = Depths {
                write: false,
                read: false,
                ..depths(2, 2)
            };
            talk.reply.private_data = none.to_bytes().to_vec();
            // An Initiator that finds nothing in common sends nothing more.
            talk.said.truncate(0);
        }),
        of("enhanced-ord", reply(depths(2, 3))),
        of("enhanced-ones", |talk| {
            talk.request.private_data = depths(NOT_NEGOTIATED, 2).to_bytes().to_vec();
        }),
        of("enhanced-rtr", drop_line(at::RTR)),
        of("enhanced-rtr", |talk| talk.said.swap(at::RTR, at::READ)),
        of("enhanced-depth", reply(depths(1, 2))),
    ]
}

/// Behind 51 octets of ULPDU, where 3 octets of pad belong.
fn no_pad() -> Wrong {
    Wrong {
        pad_length: Some(0),
        ..Wrong::default()
    }
}

fn long_pad() -> Wrong {
    Wrong {
        pad_length: Some(7),
        ..Wrong::default()
    }
}

fn of_framing() -> Vec<(&'static str, Mutation)> {
    let wrong = |wrong: Wrong| move |talk: &mut Talk| talk.said[at::SEND + 2].wrong = wrong;
    vec![
        of("mpa-length", |talk| {
            let line = &mut talk.said[at::INVALIDATE];
            line.ulpdu.resize(64_769, 0);
        }),
        of("mpa-emss", |talk| talk.mss = 1000),
        of("mpa-pad", |talk| {
            talk.said[at::SEND + 2].wrong.pad = 1;
        }),
        of("mpa-pad", wrong(no_pad())),
        of("mpa-pad", wrong(long_pad())),
        of(
            "mpa-crc",
            wrong(Wrong {
                crc: 1,
                ..Wrong::default()
            }),
        ),
        of(
            "mpa-crc",
            wrong(Wrong {
                flip: Some((0, 1)),
                ..Wrong::default()
            }),
        ),
        of(
            "mpa-crc",
            wrong(Wrong {
                flip: Some((40, 1)),
                ..Wrong::default()
            }),
        ),
        of("mpa-marker", |talk| {
            talk.request.flags |= crate::wire::startup::M;
            talk.reply.flags |= crate::wire::startup::M;
            talk.said[at::WRITE].wrong.pointer = 4;
        }),
    ]
}

fn of_ddp() -> Vec<(&'static str, Mutation)> {
    vec![
        of("ddp-header", |talk| talk.said[at::SEND].ulpdu.truncate(17)),
        of("ddp-version", set(at::SEND, DDP, 0x02)),
        of("ddp-reserved", set(at::SEND, DDP, 0x05)),
        of("ddp-last", set(at::SEND, DDP, 0x41)),
        of("ddp-last", drop_line(at::SEND + 2)),
        of("ddp-stag", set(at::WRITE + 1, STAG, 0x62)),
        of("ddp-msn", set(at::IMMEDIATE, MSN, 4)),
        of("ddp-msn", |talk| {
            for line in &mut talk.said[at::SEND..at::WRITE] {
                line.ulpdu[MSN] = 0;
            }
        }),
        of("ddp-rsvdulp", set(at::SEND + 1, RDMAP, 0x45)),
        of("ddp-offset", set(at::SEND + 1, MO, 99)),
        of("ddp-offset", set(at::WRITE + 1, TO, 0xe9)),
        of("ddp-length", |talk| {
            talk.said[at::SEND + 2].ulpdu[14..18].fill(0xff);
        }),
        // A Read Request that the peer answers all the same.
        of("ddp-length", |talk| {
            talk.said[at::READ].ulpdu[14..18].fill(0xff);
        }),
        of("ddp-order", |talk| talk.said.swap(at::SEND, at::SEND + 1)),
    ]
}

fn of_rdmap() -> Vec<(&'static str, Mutation)> {
    vec![
        of("rdmap-version", set(at::WRITE, RDMAP, 0x80)),
        of("rdmap-version", set(at::WRITE, RDMAP, 0x00)),
        of("rdmap-reserved", set(at::WRITE, RDMAP, 0x50)),
        of("rdmap-opcode", set(at::IMMEDIATE, RDMAP, 0x4c)),
        of("rdmap-tagged", set(at::IMMEDIATE, RDMAP, 0x40)),
        of("rdmap-queue", set(at::IMMEDIATE, QN, 1)),
        of("rdmap-invalidate", set(at::IMMEDIATE, RSVD, 1)),
        of("rdmap-read-header", |talk| {
            talk.said[at::READ].ulpdu.push(0)
        }),
        of("rdmap-response", |talk| {
            let again = talk.said[at::SECOND_RESPONSE].clone();
            talk.said.insert(at::SECOND_RESPONSE, again);
        }),
        of("rdmap-response-order", |talk| {
            let first = talk.said.remove(at::SECOND_RESPONSE);
            talk.said.insert(at::RESPONSE, first);
        }),
        of("rdmap-response-place", set(at::SECOND_RESPONSE, TO, 1)),
        of("rdmap-response-place", |talk| {
            talk.said[at::SECOND_RESPONSE].ulpdu.pop();
        }),
        of("rdmap-terminated", |talk| {
            let again = talk.said[at::TERMINATE].clone();
            talk.said.push(again);
        }),
        of("terminate-about", set(at::TERMINATE, BODY + 5, 45)),
        of("terminate-about", set(at::TERMINATE, BODY + 6 + MSN, 4)),
        of("ddp-last", set(at::TERMINATE, DDP, 0x01)),
        of("terminate-control", set(at::TERMINATE, BODY + 1, 7)),
        of("terminate-reserved", set(at::TERMINATE, BODY + 3, 1)),
        of("terminate-headers", |talk| {
            talk.said[at::TERMINATE].ulpdu.pop();
        }),
        of("terminate-figure", set(at::TERMINATE, BODY + 2, 0x40)),
        of("atomic-request", set(at::ATOMIC, BODY + 3, 1)),
        of("atomic-request", |talk| {
            talk.said[at::ATOMIC].ulpdu.pop();
        }),
        of("atomic-response", set(at::ATOMIC_RESPONSE, BODY + 3, 8)),
        of("atomic-response", |talk| {
            talk.said[at::ATOMIC_RESPONSE].ulpdu.push(0)
        }),
        of("immediate-size", |talk| {
            talk.said[at::IMMEDIATE].ulpdu.push(0)
        }),
    ]
}

#[test]
fn every_rule_is_broken_by_its_mutation_and_by_no_other() {
    let mut seen = BTreeSet::new();
    let mutations = [of_startup(), of_framing(), of_ddp(), of_rdmap()];
    for (number, (rule, change)) in mutations.iter().flatten().enumerate() {
        let mut talk = Talk::good();
        change(&mut talk);
        let came = judged(ETHERNET, &talk.packets());
        assert_eq!(
            came.rules(),
            [*rule],
            "mutation {number}: {:?}",
            came.broken
        );
        seen.insert(*rule);
    }
    // An FPDU before the Reply.
    let mut pieces = Talk::good().pieces();
    pieces.swap(1, 2);
    let came = judged(ETHERNET, &super::talk::packets(&pieces, [0, 0]));
    assert_eq!(came.rules(), ["mpa-before-reply"]);
    seen.insert("mpa-before-reply");
    // How long an end may take is the tester's to say.
    seen.insert("terminate-end");
    let of_streams = ALL.iter().filter(|rule| rule.clause.starts_with("RFC"));
    let all: BTreeSet<_> = of_streams.map(|rule| rule.id).collect();
    assert_eq!(seen, all, "rules and mutations");
}

#[test]
fn a_pad_of_another_length_is_found_without_crcs_and_nothing_else() {
    for wrong in [no_pad(), long_pad()] {
        // Before a tagged header, and before an untagged one.
        for index in [at::SEND + 2, at::WRITE + 1] {
            let mut talk = Talk::good().with_flags(false, false);
            talk.said[index].wrong = wrong;
            let came = judged(ETHERNET, &talk.packets());
            assert_eq!(came.rules(), ["mpa-pad"], "{wrong:?}: {came:?}");
            assert_eq!((came.fpdus, came.broken.len()), (talk.said.len(), 1));
        }
    }
}

/// Of a Response in more places than are kept it is not known where it goes.
#[test]
fn what_is_not_known_is_no_finding() {
    let mut talk = Talk::good();
    for place in 1..=100 {
        let mut line = talk.said[at::RESPONSE].clone();
        line.ulpdu[TO - 2] = place;
        talk.said.insert(at::RESPONSE, line);
    }
    let came = judged(ETHERNET, &talk.packets());
    assert_eq!(came.rules(), [""; 0], "{:?}", came.broken);
    // The next one is judged.
    let next = talk.said.len() - Talk::good().said.len() + at::SECOND_RESPONSE;
    talk.said[next].ulpdu[TO] ^= 1;
    let came = judged(ETHERNET, &talk.packets());
    assert_eq!(came.rules(), ["rdmap-response-place"]);
}

#[test]
fn what_is_allowed_is_no_finding() {
    let allowed: [(&str, Mutation); 6] = [
        of("revision 1", |talk| {
            for frame in [&mut talk.request, &mut talk.reply] {
                (frame.revision, frame.flags) = (1, C);
            }
        }),
        of("depths of all ones", |talk| {
            for frame in [&mut talk.request, &mut talk.reply] {
                frame.private_data = depths(NOT_NEGOTIATED, NOT_NEGOTIATED).to_bytes().to_vec();
            }
        }),
        of("devices of the RDMA Consortium", |talk| {
            for line in &mut talk.said {
                line.ulpdu[RDMAP] &= 0x3f;
            }
            // The header of what the Terminate is about.
            talk.said[at::TERMINATE].ulpdu[BODY + 6 + RDMAP] &= 0x3f;
        }),
        of("STag and TO of nothing", |talk| {
            talk.said[at::RTR].ulpdu[2..14].fill(0xee);
        }),
        of("a Read Request as the RTR indication", |talk| {
            let mut read = talk.said[at::READ].clone();
            read.ulpdu[BODY + 12..BODY + 16].fill(0);
            talk.said[at::RTR] = read;
            talk.said[at::READ].ulpdu[MSN] = 2;
            talk.said[at::READ + 1].ulpdu[MSN] = 3;
            talk.said[at::ATOMIC].ulpdu[MSN] = 4;
            let mut empty = talk.said[at::SECOND_RESPONSE].clone();
            empty.ulpdu.truncate(14);
            talk.said.insert(1, empty);
        }),
        of(
            "a Reply that rejects, and what the programs then say",
            |talk| {
                talk.reply.flags = C | S | crate::wire::startup::R;
                talk.reply.private_data = depths(9, 9).to_bytes().to_vec();
            },
        ),
    ];
    for (name, change) in allowed {
        let mut talk = Talk::good();
        change(&mut talk);
        let came = judged(ETHERNET, &talk.packets());
        assert_eq!(came.rules(), [""; 0], "{name}: {:?}", came.broken);
    }
}

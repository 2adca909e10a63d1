//! Sends of one segment and of several, taken and not taken.

use serde_json::json;

use super::scene::{FILL, QKEY, RECV, Refusal, Scene, cut, every, octets};
use super::{Case, datagrams};
use crate::bench::{Bench, Broken};
use crate::dice::Dice;
use crate::wire::datagram::{Datagram, Segment, flag, opcode};
use crate::wire::ddp::Place;
use crate::wire::hex;

const SEND: &str = "Datagram §7";
const HEADERS: &str = "Datagram §2";
const LENGTHS: &str = "Datagram §1";
const EXTENSION: &str = "Datagram §3";
const LATE: &str = "Datagram §4";

pub(super) const CASES: &[Case] = &[
    datagrams("D01", "Sends of all sizes", &[SEND, LENGTHS, HEADERS], d01),
    datagrams(
        "D02",
        "Segmented Sends, in any order and with immediates",
        &[SEND, EXTENSION],
        d02,
    ),
    datagrams(
        "D03",
        "Sends that find no receive, or not theirs",
        &[SEND, HEADERS],
        d03,
    ),
    datagrams(
        "D08",
        "duplicate and late segments do not touch a receive that was posted again",
        &[LATE, SEND],
        d08,
    ),
];

/// The longest payload of a plain Send: UDP's 65,507 octets without header and CRC.
const LONGEST: usize = 65_507 - 18 - 4;

fn d01(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut scene = Scene::new(bench, json!({ "receives": 2, "octets": 70_000 }))?;
    let mut dice = Dice::new(bench.settings.seed, 1);
    for length in [0, 1, 2, 3, 4, 64, 1450, 1451, 9000, 65_000, LONGEST] {
        let payload = dice.octets(length);
        let mut segment = scene.station.plain_send(QKEY, &payload);
        if length % 2 == 1 {
            segment.control = 0x40 | opcode::SEND_SE;
        }
        scene.station.send(segment);
        arrives(
            bench,
            &mut scene,
            &format!("{length} octets"),
            &payload,
            None,
        )?;
    }
    // A receiver does not check the MSN; the octets that it ignores may have any value.
    for (name, change) in [
        ("the MSN of the Send before", 0),
        ("an MSN of 0xffffffff", 1),
        ("reserved bits of RDMAP's octet", 2),
        ("a cookie that is none", 3),
    ] {
        let payload = dice.octets(20);
        let mut segment = scene.station.plain_send(QKEY, &payload);
        match (change, &mut segment.place) {
            (0, Place::Untagged { msn, .. }) => *msn = msn.wrapping_sub(1),
            (1, Place::Untagged { msn, .. }) => *msn = u32::MAX,
            (2, _) => segment.control |= 0x30,
            _ => segment = segment.with_cookie(0x0bad_c00c_0bad_c00c),
        }
        scene.station.send(segment);
        arrives(bench, &mut scene, name, &payload, None)?;
    }
    Ok(())
}

/// Notes whether a Send's completion and octets are there; its receive is posted again.
fn arrives(
    bench: &mut Bench<'_>,
    scene: &mut Scene,
    what: &str,
    payload: &[u8],
    immediate: Option<u32>,
) -> Result<(), Broken> {
    let wc = scene.await_one(bench)?;
    let source = scene.station.address().map_or(0, |address| address.port());
    let length = u64::try_from(payload.len() + 40).unwrap_or(0);
    let good = wc.as_ref().is_some_and(|wc| {
        let wanted = immediate.map_or((0, 0), |value| (2, u64::from(value.to_be())));
        (wc.status, wc.opcode, wc.length, wc.source) == (0, RECV, length, source.into())
            && (wc.flags & 2, wc.immediate) == wanted
    });
    let there = match &wc {
        Some(wc) => {
            let there = scene.received(bench, wc.wr_id, payload.len())?;
            scene.repost(bench, wc.wr_id)?;
            there
        }
        None => Vec::new(),
    };
    let seen = match there == payload {
        true => format!("{wc:?}, its octets"),
        false => format!("{wc:?}, {}", hex(&there, 32)),
    };
    bench.expect(
        what,
        good && there == payload,
        seen,
        "a receive completes with the octets, the sender, and the immediate if there is one",
        SEND,
        &scene.station,
    );
    Ok(())
}

fn d02(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut scene = Scene::new(bench, json!({ "receives": 4, "octets": 70_000 }))?;
    let mut dice = Dice::new(bench.settings.seed, 2);
    let rows = [
        (0, 1, None),
        (0, 1, Some(7)),
        (1, 1, Some(0xffff_ffff)),
        (2, 1, None),
        (1000, 1000, Some(1)),
        (1000, 999, None),
        (5000, 1400, Some(2)),
        (60_000, 1400, None),
        (60_000, 30_001, Some(0)),
        (200, 3, None),
    ];
    for (length, size, immediate) in rows {
        for shuffled in [false, true] {
            let payload = dice.octets(length);
            let mut message = scene.station.message(length);
            if let Some(value) = immediate {
                message.flags = flag::IMMEDIATE | flag::SOLICITED;
                message.immediate = value;
            } else {
                // Not valid without flag I, so not looked at; nor is what is reserved.
                message.immediate = 0x5555_5555;
                message.flags = 0xf8;
                message.reserved = [1, 2, 3];
            }
            let make = |extension, part: &[u8]| Segment::segmented_send(QKEY, extension, part);
            let mut segments = cut(message, &payload, &every(size, length), &make);
            if shuffled {
                dice.shuffle(&mut segments);
            }
            for (_, segment) in segments {
                scene.station.send(segment);
            }
            let how = if shuffled {
                "in another order"
            } else {
                "in order"
            };
            let what = format!("{length} octets by {size}, {how}");
            arrives(bench, &mut scene, &what, &payload, immediate)?;
        }
    }
    Ok(())
}

fn d03(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut scene = Scene::new(bench, json!({ "receives": 1, "octets": 140 }))?;
    let good = scene.station.plain_send(QKEY, &[1; 100]);
    type Change = fn(&mut Segment);
    fn place(segment: &mut Segment, change: impl FnOnce(&mut u32, &mut u32, &mut u32)) {
        if let Place::Untagged { rsvd, qn, mo, .. } = &mut segment.place {
            change(rsvd, qn, mo);
        }
    }
    let rows: [(&str, &str, &str, Change); 9] = [
        ("another Q_Key", "bad-qkey", HEADERS, |s| {
            place(s, |qkey, _, _| *qkey ^= 1);
        }),
        ("a Q_Key of zero", "bad-qkey", HEADERS, |s| {
            place(s, |qkey, _, _| *qkey = 0);
        }),
        (
            "one octet more than the receive",
            "receive-too-short",
            SEND,
            |s| {
                s.payload.push(1);
            },
        ),
        ("64 KiB", "receive-too-short", SEND, |s| {
            s.payload.resize(LONGEST, 1);
        }),
        ("an MO", "malformed", HEADERS, |s| {
            place(s, |_, _, mo| *mo = 1)
        }),
        ("L clear", "malformed", HEADERS, |s| s.first &= !0x40),
        ("queue 1", "malformed", "Datagram §1.2", |s| {
            place(s, |_, qn, _| *qn = 1);
        }),
        ("queue 2^31", "malformed", "Datagram §1.2", |s| {
            place(s, |_, qn, _| *qn = 1 << 31);
        }),
        ("T set", "malformed", "Datagram §1.2", |s| s.first |= 0x80),
    ];
    for (what, counter, clause, change) in rows {
        let mut segment = good.clone();
        change(&mut segment);
        let refusal = Refusal {
            what,
            counter,
            clause,
            memory: &[],
        };
        scene.refuses(bench, refusal, &[octets(segment)])?;
    }
    let mut message = scene.station.message(101);
    message.number = scene.station.number;
    let make = |extension, part: &[u8]| Segment::segmented_send(QKEY, extension, part);
    let long = cut(message, &[1; 101], &[50], &make);
    let both: Vec<_> = long
        .into_iter()
        .map(|(_, segment)| octets(segment))
        .collect();
    let refusal = Refusal {
        what: "a Segmented Send of one octet more than the receive",
        counter: "receive-too-short",
        clause: SEND,
        memory: &[],
    };
    scene.refuses(bench, refusal, &both)?;
    none_posted(bench)
}

fn none_posted(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut scene = Scene::new(bench, json!({ "receives": 1, "octets": 140 }))?;
    let before = scene.counters(bench)?;
    let first = scene.station.plain_send(QKEY, b"first");
    let second = scene.station.plain_send(QKEY, b"second");
    scene.station.send(first);
    scene.station.send(second);
    // Before the receive is posted again: the second could find it.
    scene.counted_as(bench, &before, "no-receive 1")?;
    arrives(bench, &mut scene, "the first of two", b"first", None)?;
    let refusal = Refusal {
        what: "the second, for which there was no receive",
        counter: "no-receive",
        clause: SEND,
        memory: &[],
    };
    scene.dropped(bench, refusal, 1, &before)
}

fn d08(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut scene = Scene::new(bench, json!({ "receives": 1, "octets": 4136 }))?;
    let mut dice = Dice::new(bench.settings.seed, 8);
    for round in 0..8 {
        let payload = dice.octets(3000);
        let message = scene.station.message(3000);
        let make = |extension, part: &[u8]| Segment::segmented_send(QKEY, extension, part);
        for (_, segment) in cut(message, &payload, &[1000, 2000], &make) {
            scene.station.send(segment);
        }
        arrives(
            bench,
            &mut scene,
            &format!("message {round}"),
            &payload,
            None,
        )?;
        // The receive is posted again; what it holds must stay until the next message.
        let other = [FILL; 3000];
        let late = cut(message, &other, &every(700, 3000), &make);
        let before = scene.counters(bench)?;
        let count = late.len();
        for (_, segment) in late {
            scene.station.send(Datagram::from(segment));
        }
        // A plain Send would be written over it, so nothing but a number tells that all were seen.
        let mut counted = String::new();
        for _ in 0..200 {
            counted = scene.counted(bench, &before)?;
            if counted.starts_with(&format!("late {count}")) {
                break;
            }
            let _ = scene.poll(bench, std::time::Duration::from_millis(5))?;
        }
        let there = scene.received(bench, 0, 3000)?;
        bench.expect(
            format!("segments of message {round} with other octets, after it"),
            there == payload && counted == format!("late {count}"),
            format!("{counted}; {}", hex(&there, 16)),
            "`late`, and the receive's memory as it was",
            LATE,
            &scene.station,
        );
        if there != payload {
            break;
        }
        let lives = scene.probe(bench)?;
        bench.expect(
            format!("a Send after message {round}"),
            lives && scene.others.is_empty(),
            format!("arrives: {lives}; {:?}", scene.others),
            "the receive is free, and nothing else completed",
            SEND,
            &scene.station,
        );
    }
    Ok(())
}

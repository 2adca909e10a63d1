//! Write-Records: what is placed, and the record of it.

use std::ops::Range;

use serde_json::json;

use super::scene::{
    FILL, RECORD, Record, Scene, WRITABLE, as_u32, as_u64, cut, difference, every, one, picture,
    union,
};
use super::{Case, datagrams};
use crate::agent::Memory;
use crate::bench::{Bench, Broken};
use crate::dice::Dice;
use crate::wire::datagram::{Extension, Segment, flag};

const ORDER: &str = "Datagram §5";
const STATES: &str = "Datagram §5.1";
const EXTENSION: &str = "Datagram §3";
const LATE: &str = "Datagram §4";

pub(super) const CASES: &[Case] = &[
    datagrams(
        "D05",
        "Write-Records of all sizes",
        &[ORDER, EXTENSION],
        d05,
    ),
    datagrams(
        "D06",
        "the validity map is what arrived, for many patterns of loss",
        &[ORDER, STATES],
        d06,
    ),
    datagrams(
        "D09",
        "octets that are valid are not written again while the message is open",
        &[LATE, STATES],
        d09,
    ),
    datagrams("D11", "a map of more than 64 ranges", &[ORDER], d11),
    datagrams(
        "D12",
        "more messages than there is room for records",
        &[ORDER, STATES],
        d12,
    ),
    datagrams(
        "D24",
        "segments of a closed message do not touch its buffer",
        &[LATE, STATES],
        d24,
    ),
];

/// Octets of the region, and where in it messages begin.
const REGION: usize = 128 * 1024;
const BASE: usize = 512;

fn region(bench: &mut Bench<'_>) -> Result<Memory, Broken> {
    Ok(bench.agent()?.register(as_u64(REGION), WRITABLE, FILL)?)
}

fn maker(memory: Memory) -> impl Fn(Extension, &[u8]) -> Segment {
    move |extension, part| {
        Segment::write_record(memory.stag, memory.to + as_u64(BASE), extension, part)
    }
}

/// The record that a message must leave.
fn wanted(scene: &Scene, memory: Memory, message: Extension, ranges: Vec<Range<usize>>) -> Record {
    let port = scene.station.address().map_or(0, |address| address.port());
    Record {
        base: memory.to + as_u64(BASE),
        stag: memory.stag,
        length: usize::try_from(message.length).unwrap_or(0),
        valid: ranges.iter().map(ExactSizeIterator::len).sum(),
        immediate: (message.flags & flag::IMMEDIATE != 0).then_some(message.immediate),
        source: port.into(),
        ranges,
    }
}

fn d05(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut dice = Dice::new(bench.settings.seed, 5);
    let mut scene = Scene::new(bench, json!({ "record_ms": 60_000 }))?;
    let rows = [
        (0, 1),
        (1, 1),
        (2, 1),
        (64, 64),
        (1000, 300),
        (1450, 1450),
        (9000, 1400),
        (60_000, 1400),
        (65_465, 65_465),
        (100_000, 50_001),
        (100_000, 65_000),
    ];
    for (index, (length, size)) in rows.into_iter().enumerate() {
        let memory = region(bench)?;
        let payload = dice.octets(length);
        let mut message = scene.station.message(length);
        if index % 2 == 0 {
            message.flags = flag::IMMEDIATE | flag::SOLICITED;
            message.immediate = as_u32(index) << 24 | 0x77;
        } else {
            message.flags = 0xf8;
            message.reserved = [0xff; 3];
            message.immediate = 0x1234_5678;
        }
        let mut segments = cut(message, &payload, &every(size, length), &maker(memory));
        if index % 3 == 0 {
            dice.shuffle(&mut segments);
        }
        for (_, segment) in segments {
            scene.station.send(segment);
        }
        let record = scene.record(bench)?;
        let ranges = if length == 0 {
            Vec::new()
        } else {
            one(0..length)
        };
        let wanted = wanted(&scene, memory, message, ranges);
        let there = bench.agent()?.all(memory)?;
        let right = picture(memory, BASE, &[(0..length, &payload)]);
        bench.expect(
            format!("{length} octets by {size}"),
            record.as_ref() == Some(&wanted) && there == right,
            format!("{record:?}; memory {}", difference(&there, &right)),
            "a record of all octets, and they are there, and nothing else has changed",
            ORDER,
            &scene.station,
        );
        bench.agent()?.deregister(memory)?;
    }
    Ok(())
}

/// Sends some segments of a message and compares record and memory with them, octet for octet.
fn pattern(
    bench: &mut Bench<'_>,
    scene: &mut Scene,
    dice: &mut Dice,
    round: usize,
) -> Result<(), Broken> {
    let memory = region(bench)?;
    let count = 2 + dice.below(60);
    let length = count * (1 + dice.below(1300)) + dice.below(7);
    let payload = dice.octets(length);
    // Segments of any length: senders should make them equal, and receivers must not rely on it.
    let cuts = if round.is_multiple_of(2) {
        every(length.div_ceil(count), length)
    } else {
        let mut cuts: Vec<_> = (1..count).map(|_| 1 + dice.below(length - 1)).collect();
        cuts.sort_unstable();
        cuts.dedup();
        cuts
    };
    let message = scene.station.message(length);
    let mut segments = cut(message, &payload, &cuts, &maker(memory));
    let of = segments.len();
    let chance = 1 + dice.below(9);
    segments.retain(|_| dice.below(10) < chance);
    if segments.len() == of {
        segments.remove(dice.below(of));
    }
    // The map would need more than 64 ranges; that is another case's affair.
    if segments.is_empty() || union(segments.iter().map(|s| s.0.clone()).collect()).len() > 64 {
        return Ok(());
    }
    dice.shuffle(&mut segments);
    for (range, segment) in &segments {
        scene.station.send(segment.clone());
        if dice.below(8) == 0 && !range.is_empty() {
            scene.station.send(segment.clone());
        }
    }
    let lives = scene.probe(bench)?;
    scene.records_now(bench)?;
    let record = scene.record(bench)?;
    let ranges = union(segments.iter().map(|(range, _)| range.clone()).collect());
    let wanted = wanted(scene, memory, message, ranges);
    let placed: Vec<_> = segments
        .iter()
        .map(|(range, segment)| (range.clone(), segment.payload.as_slice()))
        .collect();
    let there = bench.agent()?.all(memory)?;
    let right = picture(memory, BASE, &placed);
    bench.expect(
        format!(
            "pattern {round}: {} of {of} segments of {length} octets",
            placed.len()
        ),
        lives && record.as_ref() == Some(&wanted) && there == right,
        format!("{record:?}; memory {}", difference(&there, &right)),
        &format!("{wanted:?}, and those octets placed"),
        ORDER,
        &scene.station,
    );
    bench.agent()?.deregister(memory)?;
    Ok(())
}

fn d06(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut dice = Dice::new(bench.settings.seed, 6);
    let mut scene = Scene::new(bench, json!({ "record_ms": 60_000 }))?;
    for round in 0..40 {
        pattern(bench, &mut scene, &mut dice, round)?;
    }
    // Nobody demands: the record timeout closes it.
    let mut scene = Scene::new(bench, json!({ "record_ms": 50 }))?;
    let memory = region(bench)?;
    let message = scene.station.message(3000);
    let payload = dice.octets(3000);
    let segments = cut(message, &payload, &[1000, 2000], &maker(memory));
    scene.station.send(segments[1].1.clone());
    let record = scene.record(bench)?;
    let wanted = wanted(&scene, memory, message, one(1000..2000));
    bench.expect(
        "the record timeout",
        record.as_ref() == Some(&wanted),
        format!("{record:?}"),
        &format!("{wanted:?} when nothing was placed for that time"),
        ORDER,
        &scene.station,
    );
    Ok(())
}

fn d09(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut scene = Scene::new(bench, json!({ "record_ms": 60_000 }))?;
    let memory = region(bench)?;
    let message = scene.station.message(4000);
    let make = maker(memory);
    let at = |from: usize, octets: &[u8]| {
        let mut extension = message;
        extension.offset = as_u32(from);
        make(extension, octets)
    };
    let before = scene.counters(bench)?;
    for (from, octets) in [(0, [1; 1000]), (2000, [2; 1000])] {
        scene.station.send(at(from, &octets));
    }
    // All of these octets are valid, whole and in parts, with other contents.
    for (from, length) in [
        (0, 1000),
        (0, 1),
        (999, 1),
        (250, 500),
        (2000, 1000),
        (2999, 1),
    ] {
        scene.station.send(at(from, &vec![9; length]));
    }
    let lives = scene.probe(bench)?;
    let counted = scene.counted(bench, &before)?;
    let there = bench.agent()?.all(memory)?;
    let right = picture(
        memory,
        BASE,
        &[(0..1000, &[1; 1000]), (2000..3000, &[2; 1000])],
    );
    bench.expect(
        "duplicates with other octets",
        lives && counted == "duplicate 6" && there == right && scene.others.is_empty(),
        format!(
            "{counted}; memory {}; {:?}",
            difference(&there, &right),
            scene.others
        ),
        "`duplicate` 6, the first ones stay, the record stays open",
        LATE,
        &scene.station,
    );
    for (from, octets) in [(1000, [3; 1000]), (3000, [4; 1000])] {
        scene.station.send(at(from, &octets));
    }
    let record = scene.record(bench)?;
    let wanted = wanted(&scene, memory, message, one(0..4000));
    bench.expect(
        "the rest",
        record.as_ref() == Some(&wanted),
        format!("{record:?}"),
        "the record closes with all octets, once",
        STATES,
        &scene.station,
    );
    Ok(())
}

fn d11(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut scene = Scene::new(bench, json!({ "record_ms": 60_000 }))?;
    let memory = region(bench)?;
    let message = scene.station.message(1300);
    let payload = [7; 1300];
    let segments = cut(message, &payload, &every(10, 1300), &maker(memory));
    let before = scene.counters(bench)?;
    // Every other one: 64 ranges fit, the 65th does not.
    for (_, segment) in segments.iter().step_by(2) {
        scene.station.send(segment.clone());
    }
    let lives = scene.probe(bench)?;
    let counted = scene.counted(bench, &before)?;
    let there = bench.agent()?.all(memory)?;
    let placed: Vec<_> = segments
        .iter()
        .step_by(2)
        .take(64)
        .map(|(range, segment)| (range.clone(), segment.payload.as_slice()))
        .collect();
    let right = picture(memory, BASE, &placed);
    bench.expect(
        "65 ranges",
        lives && counted == "map-full 1" && there == right,
        format!("{counted}; memory {}", difference(&there, &right)),
        "`map-full` 1, and that segment is not placed",
        ORDER,
        &scene.station,
    );
    // A gap less makes room for it.
    scene.station.send(segments[1].1.clone());
    scene.station.send(segments[128].1.clone());
    let lives = scene.probe(bench)?;
    scene.records_now(bench)?;
    let record = scene.record(bench)?;
    let sent = segments.iter().step_by(2).chain([&segments[1]]);
    let ranges = union(sent.map(|(range, _)| range.clone()).collect());
    let wanted = wanted(&scene, memory, message, ranges);
    bench.expect(
        "one gap filled, and the 65th again",
        lives && record.as_ref() == Some(&wanted),
        format!("{record:?}"),
        "all 64 ranges",
        ORDER,
        &scene.station,
    );
    Ok(())
}

fn d12(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut scene = Scene::new(bench, json!({ "slots": 4, "record_ms": 60_000 }))?;
    let memory = region(bench)?;
    let make = maker(memory);
    let part = |scene: &mut Scene, length: usize, octets: &[u8]| {
        let message = scene.station.message(length);
        scene.station.send(make(message, octets));
    };
    // Three of four places may be open; a fourth message that is longer than a segment is placed without a record.
    let before = scene.counters(bench)?;
    for _ in 0..4 {
        part(&mut scene, 2000, &[1; 1000]);
    }
    part(&mut scene, 100, &[2; 100]);
    let lives = scene.probe(bench)?;
    let counted = scene.counted(bench, &before)?;
    let first = scene.others.first().map(|wc| (wc.opcode, wc.length));
    bench.expect(
        "four open messages, and one of a single segment",
        lives
            && counted == "record-dropped 1"
            && first == Some((RECORD, 100))
            && scene.others.len() == 1,
        format!("{counted}; {:?}", scene.others),
        "`record-dropped` 1 for the fourth, and a record of the last",
        ORDER,
        &scene.station,
    );
    let kept: Vec<_> = scene.others.drain(..).map(|wc| wc.wr_id).collect();
    // Nothing was given back: the ring is full.
    let before = scene.counters(bench)?;
    part(&mut scene, 50, &[3; 50]);
    let lives = scene.probe(bench)?;
    let counted = scene.counted(bench, &before)?;
    let there = bench
        .agent()?
        .peek(memory, memory.margin + as_u64(BASE), 50)?;
    bench.expect(
        "a message with a full ring",
        lives && counted == "record-dropped 1" && there == [3; 50] && scene.others.is_empty(),
        format!(
            "{counted}; {:?}; {:?}",
            &there[..4.min(there.len())],
            scene.others
        ),
        "placed, `record-dropped` 1",
        ORDER,
        &scene.station,
    );
    for record in kept {
        scene.look(bench, record, false)?;
    }
    part(&mut scene, 40, &[4; 40]);
    let record = scene.record(bench)?;
    bench.expect(
        "after one was given back",
        record
            .as_ref()
            .is_some_and(|record| (record.length, record.valid) == (40, 40)),
        format!("{record:?}"),
        "a record again",
        ORDER,
        &scene.station,
    );
    Ok(())
}

fn d24(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut dice = Dice::new(bench.settings.seed, 24);
    let mut scene = Scene::new(bench, json!({ "record_ms": 60_000 }))?;
    for (what, missing) in [
        ("complete", None),
        ("closed with a gap", Some(1)),
        ("closed with its end missing", Some(3)),
    ] {
        let memory = region(bench)?;
        let message = scene.station.message(4000);
        let payload = dice.octets(4000);
        let segments = cut(message, &payload, &[1000, 2000, 3000], &maker(memory));
        for (index, (_, segment)) in segments.iter().enumerate() {
            if Some(index) != missing {
                scene.station.send(segment.clone());
            }
        }
        if missing.is_some() {
            scene.probe(bench)?;
            scene.records_now(bench)?;
        }
        let record = scene.record(bench)?;
        let closed = record
            .as_ref()
            .is_some_and(|record| record.valid == 4000 - 1000 * usize::from(missing.is_some()));
        let then = bench.agent()?.all(memory)?;
        let before = scene.counters(bench)?;
        let other = cut(
            message,
            &[9; 4000],
            &[1000, 2000, 3000, 3500],
            &maker(memory),
        );
        let count = other.len();
        for (_, segment) in other {
            scene.station.send(segment);
        }
        let lives = scene.probe(bench)?;
        let counted = scene.counted(bench, &before)?;
        let now = bench.agent()?.all(memory)?;
        bench.expect(
            format!("segments with other octets of a message that is {what}"),
            lives
                && closed
                && counted == format!("late {count}")
                && now == then
                && scene.others.is_empty(),
            format!(
                "{record:?}; {counted}; memory {}; {:?}",
                difference(&now, &then),
                scene.others
            ),
            "`late`, nothing placed, no second record",
            LATE,
            &scene.station,
        );
        bench.agent()?.deregister(memory)?;
    }
    Ok(())
}

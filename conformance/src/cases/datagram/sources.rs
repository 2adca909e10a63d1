//! Sources and the numbers of their messages: reorder window, wrap, epochs, and who is restricted.

use serde_json::json;

use super::scene::{FILL, QKEY, RECORD, RECV, Refusal, Scene, WRITABLE, octets, one};
use super::{Case, datagrams};
use crate::agent::Memory;
use crate::bench::{Bench, Broken};
use crate::wire::datagram::{Extension, Segment};

const LATE: &str = "Datagram §4";
const ORDER: &str = "Datagram §5";
const EXTENSION: &str = "Datagram §3";

pub(super) const CASES: &[Case] = &[
    datagrams(
        "D10",
        "the reorder window, and numbers that wrap",
        &[LATE, EXTENSION],
        d10,
    ),
    datagrams(
        "D13",
        "an epoch, a port or an address more is another source",
        &[LATE, EXTENSION],
        d13,
    ),
];

fn first_half(scene: &Scene, memory: Memory, number: u32) -> Segment {
    half(scene, memory, number, 0)
}

fn half(scene: &Scene, memory: Memory, number: u32, offset: u32) -> Segment {
    let extension = Extension {
        epoch: scene.station.epoch,
        number,
        length: 200,
        offset,
        ..Extension::default()
    };
    Segment::write_record(memory.stag, memory.to, extension, &[1; 100])
}

fn whole(scene: &Scene, memory: Memory, number: u32) -> Segment {
    let extension = Extension {
        epoch: scene.station.epoch,
        number,
        length: 10,
        ..Extension::default()
    };
    Segment::write_record(memory.stag, memory.to, extension, &[2; 10])
}

/// The lengths of the records that closed, each given back.
fn closed(bench: &mut Bench<'_>, scene: &mut Scene) -> Result<Vec<(usize, usize)>, Broken> {
    let mut all = Vec::new();
    for wc in std::mem::take(&mut scene.others) {
        if wc.opcode == RECORD {
            let record = scene.look(bench, wc.wr_id, false)?;
            all.push((record.length, record.valid));
        }
    }
    Ok(all)
}

fn d10(bench: &mut Bench<'_>) -> Result<(), Broken> {
    const WINDOW: u32 = 4;
    let memory = bench.agent()?.register(4096, WRITABLE, FILL)?;
    // From numbers in the middle, and across the wrap.
    for start in [1000_u32, u32::MAX - 2, u32::MAX, 0x7fff_fffe] {
        let mut scene = Scene::new(bench, json!({ "window": WINDOW, "record_ms": 60_000 }))?;
        let at = |more: u32| start.wrapping_add(more);
        scene.station.send(first_half(&scene, memory, start));
        for more in 1..=WINDOW {
            scene.station.send(whole(&scene, memory, at(more)));
        }
        let lives = scene.probe(bench)?;
        let records = closed(bench, &mut scene)?;
        bench.expect(
            format!("message {start:#x} and four newer ones"),
            lives && records == [(10, 10); 4],
            format!("{records:?}"),
            "the four are complete, the old one is within the window and stays open",
            LATE,
            &scene.station,
        );
        scene.station.send(whole(&scene, memory, at(WINDOW + 1)));
        scene.probe(bench)?;
        let mut records = closed(bench, &mut scene)?;
        records.sort_unstable();
        bench.expect(
            format!("message {start:#x}: a fifth newer one"),
            records == [(10, 10), (200, 100)],
            format!("{records:?}"),
            "the old one closes with what it has",
            ORDER,
            &scene.station,
        );
        let late = vec![
            octets(half(&scene, memory, start, 100)),
            octets(whole(&scene, memory, at(1))),
            octets(whole(&scene, memory, start.wrapping_sub(1))),
            octets(whole(&scene, memory, start.wrapping_sub(2000))),
        ];
        let what = format!("message {start:#x}: its rest, and others behind the window");
        let refusal = Refusal {
            what: &what,
            counter: "late",
            clause: LATE,
            memory: &[],
        };
        scene.refuses(bench, refusal, &late)?;
        old_sends(bench, &mut scene, at(WINDOW + 1))?;
    }
    Ok(())
}

/// Segmented Sends know no reorder window, but the closed window of 1024 numbers.
fn old_sends(bench: &mut Bench<'_>, scene: &mut Scene, newest: u32) -> Result<(), Broken> {
    let send = |scene: &Scene, back: u32| {
        let extension = Extension {
            epoch: scene.station.epoch,
            number: newest.wrapping_sub(back),
            length: 7,
            ..Extension::default()
        };
        Segment::segmented_send(QKEY, extension, b"old one")
    };
    for back in [500, 1023] {
        scene.station.send(send(scene, back));
        let wc = scene.await_one(bench)?;
        let good = wc
            .as_ref()
            .is_some_and(|wc| wc.opcode == RECV && wc.length == 47);
        if let Some(wc) = &wc {
            scene.repost(bench, wc.wr_id)?;
        }
        bench.expect(
            format!("a Send {back} behind {newest:#x}"),
            good,
            format!("{wc:?}"),
            "taken",
            LATE,
            &scene.station,
        );
    }
    let late: Vec<_> = [500, 1023, 1024, 1025, 1 << 30]
        .map(|back| octets(send(scene, back)))
        .to_vec();
    let refusal = Refusal {
        what: "Sends that came before, and some 1024 and more behind",
        counter: "late",
        clause: LATE,
        memory: &[],
    };
    scene.refuses(bench, refusal, &late)
}

fn d13(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let memory = bench.agent()?.register(4096, WRITABLE, FILL)?;
    let mut scene = Scene::new(bench, json!({ "record_ms": 60_000 }))?;
    // Equal numbers from another epoch, or from another port, are another message.
    let open = first_half(&scene, memory, 5);
    scene.station.send(open);
    scene.station.epoch ^= 0xffff;
    let other_epoch = half(&scene, memory, 5, 100);
    scene.station.send(other_epoch.clone());
    let mut other = bench.station(scene.qpn)?;
    other.send(other_epoch);
    scene.station.epoch ^= 0xffff;
    let lives = scene.probe(bench)?;
    let early = closed(bench, &mut scene)?;
    scene.station.send(half(&scene, memory, 5, 100));
    let record = scene.record(bench)?;
    bench.expect(
        "halves with the same number from another epoch and another port",
        lives
            && early.is_empty()
            && record
                .as_ref()
                .is_some_and(|r| (r.length, r.valid) == (200, 200)),
        format!("{early:?}, then {record:?}"),
        "the message is complete only with its own half",
        LATE,
        &scene.station,
    );
    scene.records_now(bench)?;
    let mut valid = Vec::new();
    while valid.len() < 2 {
        match scene.record(bench)? {
            Some(record) => valid.push(record.ranges),
            None => break,
        }
    }
    let half = one(100..200);
    bench.expect(
        "the two others",
        valid == [half.clone(), half],
        format!("{valid:?}"),
        "a record each, of their half",
        LATE,
        &scene.station,
    );
    // The first epoch's number is closed; a new epoch has its own.
    let closed_one = octets(whole(&scene, memory, 5));
    let refusal = Refusal {
        what: "the closed number again",
        counter: "late",
        clause: LATE,
        memory: &[],
    };
    scene.refuses(bench, refusal, &[closed_one])?;
    scene.station.epoch = scene.station.epoch.wrapping_add(7);
    scene.station.send(whole(&scene, memory, 5));
    let record = scene.record(bench)?;
    bench.expect(
        "the same number from a sender that began anew",
        record.as_ref().is_some_and(|record| record.valid == 10),
        format!("{record:?}"),
        "a record",
        EXTENSION,
        &scene.station,
    );
    Ok(())
}

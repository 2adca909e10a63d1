//! UC queue pairs: one peer, and Writes without a record.

use serde_json::json;

use super::scene::{FILL, RECORD, Refusal, Scene, WRITABLE, cut, difference, every, octets};
use super::{Case, datagrams};
use crate::agent::Memory;
use crate::bench::{Bench, Broken};
use crate::dice::Dice;
use crate::station::Heard;
use crate::wire::datagram::{About, Exchange, Extension, Segment, about, flag};
use crate::wire::ddp::ReadRequest;

const UC: &str = "Datagram §5.2";

pub(super) const CASES: &[Case] = &[datagrams(
    "D23",
    "UC: one peer, Writes without a record, with an immediate, and no Reads",
    &[UC],
    d23,
)];

/// `IBV_WC_RECV_RDMA_WITH_IMM`.
const WITH_IMMEDIATE: u64 = 129;

fn write(
    scene: &mut Scene,
    memory: Memory,
    payload: &[u8],
    cuts: &[usize],
    immediate: Option<u32>,
) -> Vec<Segment> {
    let mut message = scene.station.message(payload.len());
    message.flags = flag::WRITE;
    if let Some(value) = immediate {
        message.flags |= flag::IMMEDIATE;
        message.immediate = value;
    }
    let make = |extension: Extension, part: &[u8]| {
        Segment::write_record(memory.stag, memory.to, extension, part)
    };
    cut(message, payload, cuts, &make)
        .into_iter()
        .map(|(_, segment)| segment)
        .collect()
}

fn d23(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let memory = bench.agent()?.register(8192, WRITABLE, FILL)?;
    let mut scene = Scene::new(
        bench,
        json!({ "uc": 1, "receives": 2, "octets": 4096, "record_ms": 60_000 }),
    )?;
    scene.point_here(bench)?;
    let all = [memory];
    let refusal = |what, counter| Refusal {
        what,
        counter,
        clause: UC,
        memory: &all,
    };
    let mut stranger = bench.station(scene.qpn)?;
    stranger.epoch = scene.station.epoch;
    let before = scene.counters(bench)?;
    let send = stranger.plain_send(0, b"stranger");
    stranger.send(send);
    for segment in write(&mut scene, memory, &[1; 100], &[], None) {
        stranger.send(segment);
    }
    scene.dropped(
        bench,
        refusal("a Send and a Write of a stranger", "wrong-peer"),
        2,
        &before,
    )?;
    let request = ReadRequest {
        sink_stag: 1,
        sink_to: 0,
        size: 4,
        source_stag: memory.stag,
        source_to: memory.to,
    };
    let epoch = scene.station.epoch;
    let reads = [
        octets(Segment::read_request(epoch, 1, request)),
        octets(Segment::read_response(1, 0, true, b"data")),
        octets(Exchange::request(epoch, 1)),
    ];
    scene.refuses(
        bench,
        refusal(
            "a Read Request, a Read Response, a cookie request",
            "unexpected-opcode",
        ),
        &reads,
    )?;
    beyond(bench, &mut scene, memory)?;
    writes(bench, &mut scene, memory)?;
    immediates(bench, &mut scene, memory)?;
    unconnected(bench, memory)
}

/// The peer may be told of what it did (Datagram §7.2).
fn beyond(bench: &mut Bench<'_>, scene: &mut Scene, memory: Memory) -> Result<(), Broken> {
    let before = scene.counters(bench)?;
    let then = bench.agent()?.all(memory)?;
    let segments = write(scene, memory, &[1; 8193], &[], None);
    let message = segments.first().and_then(|segment| segment.extension);
    for segment in segments {
        scene.station.send(segment);
    }
    let lives = scene.probe(bench)?;
    let counted = scene.counted(bench, &before)?;
    let now = bench.agent()?.all(memory)?;
    let heard = scene.station.at_once();
    let told = heard.segment().and_then(Segment::terminate);
    let right = told.as_ref().is_some_and(|told| {
        (told.layer, told.etype, told.code) == (0, 1, 1)
            && about(told) == message.map(About::Message)
    });
    bench.expect(
        "a Write beyond the region",
        lives
            && counted == "out-of-bounds 1"
            && now == then
            && (right || matches!(heard, Heard::Nothing)),
        format!("{counted}; {}; {heard}", difference(&now, &then)),
        "`out-of-bounds` 1, nothing placed, and nothing or a Terminate 0/1/01 about this message",
        UC,
        &scene.station,
    );
    Ok(())
}

fn writes(bench: &mut Bench<'_>, scene: &mut Scene, memory: Memory) -> Result<(), Broken> {
    let mut dice = Dice::new(bench.settings.seed, 23);
    for (length, size) in [(0, 1), (1, 1), (1000, 1000), (8192, 1000), (8192, 8192)] {
        let payload = dice.octets(length);
        let mut segments = write(scene, memory, &payload, &every(size, length), None);
        dice.shuffle(&mut segments);
        for segment in &segments {
            scene.station.send(segment.clone());
        }
        let lives = scene.probe(bench)?;
        let there =
            bench
                .agent()?
                .peek(memory, memory.margin, u64::try_from(length).unwrap_or(0))?;
        bench.expect(
            format!("a Write of {length} octets by {size}"),
            lives && there == payload && scene.others.is_empty(),
            format!("{}; {:?}", difference(&there, &payload), scene.others),
            "placed, without a completion",
            UC,
            &scene.station,
        );
        let before = scene.counters(bench)?;
        let count = segments.len();
        let then = bench.agent()?.all(memory)?;
        for mut segment in segments {
            segment.payload.fill(0xee);
            scene.station.send(segment);
        }
        scene.probe(bench)?;
        let now = bench.agent()?.all(memory)?;
        let counted = scene.counted(bench, &before)?;
        bench.expect(
            format!("the same segments of {length} octets again, with other octets"),
            now == then && counted == format!("late {count}"),
            format!("{counted}; {}", difference(&now, &then)),
            "`late`, nothing placed",
            UC,
            &scene.station,
        );
    }
    // A Write-Record, since the queue pair takes them.
    let message = scene.station.message(5);
    scene.station.send(Segment::write_record(
        memory.stag,
        memory.to,
        message,
        b"12345",
    ));
    let wc = scene.await_one(bench)?;
    bench.expect(
        "a Write-Record",
        wc.as_ref()
            .is_some_and(|wc| (wc.opcode, wc.length) == (RECORD, 5)),
        format!("{wc:?}"),
        "a record",
        UC,
        &scene.station,
    );
    Ok(())
}

fn immediates(bench: &mut Bench<'_>, scene: &mut Scene, memory: Memory) -> Result<(), Broken> {
    let payload = [7; 3000];
    for round in 0..3 {
        let mut segments = write(scene, memory, &payload, &[1000, 2000], Some(0x0102_0304));
        segments.rotate_left(round);
        for segment in segments {
            scene.station.send(segment);
        }
        let wc = scene.await_one(bench)?;
        let immediate = u64::from(0x0102_0304_u32.to_be());
        let good = wc.as_ref().is_some_and(|wc| {
            (wc.status, wc.opcode, wc.length, wc.immediate) == (0, WITH_IMMEDIATE, 3000, immediate)
        });
        let there = bench.agent()?.peek(memory, memory.margin, 3000)?;
        if let Some(wc) = &wc {
            scene.repost(bench, wc.wr_id)?;
        }
        bench.expect(
            format!("a Write with an immediate, segment {round} first"),
            good && there == payload,
            format!("{wc:?}; {}", difference(&there, &payload)),
            "one receive completes with length and immediate, all octets placed",
            UC,
            &scene.station,
        );
    }
    // Half of one: no receive is taken, and demand does not complete it.
    let segments = write(scene, memory, &[8; 2000], &[1000], Some(9));
    scene.station.send(segments[0].clone());
    let lives = scene.probe(bench)?;
    bench.expect(
        "half of a Write with an immediate",
        lives && scene.others.is_empty(),
        format!("{:?}", scene.others),
        "nothing completes",
        UC,
        &scene.station,
    );
    // Both receives are taken by Sends; then a Write with an immediate finds none.
    let taken: Vec<_> = [b"one", b"two"]
        .map(|payload| scene.station.plain_send(0, payload))
        .to_vec();
    for segment in taken {
        scene.station.send(segment);
        let wc = scene.await_one(bench)?;
        if wc.is_none() {
            return Err(Broken::Datagram("a good Send does not arrive".to_owned()));
        }
    }
    let before = scene.counters(bench)?;
    let then = bench.agent()?.all(memory)?;
    for segment in write(scene, memory, &[0x99; 100], &[], Some(1)) {
        scene.station.send(segment);
    }
    let mut counted = String::new();
    for _ in 0..200 {
        counted = scene.counted(bench, &before)?;
        if !counted.is_empty() {
            break;
        }
        let _ = scene.poll(bench, std::time::Duration::from_millis(5))?;
    }
    let now = bench.agent()?.all(memory)?;
    bench.expect(
        "a Write with an immediate and no receive",
        counted == "no-receive 1" && now == then,
        format!("{counted}; {}", difference(&now, &then)),
        "`no-receive` 1, not placed",
        UC,
        &scene.station,
    );
    Ok(())
}

/// Before the peer is known, nobody is heard.
fn unconnected(bench: &mut Bench<'_>, memory: Memory) -> Result<(), Broken> {
    let mut scene = Scene::new(bench, json!({ "uc": 1, "receives": 2 }))?;
    let before = scene.counters(bench)?;
    let early = scene.station.plain_send(0, b"early");
    scene.station.send(early);
    for segment in write(&mut scene, memory, &[0x44; 10], &[], None) {
        scene.station.send(segment);
    }
    let mut counted = String::new();
    for _ in 0..200 {
        counted = scene.counted(bench, &before)?;
        if counted == "wrong-peer 2" {
            break;
        }
        let _ = scene.poll(bench, std::time::Duration::from_millis(5))?;
    }
    bench.expect(
        "a Send and a Write before the peer is known",
        counted == "wrong-peer 2",
        counted,
        "`wrong-peer` 2",
        UC,
        &scene.station,
    );
    Ok(())
}

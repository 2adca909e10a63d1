//! RDMA Reads of the device's memory.

use std::net::SocketAddr;

use serde_json::json;

use super::scene::{FILL, Refusal, Scene, as_u32, as_u64, octets};
use super::{Case, datagrams};
use crate::agent::{Memory, access};
use crate::bench::{Bench, Broken};
use crate::station::Heard;
use crate::wire::datagram::{About, Datagram, Segment, about, opcode};
use crate::wire::ddp::{Place, ReadRequest, Terminate};

const READ: &str = "Datagram §7.1";
const AMPLIFICATION: &str = "Datagram §6";
const TERMINATE: &str = "Datagram §7.2";

pub(super) const CASES: &[Case] = &[
    datagrams(
        "D16",
        "Reads of all sizes, and no more than three times the octets to strangers",
        &[READ, AMPLIFICATION],
        d16,
    ),
    datagrams(
        "D17",
        "Read Requests that must be refused, and Terminates about them",
        &[READ, TERMINATE],
        d17,
    ),
];

const SINK: u32 = 0x5eed_0001;
/// Where the Data Sink is, in the message of which the request asks for a chunk.
const SINK_TO: u64 = 0x2000;
const REGION: usize = 200_000;

fn readable(bench: &mut Bench<'_>) -> Result<Memory, Broken> {
    let rights = access::LOCAL_WRITE | access::REMOTE_READ;
    Ok(bench.agent()?.register(as_u64(REGION), rights, FILL)?)
}

fn request(memory: Memory, size: usize) -> ReadRequest {
    ReadRequest {
        sink_stag: SINK,
        sink_to: SINK_TO,
        size: as_u32(size),
        source_stag: memory.stag,
        source_to: memory.to,
    }
}

fn asking(scene: &mut Scene, request: ReadRequest, cookie: Option<u64>) -> Vec<u8> {
    scene.station.msn = scene.station.msn.wrapping_add(1);
    let segment = Segment::read_request(scene.station.epoch, scene.station.msn, request);
    octets(match cookie {
        Some(cookie) => segment.with_cookie(cookie),
        None => segment,
    })
}

/// Takes a Response; how many octets came in order and good, and what is wrong with it.
fn response(scene: &mut Scene, size: usize) -> (usize, Option<String>, usize) {
    let (mut at, mut on_the_wire) = (0, 0);
    loop {
        let heard = scene.station.answer();
        let Some(segment) = heard.segment() else {
            return (at, Some(heard.to_string()), on_the_wire);
        };
        let place = Place::Tagged {
            stag: SINK,
            to: SINK_TO + as_u64(at),
        };
        let end = at + segment.payload.len();
        let good = segment.opcode() == opcode::READ_RESPONSE
            && segment.place == place
            && segment.first & 0x3f == 1
            && segment.control == 0x42
            && segment.is_last() == (end == size)
            && segment.payload.iter().all(|octet| *octet == FILL)
            && (!segment.payload.is_empty() || size == 0);
        on_the_wire += 18 + segment.payload.len();
        if !good || end >= size {
            return (end, (!good).then(|| segment.to_string()), on_the_wire);
        }
        at = end;
    }
}

fn d16(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let memory = readable(bench)?;
    let mut scene = Scene::new(bench, json!({}))?;
    let cookie = scene.cookie()?;
    for (size, with) in [
        (0, None),
        (1, None),
        (131, None),
        (132, None),
        (0, Some(cookie)),
        (132, Some(cookie)),
        (133, Some(cookie)),
        (1400, Some(cookie)),
        (64_000, Some(cookie)),
        (70_001, Some(cookie)),
        (REGION, Some(cookie)),
    ] {
        let asked = asking(&mut scene, request(memory, size), with);
        scene.station.octets(&asked);
        let (came, wrong, wire) = response(&mut scene, size);
        let more = scene.station.at_once();
        let bounded = with.is_some() || wire <= 3 * asked.len();
        let how = if with.is_some() { "with" } else { "without" };
        bench.expect(
            format!("{size} octets {how} a cookie"),
            wrong.is_none() && came == size && bounded && matches!(more, Heard::Nothing),
            format!("{came} octets, {wrong:?}, {wire} octets in all; then {more}"),
            "all octets in order, the last segment marked, without a cookie at most three times the octets",
            if with.is_some() { READ } else { AMPLIFICATION },
            &scene.station,
        );
    }
    // One octet more than three times the request.
    let unvalidated = |what| Refusal {
        what,
        counter: "unvalidated-read",
        clause: AMPLIFICATION,
        memory: &[],
    };
    let long: Vec<_> = [133, 134, 1000, REGION]
        .map(|size| {
            // Nothing else was asked for under this STag, so that an answer can be to this request alone.
            let alone = ReadRequest {
                sink_stag: SINK ^ as_u32(size),
                ..request(memory, size)
            };
            asking(&mut scene, alone, None)
        })
        .to_vec();
    scene.refuses(bench, unvalidated("longer Reads without a cookie"), &long)?;
    let wrong: Vec<_> = [cookie ^ 2, 0, !cookie]
        .map(|cookie| asking(&mut scene, request(memory, 1000), Some(cookie)))
        .to_vec();
    scene.refuses(bench, unvalidated("a cookie that is none"), &wrong)?;
    let mut stranger = bench.station(scene.qpn)?;
    let before = scene.counters(bench)?;
    let asked = asking(&mut scene, request(memory, 1000), Some(cookie));
    stranger.octets(&asked);
    scene.dropped(
        bench,
        unvalidated("a stranger with the tester's cookie"),
        1,
        &before,
    )?;
    let heard = stranger.at_once();
    bench.expect(
        "what the stranger got",
        matches!(heard, Heard::Nothing),
        heard,
        "nothing",
        AMPLIFICATION,
        &stranger,
    );
    Ok(())
}

/// Reason for which a Read Request is refused: its change, the counter, and the Terminate that may tell of it (RFC 5040
/// §4.8).
type Row = (
    &'static str,
    fn(&mut ReadRequest),
    &'static str,
    Option<(u8, u8, u8)>,
);

const REFUSED: &[Row] = &[
    (
        "an STag that is none",
        |r| r.source_stag = !r.source_stag,
        "bad-stag",
        Some((0, 1, 0)),
    ),
    (
        "another key",
        |r| r.source_stag ^= 1,
        "bad-stag",
        Some((0, 1, 0)),
    ),
    (
        "one octet before the region",
        |r| r.source_to -= 1,
        "out-of-bounds",
        Some((0, 1, 1)),
    ),
    (
        "one octet beyond the region",
        |r| r.source_to += as_u64(REGION) - 15,
        "out-of-bounds",
        Some((0, 1, 1)),
    ),
    (
        "2^30 octets",
        |r| r.size = 1 << 30,
        "out-of-bounds",
        Some((0, 1, 1)),
    ),
    (
        "more than 2^30 octets",
        |r| r.size = (1 << 30) + 1,
        "malformed",
        None,
    ),
    ("2^32 - 1 octets", |r| r.size = u32::MAX, "malformed", None),
    (
        "a sink TO that wraps",
        |r| r.sink_to = u64::MAX - 7,
        "malformed",
        None,
    ),
];

fn d17(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let memory = readable(bench)?;
    let other =
        bench
            .agent()?
            .register_in(4096, access::LOCAL_WRITE | access::REMOTE_READ, FILL, 1)?;
    let write_only =
        bench
            .agent()?
            .register(4096, access::LOCAL_WRITE | access::REMOTE_WRITE, FILL)?;
    let mut scene = Scene::new(bench, json!({}))?;
    for (what, change, counter, code) in REFUSED {
        let mut wrong = request(memory, 16);
        change(&mut wrong);
        refused(bench, &mut scene, what, wrong, counter, *code)?;
    }
    let wrong = request(other, 16);
    refused(
        bench,
        &mut scene,
        "another protection domain",
        wrong,
        "bad-pd",
        Some((0, 1, 3)),
    )?;
    let wrong = request(write_only, 16);
    refused(
        bench,
        &mut scene,
        "no right to read",
        wrong,
        "no-access",
        Some((0, 1, 2)),
    )?;
    shapes(bench, &mut scene, memory)?;
    let cookie = scene.cookie()?;
    if scene.station.to.ip().is_loopback() && scene.station.to.is_ipv4() {
        let before = scene.counters(bench)?;
        let asked = asking(&mut scene, request(memory, 16), Some(cookie));
        let to = SocketAddr::new([127, 255, 255, 255].into(), scene.qpn);
        scene.station.octets_to(&asked, to);
        let refusal = Refusal {
            what: "a request to the broadcast address",
            counter: "not-well-known",
            clause: READ,
            memory: &[],
        };
        scene.dropped(bench, refusal, 1, &before)?;
    }
    rate(bench, &mut scene, memory, cookie)
}

/// A Read Request of another shape than the only one that there is.
fn shapes(bench: &mut Bench<'_>, scene: &mut Scene, memory: Memory) -> Result<(), Broken> {
    let good = Segment::read_request(scene.station.epoch, 1, request(memory, 16));
    let mut all = Vec::new();
    let changes: [fn(&mut Segment); 6] = [
        |s| {
            s.payload.pop();
        },
        |s| s.payload.push(0),
        |s| s.payload.clear(),
        |s| s.first &= !0x40,
        |s| {
            if let Place::Untagged { mo, .. } = &mut s.place {
                *mo = 28;
            }
        },
        |s| {
            if let Place::Untagged { qn, .. } = &mut s.place {
                *qn = 0;
            }
        },
    ];
    for change in changes {
        let mut segment = good.clone();
        change(&mut segment);
        all.push(octets(segment));
    }
    let refusal = Refusal {
        what: "more or fewer octets, L clear, an MO, another queue",
        counter: "malformed",
        clause: READ,
        memory: &[],
    };
    scene.refuses(bench, refusal, &all)
}

/// Without a cookie nothing may come of it; with one, a Terminate may.
fn refused(
    bench: &mut Bench<'_>,
    scene: &mut Scene,
    what: &str,
    wrong: ReadRequest,
    counter: &str,
    code: Option<(u8, u8, u8)>,
) -> Result<(), Broken> {
    let refusal = Refusal {
        what,
        counter,
        clause: READ,
        memory: &[],
    };
    let asked = asking(scene, wrong, None);
    // A stranger's long request is dropped for that, whatever else is wrong with it.
    if wrong.size <= 132 || counter == "malformed" {
        scene.refuses(bench, refusal, &[asked])?;
    }
    let cookie = scene.cookie()?;
    let before = scene.counters(bench)?;
    let asked = asking(scene, wrong, Some(cookie));
    scene.station.octets(&asked);
    let lives = scene.probe(bench)?;
    let counted = scene.counted(bench, &before)?;
    let answer = scene.station.at_once();
    let told = answer.segment().and_then(Segment::terminate);
    let silent = matches!(answer, Heard::Nothing);
    let right = told.as_ref().is_some_and(|told| {
        Some((told.layer, told.etype, told.code)) == code
            && told.header_control & 4 == 0
            && about(told) == Some(About::Request(wrong))
            && told.to_bytes().len() + 22 <= asked.len()
    });
    bench.expect(
        format!("{what}, with a cookie"),
        lives && counted == format!("{counter} 1") && (silent || right),
        format!("{counted}; {answer}"),
        &format!("`{counter}` 1, and nothing or a Terminate {code:?} no longer than the request"),
        TERMINATE,
        &scene.station,
    );
    Ok(())
}

/// At most ten Terminates per second, and none about a Terminate.
fn rate(
    bench: &mut Bench<'_>,
    scene: &mut Scene,
    memory: Memory,
    cookie: u64,
) -> Result<(), Broken> {
    let started = crate::clock::now();
    let mut wrong = request(memory, 16);
    wrong.source_stag = !wrong.source_stag;
    for _ in 0..100 {
        let asked = asking(scene, wrong, Some(cookie));
        scene.station.octets(&asked);
    }
    scene.probe(bench)?;
    let mut count = 0;
    while let Heard::Datagram(datagram) = scene.station.at_once() {
        count += u64::from(datagram.segment().and_then(Segment::terminate).is_some());
    }
    let seconds = (crate::clock::now() - started).as_secs();
    bench.expect(
        "a hundred at once",
        count <= 10 * (seconds + 2),
        format!("{count} Terminates in {seconds} s"),
        "at most ten per second",
        TERMINATE,
        &scene.station,
    );
    let told = Terminate {
        layer: 0,
        etype: 1,
        code: 0,
        header_control: 0b001,
        reserved: 0,
        rest: request(memory, 16).to_bytes(),
    };
    let epoch = scene.station.epoch;
    let segment = Segment::untagged(opcode::TERMINATE, epoch, 2, 7, &told.to_bytes());
    let all = [
        octets(segment.clone()),
        octets(Datagram::from(segment.with_cookie(cookie))),
        octets(Segment::read_response(SINK, 0, true, b"nobody asked")),
    ];
    let mut unsolicited = Refusal {
        what: "Terminates about nothing that the device asked for",
        counter: "unsolicited",
        clause: TERMINATE,
        memory: &[],
    };
    scene.refuses(bench, unsolicited, &all[..2])?;
    unsolicited.what = "a Read Response to nothing";
    unsolicited.counter = "bad-stag";
    unsolicited.clause = READ;
    scene.refuses(bench, unsolicited, &all[2..])?;
    Ok(())
}

//! Datagrams that every receiver drops, and Write-Records that a target refuses: silent, counted, no octet placed.

use serde_json::json;

use super::scene::{FILL, QKEY, Refusal, Scene, WRITABLE, octets};
use super::{Case, datagrams};
use crate::agent::{Memory, access};
use crate::bench::{Bench, Broken};
use crate::dice::Dice;
use crate::wire::datagram::{
    Datagram, Exchange, Extension, Lookup, MOST, Segment, flag, opcode, sealed,
};
use crate::wire::ddp::{Place, ReadRequest};

const DATAGRAM: &str = "Datagram §1";
const FIRST: &str = "Datagram §1.1";
const CONTROL: &str = "Datagram §1.2";
const EXTENSION: &str = "Datagram §3";
const ORDER: &str = "Datagram §5";

pub(super) const CASES: &[Case] = &[
    datagrams(
        "D04",
        "datagrams that are none: cut off, garbage, wrong CRC, version, format and opcode",
        &[DATAGRAM, FIRST, CONTROL],
        d04,
    ),
    datagrams(
        "D07",
        "Write-Records that must be refused",
        &[ORDER, EXTENSION],
        d07,
    ),
];

fn extension(scene: &mut Scene, length: usize) -> Extension {
    scene.station.message(length)
}

/// One good datagram of each kind; those that name memory name this.
fn good(scene: &mut Scene, memory: Memory) -> Vec<Datagram> {
    let write = extension(scene, 8);
    let send = extension(scene, 8);
    let request = ReadRequest {
        sink_stag: 1,
        sink_to: 0,
        size: 8,
        source_stag: memory.stag,
        source_to: memory.to,
    };
    let epoch = scene.station.epoch;
    vec![
        scene.station.plain_send(QKEY, b"payload!").into(),
        Segment::segmented_send(QKEY, send, b"payload!").into(),
        Segment::write_record(memory.stag, memory.to, write, b"payload!").into(),
        Segment::read_request(epoch, 1, request).into(),
        Segment::read_response(1, 0, true, b"payload!").into(),
        Exchange::request(epoch, 1).into(),
    ]
}

fn d04(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let memory = bench
        .agent()?
        .register(64, WRITABLE | access::REMOTE_READ, FILL)?;
    let mut scene = Scene::new(bench, json!({}))?;
    let refusal = |what, counter, clause| Refusal {
        what,
        counter,
        clause,
        memory: &[],
    };
    let datagrams = good(&mut scene, memory);
    // Too short for a CRC, or no CRC.
    let short: Vec<_> = (0..4).map(|length| vec![0x41; length]).collect();
    scene.refuses(
        bench,
        refusal("0 to 3 octets", "malformed", DATAGRAM),
        &short,
    )?;
    let empty = [sealed(Vec::new())];
    scene.refuses(
        bench,
        refusal("nothing but a CRC", "malformed", DATAGRAM),
        &empty,
    )?;
    let mut dice = Dice::new(bench.settings.seed, 4);
    let garbage: Vec<_> = (4..=64).map(|length| dice.octets(length)).collect();
    scene.refuses(
        bench,
        refusal("garbage of 4 to 64 octets", "bad-crc", DATAGRAM),
        &garbage,
    )?;
    let zeros: Vec<_> = (5..=64).map(|length| vec![0; length]).collect();
    scene.refuses(bench, refusal("5 to 64 zeros", "bad-crc", DATAGRAM), &zeros)?;
    for datagram in &datagrams {
        wrong(bench, &mut scene, datagram)?;
    }
    let send = datagrams[0].to_bytes();
    let body = &send[..send.len() - 4];
    let with = |first: u8, control: u8| {
        let mut octets = body.to_vec();
        octets[0] = first;
        octets[1] = control;
        sealed(octets)
    };
    let formats: Vec<_> = (4..16)
        .map(|format| with(0x41 | format << 2, 0x43))
        .collect();
    scene.refuses(
        bench,
        refusal("formats 4 to 15", "unknown-format", FIRST),
        &formats,
    )?;
    let versions: Vec<_> = [0, 2, 3].map(|dv| with(0x40 | dv, 0x43)).to_vec();
    scene.refuses(
        bench,
        refusal("DV 0, 2 and 3", "bad-version", ORDER),
        &versions,
    )?;
    let versions: Vec<_> = [0, 2, 3].map(|rv| with(0x41, rv << 6 | 3)).to_vec();
    scene.refuses(
        bench,
        refusal("RV 0, 2 and 3", "bad-version", ORDER),
        &versions,
    )?;
    let opcodes: Vec<_> = [0, 4, 6, 8, 9, 10, 11, 14, 15]
        .map(|code| with(0x41, 0x40 | code))
        .to_vec();
    scene.refuses(
        bench,
        refusal(
            "opcodes that datagrams do not have",
            "unexpected-opcode",
            CONTROL,
        ),
        &opcodes,
    )?;
    let tagged: Vec<_> = [0, 4, 8, 10, 14]
        .map(|code| with(0xc1, 0x40 | code))
        .to_vec();
    scene.refuses(
        bench,
        refusal("the same, tagged", "unexpected-opcode", CONTROL),
        &tagged,
    )?;
    let lookup = [octets(Lookup::question(1, scene.qpn, b""))];
    scene.refuses(
        bench,
        refusal("a service lookup", "unknown-format", "Datagram §10"),
        &lookup,
    )
}

/// A good datagram with each octet changed, and cut off at each place, with the old CRC and with one that is right.
fn wrong(bench: &mut Bench<'_>, scene: &mut Scene, datagram: &Datagram) -> Result<(), Broken> {
    let whole = datagram.to_bytes();
    let flipped: Vec<_> = (0..whole.len())
        .map(|at| {
            let mut octets = whole.clone();
            octets[at] ^= 1 << (at % 8);
            octets
        })
        .collect();
    let name = format!("{datagram}: an octet changed");
    let crc = Refusal {
        what: &name,
        counter: "bad-crc",
        clause: DATAGRAM,
        memory: &[],
    };
    scene.refuses(bench, crc, &flipped)?;
    let cut: Vec<_> = (4..whole.len()).map(|end| whole[..end].to_vec()).collect();
    let name = format!("{datagram}: cut off");
    scene.refuses(bench, Refusal { what: &name, ..crc }, &cut)?;
    // Where the header ends before its time although the CRC is right.
    let body = &whole[..whole.len() - 4];
    let payload = match datagram {
        Datagram::Segment(segment) if segment.opcode() == opcode::READ_REQUEST => 0,
        Datagram::Segment(segment) => segment.payload.len(),
        Datagram::Exchange(_) | Datagram::Lookup(_) | Datagram::Reliable(_) => 0,
    };
    let short: Vec<_> = (1..body.len() - payload)
        .map(|end| sealed(body[..end].to_vec()))
        .collect();
    let name = format!("{datagram}: cut off, with a right CRC");
    let refusal = Refusal {
        what: &name,
        counter: "malformed",
        clause: EXTENSION,
        memory: &[],
    };
    scene.refuses(bench, refusal, &short)
}

type Change = fn(&mut Segment, &mut Extension);

/// Fault, counter, and how a good one becomes it: 64 octets at offset 1024 of a message of 4096.
const WRONG: &[(&str, &str, Change)] = &[
    ("an STag that is none", "bad-stag", |s, _| {
        stag(s, |stag| !stag)
    }),
    ("another key", "bad-stag", |s, _| stag(s, |stag| stag ^ 1)),
    ("an STag of zero", "bad-stag", |s, _| stag(s, |_| 0)),
    ("one octet before the region", "out-of-bounds", |s, _| {
        moved(s, u64::MAX)
    }),
    ("one octet beyond the region", "out-of-bounds", |s, _| {
        moved(s, 1)
    }),
    ("far beyond the region", "out-of-bounds", |s, _| {
        moved(s, 1 << 40)
    }),
    (
        "a message longer than the region, although the segment lies in it",
        "out-of-bounds",
        |_, e| e.length += 1,
    ),
    ("a message of 2^30 octets", "out-of-bounds", |_, e| {
        e.length = MOST
    }),
    ("a message of more than 2^30 octets", "malformed", |_, e| {
        e.length = MOST + 1
    }),
    ("a message of 2^32 - 1 octets", "malformed", |_, e| {
        e.length = u32::MAX
    }),
    ("an offset beyond the message", "malformed", |_, e| {
        e.offset = 4096
    }),
    ("an offset of 2^32 - 1", "malformed", |_, e| {
        e.offset = u32::MAX
    }),
    ("a TO below the offset", "malformed", |s, _| to(s, |_| 1023)),
    ("a TO that wraps", "malformed", |s, _| {
        to(s, |_| u64::MAX - 63)
    }),
    ("a message whose end wraps", "malformed", |s, _| {
        to(s, |_| u64::MAX - 3000)
    }),
    ("L set", "malformed", |s, _| s.first |= 0x40),
    ("no payload", "malformed", |s, _| s.payload.clear()),
    ("T clear", "malformed", |s, _| s.first &= 0x7f),
    ("flag W", "unexpected-opcode", |_, e| e.flags = flag::WRITE),
];

fn to(segment: &mut Segment, change: impl FnOnce(u64) -> u64) {
    if let Place::Tagged { to, .. } = &mut segment.place {
        *to = change(*to);
    }
}

fn moved(segment: &mut Segment, by: u64) {
    to(segment, |to| to.wrapping_add(by));
}

fn stag(segment: &mut Segment, change: impl FnOnce(u32) -> u32) {
    if let Place::Tagged { stag, .. } = &mut segment.place {
        *stag = change(*stag);
    }
}

fn d07(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let memory = bench.agent()?.register(4096, WRITABLE, FILL)?;
    let read_only = access::LOCAL_WRITE | access::REMOTE_READ;
    let read_only = bench.agent()?.register(4096, read_only, FILL)?;
    let other = bench.agent()?.register_in(4096, WRITABLE, FILL, 1)?;
    let gone = bench.agent()?.register(4096, WRITABLE, FILL)?;
    bench.agent()?.deregister(gone)?;
    let mut scene = Scene::new(bench, json!({}))?;
    let all = [memory, read_only, other, gone];
    let refusal = |what, counter, clause| Refusal {
        what,
        counter,
        clause,
        memory: &all,
    };
    for (what, counter, change) in WRONG {
        let mut extension = scene.station.message(4096);
        extension.offset = 1024;
        let mut segment = Segment::write_record(memory.stag, memory.to, extension, &[1; 64]);
        change(&mut segment, &mut extension);
        segment.extension = Some(extension);
        let clause = if *counter == "malformed" {
            EXTENSION
        } else {
            ORDER
        };
        scene.refuses(bench, refusal(what, counter, clause), &[octets(segment)])?;
    }
    for (what, memory, counter) in [
        ("no right to write", read_only, "no-access"),
        ("another protection domain", other, "bad-pd"),
        ("memory that was deregistered", gone, "bad-stag"),
    ] {
        let extension = scene.station.message(64);
        let segment = Segment::write_record(memory.stag, memory.to, extension, &[1; 64]);
        scene.refuses(bench, refusal(what, counter, ORDER), &[octets(segment)])?;
    }
    // Other than in RFC 5041 §5.2, empty messages are checked too: they make a record.
    for (what, at, counter) in [
        (
            "an empty message before the region",
            memory.to - 1,
            "out-of-bounds",
        ),
        (
            "an empty message beyond the region",
            memory.to + 4097,
            "out-of-bounds",
        ),
    ] {
        let extension = scene.station.message(0);
        let segment = Segment::write_record(memory.stag, at, extension, &[]);
        scene.refuses(bench, refusal(what, counter, ORDER), &[octets(segment)])?;
    }
    let mut off = Scene::new(bench, json!({ "records": 0 }))?;
    let extension = off.station.message(64);
    let segment = Segment::write_record(memory.stag, memory.to, extension, &[1; 64]);
    let refusal = refusal("a queue pair that takes none", "write-record-off", ORDER);
    off.refuses(bench, refusal, &[octets(segment)])
}

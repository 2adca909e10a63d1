//! R: RDMA Reads, of the device's memory and of ours.

use std::time::Duration;

use serde_json::json;

use super::{Case, Family, agent_case, case};
use crate::agent::{Connection, Memory, access};
use crate::bench::{Bench, Broken};
use crate::oracle::Outcome::{AnyTerminate, Closed, GoesOn, Terminate};
use crate::oracle::{Allowed, Came, Reaction, allow, listing};
use crate::peer::Peer;
use crate::wire::ddp::{Place, ReadRequest, Segment, opcode};

const REQUEST: &str = "RFC 5040 §4.4";
const READ: &str = "RFC 5040 §5.2";
const RESPONSE: &str = "RFC 5040 §5.2.2";
const CODES: &str = "RFC 5040 §4.8";
const CHECKS: &str = "RFC 5040 §7.2";
const DEPTHS: &str = "RFC 6581 §9.1";
const DDP: &str = "RFC 5041 §7.2";

const F: Family = Family::Rdmap;

/// Runs before all others, which ask with a Read of nothing whether a connection goes on.
pub(super) const FIRST: &[Case] = &[case(
    "R00",
    F,
    "a Read of nothing has any STags",
    &[RESPONSE],
    r00,
)];

pub(super) const CASES: &[Case] = &[
    agent_case(
        "R05",
        F,
        "Read Requests that must be refused",
        &[CHECKS, CODES],
        r05,
    ),
    Case {
        version: 3,
        ..agent_case("R20", F, "Reads of all sizes", &[READ, REQUEST], r20)
    },
    agent_case(
        "R21",
        F,
        "Read Requests that are none",
        &[REQUEST, CHECKS],
        r21,
    ),
    agent_case(
        "R06",
        F,
        "Read Responses to what was asked",
        &[RESPONSE],
        r06,
    ),
    Case {
        may_crash: true,
        version: 2,
        ..agent_case(
            "R22",
            F,
            "Read Responses that nobody asked for, too long, too short and elsewhere",
            &[RESPONSE, CHECKS],
            r22,
        )
    },
    agent_case(
        "R07",
        F,
        "no more Reads at a time than were agreed on",
        &[DEPTHS],
        r07,
    ),
    Case {
        may_crash: true,
        ..agent_case(
            "R23",
            F,
            "more Read Requests at a time than were agreed on",
            &[DEPTHS, READ],
            r23,
        )
    },
];

const SOON: Duration = Duration::from_secs(10);
const FILL: u8 = 0x22;
const READABLE: u64 = access::LOCAL_WRITE | access::REMOTE_READ;
const SINK: u32 = 0x5117_0000;

fn request(memory: Memory, size: u32) -> ReadRequest {
    ReadRequest {
        sink_stag: SINK,
        sink_to: 0x1_0000,
        size,
        source_stag: memory.stag,
        source_to: memory.to,
    }
}

fn r05(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let memory = bench.agent()?.register(4096, READABLE, FILL)?;
    let other = bench.agent()?.register_in(4096, READABLE, FILL, 1)?;
    let write_only =
        bench
            .agent()?
            .register(4096, access::LOCAL_WRITE | access::REMOTE_WRITE, FILL)?;
    let with = |change: fn(&mut ReadRequest)| {
        let mut request = request(memory, 16);
        change(&mut request);
        request
    };
    let stag = [allow(Terminate(0, 1, 0), CODES)];
    let bounds = [allow(Terminate(0, 1, 1), CODES)];
    let wrap = [
        allow(Terminate(0, 1, 4), CODES),
        allow(Terminate(0, 1, 1), CHECKS),
    ];
    let stream = [
        allow(Terminate(0, 1, 3), CODES),
        allow(Terminate(0, 1, 0), CHECKS),
    ];
    let rights = [allow(Terminate(0, 1, 2), CODES)];
    let rows: [(&str, ReadRequest, &[Allowed]); 9] = [
        (
            "an STag that is none",
            with(|r| r.source_stag = !r.source_stag),
            &stag,
        ),
        ("another key", with(|r| r.source_stag ^= 1), &stag),
        (
            "one octet before the beginning",
            with(|r| r.source_to -= 1),
            &bounds,
        ),
        (
            "one octet beyond the end",
            with(|r| r.source_to += 4096 - 15),
            &bounds,
        ),
        ("4 GiB", with(|r| r.size = u32::MAX), &bounds),
        (
            "an offset that wraps",
            with(|r| r.source_to = u64::MAX - 7),
            &wrap,
        ),
        ("another protection domain", request(other, 16), &stream),
        ("no right to read", request(write_only, 16), &rights),
        ("an STag of zero", with(|r| r.source_stag = 0), &stag),
    ];
    for (name, request, allowed) in rows {
        let mut peer = bench.open()?;
        peer.read_request(request);
        let reaction = peer.reaction();
        bench.judge(name, &peer, &reaction, allowed);
        let data = reaction.segments().any(|segment| {
            segment.opcode() == opcode::READ_RESPONSE && !segment.payload.is_empty()
        });
        bench.require(
            format!("{name}: octets"),
            !data,
            &reaction,
            "none",
            CHECKS,
            Some(&peer),
        );
    }
    Ok(())
}

fn r20(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let memory = bench.agent()?.register(65_536, READABLE, FILL)?;
    let (mut peer, on) = bench.open_served()?;
    for size in [1, 2, 3, 4, 1400, 1443, 4096, 65_536, 0] {
        peer.read_request(request(memory, size));
        let (holds, seen) = answered(&mut peer, size);
        if size == 0 && !holds && !bench.takes_nothing(opcode::READ_REQUEST)? {
            let rule = "a Read of nothing is answered (see R00)";
            bench.cannot_judge("0 octets", seen, rule, &peer);
            break;
        }
        bench.require(
            format!("{size} octets"),
            holds,
            seen,
            "all of them, in order, the last segment marked",
            READ,
            Some(&peer),
        );
        if !holds {
            break;
        }
    }
    bench.no_completion(on, REQUEST, &peer)
}

fn r00(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut peer = bench.started(&bench.offer())?;
    peer.echo = None;
    let mut came = Vec::new();
    let answered = peer.first_echo(&mut came);
    bench.require(
        "a Read of nothing, from STag 0",
        answered,
        listing(&came),
        "a Response without octets",
        RESPONSE,
        Some(&peer),
    );
    Ok(())
}

/// Whether a Read of so many octets is answered well, and what came.
fn answered(peer: &mut Peer, size: u32) -> (bool, String) {
    let mut at = 0;
    loop {
        let came = peer.next_segment();
        let Came::Segment(segment, fpdu) = &came else {
            return (false, came.to_string());
        };
        let length = u32::try_from(segment.payload.len()).unwrap_or(0);
        let place = Place::Tagged {
            stag: SINK,
            to: 0x1_0000 + u64::from(at),
        };
        let last = at + length == size;
        let good = segment.place == place
            && segment.is_last() == last
            && segment.opcode() == opcode::READ_RESPONSE
            && segment.payload.iter().all(|octet| *octet == FILL)
            && peer.crc_fits(fpdu);
        if !good || last {
            return (good, segment.to_string());
        }
        at += length;
    }
}

fn r21(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let memory = bench.agent()?.register(4096, READABLE, FILL)?;
    let octets = request(memory, 16).to_bytes();
    let unexpected = allow(Terminate(0, 2, 6), CODES);
    let queue = allow(Terminate(1, 2, 1), DDP);
    let place = |msn, mo| Segment::untagged(opcode::READ_REQUEST, 1, msn, &octets).at(mo);
    let rows: [(&str, Segment, &[Allowed]); 6] = [
        (
            "to queue 0",
            Segment::untagged(opcode::READ_REQUEST, 0, 1, &octets),
            &[unexpected, queue],
        ),
        (
            "to queue 2",
            Segment::untagged(opcode::READ_REQUEST, 2, 1, &octets),
            &[unexpected, queue],
        ),
        (
            "a Send to queue 1",
            Segment::untagged(opcode::SEND, 1, 2, &octets),
            &[unexpected, queue],
        ),
        (
            "number 7 in place of 2",
            place(7, 0),
            &[
                allow(Terminate(1, 2, 3), DDP),
                allow(Terminate(1, 2, 2), DDP),
            ],
        ),
        (
            "an offset of 4",
            place(2, 4),
            &[
                allow(Terminate(1, 2, 4), DDP),
                allow(Terminate(1, 2, 5), DDP),
            ],
        ),
        (
            "an offset of 4 GiB",
            place(2, u32::MAX),
            &[
                allow(Terminate(1, 2, 4), DDP),
                allow(Terminate(1, 2, 5), DDP),
            ],
        ),
    ];
    for (name, segment, allowed) in rows {
        let mut peer = bench.open()?;
        peer.segment(&segment);
        let reaction = peer.reaction();
        bench.judge(name, &peer, &reaction, allowed);
    }
    Ok(())
}

/// A Read of the device's program, and the Request that came of it.
struct DeviceReads {
    peer: Peer,
    on: Connection,
    memory: Memory,
    asked: ReadRequest,
    /// The Request's segment.
    segment: Segment,
    /// Whether it asks for what was posted.
    right: bool,
}

/// Has the device read from us, and takes its Request. The sink is the second half of memory with a canary before and after.
fn device_reads(bench: &mut Bench<'_>, size: u32) -> Result<DeviceReads, Broken> {
    let memory = bench
        .agent()?
        .register(4096, access::LOCAL_WRITE | access::REMOTE_WRITE, FILL)?;
    let (mut peer, on) = bench.open_served()?;
    let post = json!({
        "opcode": 4, "mr": memory.id, "offset": 1024, "length": size, "wr_id": 77, "rkey": 0x0102_0304, "remote": 0x2000,
    });
    bench.agent()?.post(on, post)?;
    let came = peer.next_segment();
    let asked = match &came {
        Came::Segment(segment, _) => ReadRequest::parse(&segment.payload).zip(Some(segment)),
        _ => None,
    };
    let Some((asked, segment)) = asked else {
        return Err(Broken::First(format!("instead of a Read Request: {came}")));
    };
    let source = (asked.size, asked.source_stag, asked.source_to) == (size, 0x0102_0304, 0x2000);
    let form = Segment::untagged(opcode::READ_REQUEST, 1, 1, &segment.payload);
    let right = *segment == form && source && segment.payload.len() == 28;
    let segment = segment.clone();
    Ok(DeviceReads {
        peer,
        on,
        memory,
        asked,
        segment,
        right,
    })
}

/// Notes that nothing but the sink has changed.
fn only_the_sink(
    bench: &mut Bench<'_>,
    what: &str,
    memory: Memory,
    size: usize,
    peer: &Peer,
) -> Result<(), Broken> {
    let there = bench.agent()?.all(memory)?;
    let from = usize::try_from(memory.margin).unwrap_or(0) + 1024;
    let outside = there[..from]
        .iter()
        .chain(&there[from + size..])
        .position(|octet| *octet != FILL);
    let seen = outside.map_or_else(|| "nothing".to_owned(), |at| format!("octet {at} outside"));
    bench.require(
        format!("{what}: what changed"),
        outside.is_none(),
        seen,
        "nothing but the Read's sink",
        "RFC 5040 §8.1.1",
        Some(peer),
    );
    Ok(())
}

fn r06(bench: &mut Bench<'_>) -> Result<(), Broken> {
    for (name, cuts) in [
        ("one segment", &[100_usize][..]),
        ("three segments", &[1, 66, 33]),
    ] {
        let reads = device_reads(bench, 100)?;
        let (mut peer, on, memory, asked) = (reads.peer, reads.on, reads.memory, reads.asked);
        bench.require(
            "the device's Read Request",
            reads.right,
            reads.segment,
            "queue 1, number 1, what was posted",
            REQUEST,
            Some(&peer),
        );
        let mut at = 0;
        for length in cuts {
            let mut segment = Segment::tagged(
                opcode::READ_RESPONSE,
                asked.sink_stag,
                asked.sink_to + at,
                &vec![0x77; *length],
            );
            at += u64::try_from(*length).unwrap_or(0);
            if at < 100 {
                segment = segment.more();
                // Before the last segment nothing may be complete.
                peer.segment(&segment);
                let early = bench.agent()?.poll(on, Duration::from_millis(30));
                bench.require(
                    format!("{name}: before the last segment"),
                    early.is_err(),
                    format!("{early:?}"),
                    "no completion",
                    RESPONSE,
                    Some(&peer),
                );
            } else {
                peer.segment(&segment);
            }
        }
        let wc = bench.agent()?.poll(on, SOON);
        let good = wc.as_ref().is_ok_and(|wc| (wc.status, wc.wr_id) == (0, 77));
        bench.require(
            name,
            good,
            format!("{wc:?}"),
            "the Read completes",
            RESPONSE,
            Some(&peer),
        );
        let there = bench.agent()?.peek(memory, memory.margin + 1024, 100)?;
        bench.require(
            format!("{name}: the octets"),
            there == [0x77; 100],
            crate::wire::hex(&there, 16),
            "those of the Response",
            RESPONSE,
            Some(&peer),
        );
        only_the_sink(bench, name, memory, 100, &peer)?;
    }
    Ok(())
}

fn r22(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let bad = [
        allow(AnyTerminate, CHECKS),
        // The Data Sink may, and need not, compare a Response with what it asked for.
        allow(GoesOn, RESPONSE),
        allow(Closed, "RFC 5040 §6.2.1"),
    ];
    type Change = fn(&mut Segment);
    fn moved(segment: &mut Segment, by: u64) {
        if let Place::Tagged { to, .. } = &mut segment.place {
            *to = to.wrapping_add(by);
        }
    }
    fn renamed(segment: &mut Segment) {
        if let Place::Tagged { stag, .. } = &mut segment.place {
            *stag = !*stag;
        }
    }
    let rows: [(&str, Change); 6] = [
        ("an STag that is none", renamed),
        ("beyond the end of the sink", |segment| {
            moved(segment, 1 << 20)
        }),
        ("before the sink", |segment| moved(segment, u64::MAX - 4095)),
        ("shorter than asked for", |segment| {
            segment.payload.truncate(50)
        }),
        ("twice as long, and not the last", |segment| {
            segment.payload.resize(200, 0x77);
            segment.ddp &= !0x40;
        }),
        ("without an octet", |segment| segment.payload.clear()),
    ];
    for (name, change) in rows {
        let reads = device_reads(bench, 100)?;
        let (mut peer, on, memory, asked) = (reads.peer, reads.on, reads.memory, reads.asked);
        if !reads.right {
            let rule = "the Read Request asks for what was posted (see R06)";
            bench.cannot_judge(name, reads.segment.to_string(), rule, &peer);
            continue;
        }
        let mut segment = Segment::tagged(
            opcode::READ_RESPONSE,
            asked.sink_stag,
            asked.sink_to,
            &[0x77; 100],
        );
        change(&mut segment);
        peer.segment(&segment);
        let reaction = peer.reaction();
        bench.judge(name, &peer, &reaction, &bad);
        // Octets that were not sent cannot be there: such a Read must not complete well.
        let short = segment.payload.len() < 100 || !segment.is_last() || name.contains("STag");
        let wc = bench.agent()?.poll(on, Duration::from_millis(100));
        let well = wc.as_ref().is_ok_and(|wc| wc.status == 0);
        bench.require(
            format!("{name}: the Read"),
            !(short && well),
            format!("{wc:?}"),
            "no success for what did not come",
            RESPONSE,
            Some(&peer),
        );
        // Octets beyond the request may be inside registered memory, and are the application's then.
        if segment.payload.len() <= 100 {
            only_the_sink(bench, name, memory, 100, &peer)?;
        }
    }
    unasked(bench)
}

fn unasked(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let memory = bench
        .agent()?
        .register(4096, access::LOCAL_WRITE | access::REMOTE_WRITE, FILL)?;
    let mut peer = bench.open()?;
    peer.segment(&Segment::tagged(
        opcode::READ_RESPONSE,
        memory.stag,
        memory.to,
        b"unasked",
    ));
    let reaction = peer.reaction();
    bench.judge(
        "a Response that nobody asked for",
        &peer,
        &reaction,
        &[allow(AnyTerminate, CHECKS)],
    );
    Ok(())
}

fn r07(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let memory = bench
        .agent()?
        .register(4096, access::LOCAL_WRITE | access::REMOTE_WRITE, FILL)?;
    bench.agent()?.accept_with(4, 4096, 4, 2)?;
    let (mut peer, on) = bench.open_served()?;
    let agreed = peer
        .theirs
        .as_ref()
        .and_then(|reply| reply.depths())
        .map_or(4, |depths| depths.ord);
    for number in 0..8 {
        let post = json!({
            "opcode": 4, "mr": memory.id, "offset": 0, "length": 8, "wr_id": number, "rkey": 1, "remote": 0x2000,
        });
        bench.agent()?.post(on, post)?;
    }
    let requests: Vec<_> = peer
        .burst()
        .iter()
        .filter(|segment| segment.opcode() == opcode::READ_REQUEST)
        .filter_map(|segment| ReadRequest::parse(&segment.payload))
        .collect();
    let seen = format!("{} of 8 Requests, ORD {agreed}", requests.len());
    bench.require(
        "before any Response",
        (1..=usize::from(agreed)).contains(&requests.len()),
        seen,
        "one Request at least, no more than ORD",
        DEPTHS,
        Some(&peer),
    );
    // One answer lets one more come.
    if let Some(first) = requests.first() {
        peer.segment(&Segment::tagged(
            opcode::READ_RESPONSE,
            first.sink_stag,
            first.sink_to,
            &[1; 8],
        ));
        let came = peer.next_segment();
        let one =
            matches!(&came, Came::Segment(segment, _) if segment.opcode() == opcode::READ_REQUEST);
        bench.require(
            "after one Response",
            one || requests.len() == 8,
            &came,
            "one Request more",
            DEPTHS,
            Some(&peer),
        );
    }
    Ok(())
}

fn r23(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let memory = bench.agent()?.register(65_536, READABLE, FILL)?;
    bench.agent()?.accept_with(4, 4096, 1, 1)?;
    let (mut peer, _) = bench.open_served()?;
    peer.small_window(4096);
    let mut octets = Vec::new();
    for number in 0..64 {
        let segment = Segment::untagged(
            opcode::READ_REQUEST,
            1,
            peer.read_msn + number,
            &request(memory, 65_536).to_bytes(),
        );
        octets.extend(peer.framer.fpdu(&segment.to_bytes()));
    }
    peer.send(&octets);
    // Either there was room for all of them, which is the device's to decide, or it says so.
    let mut reaction = Reaction::default();
    let mut responses = 0;
    loop {
        match peer.next_segment() {
            Came::Segment(segment, _) if segment.opcode() == opcode::READ_RESPONSE => {
                responses += u32::from(segment.is_last());
                if responses == 64 {
                    reaction.lives = true;
                    break;
                }
            }
            came => {
                let over = !matches!(came, Came::Segment(..));
                reaction.came.push(came);
                if over {
                    break;
                }
            }
        }
    }
    let allowed = [
        allow(GoesOn, READ),
        allow(AnyTerminate, DEPTHS),
        allow(Closed, "RFC 5040 §6.2.1"),
    ];
    bench.judge(
        format!("64 at once with IRD 1, {responses} answered"),
        &peer,
        &reaction,
        &allowed,
    );
    Ok(())
}

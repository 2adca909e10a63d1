//! Orders among messages, among atomic operations, and among errors.

use std::collections::BTreeSet;
use std::time::Duration;

use super::more::answers_reads;
use super::{Case, Family, agent_case, case};
use crate::agent::{Memory, access};
use crate::bench::{Bench, Broken};
use crate::oracle::Outcome::{Closed, GoesOn, Terminate};
use crate::oracle::{Came, allow};
use crate::peer::Peer;
use crate::wire::ddp::{self, AtomicRequest, ReadRequest, Segment, opcode, word};
use crate::wire::hex;

const ERRORS: &str = "RFC 5040 §7.1";
const CODES: &str = "RFC 5041 §7.2";
const ABORT: &str = "RFC 5040 §6.2.1";
const ORDER: &str = "RFC 5040 §5.5";
const ATOMICITY: &str = "RFC 7306 §5.3";
const ATOMIC_ORDER: &str = "RFC 7306 §5.4";
const IMMEDIATE: &str = "RFC 7306 §6.3";

pub(super) const CASES: &[Case] = &[
    Case {
        version: 2,
        ..case(
            "R11",
            Family::Rdmap,
            "of two errors the first is told",
            &[ERRORS],
            r11,
        )
    },
    Case {
        version: 2,
        ..agent_case(
            "R45",
            Family::Rdmap,
            "a Read behind a Write has what was written",
            &[ORDER],
            r45,
        )
    },
    Case {
        version: 2,
        ..agent_case(
            "A06",
            Family::Extensions,
            "FetchAdds of two connections add up",
            &[ATOMICITY],
            a06,
        )
    },
    agent_case(
        "A41",
        Family::Extensions,
        "an atomic operation behind a Write finds what was written",
        &[ATOMIC_ORDER],
        a41,
    ),
    agent_case(
        "I04",
        Family::Extensions,
        "a Write before Immediate Data is there when that is",
        &[IMMEDIATE, ORDER],
        i04,
    ),
];

const SOON: Duration = Duration::from_secs(10);
const UNKNOWN: Broken = Broken::Skip("the device does not know the operation");
const SINK: u32 = 0x0abc_0000;

fn r11(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut peer = bench.open()?;
    let first = Segment::tagged(opcode::WRITE, 0x0dea_db00, 0x1234, b"bad").to_bytes();
    let mut second = Segment::tagged(opcode::WRITE, 0x0bad_0000, 0x5678, b"worse");
    // Another error, so that the code tells them apart too.
    second.ddp ^= 0x03;
    let second = second.to_bytes();
    let mut octets = peer.framer.fpdu(&first);
    octets.extend(peer.framer.fpdu(&second));
    peer.send(&octets);
    let reaction = peer.reaction();
    bench.judge(
        "an STag that is none, and behind it a DDP version that is none",
        &peer,
        &reaction,
        &[allow(Terminate(1, 1, 0), CODES), allow(Closed, ABORT)],
    );
    let told = reaction
        .terminate()
        .filter(|told| told.header_control & 0b110 == 0b110);
    if let Some(told) = told {
        let header = told.rest.get(2..2 + ddp::TAGGED_HEADER);
        let is_of = |ulpdu: &[u8]| header == ulpdu.get(..ddp::TAGGED_HEADER);
        let (what, seen) = ("the DDP header in the Terminate", hex(&told.rest, 40));
        let rule = "that of the first";
        if is_of(&first) || is_of(&second) {
            bench.require(what, is_of(&first), seen, rule, ERRORS, Some(&peer));
        } else {
            // Of neither: it says nothing of their order.
            bench.cannot_judge(
                what,
                seen,
                "it is that of one of the two (see terminate-about)",
                &peer,
            );
        }
    }
    Ok(())
}

/// Answer to a Read Request to [`SINK`]: all octets, or what came instead.
fn response(peer: &mut Peer, size: usize) -> Result<Vec<u8>, Came> {
    let mut octets = Vec::new();
    loop {
        let came = peer.next_segment();
        match &came {
            Came::Segment(segment, _) if segment.opcode() == opcode::READ_RESPONSE => {
                octets.extend(&segment.payload);
                if segment.is_last() || octets.len() > size {
                    return Ok(octets);
                }
            }
            _ => return Err(came),
        }
    }
}

fn r45(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let rights = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ;
    let memory = bench.agent()?.register(16_384, rights, 0)?;
    let mut peer = bench.open()?;
    for round in 1..=16_u8 {
        let octets = vec![round; 16_000];
        let write = Segment::tagged(opcode::WRITE, memory.stag, memory.to, &octets);
        let request = ReadRequest {
            sink_stag: SINK,
            sink_to: 0,
            size: 16_000,
            source_stag: memory.stag,
            source_to: memory.to,
        };
        let read = Segment::untagged(opcode::READ_REQUEST, 1, peer.read_msn, &request.to_bytes());
        peer.read_msn += 1;
        let mut both = peer.framer.fpdu(&write.to_bytes());
        both.extend(peer.framer.fpdu(&read.to_bytes()));
        peer.send(&both);
        let what = format!("round {round}");
        let (seen, whole) = match response(&mut peer, octets.len()) {
            Ok(there) if there == octets => continue,
            Ok(there) => (format!("{} octets {}", there.len(), hex(&there, 16)), true),
            Err(came) => (came.to_string(), false),
        };
        if whole || answers_reads(bench)? {
            bench.require(what, false, seen, "what was written", ORDER, Some(&peer));
        } else {
            let rule = "a long Read is answered (see R20)";
            bench.cannot_judge(what, seen, rule, &peer);
        }
        return Ok(());
    }
    let what = "sixteen rounds";
    bench.require(what, true, "all", "what was written", ORDER, Some(&peer));
    Ok(())
}

fn shared(bench: &mut Bench<'_>) -> Result<Memory, Broken> {
    let rights =
        access::LOCAL_WRITE | access::REMOTE_READ | access::REMOTE_WRITE | access::REMOTE_ATOMIC;
    bench.agent()?.register(64, rights, 0).map_err(|_| UNKNOWN)
}

fn add_one(memory: Memory) -> AtomicRequest {
    AtomicRequest {
        stag: memory.stag,
        to: memory.to,
        data: 1,
        ..AtomicRequest::default()
    }
}

fn ask(peer: &mut Peer, request: AtomicRequest) {
    let octets = request.to_bytes();
    let segment = Segment::untagged(opcode::ATOMIC_REQUEST, 1, peer.read_msn, &octets);
    peer.read_msn += 1;
    peer.segment(&segment);
}

/// The original value of the next Atomic Response.
fn original(peer: &mut Peer) -> Result<u64, Came> {
    let came = peer.next_segment();
    let value = match &came {
        Came::Segment(segment, _) if segment.opcode() == opcode::ATOMIC_RESPONSE => {
            word(&segment.payload, 4).zip(word(&segment.payload, 8))
        }
        _ => None,
    };
    value
        .map(|(high, low)| u64::from(high) << 32 | u64::from(low))
        .ok_or(came)
}

/// A connection, if the device knows atomics.
fn open(bench: &mut Bench<'_>, memory: Memory) -> Result<Peer, Broken> {
    let mut peer = bench.open()?;
    let mut nowhere_else = add_one(memory);
    nowhere_else.to += 56;
    ask(&mut peer, nowhere_else);
    original(&mut peer).map(|_| peer).map_err(|_| UNKNOWN)
}

fn a06(bench: &mut Bench<'_>) -> Result<(), Broken> {
    const ROUNDS: u64 = 16;
    // As many as a good startup agrees on.
    const AT_A_TIME: u64 = 4;
    let memory = shared(bench)?;
    let mut peers = [open(bench, memory)?, open(bench, memory)?];
    let mut originals = BTreeSet::new();
    for _ in 0..ROUNDS {
        for _ in 0..AT_A_TIME {
            for peer in &mut peers {
                ask(peer, add_one(memory));
            }
        }
        for peer in &mut peers {
            for _ in 0..AT_A_TIME {
                match original(peer) {
                    Ok(value) => originals.insert(value),
                    Err(came) => {
                        let rule = "a Response to each Request";
                        bench.require("FetchAdd", false, came, rule, ATOMICITY, Some(peer));
                        return Ok(());
                    }
                };
            }
        }
    }
    // Each adds one to what another left. The first original value is A01's.
    let count = 2 * ROUNDS * AT_A_TIME;
    let steps = originals.first().zip(originals.last());
    let in_a_row = steps.is_some_and(|(first, last)| last - first == count - 1);
    bench.require(
        "128 FetchAdds of one",
        in_a_row && originals.len() as u64 == count,
        format!(
            "{} different ones, from {:?} to {:?}",
            originals.len(),
            originals.first(),
            originals.last()
        ),
        "128 numbers in a row, each the original value of one of them",
        ATOMICITY,
        Some(&peers[0]),
    );
    Ok(())
}

fn a41(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let memory = shared(bench)?;
    let mut peer = open(bench, memory)?;
    for round in 1..=16_u8 {
        // Equal octets: the value does not depend on byte order.
        let octets = [round; 8];
        let write = Segment::tagged(opcode::WRITE, memory.stag, memory.to, &octets);
        let request = add_one(memory).to_bytes();
        let atomic = Segment::untagged(opcode::ATOMIC_REQUEST, 1, peer.read_msn, &request);
        peer.read_msn += 1;
        let mut both = peer.framer.fpdu(&write.to_bytes());
        both.extend(peer.framer.fpdu(&atomic.to_bytes()));
        peer.send(&both);
        let found = original(&mut peer);
        let holds = matches!(found, Ok(value) if value == u64::from_be_bytes(octets));
        let seen = found.map_or_else(|came| came.to_string(), |value| format!("{value:#x}"));
        bench.require(
            format!("round {round}"),
            holds,
            seen,
            "what was written is the original value",
            ATOMIC_ORDER,
            Some(&peer),
        );
        if !holds {
            break;
        }
    }
    Ok(())
}

fn i04(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut probe = bench.open()?;
    probe.segment(&Segment::untagged(opcode::IMMEDIATE, 0, 1, &[0; 8]));
    if !GoesOn.is(&probe.reaction()) {
        return Err(UNKNOWN);
    }
    let rights = access::LOCAL_WRITE | access::REMOTE_WRITE;
    let memory = bench.agent()?.register(65_536, rights, 0)?;
    bench.agent()?.accept_with(8, 64, 4, 4)?;
    let (mut peer, on) = bench.open_served()?;
    for round in 1..=8_u8 {
        let octets = vec![round; 30_000];
        let write = Segment::tagged(opcode::WRITE, memory.stag, memory.to, &octets);
        let eight = [0, 0, 0, round, 0, 0, 0x75, 0x30];
        let immediate = Segment::untagged(opcode::IMMEDIATE, 0, round.into(), &eight);
        let mut both = peer.framer.fpdu(&write.to_bytes());
        both.extend(peer.framer.fpdu(&immediate.to_bytes()));
        peer.send(&both);
        let agent = bench.agent()?;
        let wc = agent.poll(on, SOON);
        let there = agent.peek(memory, memory.margin, 30_000)?;
        let holds = wc.as_ref().is_ok_and(|wc| wc.status == 0) && there == octets;
        bench.require(
            format!("round {round}"),
            holds,
            format!("{wc:?}, {}", hex(&there, 8)),
            "a receive completes, and all octets of the Write are there",
            IMMEDIATE,
            Some(&peer),
        );
        if !holds {
            break;
        }
    }
    Ok(())
}

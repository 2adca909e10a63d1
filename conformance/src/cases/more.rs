//! Messages of the device of all lengths and while an error of the peer comes, Read Requests of two streams, and atomic operations as the program sees them.

use std::time::Duration;

use serde_json::json;

use super::{Case, Family, agent_case};
use crate::agent::{Connection, Memory, access};
use crate::bench::{Bench, Broken};
use crate::clock;
use crate::oracle::Outcome::{GoesOn, Terminate};
use crate::oracle::{Came, Reaction, allow};
use crate::peer::Peer;
use crate::wire::ddp::{AtomicRequest, Place, ReadRequest, Segment, opcode, word};

const FPDU: &str = "RFC 5044 §4.1";
const SEGMENTS: &str = "RFC 5041 §5.2";
const ERRORS: &str = "RFC 5040 §7.1";
const CODES: &str = "RFC 5041 §7.2";
const SHARED: &str = "RFC 5042 §6.4.3.3";
const RESPONSE: &str = "RFC 5040 §5.2.2";
const ATOMIC: &str = "RFC 7306 §5.2.1";
const RESULT: &str = "RFC 7306 §5.2.2";
const ORDER: &str = "RFC 7306 §5.4";
const SWAP: &str = "RFC 7306 §5.1.2";

pub(super) const CASES: &[Case] = &[
    Case {
        version: 2,
        ..agent_case(
            "F22",
            Family::Framing,
            "Sends and Writes of the device, and its Read Responses, of all lengths",
            &[FPDU, SEGMENTS],
            f22,
        )
    },
    agent_case(
        "R46",
        Family::Rdmap,
        "an error of the peer while the device sends",
        &[ERRORS, CODES],
        r46,
    ),
    Case {
        version: 2,
        ..agent_case(
            "R47",
            Family::Rdmap,
            "Read Requests of one stream take no room of another's",
            &[SHARED, RESPONSE],
            r47,
        )
    },
    agent_case(
        "A08",
        Family::Extensions,
        "an atomic operation changes eight octets and no other",
        &[SWAP, RESULT],
        a08,
    ),
    agent_case(
        "A42",
        Family::Extensions,
        "a CmpSwap of the device",
        &[ATOMIC, ORDER],
        a42,
    ),
];

const SOON: Duration = Duration::from_secs(10);
const FILL: u8 = 0x3d;
/// STag and TO that the device's Writes have, and the sink of its Responses.
const STAG: u32 = 0x0102_0304;
const TO: u64 = 0x2000;

/// Lengths of messages: all remainders of four, and those around the longest segment of an Ethernet.
fn lengths() -> impl Iterator<Item = u32> {
    (0..=66).chain(1424..=1446).chain([4093, 4095, 4097])
}

/// Takes a message of this opcode to its last segment; its octets, or what came instead. Behind a segment at a wrong place it goes on: such a message has to be
/// whole before the rules of a sender can name the fault.
fn message(peer: &mut Peer, code: u8) -> Result<Vec<u8>, Came> {
    let mut octets = Vec::new();
    let mut misplaced = None;
    loop {
        let came = peer.next_fpdu();
        let Came::Segment(segment, fpdu) = &came else {
            return Err(misplaced.unwrap_or(came));
        };
        let at = octets.len() as u64;
        let place = match segment.place {
            Place::Tagged { stag, to } => {
                // STag and TO of a message of nothing mean nothing.
                let nothing = at == 0 && segment.is_last() && segment.payload.is_empty();
                nothing || (stag, to) == (STAG, TO + at)
            }
            Place::Untagged { mo, .. } => u64::from(mo) == at,
        };
        let endless = octets.len() > LONG as usize;
        if segment.opcode() != code || !peer.crc_fits(fpdu) || endless {
            return Err(misplaced.unwrap_or(came));
        }
        octets.extend(&segment.payload);
        let last = segment.is_last();
        if !place {
            misplaced.get_or_insert(came);
        }
        if last {
            return misplaced.map_or(Ok(octets), Err);
        }
    }
}

/// Octets of a Read that R20 asks for, and of a Send that R14 asks for.
const OF_R20: u32 = 65_536;
const OF_R14: u32 = 150_001;

/// Whether a long Read is answered on a connection of its own. Where it is not, that is R20's finding, and says nothing of others.
pub(super) fn answers_reads(bench: &mut Bench<'_>) -> Result<bool, Broken> {
    let rights = access::LOCAL_WRITE | access::REMOTE_READ;
    let memory = bench.agent()?.register(OF_R20.into(), rights, FILL)?;
    let mut peer = bench.open()?;
    peer.read_request(ReadRequest {
        sink_stag: STAG,
        sink_to: TO,
        size: OF_R20,
        source_stag: memory.stag,
        source_to: memory.to,
    });
    Ok(message(&mut peer, opcode::READ_RESPONSE).is_ok())
}

/// Whether a long Send of the device comes on a connection of its own. Where it does not, that is R14's finding.
pub(super) fn sends(bench: &mut Bench<'_>) -> Result<bool, Broken> {
    let memory = bench
        .agent()?
        .register(OF_R14.into(), access::LOCAL_WRITE, FILL)?;
    let (mut peer, on) = bench.open_served()?;
    let post = json!({ "opcode": 2, "mr": memory.id, "length": OF_R14, "wr_id": 1 });
    bench.agent()?.post(on, post)?;
    Ok(message(&mut peer, opcode::SEND).is_ok())
}

/// Notes whether a message is what it should be. If it is none, and one that another case asks for does not come either, nothing can be told.
fn judge_of(
    bench: &mut Bench<'_>,
    (what, length): (String, u32),
    came: Result<Vec<u8>, Came>,
    code: u8,
    peer: &Peer,
) -> Result<bool, Broken> {
    let control = match &came {
        Err(_) if code == opcode::READ_RESPONSE => {
            Some((answers_reads(bench)?, "a long Read is answered (see R20)"))
        }
        Err(Came::Nothing) => Some((sends(bench)?, "a long Send comes (see R14)")),
        _ => None,
    };
    if let (Err(came), Some((false, rule))) = (&came, control) {
        bench.cannot_judge(what, came.to_string(), rule, peer);
        return Ok(false);
    }
    Ok(judge(bench, what, length, came, peer))
}

/// Notes whether a message is what it should be.
fn judge(
    bench: &mut Bench<'_>,
    what: String,
    length: u32,
    came: Result<Vec<u8>, Came>,
    peer: &Peer,
) -> bool {
    let (holds, seen) = match came {
        Ok(octets) => {
            let right = u32::try_from(octets.len()) == Ok(length)
                && octets.iter().all(|octet| *octet == FILL);
            (right, format!("{} octets", octets.len()))
        }
        Err(came) => (false, came.to_string()),
    };
    let rule = "as many octets as were posted, those of memory";
    bench.require(what, holds, seen, rule, SEGMENTS, Some(peer));
    holds
}

fn f22(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let rights = access::LOCAL_WRITE | access::REMOTE_READ;
    let memory = bench.agent()?.register(8192, rights, FILL)?;
    // Writes and Sends, by what is posted.
    for (name, posted, code) in [("Send", 2, opcode::SEND), ("Write", 0, opcode::WRITE)] {
        let (mut peer, on) = bench.open_served()?;
        for length in lengths() {
            let post = json!({
                "opcode": posted, "mr": memory.id, "length": length, "wr_id": 1, "rkey": STAG, "remote": TO,
            });
            bench.agent()?.post(on, post)?;
            let came = message(&mut peer, code);
            let what = format!("a {name} of {length} octets");
            if !judge_of(bench, (what, length), came, code, &peer)? {
                break;
            }
            // Its completion makes room for the next.
            bench.agent()?.poll(on, SOON)?;
        }
    }
    let mut peer = bench.open()?;
    // A Read of nothing is R00's.
    for size in lengths().skip(1) {
        peer.read_request(ReadRequest {
            sink_stag: STAG,
            sink_to: TO,
            size,
            source_stag: memory.stag,
            source_to: memory.to,
        });
        let came = message(&mut peer, opcode::READ_RESPONSE);
        let what = format!("a Read Response of {size} octets");
        if !judge_of(bench, (what, size), came, opcode::READ_RESPONSE, &peer)? {
            break;
        }
    }
    Ok(())
}

/// Octets of a message that does not fit into a window and the buffers around it.
const LONG: u32 = 1 << 20;
/// Octets of a window in which they go on at their usual speed.
const ROOM: usize = 1 << 20;

/// A connection on which the device has begun to send what the peer does not read.
fn stuck(bench: &mut Bench<'_>, memory: Memory, reads: bool) -> Result<(Peer, Connection), Broken> {
    let (mut peer, on) = bench.open_served()?;
    peer.small_window(4096);
    if reads {
        peer.read_request(ReadRequest {
            sink_stag: STAG,
            sink_to: TO,
            size: LONG,
            source_stag: memory.stag,
            source_to: memory.to,
        });
    } else {
        let post = json!({ "opcode": 2, "mr": memory.id, "length": LONG, "wr_id": 1 });
        bench.agent()?.post(on, post)?;
    }
    // Long enough for the device to fill the window.
    clock::pause(bench.patience().quiet);
    Ok((peer, on))
}

fn r46(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let rights = access::LOCAL_WRITE | access::REMOTE_READ;
    let memory = bench.agent()?.register(LONG.into(), rights, FILL)?;
    for (name, reads, code) in [
        ("a Send", false, opcode::SEND),
        ("a Read Response", true, opcode::READ_RESPONSE),
    ] {
        let (mut peer, on) = stuck(bench, memory, reads)?;
        peer.segment(&Segment::tagged(opcode::WRITE, 0x0dea_db00, 0x1234, b"bad"));
        clock::pause(bench.patience().quiet);
        peer.small_window(ROOM);
        let mut whole = true;
        let mut reaction = Reaction::default();
        loop {
            let came = peer.next_segment();
            match &came {
                Came::Segment(segment, fpdu) if segment.opcode() == code => {
                    whole &=
                        peer.crc_fits(fpdu) && segment.payload.iter().all(|octet| *octet == FILL);
                    continue;
                }
                _ => {}
            }
            let more = matches!(came, Came::Segment(..));
            reaction.came.push(came);
            if !more {
                break;
            }
        }
        bench.judge(
            format!("a Write by an STag that is none, into {name}"),
            &peer,
            &reaction,
            &[allow(Terminate(1, 1, 0), CODES)],
        );
        bench.require(
            format!("{name} before it"),
            whole,
            &reaction,
            "whole FPDUs with the octets of memory",
            SEGMENTS,
            Some(&peer),
        );
        drop(peer);
        bench.agent()?.destroy(on)?;
    }
    Ok(())
}

fn r47(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let memory =
        bench
            .agent()?
            .register(LONG.into(), access::LOCAL_WRITE | access::REMOTE_READ, FILL)?;
    let mut other = bench.open()?;
    // As many as were agreed on, and none of their octets is read.
    let mut peer = bench.open()?;
    peer.small_window(4096);
    for _ in 0..4 {
        peer.read_request(ReadRequest {
            sink_stag: STAG,
            sink_to: TO,
            size: LONG,
            source_stag: memory.stag,
            source_to: memory.to,
        });
    }
    clock::pause(bench.patience().quiet);
    for number in 1..=8 {
        let reaction = other.reaction();
        bench.judge(
            format!("Read {number} of another stream"),
            &other,
            &reaction,
            &[allow(GoesOn, SHARED)],
        );
    }
    peer.small_window(ROOM);
    let came = message(&mut peer, opcode::READ_RESPONSE);
    let what = ("the first Response".to_owned(), LONG);
    judge_of(bench, what, came, opcode::READ_RESPONSE, &peer)?;
    Ok(())
}

/// Sends an Atomic Request; whether a Response came.
fn ask(peer: &mut Peer, request: AtomicRequest) -> Result<(), Came> {
    let octets = request.to_bytes();
    let segment = Segment::untagged(opcode::ATOMIC_REQUEST, 1, peer.read_msn, &octets);
    peer.read_msn += 1;
    peer.segment(&segment);
    match peer.next_segment() {
        Came::Segment(segment, _) if segment.opcode() == opcode::ATOMIC_RESPONSE => Ok(()),
        came => Err(came),
    }
}

fn a08(bench: &mut Bench<'_>) -> Result<(), Broken> {
    const ALL: u64 = u64::MAX;
    let rights =
        access::LOCAL_WRITE | access::REMOTE_READ | access::REMOTE_WRITE | access::REMOTE_ATOMIC;
    let memory = bench.agent()?.register(24, rights, 0x5a)?;
    let mut peer = bench.open()?;
    let word_before = u64::from_be_bytes([0x5a; 8]);
    let swap = AtomicRequest {
        operation: 2,
        identifier: 1,
        stag: memory.stag,
        to: memory.to + 8,
        data: 0x0102_0304_0506_0708,
        mask: ALL,
        compare: word_before,
        compare_mask: ALL,
    };
    let add = AtomicRequest {
        operation: 0,
        identifier: 2,
        data: 0xff00_0000_0000_0000,
        mask: 0,
        ..swap
    };
    let rows = [
        ("CmpSwap", swap, 0x0102_0304_0506_0708_u64),
        ("FetchAdd", add, 0x0002_0304_0506_0708),
    ];
    for (name, request, wanted) in rows {
        match ask(&mut peer, request) {
            Ok(()) => {}
            Err(Came::Segment(..) | Came::End | Came::Reset) if name == "CmpSwap" => {
                return Err(Broken::Skip("the device knows no atomic operations"));
            }
            Err(came) => {
                bench.require(name, false, &came, "a Response", RESULT, Some(&peer));
                return Ok(());
            }
        }
        let there = bench.agent()?.peek(memory, memory.margin, 24)?;
        // The program's own order of octets.
        let mut right = vec![0x5a; 24];
        right[8..16].copy_from_slice(&wanted.to_le_bytes());
        bench.require(
            name,
            there == right,
            crate::wire::hex(&there, 24),
            &format!("{}, in the program's order", crate::wire::hex(&right, 24)),
            SWAP,
            Some(&peer),
        );
    }
    Ok(())
}

fn a42(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let memory = bench.agent()?.register(24, access::LOCAL_WRITE, 0x11)?;
    let (mut peer, on) = bench.open_served()?;
    let post = json!({
        "opcode": 5, "mr": memory.id, "offset": 8, "length": 8, "wr_id": 6, "rkey": STAG, "remote": TO,
        "compare": 0x77, "swap": 0x99,
    });
    if bench.agent()?.post(on, post).is_err() {
        return Err(Broken::Skip("the device knows no atomic operations"));
    }
    let came = peer.next_segment();
    let Came::Segment(segment, _) = &came else {
        let rule = "an Atomic Request";
        bench.require("its segment", false, &came, rule, ATOMIC, Some(&peer));
        return Ok(());
    };
    let identifier = word(&segment.payload, 4).unwrap_or(0);
    let expected = AtomicRequest {
        operation: 2,
        identifier,
        stag: STAG,
        to: TO,
        data: 0x99,
        mask: u64::MAX,
        compare: 0x77,
        compare_mask: u64::MAX,
    };
    // Reserved bits stand beside the operation.
    let right = segment.opcode() == opcode::ATOMIC_REQUEST
        && segment.payload.len() == 52
        && segment.payload == expected.to_bytes();
    bench.require(
        "its segment",
        right,
        segment,
        "CmpSwap with what was posted, all bits compared and swapped",
        ATOMIC,
        Some(&peer),
    );
    let mut response = identifier.to_be_bytes().to_vec();
    response.extend(0x0102_0304_0506_0708_u64.to_be_bytes());
    peer.segment(&Segment::untagged(opcode::ATOMIC_RESPONSE, 3, 1, &response));
    let wc = bench.agent()?.poll(on, SOON);
    let there = bench.agent()?.peek(memory, memory.margin, 24)?;
    let mut value = vec![0x11; 24];
    value[8..16].copy_from_slice(&0x0102_0304_0506_0708_u64.to_le_bytes());
    bench.require(
        "behind the Response",
        wc.as_ref().is_ok_and(|wc| (wc.status, wc.wr_id) == (0, 6)) && there == value,
        format!("{wc:?}, {}", crate::wire::hex(&there, 24)),
        "a completion, and the original value in the program's order, eight octets",
        ORDER,
        Some(&peer),
    );
    Ok(())
}

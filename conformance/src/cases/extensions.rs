//! A and I: the atomic operations and Immediate Data of RFC 7306. A device that knows neither refuses their opcodes, and passes.

use std::time::Duration;

use super::{Case, Family, agent_case};
use crate::agent::{Memory, access};
use crate::bench::{Bench, Broken};
use crate::oracle::Outcome::{AnyTerminate, GoesOn, Terminate};
use crate::oracle::{Came, allow};
use crate::peer::Peer;
use crate::wire::ddp::{AtomicRequest, Place, Segment, opcode, word};

const FETCH_ADD: &str = "RFC 7306 §5.1.1";
const CMP_SWAP: &str = "RFC 7306 §5.1.2";
const ATOMIC: &str = "RFC 7306 §5.2";
const REQUEST: &str = "RFC 7306 §5.2.1";
const RESPONSE: &str = "RFC 7306 §5.2.2";
const IMMEDIATE: &str = "RFC 7306 §6.3";
const ERRORS: &str = "RFC 7306 §8.2";
const CODES: &str = "RFC 5040 §4.8";

const F: Family = Family::Extensions;

pub(super) const CASES: &[Case] = &[
    Case {
        version: 2,
        ..agent_case(
            "A01",
            F,
            "FetchAdd with and without a mask",
            &[FETCH_ADD, RESPONSE],
            a01,
        )
    },
    agent_case(
        "A02",
        F,
        "CmpSwap with and without masks",
        &[CMP_SWAP, RESPONSE],
        a02,
    ),
    agent_case("A03", F, "atomic operations that are none", &[REQUEST], a03),
    agent_case(
        "A04",
        F,
        "addresses that are not aligned",
        &[FETCH_ADD, CMP_SWAP, ERRORS],
        a04,
    ),
    agent_case(
        "A05",
        F,
        "where Requests and Responses belong",
        &[ATOMIC, RESPONSE],
        a05,
    ),
    agent_case(
        "A09",
        F,
        "memory that is none, or without the right",
        &[ERRORS, CODES],
        a09,
    ),
    agent_case(
        "I01",
        F,
        "Immediate Data is eight octets",
        &[IMMEDIATE],
        i01,
    ),
    agent_case(
        "I03",
        F,
        "Immediate Data takes a receive, in order",
        &[IMMEDIATE],
        i03,
    ),
];

const SOON: Duration = Duration::from_secs(10);
const UNKNOWN: Broken = Broken::Skip("the device does not know RFC 7306");

fn memory(bench: &mut Bench<'_>) -> Result<Memory, Broken> {
    let rights =
        access::LOCAL_WRITE | access::REMOTE_READ | access::REMOTE_WRITE | access::REMOTE_ATOMIC;
    bench.agent()?.register(64, rights, 0).map_err(|_| UNKNOWN)
}

/// The value of the device's memory at an offset, as its processor has it. Both ends of a test have the same byte order, or the
/// device's says so: the agent's octets are read as little endian, and compared with what a Read of the same octets brings.
fn value(bench: &mut Bench<'_>, memory: Memory, at: u64) -> Result<u64, Broken> {
    let octets = bench.agent()?.peek(memory, memory.margin + at, 8)?;
    Ok(octets
        .first_chunk()
        .map_or(0, |eight| u64::from_le_bytes(*eight)))
}

/// A connection of a device that answers atomic operations.
fn open(bench: &mut Bench<'_>, memory: Memory) -> Result<Peer, Broken> {
    let mut peer = bench.open()?;
    probe(&mut peer, memory)?;
    Ok(peer)
}

/// Whether the device has atomic operations at all.
fn probe(peer: &mut Peer, memory: Memory) -> Result<(), Broken> {
    let probe = AtomicRequest {
        stag: memory.stag,
        to: memory.to + 56,
        ..AtomicRequest::default()
    };
    match ask(peer, probe) {
        Ok(_) => Ok(()),
        // A Terminate, or what TCP left of it.
        Err(Came::Segment(..) | Came::End | Came::Reset) => Err(UNKNOWN),
        Err(came) => Err(Broken::First(came.to_string())),
    }
}

/// Sends a Request; the original value that came back, or what came instead.
fn ask(peer: &mut Peer, request: AtomicRequest) -> Result<(u64, Segment), Came> {
    let segment = Segment::untagged(
        opcode::ATOMIC_REQUEST,
        1,
        peer.read_msn,
        &request.to_bytes(),
    );
    peer.read_msn += 1;
    peer.segment(&segment);
    let came = peer.next_segment();
    match &came {
        Came::Segment(segment, _)
            if segment.opcode() == opcode::ATOMIC_RESPONSE && segment.payload.len() == 12 =>
        {
            let (Some(id), Some(high), Some(low)) = (
                word(&segment.payload, 0),
                word(&segment.payload, 4),
                word(&segment.payload, 8),
            ) else {
                return Err(came);
            };
            if id != request.identifier {
                return Err(came);
            }
            Ok((u64::from(high) << 32 | u64::from(low), segment.clone()))
        }
        _ => Err(came),
    }
}

fn try_row(
    bench: &mut Bench<'_>,
    peer: &mut Peer,
    memory: Memory,
    what: &str,
    request: AtomicRequest,
    wanted: u64,
    clause: &'static str,
) -> Result<bool, Broken> {
    let before = value(bench, memory, 0)?;
    let answer = ask(peer, request);
    let original = matches!(&answer, Ok((value, _)) if *value == before);
    let seen = match &answer {
        Ok((value, _)) => format!("original value {value:#x}"),
        Err(came) => came.to_string(),
    };
    bench.require(
        what,
        original,
        seen,
        &format!("original value {before:#x}"),
        clause,
        Some(peer),
    );
    let after = value(bench, memory, 0)?;
    bench.require(
        format!("{what}: memory"),
        after == wanted,
        format!("{after:#x}"),
        &format!("{wanted:#x}"),
        clause,
        Some(peer),
    );
    Ok(original)
}

fn a01(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let memory = memory(bench)?;
    let (mut peer, on) = bench.open_served()?;
    probe(&mut peer, memory)?;
    let add = |data, mask| AtomicRequest {
        identifier: 0x1234_5678,
        stag: memory.stag,
        to: memory.to,
        data,
        mask,
        ..AtomicRequest::default()
    };
    // A mask bit stops the carry out of its place.
    let rows = [
        ("0 + 5", add(5, 0), 5),
        ("5 + (2^64 - 1)", add(u64::MAX, 0), 4),
        (
            "fields of 8 bits: 0x04 + 0xfffe",
            add(0xfffe, 0x8080_8080_8080_8080),
            0xff02,
        ),
        (
            "fields of 8 bits: 0xff02 + 0x01ff",
            add(0x01ff, 0x8080_8080_8080_8080),
            0x0001,
        ),
        ("no carry anywhere", add(0xff, u64::MAX), 0xfe),
    ];
    for (what, request, wanted) in rows {
        if !try_row(bench, &mut peer, memory, what, request, wanted, FETCH_ADD)? {
            break;
        }
    }
    bench.no_completion(on, REQUEST, &peer)
}

fn a02(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let memory = memory(bench)?;
    let mut peer = open(bench, memory)?;
    let swap = |data, mask, compare, compare_mask| AtomicRequest {
        operation: 2,
        identifier: 9,
        stag: memory.stag,
        to: memory.to,
        data,
        mask,
        compare,
        compare_mask,
    };
    let all = u64::MAX;
    let rows = [
        (
            "equal",
            swap(0x1111_2222_3333_4444, all, 0, all),
            0x1111_2222_3333_4444,
        ),
        ("not equal", swap(7, all, 8, all), 0x1111_2222_3333_4444),
        ("equal under a mask", swap(7, all, 0xff44, 0xff), 7),
        ("swapped under a mask", swap(0xabcd, 0xff00, 7, all), 0xab07),
        ("nothing compared", swap(1, all, 99, 0), 1),
        ("nothing swapped", swap(99, 0, 1, all), 1),
    ];
    for (what, request, wanted) in rows {
        if !try_row(bench, &mut peer, memory, what, request, wanted, CMP_SWAP)? {
            break;
        }
    }
    Ok(())
}

fn a03(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let memory = memory(bench)?;
    for operation in [1, 3, 7, 15] {
        let mut peer = open(bench, memory)?;
        let request = AtomicRequest {
            operation,
            stag: memory.stag,
            to: memory.to,
            data: 1,
            mask: 0,
            ..AtomicRequest::default()
        };
        peer.segment(&Segment::untagged(
            opcode::ATOMIC_REQUEST,
            1,
            peer.read_msn,
            &request.to_bytes(),
        ));
        peer.read_msn += 1;
        let reaction = peer.reaction();
        bench.judge(
            format!("operation {operation}"),
            &peer,
            &reaction,
            &[allow(AnyTerminate, REQUEST)],
        );
        let after = value(bench, memory, 0)?;
        bench.require(
            format!("operation {operation}: memory"),
            after == 0,
            format!("{after:#x}"),
            "as it was",
            REQUEST,
            Some(&peer),
        );
    }
    Ok(())
}

fn a04(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let memory = memory(bench)?;
    for (operation, clause) in [(0, FETCH_ADD), (2, CMP_SWAP)] {
        for off in [1, 2, 4, 7] {
            let mut peer = open(bench, memory)?;
            let request = AtomicRequest {
                operation,
                stag: memory.stag,
                to: memory.to + off,
                data: u64::MAX,
                mask: u64::MAX,
                ..AtomicRequest::default()
            };
            peer.segment(&Segment::untagged(
                opcode::ATOMIC_REQUEST,
                1,
                peer.read_msn,
                &request.to_bytes(),
            ));
            peer.read_msn += 1;
            let reaction = peer.reaction();
            let what = format!("operation {operation}, {off} octets off");
            bench.judge(
                &what,
                &peer,
                &reaction,
                &[allow(Terminate(0, 2, 7), ERRORS)],
            );
            let after = (value(bench, memory, 0)?, value(bench, memory, 8)?);
            bench.require(
                format!("{what}: memory"),
                after == (0, 0),
                format!("{after:x?}"),
                "as it was",
                clause,
                Some(&peer),
            );
        }
    }
    Ok(())
}

fn a05(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let memory = memory(bench)?;
    let mut peer = open(bench, memory)?;
    let request = AtomicRequest {
        identifier: 0xfeed_beef,
        stag: memory.stag,
        to: memory.to,
        data: 1,
        ..AtomicRequest::default()
    };
    // The connection has asked one already.
    let place = Place::Untagged {
        rsvd: 0,
        qn: 3,
        msn: 2,
        mo: 0,
    };
    match ask(&mut peer, request) {
        Ok((_, segment)) => {
            let right = segment.place == place && (segment.ddp, segment.rdmap) == (0x41, 0x4b);
            bench.require(
                "a Response",
                right,
                &segment,
                "queue 3, the next number, one segment",
                ATOMIC,
                Some(&peer),
            );
        }
        Err(came) => bench.require(
            "a Response",
            false,
            &came,
            "the identifier of its Request",
            RESPONSE,
            Some(&peer),
        ),
    }
    for queue in [0, 2, 3] {
        let mut peer = open(bench, memory)?;
        peer.segment(&Segment::untagged(
            opcode::ATOMIC_REQUEST,
            queue,
            2,
            &request.to_bytes(),
        ));
        let reaction = peer.reaction();
        bench.judge(
            format!("a Request to queue {queue}"),
            &peer,
            &reaction,
            &[allow(AnyTerminate, ATOMIC)],
        );
    }
    Ok(())
}

fn a09(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let memory = memory(bench)?;
    let plain = bench.agent()?.register(
        64,
        access::LOCAL_WRITE | access::REMOTE_READ | access::REMOTE_WRITE,
        0,
    )?;
    for (name, stag, to) in [
        ("an STag that is none", !memory.stag, memory.to),
        ("behind the end", memory.stag, memory.to + 64),
        ("before the beginning", memory.stag, memory.to - 8),
        ("no right to atomic operations", plain.stag, plain.to),
    ] {
        let mut peer = open(bench, memory)?;
        let request = AtomicRequest {
            stag,
            to,
            data: 1,
            ..AtomicRequest::default()
        };
        peer.segment(&Segment::untagged(
            opcode::ATOMIC_REQUEST,
            1,
            peer.read_msn,
            &request.to_bytes(),
        ));
        peer.read_msn += 1;
        let reaction = peer.reaction();
        bench.judge(
            name,
            &peer,
            &reaction,
            &[allow(crate::oracle::Outcome::TerminateOfType(0, 1), CODES)],
        );
    }
    let after = value(bench, plain, 0)?;
    bench.require(
        "the memory without the right",
        after == 0,
        format!("{after:#x}"),
        "as it was",
        CODES,
        None,
    );
    Ok(())
}

/// Whether the device knows Immediate Data: what it does with a good one.
fn knows_immediate(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut peer = bench.open()?;
    peer.segment(&Segment::untagged(opcode::IMMEDIATE, 0, 1, &[0; 8]));
    let reaction = peer.reaction();
    // Other faults of a device's Terminates are findings of other cases.
    if reaction
        .terminate()
        .is_some_and(|terminate| terminate.code == 6)
    {
        return Err(UNKNOWN);
    }
    bench.judge(
        "eight octets",
        &peer,
        &reaction,
        &[allow(GoesOn, IMMEDIATE)],
    );
    Ok(())
}

fn i01(bench: &mut Bench<'_>) -> Result<(), Broken> {
    knows_immediate(bench)?;
    for length in [0, 4, 7, 9, 16] {
        for code in [opcode::IMMEDIATE, opcode::IMMEDIATE_SE] {
            let mut peer = bench.open()?;
            peer.segment(&Segment::untagged(code, 0, 1, &vec![0; length]));
            let reaction = peer.reaction();
            bench.judge(
                format!("opcode {code} with {length} octets"),
                &peer,
                &reaction,
                &[allow(AnyTerminate, IMMEDIATE)],
            );
        }
    }
    Ok(())
}

fn i03(bench: &mut Bench<'_>) -> Result<(), Broken> {
    knows_immediate(bench)?;
    let (mut peer, on) = bench.open_served()?;
    peer.send_message(b"one");
    for code in [opcode::IMMEDIATE, opcode::IMMEDIATE_SE] {
        peer.segment(&Segment::untagged(
            code,
            0,
            peer.send_msn,
            &[0, 0, 0, 0, 1, 2, 3, 4],
        ));
        peer.send_msn += 1;
    }
    peer.send_message(b"four");
    for slot in 0..4 {
        let wc = bench.agent()?.poll(on, SOON);
        // IBV_WC_WITH_IMM is 2.
        let immediate = slot == 1 || slot == 2;
        let good = wc
            .as_ref()
            .is_ok_and(|wc| wc.status == 0 && wc.wr_id == slot && (wc.flags & 2 != 0) == immediate);
        bench.require(
            format!("receive {slot}"),
            good,
            format!("{wc:?}"),
            "completes in its turn, and says whether it is Immediate Data",
            IMMEDIATE,
            Some(&peer),
        );
        if !good {
            break;
        }
    }
    Ok(())
}

//! Messages that the device's program posts: the lengths of its FPDUs, its Invalidate STags, atomic operations, Immediate Data.

use std::time::Duration;

use serde_json::json;

use super::{Case, Family, agent_case};
use crate::agent::access;
use crate::bench::{Bench, Broken};
use crate::oracle::Came;
use crate::peer::Peer;
use crate::wire::ddp::{AtomicRequest, Place, Segment, opcode, word};

const LENGTHS: &str = "RFC 5044 §3";
const SIZES: &str = "RFC 5044 §4.5";
const SEND: &str = "RFC 5040 §5.3";
const REQUEST: &str = "RFC 7306 §5.2.1";
const ORDER: &str = "RFC 7306 §5.4";
const IMMEDIATE: &str = "RFC 7306 §6.3";

/// RFC 5044 §3.
const LONGEST: u16 = 64_768;
/// RFC 5044 §4.5.
const LEAST_MULPDU: u16 = 128;
const SOON: Duration = Duration::from_secs(10);

pub(super) const CASES: &[Case] = &[
    agent_case(
        "F05",
        Family::Framing,
        "no ULPDU of the device is too long",
        &[LENGTHS],
        f05,
    ),
    agent_case(
        "F21",
        Family::Framing,
        "no FPDU of the device is longer than TCP's segments",
        &[SIZES],
        f21,
    )
    .should(),
    Case {
        version: 2,
        ..agent_case(
            "R44",
            Family::Rdmap,
            "a Send with Invalidate of the device",
            &[SEND],
            r44,
        )
    },
    agent_case(
        "A40",
        Family::Extensions,
        "a FetchAdd of the device",
        &[REQUEST, ORDER],
        a40,
    ),
    agent_case(
        "I40",
        Family::Extensions,
        "a Write with immediate of the device",
        &[IMMEDIATE],
        i40,
    ),
];

/// Lengths of the device's Sends in octets. First much, so that TCP comes to its longest segments; then what fits into few of them, however
/// evenly it is cut.
const SENDS: [u32; 4] = [300_000, 65_300, 130_600, 65_300];

/// The lengths of all ULPDUs of some long Sends of the device.
fn lengths(bench: &mut Bench<'_>) -> Result<(Peer, Result<Vec<usize>, Came>), Broken> {
    let memory = bench
        .agent()?
        .register(SENDS[0].into(), access::LOCAL_WRITE, 0x2c)?;
    let (mut peer, on) = bench.open_served()?;
    let mut lengths = Vec::new();
    for length in SENDS {
        let post = json!({ "opcode": 2, "mr": memory.id, "length": length, "wr_id": 1 });
        bench.agent()?.post(on, post)?;
        loop {
            let came = peer.next_segment();
            match &came {
                Came::Segment(segment, fpdu) if segment.opcode() == opcode::SEND => {
                    lengths.push(fpdu.ulpdu.len());
                    if segment.is_last() {
                        break;
                    }
                }
                _ => return Ok((peer, Err(came))),
            }
        }
    }
    Ok((peer, Ok(lengths)))
}

fn longest(lengths: &Result<Vec<usize>, Came>) -> (usize, String) {
    match lengths {
        Ok(lengths) => {
            let most = lengths.iter().max().copied().unwrap_or(0);
            (
                most,
                format!("{} ULPDUs, the longest of {most} octets", lengths.len()),
            )
        }
        Err(came) => (usize::MAX, came.to_string()),
    }
}

fn f05(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let (peer, lengths) = lengths(bench)?;
    let (most, seen) = longest(&lengths);
    bench.require(
        "Sends of up to 300,000 octets",
        most <= LONGEST.into(),
        seen,
        "ULPDUs of 64,768 octets at most",
        LENGTHS,
        Some(&peer),
    );
    Ok(())
}

fn f21(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let (peer, lengths) = lengths(bench)?;
    let Some(emss) = peer.segment_size() else {
        return Err(Broken::Skip(
            "the size of TCP's segments is not known, or changes, as it does within one host",
        ));
    };
    let (most, seen) = longest(&lengths);
    // The tester asks for no Markers, so none take room.
    let mulpdu = emss
        .saturating_sub(6 + emss % 4)
        .clamp(LEAST_MULPDU, LONGEST);
    bench.require(
        format!("Sends of up to 300,000 octets over segments of {emss}"),
        most <= mulpdu.into(),
        seen,
        &format!("ULPDUs of {mulpdu} octets at most"),
        SIZES,
        Some(&peer),
    );
    Ok(())
}

fn r44(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let memory = bench.agent()?.register(64, access::LOCAL_WRITE, 0x61)?;
    let (mut peer, on) = bench.open_served()?;
    let post =
        json!({ "opcode": 9, "mr": memory.id, "length": 4, "wr_id": 1, "rkey": 0x0102_0304 });
    if bench.agent()?.post(on, post).is_err() {
        return Err(Broken::Skip("the device sends nothing with Invalidate"));
    }
    let came = peer.next_segment();
    let place = Place::Untagged {
        rsvd: 0x0102_0304,
        qn: 0,
        msn: 1,
        mo: 0,
    };
    let right = matches!(&came, Came::Segment(segment, _)
        if segment.place == place && (segment.ddp, segment.rdmap) == (0x41, 0x44) && segment.payload == b"aaaa");
    bench.require(
        "its segment",
        right,
        &came,
        "opcode 4, queue 0, the STag behind the control octets",
        SEND,
        Some(&peer),
    );
    // All Sends have one queue and its numbers.
    for (number, code) in [(2, 2), (3, 9)] {
        let post = json!({ "opcode": code, "mr": memory.id, "length": 4, "wr_id": number, "rkey": 0x0102_0304 });
        bench.agent()?.post(on, post)?;
        let came = peer.next_segment();
        let right = matches!(&came, Came::Segment(segment, _)
            if matches!(segment.place, Place::Untagged { qn: 0, msn, mo: 0, .. } if msn == number));
        bench.require(
            format!("Send {number}, behind it"),
            right,
            &came,
            "the next number of queue 0",
            SEND,
            Some(&peer),
        );
    }
    Ok(())
}

fn a40(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let memory = bench.agent()?.register(64, access::LOCAL_WRITE, 0)?;
    let (mut peer, on) = bench.open_served()?;
    let post = json!({
        "opcode": 6, "mr": memory.id, "length": 8, "wr_id": 5, "rkey": 0x0102_0304, "remote": 0x2000, "compare": 0x77,
    });
    if bench.agent()?.post(on, post).is_err() {
        return Err(Broken::Skip("the device knows no atomic operations"));
    }
    let came = peer.next_segment();
    let Came::Segment(segment, _) = &came else {
        let rule = "an Atomic Request";
        bench.require("its segment", false, &came, rule, REQUEST, Some(&peer));
        return Ok(());
    };
    let place = Place::Untagged {
        rsvd: 0,
        qn: 1,
        msn: 1,
        mo: 0,
    };
    let identifier = word(&segment.payload, 4).unwrap_or(0);
    let expected = AtomicRequest {
        identifier,
        stag: 0x0102_0304,
        to: 0x2000,
        data: 0x77,
        ..AtomicRequest::default()
    };
    // The compared octets mean nothing here.
    const MEANINGFUL: usize = 36;
    let same = segment.payload.get(..MEANINGFUL) == expected.to_bytes().get(..MEANINGFUL);
    let right = same
        && segment.payload.len() == 52
        && segment.place == place
        && (segment.ddp, segment.rdmap) == (0x41, 0x4a);
    bench.require(
        "its segment",
        right,
        segment,
        "opcode 10, queue 1, what was posted, no mask",
        REQUEST,
        Some(&peer),
    );
    let early = bench.agent()?.poll(on, Duration::from_millis(30));
    bench.require(
        "before the Response",
        early.is_err(),
        format!("{early:?}"),
        "no completion",
        ORDER,
        Some(&peer),
    );
    let mut response = identifier.to_be_bytes().to_vec();
    response.extend([0x5a; 8]);
    peer.segment(&Segment::untagged(opcode::ATOMIC_RESPONSE, 3, 1, &response));
    let wc = bench.agent()?.poll(on, SOON);
    let there = bench.agent()?.peek(memory, memory.margin, 8)?;
    let good = wc.as_ref().is_ok_and(|wc| (wc.status, wc.wr_id) == (0, 5)) && there == [0x5a; 8];
    bench.require(
        "behind the Response",
        good,
        format!("{wc:?}, {there:x?}"),
        "a completion, and the original value in memory",
        ORDER,
        Some(&peer),
    );
    Ok(())
}

fn i40(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let memory = bench.agent()?.register(64, access::LOCAL_WRITE, 0x62)?;
    let (mut peer, on) = bench.open_served()?;
    let post = json!({
        "opcode": 1, "mr": memory.id, "length": 5, "wr_id": 1, "rkey": 0x0102_0304, "remote": 0x2000, "imm": 0x0102_0304,
    });
    if bench.agent()?.post(on, post).is_err() {
        return Err(Broken::Skip("the device sends no Immediate Data"));
    }
    let write = peer.next_segment();
    let place = Place::Tagged {
        stag: 0x0102_0304,
        to: 0x2000,
    };
    let right = matches!(&write, Came::Segment(segment, _)
        if segment.place == place && (segment.ddp, segment.rdmap) == (0xc1, 0x40) && segment.payload == b"bbbbb");
    let rule = "a Write with what was posted";
    bench.require("first", right, &write, rule, IMMEDIATE, Some(&peer));
    let immediate = peer.next_segment();
    let place = Place::Untagged {
        rsvd: 0,
        qn: 0,
        msn: 1,
        mo: 0,
    };
    let right = matches!(&immediate, Came::Segment(segment, _)
        if segment.place == place && (segment.ddp, segment.rdmap) == (0x41, 0x48) && segment.payload.len() == 8);
    bench.require(
        "then",
        right,
        &immediate,
        "opcode 8, queue 0, number 1, eight octets",
        IMMEDIATE,
        Some(&peer),
    );
    Ok(())
}

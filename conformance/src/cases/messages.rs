//! R: RDMAP messages one behind the other, and the end of their stream.

use super::{Case, Family, agent_case};
use crate::agent::access;
use crate::bench::{Bench, Broken};
use crate::oracle::Outcome::{AnyTerminate, Closed, GoesOn, Terminate};
use crate::oracle::{Came, Reaction, allow};
use crate::peer::Peer;
use crate::wire::ddp::{self, Place, Segment, opcode};
use serde_json::json;
use std::time::Duration;

const SEND: &str = "RFC 5040 §5.3";
const MESSAGE: &str = "RFC 5040 §5.4";
const ABORT: &str = "RFC 5040 §6.2.1";
const CHECKS: &str = "RFC 5040 §7.2";
const RIGHTS: &str = "RFC 5040 §8.1.1";
const F: Family = Family::Rdmap;
const SOON: Duration = Duration::from_secs(10);
const LONG: u32 = 150_001;

pub(super) const CASES: &[Case] = &[
    Case {
        version: 2,
        ..agent_case(
            "R12",
            F,
            "Terminates, good and bad, are not answered, and the device's program is told",
            &[MESSAGE, ABORT],
            r12,
        )
    },
    agent_case(
        "R13",
        F,
        "the end of our half ends the connection",
        &["RFC 5040 §6.2"],
        r13,
    ),
    agent_case(
        "R14",
        F,
        "Sends and Writes of the device have the right headers",
        &["RFC 5041 §4.3", "RFC 5041 §4.2"],
        r14,
    ),
    agent_case(
        "R16",
        F,
        "an invalidated window is no more",
        &[SEND, CHECKS],
        r16,
    ),
];

fn r12(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let good = ddp::Terminate {
        layer: 0,
        etype: 0,
        code: 0,
        header_control: 0,
        reserved: 0,
        rest: Vec::new(),
    }
    .to_bytes();
    let headers = ddp::Terminate {
        layer: 1,
        etype: 1,
        code: 0,
        header_control: 0b110,
        reserved: 0x1fff,
        rest: vec![0; 16],
    }
    .to_bytes();
    let lies = ddp::Terminate {
        layer: 15,
        etype: 15,
        code: 255,
        header_control: 0b111,
        reserved: 0,
        rest: Vec::new(),
    }
    .to_bytes();
    for (name, payload) in [
        ("a good one", good),
        ("with headers", headers),
        ("with headers that are not there", lies),
        ("of three octets", vec![0; 3]),
    ] {
        let (mut peer, on) = bench.open_served()?;
        peer.segment(&Segment::untagged(opcode::TERMINATE, 2, 1, &payload));
        let mut reaction = Reaction::default();
        let came = peer.next_segment();
        let answered = matches!(came, Came::Segment(..));
        reaction.came.push(came);
        let short = payload.len() < 4;
        if answered && short {
            bench.judge(
                name,
                &peer,
                &reaction,
                &[allow(AnyTerminate, CHECKS), allow(Closed, ABORT)],
            );
        } else {
            bench.judge(name, &peer, &reaction, &[allow(Closed, ABORT)]);
        }
        let (told, seen) = bench.told_of_end(on)?;
        bench.require(
            format!("{name}: what the device's program is told"),
            told,
            seen,
            "an event, or work requests that fail",
            MESSAGE,
            Some(&peer),
        );
    }
    Ok(())
}

fn r13(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let (mut peer, on) = bench.open_served()?;
    peer.finish();
    let mut reaction = Reaction::default();
    let came = peer.next_segment();
    reaction.came.push(came);
    bench.judge(
        "the end of our half",
        &peer,
        &reaction,
        &[allow(Closed, "RFC 5040 §6.2")],
    );
    // RDMA_CM_EVENT_DISCONNECTED is 10, and comes behind the one of the beginning, 9.
    let mut events = Vec::new();
    while let Ok((event, _)) = bench.agent()?.event(on, Duration::from_secs(5)) {
        events.push(event);
        if event == 10 {
            break;
        }
    }
    bench.require(
        "the device's program",
        events.contains(&10),
        format!("events {events:?}"),
        "is told",
        "RFC 5040 §6.2",
        Some(&peer),
    );
    Ok(())
}

fn r14(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let memory = bench
        .agent()?
        .register(LONG.into(), access::LOCAL_WRITE, 0x33)?;
    let (mut peer, on) = bench.open_served()?;
    for number in 1..=2_u32 {
        let post = json!({ "opcode": 2, "mr": memory.id, "length": LONG, "wr_id": number });
        bench.agent()?.post(on, post)?;
        let mut at = 0;
        loop {
            let came = peer.next_segment();
            let Came::Segment(segment, fpdu) = &came else {
                bench.require(
                    format!("Send {number}"),
                    false,
                    &came,
                    "a segment of it",
                    "RFC 5041 §4.3",
                    Some(&peer),
                );
                return Ok(());
            };
            let length = u32::try_from(segment.payload.len()).unwrap_or(0);
            let place = Place::Untagged {
                rsvd: 0,
                qn: 0,
                msn: number,
                mo: at,
            };
            let last = at + length == LONG;
            let control = (segment.ddp, segment.rdmap) == (if last { 0x41 } else { 0x01 }, 0x43);
            let octets = segment.payload.iter().all(|octet| *octet == 0x33)
                && peer.crc_fits(fpdu)
                && fpdu.pad_is_zero;
            if segment.place != place || !control || !octets {
                bench.require(
                    format!("Send {number}, offset {at}"),
                    false,
                    segment,
                    "queue 0, numbers and offsets in order, L on the last",
                    "RFC 5041 §4.3",
                    Some(&peer),
                );
                return Ok(());
            }
            at += length;
            if last {
                break;
            }
        }
    }
    bench.require(
        "two long Sends",
        true,
        "numbers and offsets in order",
        "numbers and offsets in order, L on the last",
        "RFC 5041 §4.3",
        Some(&peer),
    );
    writes_are_contiguous(bench, &mut peer, on, memory)
}

fn writes_are_contiguous(
    bench: &mut Bench<'_>,
    peer: &mut Peer,
    on: crate::agent::Connection,
    memory: crate::agent::Memory,
) -> Result<(), Broken> {
    let post = json!({ "opcode": 0, "mr": memory.id, "length": LONG, "wr_id": 3, "rkey": 0x0102_0304, "remote": 0x1000 });
    bench.agent()?.post(on, post)?;
    let mut at = 0_u64;
    while at < u64::from(LONG) {
        let came = peer.next_segment();
        let good = match &came {
            Came::Segment(segment, _) => {
                let place = Place::Tagged {
                    stag: 0x0102_0304,
                    to: 0x1000 + at,
                };
                at += u64::try_from(segment.payload.len()).unwrap_or(0);
                let ddp = if at == u64::from(LONG) { 0xc1 } else { 0x81 };
                segment.place == place && (segment.ddp, segment.rdmap) == (ddp, 0x40)
            }
            _ => false,
        };
        if !good {
            bench.require(
                "a long Write",
                false,
                &came,
                "the STag, offsets in order, L on the last",
                "RFC 5041 §4.2",
                Some(peer),
            );
            return Ok(());
        }
    }
    bench.require(
        "a long Write",
        true,
        "offsets in order",
        "the STag, offsets in order, L on the last",
        "RFC 5041 §4.2",
        Some(peer),
    );
    Ok(())
}

fn r16(bench: &mut Bench<'_>) -> Result<(), Broken> {
    // IBV_ACCESS_MW_BIND is 16.
    let memory = bench.agent()?.register(
        4096,
        access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ | 16,
        0,
    );
    let Ok(memory) = memory else {
        return Err(Broken::Skip("the device has no memory windows"));
    };
    let (mut peer, on) = bench.open_served()?;
    let answer = bench
        .agent()?
        .call("window", json!({ "conn": on.id, "mr": memory.id }));
    let Some(stag) = answer
        .ok()
        .and_then(|answer| u32::try_from(answer["rkey"].as_u64()?).ok())
    else {
        return Err(Broken::Skip("the device has no memory windows"));
    };
    peer.segment(&Segment::tagged(opcode::WRITE, stag, memory.to, b"good"));
    let reaction = peer.reaction();
    bench.judge(
        "a Write by the window's STag",
        &peer,
        &reaction,
        &[allow(GoesOn, SEND)],
    );
    peer.segment(
        &Segment::untagged(opcode::SEND_INVALIDATE, 0, peer.send_msn, b"inv").invalidating(stag),
    );
    let wc = bench.agent()?.poll(on, SOON);
    // IBV_WC_WITH_INV is 8; the STag comes with it.
    let told = wc
        .as_ref()
        .is_ok_and(|wc| wc.status == 0 && wc.flags & 8 != 0 && wc.immediate == u64::from(stag));
    bench.require(
        "a Send that invalidates it",
        told,
        format!("{wc:?}"),
        "a receive that names the STag",
        SEND,
        Some(&peer),
    );
    peer.segment(&Segment::tagged(opcode::WRITE, stag, memory.to, b"late"));
    let reaction = peer.reaction();
    let allowed = [
        allow(Terminate(1, 1, 0), "RFC 5041 §7.2"),
        allow(Terminate(1, 1, 2), "RFC 5041 §7.2"),
    ];
    bench.judge("a Write by it afterwards", &peer, &reaction, &allowed);
    let there = bench.agent()?.peek(memory, memory.margin, 4)?;
    bench.require(
        "the memory",
        there == b"good",
        crate::wire::hex(&there, 4),
        "what was written before",
        RIGHTS,
        Some(&peer),
    );
    Ok(())
}

//! R: RDMAP's opcodes, Sends with their variants, Terminates, and the end of a stream.

use std::time::Duration;

use serde_json::json;

use super::{Case, Family, agent_case};
use crate::agent::access;
use crate::bench::{Bench, Broken};
use crate::oracle::Outcome::{AnyTerminate, Closed, GoesOn, Terminate};
use crate::oracle::{Allowed, Came, Reaction, allow};
use crate::peer::Peer;
use crate::wire::ddp::{self, Place, ReadRequest, Segment, opcode};

const CONTROL: &str = "RFC 5040 §4.1";
const OPCODES: &str = "RFC 5040 §4.3";
const TERMINATE: &str = "RFC 5040 §4.8";
const SEND: &str = "RFC 5040 §5.3";
const MESSAGE: &str = "RFC 5040 §5.4";
const ORDER: &str = "RFC 5040 §5.5";
const ABORT: &str = "RFC 5040 §6.2.1";
const CHECKS: &str = "RFC 5040 §7.2";
const RIGHTS: &str = "RFC 5040 §8.1.1";

const F: Family = Family::Rdmap;

pub(super) const CASES: &[Case] = &[
    agent_case(
        "R01",
        F,
        "RDMAP versions that are none",
        &[CONTROL, TERMINATE],
        r01,
    ),
    agent_case("R02", F, "reserved opcodes", &[OPCODES, TERMINATE], r02),
    agent_case(
        "R03",
        F,
        "all four Sends are delivered, with what they are",
        &[SEND],
        r03,
    ),
    agent_case(
        "R04",
        F,
        "invalidation of what cannot be invalidated",
        &[CHECKS, RIGHTS, TERMINATE],
        r04,
    ),
    agent_case(
        "R08",
        F,
        "a Write before a Send is there when the Send is",
        &[ORDER],
        r08,
    ),
    agent_case(
        "R09",
        F,
        "the format of a Terminate",
        &[TERMINATE, MESSAGE],
        r09,
    ),
    agent_case(
        "R10",
        F,
        "a Terminate has the headers of what it is about",
        &[TERMINATE],
        r10,
    )
    .should(),
    agent_case(
        "R12",
        F,
        "Terminates, good and bad, are not answered",
        &[MESSAGE, ABORT],
        r12,
    ),
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

const SOON: Duration = Duration::from_secs(10);
/// More than two of the longest FPDUs carry, and no multiple of four.
const LONG: u32 = 150_001;

fn r01(bench: &mut Bench<'_>) -> Result<(), Broken> {
    for version in [0, 2, 3] {
        let (mut peer, _) = bench.open_served()?;
        let mut segment = Segment::untagged(opcode::SEND, 0, 1, b"bad");
        segment.rdmap = segment.rdmap & 0x3f | version << 6;
        peer.segment(&segment);
        let reaction = peer.reaction();
        let wrong = allow(Terminate(0, 2, 5), TERMINATE);
        // 00b is what RDMA Consortium devices send, which may be served.
        let allowed: &[Allowed] = if version == 0 {
            &[wrong, allow(GoesOn, CONTROL)]
        } else {
            &[wrong]
        };
        bench.judge(format!("version {version:02b}b"), &peer, &reaction, allowed);
    }
    Ok(())
}

fn r02(bench: &mut Bench<'_>) -> Result<(), Broken> {
    for code in 12..16 {
        for segment in [
            Segment::untagged(code, 0, 1, b"bad"),
            Segment::tagged(code, 0, 0, &[]),
        ] {
            let (mut peer, _) = bench.open_served()?;
            peer.segment(&segment);
            let reaction = peer.reaction();
            let kind = if matches!(segment.place, Place::Tagged { .. }) {
                "tagged"
            } else {
                "untagged"
            };
            bench.judge(
                format!("opcode {code}, {kind}"),
                &peer,
                &reaction,
                &[allow(Terminate(0, 2, 6), TERMINATE)],
            );
        }
    }
    Ok(())
}

fn r03(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let (mut peer, on) = bench.open_served()?;
    for (slot, code) in (0..).zip([opcode::SEND, opcode::SEND_SE]) {
        peer.segment(&Segment::untagged(code, 0, slot + 1, b"four"));
        let wc = bench.agent()?.poll(on, SOON);
        let good = wc
            .as_ref()
            .is_ok_and(|wc| (wc.status, wc.wr_id, wc.length) == (0, slot.into(), 4));
        bench.require(
            format!("opcode {code}"),
            good,
            format!("{wc:?}"),
            "a receive of four octets",
            SEND,
            Some(&peer),
        );
    }
    Ok(())
}

fn r04(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let whole = access::LOCAL_WRITE | access::REMOTE_WRITE;
    let other = bench.agent()?.register_in(4096, whole, 0, 1)?;
    for code in [opcode::SEND_INVALIDATE, opcode::SEND_SE_INVALIDATE] {
        for (name, stag) in [
            ("an STag that is none", 0x0dea_db00),
            ("one of another protection domain", other.stag),
        ] {
            let (mut peer, _) = bench.open_served()?;
            peer.segment(&Segment::untagged(code, 0, 1, b"bad").invalidating(stag));
            let reaction = peer.reaction();
            let allowed = [
                allow(Terminate(0, 1, 9), TERMINATE),
                allow(Terminate(0, 2, 9), TERMINATE),
                allow(Terminate(0, 1, 0), CHECKS),
                allow(Terminate(0, 1, 3), CHECKS),
            ];
            bench.judge(format!("opcode {code}, {name}"), &peer, &reaction, &allowed);
        }
    }
    still_writable(bench, other, "what is another domain's")
}

/// Notes that a registration can still be used by the device's own domain: here, that it can be deregistered.
fn still_writable(
    bench: &mut Bench<'_>,
    memory: crate::agent::Memory,
    what: &str,
) -> Result<(), Broken> {
    let done = bench.agent()?.deregister(memory);
    bench.require(
        what,
        done.is_ok(),
        format!("{done:?}"),
        "is as it was",
        RIGHTS,
        None,
    );
    Ok(())
}

fn r08(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let memory = bench
        .agent()?
        .register(65_536, access::LOCAL_WRITE | access::REMOTE_WRITE, 0)?;
    bench.agent()?.accept_with(16, 64, 4, 4)?;
    let (mut peer, on) = bench.open_served()?;
    for round in 1..=16_u8 {
        let octets = vec![round; 30_000];
        let mut both = peer
            .framer
            .fpdu(&Segment::tagged(opcode::WRITE, memory.stag, memory.to, &octets).to_bytes());
        both.extend(
            peer.framer
                .fpdu(&Segment::untagged(opcode::SEND, 0, round.into(), b"done").to_bytes()),
        );
        peer.send(&both);
        let agent = bench.agent()?;
        let wc = agent.poll(on, SOON);
        let there = agent.peek(memory, memory.margin, 30_000)?;
        if !wc.as_ref().is_ok_and(|wc| wc.status == 0) || there != octets {
            bench.require(
                format!("round {round}"),
                false,
                format!("{wc:?}"),
                "all octets of the Write",
                ORDER,
                Some(&peer),
            );
            return Ok(());
        }
    }
    bench.require(
        "sixteen rounds",
        true,
        "all octets",
        "all octets of the Write",
        ORDER,
        Some(&peer),
    );
    Ok(())
}

/// A connection that a Write by an STag that is none has ended, the Write's ULPDU, and what came.
fn terminated(bench: &mut Bench<'_>) -> Result<(Peer, Vec<u8>, Reaction), Broken> {
    let (mut peer, _) = bench.open_served()?;
    let ulpdu = Segment::tagged(opcode::WRITE, 0x0dea_db00, 0x1234, b"bad").to_bytes();
    peer.wrong(&ulpdu, ddp_nothing_wrong());
    let reaction = peer.reaction();
    Ok((peer, ulpdu, reaction))
}

fn ddp_nothing_wrong() -> crate::wire::framing::Wrong {
    crate::wire::framing::Wrong::default()
}

fn r09(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let (peer, ulpdu, reaction) = terminated(bench)?;
    let segment = reaction
        .segments()
        .find(|segment| segment.opcode() == opcode::TERMINATE)
        .cloned();
    let Some((segment, terminate)) = segment.and_then(|segment| {
        let terminate = ddp::Terminate::parse(&segment.payload)?;
        Some((segment, terminate))
    }) else {
        bench.require(
            "a Write by an STag that is none",
            false,
            &reaction,
            "a Terminate",
            MESSAGE,
            Some(&peer),
        );
        return Ok(());
    };
    let place = Place::Untagged {
        rsvd: 0,
        qn: 2,
        msn: 1,
        mo: 0,
    };
    bench.require(
        "its place",
        segment.place == place,
        &segment,
        "queue 2, number 1, offset 0",
        MESSAGE,
        Some(&peer),
    );
    let control = (segment.ddp, segment.rdmap) == (0x41, 0x47);
    bench.require(
        "its control octets",
        control,
        format!("{:#x} {:#x}", segment.ddp, segment.rdmap),
        "one last segment, versions 1, opcode 7",
        OPCODES,
        Some(&peer),
    );
    bench.require(
        "its reserved bits",
        terminate.reserved == 0,
        format!("{:#x}", terminate.reserved),
        "zero",
        TERMINATE,
        Some(&peer),
    );
    let last = reaction
        .came
        .iter()
        .rev()
        .find(|came| !matches!(came, Came::End | Came::Reset));
    let exactly_one = matches!(last, Some(Came::Segment(last, _)) if *last == segment);
    bench.require(
        "what follows it",
        exactly_one && reaction.ended(),
        &reaction,
        "the end of the stream",
        ABORT,
        Some(&peer),
    );
    if terminate.header_control & 0b110 == 0b110 {
        let (length, header) = terminate.rest.split_at(terminate.rest.len().min(2));
        let right = length == u16::try_from(ulpdu.len()).unwrap_or(0).to_be_bytes()
            && header == &ulpdu[..ddp::TAGGED_HEADER];
        bench.require(
            "the header in it",
            right,
            crate::wire::hex(&terminate.rest, 64),
            "the Write's length and DDP header",
            TERMINATE,
            Some(&peer),
        );
    }
    Ok(())
}

fn r10(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let (peer, _, reaction) = terminated(bench)?;
    let bits = reaction
        .terminate()
        .map(|terminate| terminate.header_control);
    bench.require(
        "of a Write: bits M and D",
        bits == Some(0b110),
        format!("{bits:?}"),
        "DDP segment length and header",
        TERMINATE,
        Some(&peer),
    );
    let (mut peer, _) = bench.open_served()?;
    let request = ReadRequest {
        sink_stag: 1,
        sink_to: 2,
        size: 3,
        source_stag: 0x0dea_db00,
        source_to: 5,
    };
    peer.read_request(request);
    let reaction = peer.reaction();
    let terminate = reaction.terminate();
    let bits = terminate.as_ref().map(|terminate| terminate.header_control);
    bench.require(
        "of a Read Request: bits M, D and R",
        bits == Some(0b111),
        format!("{bits:?}"),
        "RDMAP's header too",
        TERMINATE,
        Some(&peer),
    );
    if bits == Some(0b111) {
        let rest = terminate
            .map(|terminate| terminate.rest)
            .unwrap_or_default();
        let right = rest.get(2 + ddp::UNTAGGED_HEADER..) == Some(&request.to_bytes());
        bench.require(
            "of a Read Request: RDMAP's header",
            right,
            crate::wire::hex(&rest, 64),
            "the Request as it was",
            TERMINATE,
            Some(&peer),
        );
    }
    Ok(())
}

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
        let (mut peer, _) = bench.open_served()?;
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
                && fpdu.crc_is_right
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

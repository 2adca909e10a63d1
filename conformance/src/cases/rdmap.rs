//! R: RDMAP's opcodes, Sends with their variants, Terminates, and the end of a stream.

use std::time::Duration;

use super::{Case, Family, agent_case};
use crate::agent::{Connection, access};
use crate::bench::{Bench, Broken};
use crate::oracle::Outcome::{GoesOn, Terminate};
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
const ERRORS: &str = "RFC 5040 §7.1";
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
    Case {
        version: 2,
        ..agent_case(
            "R08",
            F,
            "a Write before a Send is there when the Send is",
            &[ORDER],
            r08,
        )
    },
    Case {
        version: 2,
        ..agent_case(
            "R09",
            F,
            "the format of a Terminate, and what the device's program is told",
            &[TERMINATE, MESSAGE, ERRORS],
            r09,
        )
    },
    Case {
        version: 2,
        ..agent_case(
            "R10",
            F,
            "a Terminate has the headers of what it is about",
            &[TERMINATE],
            r10,
        )
        .should()
    },
];

const SOON: Duration = Duration::from_secs(10);

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
        // A Write makes no completion of its own.
        let sent = wc.as_ref().is_ok_and(|wc| (wc.status, wc.length) == (0, 4));
        if !sent || there != octets {
            bench.require(
                format!("round {round}"),
                false,
                format!("{wc:?}"),
                "the completion of the Send alone, and all octets of the Write",
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

/// A connection that a Write by an STag that is none has ended, with the agent's end, the Write's ULPDU, and what came.
fn terminated(bench: &mut Bench<'_>) -> Result<(Peer, Connection, Vec<u8>, Reaction), Broken> {
    let (mut peer, on) = bench.open_served()?;
    let ulpdu = Segment::tagged(opcode::WRITE, 0x0dea_db00, 0x1234, b"bad").to_bytes();
    peer.wrong(&ulpdu, ddp_nothing_wrong());
    let reaction = peer.reaction();
    Ok((peer, on, ulpdu, reaction))
}

fn ddp_nothing_wrong() -> crate::wire::framing::Wrong {
    crate::wire::framing::Wrong::default()
}

fn r09(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let (peer, on, ulpdu, reaction) = terminated(bench)?;
    let (told, seen) = bench.told_of_end(on)?;
    bench.require(
        "what the device's program is told",
        told,
        seen,
        "an event, or work requests that fail",
        ERRORS,
        Some(&peer),
    );
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
    let (peer, _, _, reaction) = terminated(bench)?;
    let (what, rule) = ("of a Write: bits M and D", "DDP segment length and header");
    if let Some(terminate) = told(bench, what, &peer, &reaction) {
        let bits = terminate.header_control;
        bench.require(
            what,
            bits == 0b110,
            format!("{bits:03b}"),
            rule,
            TERMINATE,
            Some(&peer),
        );
    }
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
    let what = "of a Read Request: bits M, D and R";
    let Some(terminate) = told(bench, what, &peer, &reaction) else {
        return Ok(());
    };
    let bits = terminate.header_control;
    bench.require(
        what,
        bits == 0b111,
        format!("{bits:03b}"),
        "RDMAP's header too",
        TERMINATE,
        Some(&peer),
    );
    if bits == 0b111 {
        let right = terminate.rest.get(2 + ddp::UNTAGGED_HEADER..) == Some(&request.to_bytes());
        bench.require(
            "of a Read Request: RDMAP's header",
            right,
            crate::wire::hex(&terminate.rest, 64),
            "the Request as it was",
            TERMINATE,
            Some(&peer),
        );
    }
    Ok(())
}

/// The Terminate that came. Without one nothing can be told of its headers: that there is none is R09's and R05's finding.
fn told(
    bench: &mut Bench<'_>,
    what: &str,
    peer: &Peer,
    reaction: &Reaction,
) -> Option<ddp::Terminate> {
    let terminate = reaction.terminate();
    if terminate.is_none() {
        let rule = "a Terminate comes (see R09 and R05)";
        bench.cannot_judge(what, reaction.to_string(), rule, peer);
    }
    terminate
}

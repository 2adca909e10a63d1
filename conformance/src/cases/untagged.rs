//! U: untagged segments, which are Sends here.

use std::time::Duration;

use serde_json::json;

use super::{Case, Family, agent_case};
use crate::agent::Connection;
use crate::bench::{Bench, Broken};
use crate::oracle::Outcome::{GoesOn, Silence, Terminate};
use crate::oracle::{Allowed, allow};
use crate::peer::Peer;
use crate::wire::ddp::{Place, Segment, opcode};
use crate::wire::hex;

const CHECKS: &str = "RFC 5041 §7.1";
const CODES: &str = "RFC 5041 §7.2";
const HEADER: &str = "RFC 5041 §4.3";
const SEND: &str = "RFC 5040 §5.3";
const FIGURE: &str = "RFC 5040 §4.3";

const F: Family = Family::Untagged;

pub(super) const CASES: &[Case] = &[
    agent_case("U01", F, "queues that are none", &[CODES], u01),
    Case {
        version: 2,
        ..agent_case("U02", F, "more Sends than receives", &[CODES, CHECKS], u02)
    },
    agent_case("U03", F, "message numbers out of turn", &[CODES], u03),
    agent_case(
        "U04",
        F,
        "message offsets outside and with gaps",
        &[CODES],
        u04,
    ),
    agent_case(
        "U05",
        F,
        "a Send that is longer than its receive",
        &[CODES],
        u05,
    ),
    agent_case("U06", F, "DDP versions that are none", &[CODES], u06),
    agent_case(
        "U07",
        F,
        "Sends are delivered in order, from number 1",
        &[HEADER, SEND],
        u07,
    ),
    agent_case(
        "U08",
        F,
        "reserved fields of Sends are not looked at",
        &[HEADER, "RFC 5041 §4.1"],
        u08,
    ),
    agent_case("U09", F, "a Send of nothing takes a receive", &[SEND], u09),
    agent_case(
        "U12",
        F,
        "opcodes of the other buffer model",
        &[FIGURE, "RFC 5040 §7.2"],
        u12,
    ),
    agent_case("U14", F, "a Send of several segments", &[HEADER, SEND], u14),
];

/// How long a completion takes at most that has to come.
const SOON: Duration = Duration::from_secs(10);
/// How long the tester waits for one that must not.
const MOMENT: Duration = Duration::from_millis(100);

/// The octets of each receive unless a case says otherwise.
const OCTETS: u32 = 4096;

fn judge(
    bench: &mut Bench<'_>,
    what: impl Into<String>,
    peer: &mut Peer,
    segments: &[Segment],
    allowed: &[Allowed],
) {
    for segment in segments {
        peer.segment(segment);
    }
    let reaction = peer.reaction();
    bench.judge(what, peer, &reaction, allowed);
}

/// Notes whether the next completion is of a receive, with these octets in this slot.
fn received(
    bench: &mut Bench<'_>,
    what: &str,
    on: Connection,
    slot: u64,
    octets: &[u8],
    peer: &Peer,
) -> Result<(), Broken> {
    let agent = bench.agent()?;
    let (holds, seen) = match agent.poll(on, SOON) {
        Ok(wc) => {
            let there = agent.peek(
                on.receives,
                slot * u64::from(OCTETS),
                wc.length.min(u64::from(OCTETS)),
            )?;
            let right = (wc.status, wc.wr_id) == (0, slot) && there == octets;
            (
                right,
                format!(
                    "receive {}, status {}, {} octets {}",
                    wc.wr_id,
                    wc.status,
                    wc.length,
                    hex(&there, 16)
                ),
            )
        }
        Err(error) => (false, error.to_string()),
    };
    let rule = format!("receive {slot} completes with {} octets", octets.len());
    bench.require(what, holds, seen, &rule, SEND, Some(peer));
    Ok(())
}

/// Notes that no receive completed well.
fn nothing_received(
    bench: &mut Bench<'_>,
    what: &str,
    on: Connection,
    peer: &Peer,
) -> Result<(), Broken> {
    let wc = bench.agent()?.poll(on, MOMENT);
    let well = wc.as_ref().is_ok_and(|wc| wc.status == 0);
    bench.require(
        format!("{what}: receives"),
        !well,
        format!("{wc:?}"),
        "none completes well",
        CHECKS,
        Some(peer),
    );
    Ok(())
}

fn u01(bench: &mut Bench<'_>) -> Result<(), Broken> {
    for queue in [4, 5, 255, 0x0001_0000, 0x8000_0000, u32::MAX] {
        let (mut peer, on) = bench.open_served()?;
        let segment = Segment::untagged(opcode::SEND, queue, 1, b"bad");
        let what = format!("queue {queue:#x}");
        judge(
            bench,
            &what,
            &mut peer,
            &[segment],
            &[allow(Terminate(1, 2, 1), CODES)],
        );
        nothing_received(bench, &what, on, &peer)?;
    }
    Ok(())
}

fn u02(bench: &mut Bench<'_>) -> Result<(), Broken> {
    bench.agent()?.accept_with(1, OCTETS, 4, 4)?;
    let (mut peer, on) = bench.open_served()?;
    peer.send_message(b"one");
    received(bench, "the first Send", on, 0, b"one", &peer)?;
    peer.send_message(b"two");
    // To ask would be in vain if the device waits.
    let reaction = peer.at_once();
    let allowed = [
        allow(Terminate(1, 2, 2), CODES),
        // A device may wait for a receive, as long as the sender sees nothing of it.
        allow(Silence, CHECKS),
    ];
    bench.judge(
        "a second Send with one receive posted",
        &peer,
        &reaction,
        &allowed,
    );
    if Silence.is(&reaction) {
        // The waiting message has not been lost.
        let slot = json!({ "conn": on.id, "slot": 0 });
        bench.agent()?.call("post_recv", slot)?;
        // Now it can answer a question. One that is busy may have refused the message in the meantime.
        let later = peer.reaction();
        if GoesOn.is(&later) {
            received(bench, "behind a second receive", on, 0, b"two", &peer)?;
        } else {
            bench.judge("a second Send, a while later", &peer, &later, &allowed);
        }
    }
    Ok(())
}

fn u03(bench: &mut Bench<'_>) -> Result<(), Broken> {
    // Beyond the receives that are posted, there is no buffer either.
    let range = [allow(Terminate(1, 2, 3), CODES)];
    let beyond = [range[0], allow(Terminate(1, 2, 2), CODES)];
    let rows: [(&str, u32, &[Allowed]); 5] = [
        ("number 0", 0, &range),
        ("number 1 again", 1, &range),
        ("number 1000", 1000, &beyond),
        ("the largest number", u32::MAX, &range),
        ("half-way round", 0x8000_0002, &beyond),
    ];
    for (name, msn, allowed) in rows {
        let (mut peer, on) = bench.open_served()?;
        peer.send_message(b"one");
        received(bench, "the first Send", on, 0, b"one", &peer)?;
        judge(
            bench,
            name,
            &mut peer,
            &[Segment::untagged(opcode::SEND, 0, msn, b"bad")],
            allowed,
        );
        nothing_received(bench, name, on, &peer)?;
    }
    Ok(())
}

fn u04(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let range = [allow(Terminate(1, 2, 4), CODES)];
    let long = [range[0], allow(Terminate(1, 2, 5), CODES)];
    // Octets missing before an offset within the buffer could come later; over TCP they do not.
    let gap = [range[0], allow(GoesOn, CHECKS)];
    for (offset, allowed) in [
        (4, &gap[..]),
        (OCTETS, &long),
        (OCTETS + 1, &long),
        (u32::MAX, &long),
    ] {
        let (mut peer, on) = bench.open_served()?;
        let what = format!("a Send that begins at {offset}");
        let segment = Segment::untagged(opcode::SEND, 0, 1, b"bad!").at(offset);
        judge(bench, &what, &mut peer, &[segment], allowed);
        nothing_received(bench, &what, on, &peer)?;
    }
    Ok(())
}

fn u05(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let whole = vec![7; 1024];
    let mut segments: Vec<_> = (0..4)
        .map(|number| {
            Segment::untagged(opcode::SEND, 0, 1, &whole)
                .at(number * 1024)
                .more()
        })
        .collect();
    segments.push(Segment::untagged(opcode::SEND, 0, 1, b"!").at(OCTETS));
    let (mut peer, on) = bench.open_served()?;
    let allowed = [allow(Terminate(1, 2, 5), CODES)];
    judge(
        bench,
        "one octet too long, in five segments",
        &mut peer,
        &segments,
        &allowed,
    );
    nothing_received(bench, "one octet too long", on, &peer)?;
    let (mut peer, on) = bench.open_served()?;
    let segment = Segment::untagged(opcode::SEND, 0, 1, &vec![7; 4097]);
    judge(
        bench,
        "one octet too long, in one segment",
        &mut peer,
        &[segment],
        &allowed,
    );
    nothing_received(bench, "one octet too long", on, &peer)?;
    let (mut peer, on) = bench.open_served()?;
    peer.send_message(&vec![7; 4096]);
    received(bench, "just as long", on, 0, &vec![7; 4096], &peer)
}

fn u06(bench: &mut Bench<'_>) -> Result<(), Broken> {
    for version in [0, 2, 3] {
        let (mut peer, on) = bench.open_served()?;
        let mut segment = Segment::untagged(opcode::SEND, 0, 1, b"bad");
        segment.ddp = segment.ddp & !3 | version;
        let what = format!("DDP version {version}");
        judge(
            bench,
            &what,
            &mut peer,
            &[segment],
            &[allow(Terminate(1, 2, 6), CODES)],
        );
        nothing_received(bench, &what, on, &peer)?;
    }
    Ok(())
}

fn u07(bench: &mut Bench<'_>) -> Result<(), Broken> {
    bench.agent()?.accept_with(8, OCTETS, 4, 4)?;
    let (mut peer, on) = bench.open_served()?;
    for number in 0..8_u8 {
        peer.send_message(&vec![number; usize::from(number) * 37 + 1]);
    }
    for number in 0..8_u8 {
        let octets = vec![number; usize::from(number) * 37 + 1];
        received(
            bench,
            "one of eight Sends",
            on,
            number.into(),
            &octets,
            &peer,
        )?;
    }
    Ok(())
}

fn u08(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let (mut peer, on) = bench.open_served()?;
    let plain = |number| Segment::untagged(opcode::SEND, 0, number, b"good");
    let invalidate = plain(1).invalidating(0xdead_beef);
    let mut ddp = plain(2);
    ddp.ddp |= 0x3c;
    let mut rdmap = plain(3);
    rdmap.rdmap |= 0x30;
    for (slot, (name, segment)) in (0..).zip([
        ("the place of the STag", invalidate),
        ("DDP's four bits", ddp),
        ("RDMAP's two bits", rdmap),
    ]) {
        judge(bench, name, &mut peer, &[segment], &[allow(GoesOn, HEADER)]);
        received(bench, name, on, slot, b"good", &peer)?;
    }
    Ok(())
}

fn u09(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let (mut peer, on) = bench.open_served()?;
    peer.send_message(&[]);
    received(bench, "a Send of nothing", on, 0, &[], &peer)?;
    peer.send_message(b"next");
    received(bench, "the Send behind it", on, 1, b"next", &peer)
}

fn u12(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let tagged = |code| Segment::tagged(code, 0, 0, &[]);
    let untagged = |code, queue| Segment::untagged(code, queue, 1, b"bad");
    let rows = [
        ("a tagged Send", tagged(opcode::SEND)),
        ("a tagged Read Request", tagged(opcode::READ_REQUEST)),
        ("a tagged Terminate", tagged(opcode::TERMINATE)),
        ("an untagged Write", untagged(opcode::WRITE, 0)),
        (
            "an untagged Read Response",
            untagged(opcode::READ_RESPONSE, 0),
        ),
    ];
    for (name, segment) in rows {
        let (mut peer, on) = bench.open_served()?;
        let allowed = [
            allow(Terminate(0, 2, 6), "RFC 5040 §4.8"),
            allow(Terminate(1, 2, 1), CODES),
        ];
        judge(bench, name, &mut peer, &[segment], &allowed);
        nothing_received(bench, name, on, &peer)?;
    }
    Ok(())
}

fn u14(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let (mut peer, on) = bench.open_served()?;
    let octets: Vec<u8> = (0..=u8::MAX).cycle().take(4001).collect();
    let mut at = 0;
    for length in [1, 2, 3, 995, 3000] {
        let mut segment = Segment::untagged(opcode::SEND, 0, 1, &octets[at..at + length]);
        if let Place::Untagged { mo, .. } = &mut segment.place {
            *mo = u32::try_from(at).unwrap_or(0);
        }
        at += length;
        if at < octets.len() {
            segment = segment.more();
        }
        peer.segment(&segment);
    }
    received(bench, "a Send of five segments", on, 0, &octets, &peer)
}

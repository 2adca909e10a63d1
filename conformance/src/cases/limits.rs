//! Limits: ends, excess, memory of others, and keys that shall not be guessed.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::json;

use super::{Case, Family, Level, agent_case, case};
use crate::agent::access;
use crate::bench::{Bench, Broken};
use crate::clock;
use crate::oracle::Outcome::{AnyTerminate, Closed, GoesOn, Terminate};
use crate::oracle::{Came, allow};
use crate::wire::ddp::{ReadRequest, Segment, opcode};
use crate::wire::hex;
use crate::wire::startup::{REPLY, Startup};

const RULES: &str = "RFC 5044 §7.1.2";
const SECURITY: &str = "RFC 5040 §8.1.1";
const ERRORS: &str = "RFC 5040 §7.1";
const STREAM: &str = "RFC 5041 §8.2";

pub(super) const CASES: &[Case] = &[
    Case {
        level: Level::Should,
        slow: true,
        ..case(
            "M41",
            Family::Startup,
            "startups that never end are ended by the device",
            &[RULES],
            m41,
        )
    },
    agent_case(
        "T40",
        Family::Tagged,
        "the STag of another stream: a window of type 2",
        &[
            STREAM,
            "RFC 5041 §8.3",
            "RFC 5041 §8.3.1",
            "RFC 5040 §7.2",
            SECURITY,
            "RFC 5042 §6.1.1",
        ],
        t40,
    ),
    agent_case(
        "R41",
        Family::Rdmap,
        "an error that the device's own program makes",
        &[ERRORS],
        r41,
    ),
    agent_case(
        "R42",
        Family::Rdmap,
        "a completion queue that overflows, and other connections",
        &[SECURITY, "RFC 5042 §6.4.6"],
        r42,
    ),
    agent_case(
        "R43",
        Family::Rdmap,
        "STags that the device gives out are not in sequence",
        &[SECURITY],
        r43,
    ),
];

const SOON: Duration = Duration::from_secs(10);
/// How long the startup of a connection may be left hanging.
const STARTUP: Duration = Duration::from_secs(120);

fn m41(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let request = bench.offer().request();
    let octets = request.to_bytes();
    let two_responders = Startup::new(
        REPLY,
        request.flags,
        request.revision,
        &request.private_data,
    );
    let rows = [
        ("nothing", Vec::new()),
        ("half a Request", octets[..10].to_vec()),
        (
            "a Request without the end of its private data",
            octets[..octets.len() - 1].to_vec(),
        ),
        (
            "half of what a Responder says",
            two_responders.to_bytes()[..19].to_vec(),
        ),
    ];
    let mut all = Vec::new();
    for (what, octets) in rows {
        let mut peer = bench.tcp()?;
        if !octets.is_empty() {
            peer.send(&octets);
        }
        all.push((what, peer));
    }
    let until = clock::now() + STARTUP;
    for (what, mut peer) in all {
        let left = until.saturating_duration_since(clock::now());
        let came = peer.next_within(left);
        bench.require(
            what,
            matches!(came, Came::End | Came::Reset),
            &came,
            "TCP ends within two minutes",
            RULES,
            Some(&peer),
        );
    }
    Ok(())
}

fn t40(bench: &mut Bench<'_>) -> Result<(), Broken> {
    const NONE: Broken = Broken::Skip("the device has no memory windows of type 2");
    // IBV_ACCESS_MW_BIND is 16.
    let rights = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ | 16;
    let memory = bench.agent()?.register(64, rights, 0).map_err(|_| NONE)?;
    let (mut peer, on) = bench.open_served()?;
    let (mut other, _) = bench.open_served()?;
    let answer = bench
        .agent()?
        .call("window", json!({ "conn": on.id, "mr": memory.id }));
    let stag = answer
        .ok()
        .and_then(|answer| u32::try_from(answer["rkey"].as_u64()?).ok())
        .ok_or(NONE)?;
    peer.segment(&Segment::tagged(opcode::WRITE, stag, memory.to, b"mine"));
    let reaction = peer.reaction();
    bench.judge(
        "the stream that it belongs to",
        &peer,
        &reaction,
        &[allow(GoesOn, STREAM)],
    );
    other.segment(&Segment::tagged(opcode::WRITE, stag, memory.to, b"your"));
    let reaction = other.reaction();
    let allowed = [
        allow(Terminate(1, 1, 2), STREAM),
        allow(Terminate(1, 1, 0), "RFC 5041 §7.2"),
    ];
    bench.judge("another stream", &other, &reaction, &allowed);
    let there = bench.agent()?.peek(memory, memory.margin, 4)?;
    bench.require(
        "the memory",
        there == b"mine",
        hex(&there, 4),
        "nothing of the other stream",
        STREAM,
        Some(&other),
    );
    let reaction = peer.reaction();
    bench.judge(
        "the first stream afterwards",
        &peer,
        &reaction,
        &[allow(GoesOn, SECURITY)],
    );
    Ok(())
}

fn r41(bench: &mut Bench<'_>) -> Result<(), Broken> {
    // A Read whose sink the device's program may not write.
    let memory = bench.agent()?.register(64, 0, 0x33)?;
    let (mut peer, on) = bench.open_served()?;
    let post = json!({
        "opcode": 4, "mr": memory.id, "length": 16, "wr_id": 7, "rkey": 1, "remote": 0x2000,
    });
    if bench.agent()?.post(on, post).is_err() {
        let reaction = peer.reaction();
        bench.judge(
            "a Read into memory without the right to write is refused",
            &peer,
            &reaction,
            &[allow(GoesOn, ERRORS)],
        );
        return Ok(());
    }
    // The device may find it before it asks, or when the octets come.
    let until = clock::now() + SOON;
    let wc = loop {
        if let Came::Segment(segment, _) = peer.quiet()
            && let Some(asked) = ReadRequest::parse(&segment.payload)
        {
            let response = Segment::tagged(
                opcode::READ_RESPONSE,
                asked.sink_stag,
                asked.sink_to,
                &[0x77; 16],
            );
            peer.segment(&response);
        }
        let moment = bench.patience().quiet;
        let wc = bench.agent()?.poll(on, moment);
        if wc.is_ok() || clock::now() >= until {
            break wc;
        }
    };
    bench.require(
        "a Read into memory without the right to write",
        wc.as_ref().is_ok_and(|wc| wc.status != 0 && wc.wr_id == 7),
        format!("{wc:?}"),
        "the program is told",
        ERRORS,
        Some(&peer),
    );
    let reaction = peer.reaction();
    let allowed = [
        allow(AnyTerminate, ERRORS),
        allow(Closed, "RFC 5040 §6.2"),
        allow(GoesOn, ERRORS),
    ];
    bench.judge("what the peer sees of it", &peer, &reaction, &allowed);
    let there = bench.agent()?.all(memory)?;
    let same = there.iter().all(|octet| *octet == 0x33);
    bench.require(
        "the memory",
        same,
        hex(&there, 16),
        "as it was",
        ERRORS,
        Some(&peer),
    );
    Ok(())
}

fn r42(bench: &mut Bench<'_>) -> Result<(), Broken> {
    const RECEIVES: u32 = 64;
    let mut good = bench.open()?;
    let with = json!({ "receives": RECEIVES, "octets": 64, "ird": 4, "ord": 4, "cqes": 1 });
    bench.agent()?.call("accept_with", with)?;
    let (mut peer, on) = bench.open_served()?;
    bench.agent()?.call(
        "accept_with",
        json!({ "receives": 4, "octets": 4096, "cqes": 256 }),
    )?;
    for _ in 0..RECEIVES {
        peer.send_message(b"one completion more");
    }
    let reaction = peer.reaction();
    let allowed = [
        allow(AnyTerminate, SECURITY),
        allow(Closed, "RFC 5040 §6.2"),
        allow(GoesOn, SECURITY),
    ];
    bench.judge(
        "64 Sends to a completion queue of one entry",
        &peer,
        &reaction,
        &allowed,
    );
    let reaction = good.reaction();
    bench.judge(
        "a connection with another completion queue",
        &good,
        &reaction,
        &[allow(GoesOn, SECURITY)],
    );
    let (mut new, of_new) = bench.open_served()?;
    new.send_message(b"good");
    let wc = bench.agent()?.poll(of_new, SOON);
    bench.require(
        "a new one",
        wc.as_ref().is_ok_and(|wc| wc.status == 0),
        format!("{wc:?}"),
        "a Send arrives",
        SECURITY,
        Some(&new),
    );
    bench.agent()?.destroy(on)?;
    Ok(())
}

fn r43(bench: &mut Bench<'_>) -> Result<(), Broken> {
    const COUNT: usize = 64;
    let mut stags = Vec::new();
    for _ in 0..COUNT {
        stags.push(
            bench
                .agent()?
                .register(64, access::LOCAL_WRITE | access::REMOTE_WRITE, 0)?
                .stag,
        );
    }
    let different: BTreeSet<_> = stags.iter().collect();
    // One STag must not give away the next: the steps from one to the next are as many as the STags.
    let steps: BTreeSet<_> = stags
        .windows(2)
        .map(|pair| pair[1].wrapping_sub(pair[0]))
        .collect();
    // A program chooses the last octet of an STag; the others have to differ without it.
    let indices: BTreeSet<_> = stags
        .windows(2)
        .map(|pair| (pair[1] >> 8).wrapping_sub(pair[0] >> 8))
        .collect();
    bench.require(
        format!("{COUNT} STags"),
        different.len() == COUNT && steps.len() > COUNT / 2 && indices.len() > COUNT / 2,
        format!(
            "{} different, {} different steps, {} without the last octet: {:#x?}",
            different.len(),
            steps.len(),
            indices.len(),
            &stags[..4]
        ),
        "all different, and no step from one to the next that comes often",
        SECURITY,
        None,
    );
    Ok(())
}

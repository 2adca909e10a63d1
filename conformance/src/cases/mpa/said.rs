//! M and E again: the private data of the device's own program, and Replies that refuse.

use serde_json::json;

use crate::agent::Connection;
use crate::bench::{Bench, Broken};
use crate::cases::calling::{ESTABLISHED, accept, called, calling_with, event, reply, reply_with};
use crate::cases::{Case, Family, agent_case, responder};
use crate::oracle::{Came, Outcome};
use crate::peer::Peer;
use crate::wire::hex;
use crate::wire::startup::{R, REPLY, S, Startup};

const FRAME: &str = "RFC 5044 §7.1.1";
const RULES: &str = "RFC 5044 §7.1.2";
const DEPTHS: &str = "RFC 6581 §9.1";

pub(in crate::cases) const CASES: &[Case] = &[
    agent_case(
        "M42",
        Family::Startup,
        "the private data of the device's Reply, of all lengths",
        &[FRAME],
        m42,
    ),
    responder(
        "M43",
        Family::Startup,
        "the private data of the device's Request, of all lengths",
        &[FRAME],
        m43,
    ),
    responder(
        "E42",
        Family::Enhanced,
        "an enhanced Request that is rejected in every way",
        &[RULES, DEPTHS],
        e42,
    ),
];

/// Every programming interface takes so many octets; what is longer the device may refuse.
const ALWAYS: usize = 56;
/// `RDMA_CM_EVENT_REJECTED`.
const REJECTED: u64 = 8;

/// Lengths of private data in octets.
fn lengths() -> impl Iterator<Item = usize> {
    (0..=64).chain([100, 127, 128, 196, 251, 252])
}

/// Private data of this length, of which no octet is like its neighbours.
fn said(length: usize) -> Vec<u8> {
    (1..=u8::MAX).cycle().take(length).collect()
}

/// Private data of the ULP in a frame: without the depths.
fn private_data(frame: &Startup) -> &[u8] {
    let depths = if frame.has(S) { 4 } else { 0 };
    frame.private_data.get(depths..).unwrap_or_default()
}

/// Whether this is what the program gave: as it is, or filled with zeros to the one length that all of a programming interface have.
fn is_right(there: &[u8], given: &[u8], filled: usize) -> bool {
    let rest = there.strip_prefix(given);
    rest.is_some_and(|rest| {
        rest.is_empty() || there.len() == filled && rest.iter().all(|octet| *octet == 0)
    })
}

fn note(bench: &mut Bench<'_>, frame: &Startup, given: &[u8], filled: usize, peer: &Peer) {
    let there = private_data(frame);
    bench.require(
        format!("{} octets", given.len()),
        is_right(there, given, filled),
        format!("{} octets: {}", there.len(), hex(there, 16)),
        "those of the program",
        FRAME,
        Some(peer),
    );
}

fn m42(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut filled = 0;
    for length in lengths() {
        let given = said(length);
        bench.agent()?.accept_saying(&given)?;
        bench.agent()?.call("skip_accepted", json!({}))?;
        let mut peer = bench.tcp()?;
        let reaction = peer.ask(&bench.offer().request());
        let accepted = reaction
            .startup()
            .filter(|_| Outcome::Accepted.is(&reaction));
        let Some(frame) = accepted.cloned() else {
            if length <= ALWAYS {
                let what = format!("{length} octets");
                let rule = "a Reply with them";
                bench.require(what, false, &reaction, rule, FRAME, Some(&peer));
            }
            break;
        };
        if length == 0 {
            filled = private_data(&frame).len();
        }
        note(bench, &frame, &given, filled, &peer);
        let on = bench.agent()?.accepted()?;
        drop(peer);
        bench.agent()?.destroy(on)?;
    }
    bench.agent()?.accept_saying(&[])?;
    Ok(())
}

fn m43(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut filled = 0;
    for length in lengths() {
        let given = said(length);
        let (listener, on) = match calling_with(bench, &given) {
            Ok(calling) => calling,
            Err(Broken::Agent(_)) if length > ALWAYS => break,
            Err(broken) => return Err(broken),
        };
        let (peer, request) = match accept(bench, &listener) {
            Ok(accepted) => accepted,
            Err(_) if length > ALWAYS => break,
            Err(broken) => return Err(broken),
        };
        if length == 0 {
            filled = private_data(&request).len();
        }
        note(bench, &request, &given, filled, &peer);
        drop(peer);
        bench.agent()?.destroy(on)?;
    }
    Ok(())
}

fn e42(bench: &mut Bench<'_>) -> Result<(), Broken> {
    type Change = fn(&mut Startup);
    let rows: [(&str, Change, bool); 6] = [
        ("with depths", |_| (), true),
        (
            "with depths of zero",
            |frame| frame.private_data = vec![0; 4],
            true,
        ),
        (
            "with depths and private data",
            |frame| frame.private_data.extend(b"no room"),
            true,
        ),
        (
            "without bit S",
            |frame| {
                frame.flags &= !S;
                frame.private_data = b"no room".to_vec();
            },
            false,
        ),
        (
            "of nothing",
            |frame| {
                frame.flags &= !S;
                frame.private_data.clear();
            },
            false,
        ),
        (
            "of revision 1",
            |frame| {
                frame.flags &= !S;
                frame.revision = 1;
                frame.private_data.clear();
            },
            false,
        ),
    ];
    for (name, change, enhanced) in rows {
        let (mut peer, on, request) = called(bench)?;
        if request.depths().is_none() {
            return Err(Broken::Skip("the device does not ask for enhanced startup"));
        }
        let mut frame = reply(bench.settings, &request);
        if name == "with depths" {
            // They may say what would have been needed.
            frame = reply_with(bench.settings, &request, |depths| depths.ord += 1);
        }
        change(&mut frame);
        frame.key = REPLY;
        frame.flags |= R;
        frame.pd_length = u16::try_from(frame.private_data.len()).unwrap_or(u16::MAX);
        peer.send(&frame.to_bytes());
        rejected(
            bench,
            &format!("a rejection {name}"),
            (&mut peer, on),
            enhanced,
        )?;
    }
    Ok(())
}

/// Notes that the device's program is told, and that no FPDU comes.
fn rejected(
    bench: &mut Bench<'_>,
    what: &str,
    (peer, on): (&mut Peer, Connection),
    enhanced: bool,
) -> Result<(), Broken> {
    let event = event(bench, on)?;
    // An unenhanced Reply to an enhanced Request may be taken for an error.
    let told = match event {
        Some(REJECTED) => true,
        Some(event) => !enhanced && event != ESTABLISHED,
        None => false,
    };
    bench.require(
        format!("{what}: the device's program"),
        told,
        format!("event {event:?}"),
        "is told",
        RULES,
        Some(peer),
    );
    let came = peer.quiet();
    let silent = !matches!(came, Came::Segment(..) | Came::Short(_));
    bench.require(
        format!("{what}: behind it"),
        silent,
        &came,
        "no FPDU",
        RULES,
        Some(peer),
    );
    bench.agent()?.destroy(on)?;
    Ok(())
}

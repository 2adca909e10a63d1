//! M and E again, with a device whose program rejects.

use crate::bench::{Bench, Broken};
use crate::cases::{Case, Family, agent_case};
use crate::oracle::Outcome::Rejected;
use crate::oracle::{Reaction, allow};
use crate::peer::Peer;
use crate::wire::hex;
use crate::wire::startup::{S, Startup};

const RULES: &str = "RFC 5044 §7.1.2";
const DEPTHS: &str = "RFC 6581 §9.1";
const SAID: &[u8] = b"no room";

pub(in crate::cases) const CASES: &[Case] = &[
    Case {
        version: 2,
        ..agent_case(
            "M40",
            Family::Startup,
            "the device's program rejects, with private data",
            &[RULES],
            m40,
        )
    },
    agent_case(
        "E13",
        Family::Enhanced,
        "a rejection of an enhanced Request has depths",
        &[DEPTHS],
        e13,
    ),
];

/// Asks a device whose program rejects, with this revision.
fn asked(bench: &mut Bench<'_>, revision: u8) -> Result<(Peer, Reaction), Broken> {
    let mut offer = bench.offer();
    offer.revision = revision;
    bench.agent()?.reject(SAID)?;
    let mut peer = bench.tcp()?;
    let reaction = peer.ask(&offer.request());
    // Later cases find a device that accepts again.
    bench
        .agent()?
        .call("accept_with", serde_json::json!({ "reject": 0 }))?;
    bench.judge(
        format!("revision {revision}"),
        &peer,
        &reaction,
        &[allow(Rejected, RULES)],
    );
    Ok((peer, reaction))
}

/// The private data of a Reply, without the depths in front of it.
fn private_data(reply: &Startup) -> &[u8] {
    let depths = if reply.has(S) { 4 } else { 0 };
    reply.private_data.get(depths..).unwrap_or_default()
}

fn m40(bench: &mut Bench<'_>) -> Result<(), Broken> {
    for revision in 1..=bench.settings.revision {
        let (peer, reaction) = asked(bench, revision)?;
        let Some(reply) = reaction.startup() else {
            return Ok(());
        };
        let data = private_data(reply);
        // Some programming interfaces fill up with zeros.
        let holds = data
            .strip_prefix(SAID)
            .is_some_and(|rest| rest.iter().all(|octet| *octet == 0));
        bench.require(
            format!("revision {revision}: private data"),
            holds,
            hex(data, 64),
            "what the program said",
            RULES,
            Some(&peer),
        );
    }
    Ok(())
}

fn e13(bench: &mut Bench<'_>) -> Result<(), Broken> {
    if bench.settings.revision < 2 {
        return Err(Broken::Skip("the device has no enhanced startup"));
    }
    let (peer, reaction) = asked(bench, 2)?;
    let depths = reaction.startup().and_then(Startup::depths);
    bench.require(
        "its Reply",
        depths.is_some(),
        &reaction,
        "IRD and ORD",
        DEPTHS,
        Some(&peer),
    );
    Ok(())
}

//! Groups: joined and left, and nothing answered.

use std::net::{Ipv4Addr, SocketAddr};

use serde_json::json;

use super::scene::{FILL, QKEY, RECV, Refusal, Scene, WRITABLE, octets};
use super::{Case, datagrams};
use crate::agent::{AgentError, MARGIN, access, memory};
use crate::bench::{Bench, Broken};
use crate::station::Heard;
use crate::wire::datagram::{Exchange, Segment};
use crate::wire::ddp::ReadRequest;

const GROUPS: &str = "Datagram §8.1";
const ORDER: &str = "Datagram §5";

pub(super) const CASES: &[Case] = &[datagrams(
    "D22",
    "groups are joined and left; what is sent to them is not answered",
    &[GROUPS, ORDER],
    d22,
)];

/// Where groups are, on all hosts.
const PORT: u16 = 18_514;
const WELL_KNOWN: u32 = 0x4711_00d1;

fn membership(
    bench: &mut Bench<'_>,
    scene: &Scene,
    join: bool,
    group: Ipv4Addr,
) -> Result<(), Broken> {
    let with = json!({ "conn": scene.on.id, "address": group.to_string() });
    let name = if join { "join" } else { "leave" };
    match bench.agent()?.call(name, with) {
        Err(AgentError::Refused { .. }) => Err(Broken::Skip("the device joins no group here")),
        Err(error) => Err(error.into()),
        Ok(_) => Ok(()),
    }
}

fn to_group(scene: &mut Scene, group: Ipv4Addr, datagram: &[u8]) {
    scene
        .station
        .octets_to(datagram, SocketAddr::new(group.into(), PORT));
}

/// Whether a Send to a group arrives. Every attempt has octets of its own; a group's datagrams may take another way than others.
fn arrives(
    bench: &mut Bench<'_>,
    scene: &mut Scene,
    group: Ipv4Addr,
    expected: bool,
) -> Result<bool, Broken> {
    let payload = format!("to {group}").into_bytes();
    let attempts = if expected { 5 } else { 1 };
    for _ in 0..attempts {
        let segment = scene.station.plain_send(QKEY, &payload);
        to_group(scene, group, &octets(segment));
        if !expected {
            scene.probe(bench)?;
            let quiet = bench.patience().quiet;
            let came = scene.poll(bench, quiet)?;
            scene.others.extend(came);
        }
        let wc = if expected {
            let wait = bench.patience().answer / 5;
            scene.poll(bench, wait)?
        } else {
            scene.others.pop()
        };
        let Some(wc) = wc else {
            continue;
        };
        let there = scene.received(bench, wc.wr_id, payload.len())?;
        if expected && wc.opcode == RECV {
            scene.repost(bench, wc.wr_id)?;
        }
        if there == payload {
            return Ok(true);
        }
    }
    Ok(false)
}

fn d22(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut scene = Scene::new(bench, json!({}))?;
    if !scene.station.to.is_ipv4() {
        return Err(Broken::Skip("the tester knows groups of IPv4 only"));
    }
    // Of this run alone, as far as a port can tell.
    let [high, low] = scene.qpn.to_be_bytes();
    let [one, other] = [1, 2].map(|last| Ipv4Addr::new(239, 200 | high & 7, low, last));
    membership(bench, &scene, true, one)?;
    let came = arrives(bench, &mut scene, one, true)?;
    if !came {
        return Err(Broken::Skip(
            "no group's datagrams reach the device from here",
        ));
    }
    bench.expect(
        "a group that was joined",
        came,
        "arrives",
        "arrives",
        GROUPS,
        &scene.station,
    );
    for (what, group, join, expected) in [
        ("another group, which was not joined", other, None, false),
        ("that group, once it is joined", other, Some(true), true),
        ("the first group, still", one, None, true),
        ("the first group, left", one, Some(false), false),
        ("the other, still", other, None, true),
    ] {
        if let Some(join) = join {
            membership(bench, &scene, join, group)?;
        }
        let came = arrives(bench, &mut scene, group, expected)?;
        let rule = if expected {
            "arrives"
        } else {
            "does not arrive"
        };
        bench.expect(
            what,
            came == expected,
            format!("arrives: {came}"),
            rule,
            GROUPS,
            &scene.station,
        );
    }
    writes(bench, &mut scene, other)?;
    unanswered(bench, &mut scene, other)
}

/// Write-Records to a group go into memory with a well-known STag only.
fn writes(bench: &mut Bench<'_>, scene: &mut Scene, group: Ipv4Addr) -> Result<(), Broken> {
    let private = bench.agent()?.register(64, WRITABLE, FILL)?;
    let with = json!({
        "length": 64, "access": WRITABLE, "fill": FILL, "margin": MARGIN, "well_known": WELL_KNOWN,
    });
    let answer = bench.agent()?.call("reg_mr", with)?;
    let known = memory("reg_mr", &answer, 64, MARGIN)?;
    let before = scene.counters(bench)?;
    let message = scene.station.message(16);
    let segment = Segment::write_record(private.stag, private.to, message, &[5; 16]);
    to_group(scene, group, &octets(segment));
    settle(bench, scene, group)?;
    let refusal = Refusal {
        what: "a Write-Record to memory that is not well-known",
        counter: "not-well-known",
        clause: ORDER,
        memory: &[private],
    };
    scene.dropped(bench, refusal, 1, &before)?;
    let message = scene.station.message(16);
    let segment = Segment::write_record(WELL_KNOWN, known.to, message, &[6; 16]);
    to_group(scene, group, &octets(segment));
    let record = scene.record(bench)?;
    let there = bench.agent()?.peek(known, known.margin, 16)?;
    bench.expect(
        "a Write-Record to well-known memory",
        record
            .as_ref()
            .is_some_and(|record| record.valid == 16 && record.stag == WELL_KNOWN)
            && there == [6; 16],
        format!("{record:?}"),
        "placed, and a record",
        GROUPS,
        &scene.station,
    );
    Ok(())
}

/// A group's Send behind others: when it is there, they were seen too.
fn settle(bench: &mut Bench<'_>, scene: &mut Scene, group: Ipv4Addr) -> Result<(), Broken> {
    if arrives(bench, scene, group, true)? {
        Ok(())
    } else {
        Err(Broken::Datagram(
            "a Send to the group does not arrive any more".to_owned(),
        ))
    }
}

fn unanswered(bench: &mut Bench<'_>, scene: &mut Scene, group: Ipv4Addr) -> Result<(), Broken> {
    let rights = access::LOCAL_WRITE | access::REMOTE_READ;
    let readable = bench.agent()?.register(64, rights, FILL)?;
    let cookie = scene.cookie()?;
    let epoch = scene.station.epoch;
    let request = ReadRequest {
        sink_stag: 1,
        sink_to: 0,
        size: 16,
        source_stag: readable.stag,
        source_to: readable.to,
    };
    let read = Segment::read_request(epoch, 1, request);
    for (what, datagram) in [
        ("a Read Request", octets(read.clone())),
        (
            "a Read Request with a cookie",
            octets(read.with_cookie(cookie)),
        ),
        ("a cookie request", octets(Exchange::request(epoch, 9))),
    ] {
        to_group(scene, group, &datagram);
        settle(bench, scene, group)?;
        let answer = scene.station.at_once();
        bench.expect(
            format!("{what} to the group"),
            matches!(answer, Heard::Nothing),
            answer,
            "no answer",
            GROUPS,
            &scene.station,
        );
    }
    Ok(())
}

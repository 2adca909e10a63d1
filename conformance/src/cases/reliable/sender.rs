//! The device as a sender: repeats, completions, credit.

use serde_json::json;

use super::scene::{SILENCE, Scene, text};
use super::{Case, reliable};
use crate::agent::access;
use crate::bench::{Bench, Broken};
use crate::wire::reliable::{Frame, Reliable, SegmentFrame};

pub(super) const CASES: &[Case] = &[
    reliable(
        "L30",
        "lost segments come again unchanged, in datagrams with new numbers",
        &["Reliable §2", "Reliable §3.1"],
        l30,
    ),
    reliable(
        "L31",
        "a Send completes when it is acknowledged, not before",
        &["Reliable §5.2"],
        l31,
    ),
    reliable(
        "L32",
        "messages beyond the credit wait",
        &["Reliable §5.3", "Reliable §3.4"],
        l32,
    ),
];

/// The device's Sends, to the station.
fn posts(bench: &mut Bench<'_>, scene: &Scene, count: u64) -> Result<(), Broken> {
    let to = scene.station.address().map_err(Broken::Connect)?;
    let with = json!({ "conn": scene.on.id, "address": to.ip().to_string(), "qpn": to.port() });
    bench.agent()?.call("ud_to", with)?;
    let memory = bench.agent()?.register(64, access::LOCAL_WRITE, 0x5a)?;
    for wr_id in 100..100 + count {
        let with = json!({ "mr": memory.id, "offset": 0, "length": 64, "wr_id": wr_id });
        bench.agent()?.post(scene.on, with)?;
    }
    Ok(())
}

fn segments(datagram: &Reliable) -> impl Iterator<Item = &SegmentFrame> {
    datagram.frames.iter().filter_map(|frame| match frame {
        Frame::Segment(it) => Some(it),
        _ => None,
    })
}

fn l30(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut scene = Scene::new(bench, &json!({}))?;
    scene.open(bench)?;
    posts(bench, &scene, 1)?;
    let mut copies = Vec::new();
    let (all, found) = scene.until(bench, |it| {
        copies.extend(segments(it).cloned());
        copies.len() == 3
    })?;
    let equal = copies.windows(2).all(|two| two[0] == two[1]);
    let mut numbers: Vec<_> = all.iter().map(|it| it.number).collect();
    let before = numbers.len();
    numbers.sort_unstable();
    numbers.dedup();
    bench.expect(
        "a Send that nobody acknowledges",
        found && equal && numbers.len() == before,
        text(&all),
        "its segment comes again with its numbers and octets, each time in a datagram with a number of its own",
        "Reliable §2",
        &scene.station,
    );
    Ok(())
}

fn l31(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut scene = Scene::new(bench, &json!({}))?;
    scene.open(bench)?;
    posts(bench, &scene, 1)?;
    let (_, came) = scene.until(bench, |it| segments(it).next().is_some())?;
    let early = scene.poll(bench, SILENCE)?;
    scene.acknowledge();
    let wc = scene.poll(bench, bench.patience().answer)?;
    let completes = wc
        .as_ref()
        .is_some_and(|it| (it.wr_id, it.status) == (100, 0));
    bench.expect(
        "a Send, and its ACK later",
        came && early.is_none() && completes,
        format!("{early:?}, then {wc:?}"),
        "a completion behind the ACK alone",
        "Reliable §5.2",
        &scene.station,
    );
    Ok(())
}

fn l32(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut scene = Scene::new(bench, &json!({}))?;
    scene.receives = 2;
    scene.open(bench)?;
    posts(bench, &scene, 4)?;
    let mut messages = Vec::new();
    let mut note = |all: &[Reliable]| {
        messages.extend(all.iter().flat_map(segments).map(|it| it.message));
        messages.sort_unstable();
        messages.dedup();
        messages.clone()
    };
    let mut all = Vec::new();
    while let Some(next) = scene.next_within(SILENCE)? {
        all.push(next);
        if all.len() > 64 {
            break;
        }
    }
    let first = note(&all);
    let ack = scene.ack();
    let credit = Frame::Credit {
        receives: 8,
        window: 1 << 20,
    };
    scene.send(vec![ack, credit]);
    let mut rest = Vec::new();
    while let Some(next) = scene.next_within(SILENCE)? {
        rest.push(next);
        scene.acknowledge();
    }
    let later = note(&rest);
    bench.expect(
        "four Sends with a credit of two",
        first.len() == 2 && later.len() == 4,
        format!("messages {first:?}, behind more credit {later:?}"),
        "two messages, and the others behind CREDIT",
        "Reliable §5.3",
        &scene.station,
    );
    Ok(())
}

//! Associations: opening, addresses that are not validated, datagrams of others.

use serde_json::json;

use super::scene::{SILENCE, Scene, acknowledges, identifier, text};
use super::{Case, reliable};
use crate::bench::{Bench, Broken};
use crate::station::Heard;
use crate::wire::datagram::Datagram;
use crate::wire::reliable::{Frame, Reliable, flag};

const OPENING: &str = "Reliable §4.1";
const VALIDATION: &str = "Reliable §4.3";
const CLOSING: &str = "Reliable §4.5";
const IDENTITY: &str = "Reliable §4.2";

pub(super) const CASES: &[Case] = &[
    reliable(
        "L01",
        "the first datagram opens an association and delivers a message",
        &[OPENING, "Reliable §3.7"],
        l01,
    ),
    reliable(
        "L02",
        "an address that is not validated gets three times what came from it",
        &[VALIDATION],
        l02,
    ),
    reliable(
        "L03",
        "an unknown association is answered by CLOSE, which is never longer than its cause",
        &[CLOSING],
        l03,
    ),
    reliable(
        "L04",
        "datagrams and ends of others do not touch an association",
        &[IDENTITY, CLOSING],
        l04,
    ),
    reliable(
        "L05",
        "CLOSE ends an association, and an old first datagram opens none",
        &[CLOSING],
        l05,
    ),
    reliable(
        "L06",
        "a PING is answered by its data",
        &["Reliable §3.8"],
        l06,
    ),
];

fn l01(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut scene = Scene::new(bench, &json!({}))?;
    let message = scene.message(b"hello");
    scene.send(vec![scene.hello(), Frame::Segment(message)]);
    let (all, found) = scene.until(bench, |it| acknowledges(it, 0))?;
    let ours = scene.identifier;
    let good = |it: &Reliable| {
        it.association == ours && identifier(it).is_some() && it.flags & flag::HELLO != 0
    };
    let drawn: Vec<_> = all.iter().filter_map(identifier).collect();
    let one = drawn.windows(2).all(|two| two[0] == two[1]);
    bench.expect(
        "a HELLO with a message",
        found && one && all.iter().all(good),
        text(&all),
        "datagrams with the opener's identifier, flag hello, and one HELLO, and an ACK",
        OPENING,
        &scene.station,
    );
    let arrived = scene.arrivals(bench)?;
    bench.expect(
        "its message",
        arrived == [b"hello".to_vec()],
        format!("{arrived:?}"),
        "delivered once",
        OPENING,
        &scene.station,
    );
    Ok(())
}

fn l02(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut scene = Scene::new(bench, &json!({}))?;
    let message = scene.message(b"x");
    let first = scene.datagram(vec![scene.hello(), Frame::Segment(message)]);
    let octets = Datagram::Reliable(first).to_bytes();
    scene.station.octets(&octets);
    // The device repeats what nobody acknowledges, and may not for long.
    let mut came = 0;
    let patience = bench.patience().answer;
    loop {
        match scene.station.next_within(patience.min(SILENCE * 4)) {
            Heard::Datagram(it) => came += it.to_bytes().len(),
            Heard::Bad(_, octets) => came += octets.len(),
            Heard::Nothing | Heard::Unreachable => break,
        }
    }
    bench.expect(
        format!(
            "{} octets of an address that never shows that it receives",
            octets.len()
        ),
        came > 0 && came <= 3 * octets.len(),
        format!("{came} octets"),
        "an answer, and three times the octets at most",
        VALIDATION,
        &scene.station,
    );
    Ok(())
}

fn l03(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut scene = Scene::new(bench, &json!({}))?;
    scene.device = Some(0x0bad_0bad);
    scene.packet = 50;
    scene.send(vec![Frame::Ping(7), Frame::Pad(32)]);
    let (all, _) = scene.until(bench, |_| true)?;
    let close = Frame::Close {
        reason: 2,
        association: 0x0bad_0bad,
        packet: 50,
    };
    let good = |it: &Reliable| it.association == 0 && it.frames == [close.clone()];
    bench.expect(
        "a datagram of an association that nobody has",
        all.len() == 1 && all.iter().all(good),
        text(&all),
        "CLOSE with reason 2, and the identifier and packet number of its cause",
        CLOSING,
        &scene.station,
    );
    for (what, frame) in [
        (
            "a CLOSE of such an association",
            Frame::Close {
                reason: 1,
                association: 0,
                packet: 0,
            },
        ),
        ("a datagram shorter than a CLOSE", Frame::Pad(0)),
    ] {
        scene.send(vec![frame]);
        let answer = scene.next_within(SILENCE)?;
        bench.expect(
            what,
            answer.is_none(),
            text(answer.as_slice()),
            "no answer",
            "Reliable §8",
            &scene.station,
        );
    }
    Ok(())
}

fn l04(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut scene = Scene::new(bench, &json!({}))?;
    scene.open(bench)?;
    let known = scene.device;
    let close = |reason, association, packet| Frame::Close {
        reason,
        association,
        packet,
    };
    let ours = scene.identifier;
    // Identifier of the datagram, and what is done to its epoch.
    let rows = [
        ("a CLOSE with another epoch", known, 1, close(1, 0, 0)),
        (
            "a CLOSE with another identifier",
            Some(0x0bad_0bad),
            0,
            close(1, 0, 0),
        ),
        (
            "a CLOSE of an unknown association that names another",
            None,
            0,
            close(2, 0x0bad_0bad, 0),
        ),
        (
            "one that names no datagram in flight",
            None,
            0,
            close(2, ours, 1 << 40),
        ),
        (
            "an ACK of what was never sent, with another epoch",
            known,
            1,
            {
                scene.seen.push(1 << 30);
                let ack = scene.ack();
                scene.seen.pop();
                ack
            },
        ),
    ];
    for (what, association, change, frame) in rows {
        scene.device = association;
        let mut datagram = scene.datagram(vec![frame]);
        datagram.epoch ^= change;
        scene.station.send(Datagram::Reliable(datagram));
        scene.device = known;
        scene.takes_a_message(
            bench,
            what,
            "dropped: the association takes the next message",
            IDENTITY,
        )?;
    }
    Ok(())
}

fn l05(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut scene = Scene::new(bench, &json!({}))?;
    let message = scene.message(b"once");
    let first = Datagram::Reliable(scene.datagram(vec![scene.hello(), Frame::Segment(message)]));
    scene.station.send(first.clone());
    let (all, _) = scene.until(bench, |it| acknowledges(it, 0))?;
    scene.device = all.last().and_then(identifier);
    scene.send(vec![Frame::Close {
        reason: 1,
        association: 0,
        packet: 0,
    }]);
    // A repeat by the network behind the end.
    scene.station.send(first);
    let arrived = scene.arrivals(bench)?;
    bench.expect(
        "the first datagram again, behind CLOSE",
        arrived == [b"once".to_vec()],
        format!("{arrived:?}"),
        "dropped: its message was delivered once",
        CLOSING,
        &scene.station,
    );
    // Datagrams from before the end.
    while scene.next_within(SILENCE)?.is_some() {}
    scene.send(vec![Frame::Ping(7), Frame::Pad(32)]);
    let (all, found) = scene.until(bench, |it| {
        let reason = |frame: &Frame| matches!(frame, Frame::Close { reason: 2, .. });
        it.frames.iter().any(reason)
    })?;
    bench.expect(
        "a datagram of the association behind CLOSE",
        found,
        text(&all),
        "that of an unknown association",
        CLOSING,
        &scene.station,
    );
    Ok(())
}

fn l06(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut scene = Scene::new(bench, &json!({}))?;
    scene.open(bench)?;
    for data in [1, 0x1122_3344_5566_7788, u64::MAX] {
        scene.send(vec![Frame::Ping(data)]);
        let (all, found) = scene.until(bench, |it| it.frames.contains(&Frame::Pong(data)))?;
        bench.expect(
            format!("PING {data:#x}"),
            found,
            text(&all),
            "a PONG with its data",
            "Reliable §3.8",
            &scene.station,
        );
        scene.acknowledge();
    }
    Ok(())
}

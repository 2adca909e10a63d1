//! The device as a receiver: exactly once, acknowledgements, receives, bounds.

use serde_json::json;

use super::scene::{SILENCE, Scene, acknowledges, text};
use super::{Case, reliable};
use crate::bench::{Bench, Broken};
use crate::dice::Dice;
use crate::wire::datagram::Datagram;
use crate::wire::reliable::{Frame, SegmentFrame};

const SEGMENTS: &str = "Reliable §5.1";
const RECEIVES: &str = "Reliable §5.3";

pub(super) const CASES: &[Case] = &[
    reliable(
        "L10",
        "each message is delivered once, in any order and however often it comes",
        &[SEGMENTS, "Reliable §5.2"],
        l10,
    ),
    reliable(
        "L11",
        "acknowledgements name what arrived and nothing else",
        &["Reliable §3.2", "Reliable §3.3"],
        l11,
    ),
    reliable(
        "L12",
        "a message without a receive is refused, and taken later",
        &[RECEIVES, "Reliable §3.5"],
        l12,
    ),
    reliable(
        "L13",
        "segments and messages beyond the windows are not accepted",
        &[SEGMENTS],
        l13,
    ),
    reliable(
        "L14",
        "an ordered message waits for the one before it",
        &["Reliable §5.2", "Reliable §3.1"],
        l14,
    ),
];

fn l10(bench: &mut Bench<'_>) -> Result<(), Broken> {
    const MESSAGES: u32 = 24;
    let mut scene = Scene::new(bench, &json!({ "receives": 32 }))?;
    scene.open(bench)?;
    let mut dice = Dice::new(bench.settings.seed, 10);
    let mut sent = Vec::new();
    let mut datagrams = Vec::new();
    for number in 0..MESSAGES {
        let payload = number.to_be_bytes();
        let message = scene.message(&payload);
        sent.push(payload.to_vec());
        // The segment in two datagrams, and each of them twice.
        for _ in 0..2 {
            let datagram = scene.datagram(vec![Frame::Segment(message.clone())]);
            let datagram = Datagram::Reliable(datagram);
            datagrams.extend([datagram.clone(), datagram]);
        }
    }
    dice.shuffle(&mut datagrams);
    for datagram in datagrams {
        scene.station.send(datagram);
    }
    let mut arrived = scene.arrivals(bench)?;
    arrived.sort();
    bench.expect(
        format!("{MESSAGES} messages, each four times, shuffled"),
        arrived == sent,
        format!("{} messages", arrived.len()),
        "each delivered once",
        SEGMENTS,
        &scene.station,
    );
    Ok(())
}

fn l11(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut scene = Scene::new(bench, &json!({}))?;
    scene.open(bench)?;
    let first = scene.packet;
    // The second of three never leaves.
    let messages = [b"a", b"b", b"c"].map(|it| scene.message(it));
    let lost = messages[1].number;
    for (place, message) in messages.into_iter().enumerate() {
        let datagram = scene.datagram(vec![Frame::Segment(message)]);
        if place != 1 {
            scene.station.send(Datagram::Reliable(datagram));
        }
    }
    let (all, found) = scene.until(bench, |it| acknowledges(it, first + 2))?;
    let wrong = all.iter().any(|it| acknowledges(it, first + 1));
    let placed = all.last().and_then(|it| {
        it.frames.iter().find_map(|frame| match frame {
            Frame::Placed { next, map } => Some((*next, *map)),
            _ => None,
        })
    });
    bench.expect(
        "datagrams with a gap",
        found && !wrong && placed == Some((lost, 1)),
        text(&all),
        "ACK of both without the one between them, and PLACED with the missing segment as the next and the one behind it in the map",
        "Reliable §3.3",
        &scene.station,
    );
    Ok(())
}

fn l12(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut scene = Scene::new(bench, &json!({ "receives": 1 }))?;
    scene.open(bench)?;
    let taken = scene.message(b"taken");
    scene.send(vec![Frame::Segment(taken)]);
    let packet = scene.packet - 1;
    scene.until(bench, |it| acknowledges(it, packet))?;
    let refused = scene.message(b"refused");
    let packet = scene.packet;
    scene.send(vec![Frame::Segment(refused.clone())]);
    let (all, found) = scene.until(bench, |it| {
        let names = |frame: &Frame| {
            matches!(frame, Frame::Rnr { packet: of, message, .. } if (*of, *message) == (packet, refused.message))
        };
        it.frames.iter().any(names)
    })?;
    let acknowledged = all.iter().any(|it| acknowledges(it, packet));
    bench.expect(
        "a message that finds no receive",
        found && !acknowledged,
        text(&all),
        "RNR with its packet and message, and the packet in no ACK",
        RECEIVES,
        &scene.station,
    );
    // The one before is taken, and its receive is posted again.
    let arrived = scene.arrivals(bench)?;
    let packet = scene.packet;
    scene.send(vec![Frame::Segment(refused)]);
    let (all, found) = scene.until(bench, |it| acknowledges(it, packet))?;
    let later = scene.arrivals(bench)?;
    bench.expect(
        "the message again, behind a receive",
        found && arrived == [b"taken".to_vec()] && later == [b"refused".to_vec()],
        format!("{arrived:?}, {later:?}, {}", text(&all)),
        "acknowledged and delivered",
        RECEIVES,
        &scene.station,
    );
    Ok(())
}

fn l13(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut scene = Scene::new(bench, &json!({}))?;
    scene.open(bench)?;
    type Far = fn(&mut SegmentFrame);
    let rows: [(&str, Far); 3] = [
        ("a segment 16,384 ahead", |it| it.number += 16_384),
        ("a segment 2^31 - 1 ahead", |it| it.number += (1 << 31) - 1),
        ("a message 4,096 ahead", |it| it.message += 4096),
    ];
    for (what, change) in rows {
        let mut far = scene.message(b"far");
        change(&mut far);
        // The numbers are those of the next good message.
        scene.take_back();
        let packet = scene.packet;
        scene.send(vec![Frame::Segment(far)]);
        let answer = scene.next_within(SILENCE)?;
        let acknowledged = answer.iter().any(|it| acknowledges(it, packet));
        bench.expect(
            what,
            !acknowledged,
            text(answer.as_slice()),
            "not accepted: its packet is in no ACK",
            SEGMENTS,
            &scene.station,
        );
        scene.takes_a_message(
            bench,
            &format!("a message behind {what}"),
            "delivered alone",
            SEGMENTS,
        )?;
    }
    Ok(())
}

fn l14(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut scene = Scene::new(bench, &json!({}))?;
    scene.open(bench)?;
    let first = scene.message(b"first of two");
    let mut second = scene.message(b"second of two");
    second.after = 1;
    scene.send(vec![Frame::Segment(second)]);
    let early = scene.arrivals(bench)?;
    scene.send(vec![Frame::Segment(first)]);
    let both = scene.arrivals(bench)?;
    bench.expect(
        "two messages of a stream, the second one first",
        early.is_empty() && both == [b"first of two".to_vec(), b"second of two".to_vec()],
        format!("{early:?}, then {both:?}"),
        "nothing is delivered before the first one is there, then both in order",
        "Reliable §5.2",
        &scene.station,
    );
    Ok(())
}

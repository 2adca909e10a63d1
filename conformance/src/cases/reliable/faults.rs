//! Malformed datagrams, what has to be ignored, and violations.

use serde_json::json;

use super::scene::{SILENCE, Scene, acknowledges, text};
use super::{Case, reliable};
use crate::bench::{Bench, Broken};
use crate::wire::datagram::{Datagram, sealed};
use crate::wire::reliable::{Ack, Frame};

const FRAMES: &str = "Reliable §3";
const DATAGRAM: &str = "Reliable §2";
const HOSTILE: &str = "Reliable §8";

pub(super) const CASES: &[Case] = &[
    reliable(
        "L20",
        "a datagram with a malformed frame is dropped whole",
        &[FRAMES, DATAGRAM],
        l20,
    ),
    reliable(
        "L21",
        "reserved octets and flags are ignored",
        &[FRAMES, DATAGRAM],
        l21,
    ),
    reliable(
        "L22",
        "an ACK of what was not sent ends the association",
        &[HOSTILE, "Reliable §3.2"],
        l22,
    ),
    reliable(
        "L23",
        "a message in error is answered by ERROR, and no other is touched",
        &["Reliable §9", "Reliable §3.6"],
        l23,
    ),
];

/// Octets of a datagram of these frames without its CRC, and of these behind.
fn raw(scene: &mut Scene, frames: Vec<Frame>, behind: &[u8]) -> Vec<u8> {
    let datagram = Datagram::Reliable(scene.datagram(frames));
    let mut octets = datagram.to_bytes();
    octets.truncate(octets.len() - 4);
    octets.extend(behind);
    octets
}

fn l20(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut scene = Scene::new(bench, &json!({ "receives": 16 }))?;
    scene.open(bench)?;
    let hello = {
        let whole = raw(&mut scene, vec![], &[]);
        let hello = scene.hello();
        raw(&mut scene, vec![hello], &[])[whole.len()..].to_vec()
    };
    let mut version = hello.clone();
    version[4] = 2;
    let rows: [(&str, Vec<u8>); 12] = [
        ("a type that is none", vec![0x0b, 0, 0, 0]),
        ("three octets of a frame's header", vec![0, 0, 0]),
        ("a frame beyond its datagram", vec![0, 0, 0, 1]),
        (
            "a SEGMENT of one octet of DDP",
            [&[1, 1, 0, 17][..], &[0; 17]].concat(),
        ),
        (
            "an ACK of 19 octets",
            [&[2, 0, 0, 19][..], &[0; 19]].concat(),
        ),
        ("an ACK with a range below 0", {
            let mut body = vec![0; 20];
            body[19] = 1;
            [&[2, 0, 0, 20][..], &body].concat()
        }),
        (
            "a PLACED of 11 octets",
            [&[3, 0, 0, 11][..], &[0; 11]].concat(),
        ),
        (
            "a CREDIT of 9 octets",
            [&[4, 0, 0, 9][..], &[0; 9]].concat(),
        ),
        ("a PING of 4 octets", [&[8, 0, 0, 4][..], &[0; 4]].concat()),
        (
            "a CLOSE of 15 octets",
            [&[10, 0, 0, 15][..], &[0; 15]].concat(),
        ),
        ("a HELLO that is not the first", hello),
        ("a HELLO of another version", version),
    ];
    for (what, behind) in rows {
        let message = scene.message(b"before the fault");
        scene.take_back();
        let octets = sealed(raw(&mut scene, vec![Frame::Segment(message)], &behind));
        scene.station.octets(&octets);
        scene.takes_a_message(
            bench,
            what,
            "dropped with all its frames, and the association goes on",
            FRAMES,
        )?;
    }
    Ok(())
}

fn l21(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut scene = Scene::new(bench, &json!({ "receives": 16 }))?;
    scene.open(bench)?;
    // Places behind the envelope's beginning; the frame is behind 24 octets.
    let rows = [
        ("unassigned flags of the envelope", 1, 0xfc),
        ("reserved octets of the envelope", 2, 0xff),
        ("the other reserved octet", 3, 0xff),
        ("unassigned flags of a SEGMENT", 25, 0xfc),
    ];
    for (what, at, bits) in rows {
        let message = scene.message(what.as_bytes());
        let mut octets = raw(
            &mut scene,
            vec![Frame::Segment(message), Frame::Pad(3)],
            &[],
        );
        octets[at] |= bits;
        scene.station.octets(&sealed(octets));
        let arrived = scene.arrivals(bench)?;
        bench.expect(
            what,
            arrived == [what.as_bytes().to_vec()],
            format!("{} messages", arrived.len()),
            "ignored: the message is delivered",
            DATAGRAM,
            &scene.station,
        );
    }
    Ok(())
}

fn l22(bench: &mut Bench<'_>) -> Result<(), Broken> {
    for (what, number) in [("a number that comes later", 1_000_u64), ("2^63", 1 << 63)] {
        let mut scene = Scene::new(bench, &json!({}))?;
        scene.open(bench)?;
        let ack = Ack {
            ranges: vec![(number, number)],
            delay: 0,
            echo: 0,
            counts: None,
        };
        scene.send(vec![Frame::Ack(ack)]);
        let (all, found) = scene.until(bench, |it| {
            let violation = |frame: &Frame| matches!(frame, Frame::Close { reason: 3, .. });
            it.frames.iter().any(violation)
        })?;
        bench.expect(
            format!("an ACK of {what}"),
            found,
            text(&all),
            "CLOSE with reason 3",
            HOSTILE,
            &scene.station,
        );
    }
    Ok(())
}

fn l23(bench: &mut Bench<'_>) -> Result<(), Broken> {
    let mut scene = Scene::new(bench, &json!({}))?;
    scene.open(bench)?;
    // A Write to an STag that names nothing: T, L, opcode 0.
    let mut write = scene.message(b"");
    write.receive = false;
    write.octets = vec![
        0xc1, 0x40, 0x0b, 0xad, 0x0b, 0xad, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3,
    ];
    let message = write.message;
    let packet = scene.packet;
    scene.send(vec![Frame::Segment(write)]);
    // Each datagram with its ACK has the ERROR before it.
    let mut hidden = false;
    let mut times = 0;
    let (all, _) = scene.until(bench, |it| {
        let about = |frame: &Frame| matches!(frame, Frame::Error { message: of, control } if *of == message && control >> 16 == 0x1100);
        let named = it.frames.iter().any(about);
        times += usize::from(named);
        hidden |= acknowledges(it, packet) && times == 0;
        times == 2
    })?;
    bench.expect(
        "a Write to memory that nobody has",
        times == 2 && !hidden,
        text(&all),
        "ERROR with layer 1, type 1, code 0, before an ACK of it, and again until it is acknowledged",
        "Reliable §3.6",
        &scene.station,
    );
    scene.acknowledge();
    while scene.next_within(SILENCE)?.is_some() {
        scene.acknowledge();
    }
    scene.takes_a_message(bench, "a Send behind it", "delivered", "Reliable §9")
}

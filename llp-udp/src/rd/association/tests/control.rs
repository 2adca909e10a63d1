//! Acknowledgements, credit, errors and responses in datagrams that leave, and the room that they have (§6.1).

use super::*;
use crate::rd::frame::{Close, CloseReason, Ping};

/// Octets of an envelope with its CRC, and of an acknowledgement with counts of marks beside what is placed.
const ENVELOPE: u16 = 28;
const ACKNOWLEDGEMENT: u16 = 36 + 16;

fn names(counts: &[(&'static str, usize)]) -> Vec<&'static str> {
    let names = counts.iter().map(|(name, count)| vec![*name; *count]);
    names.collect::<Vec<_>>().concat()
}

#[test]
fn an_acknowledgement_goes_beside_a_segment_where_all_of_it_fits() {
    // One range and three more, and credit.
    let longest = 1472 - ENVELOPE - ACKNOWLEDGEMENT - 12 - 4 * 8 - 20;
    for (length, due, expected) in [
        (longest, false, &[&["ACK", "PLACED", "SEGMENT"][..]][..]),
        (longest + 1, false, &[&["SEGMENT"]]),
        (longest, true, &[&["ACK", "PLACED", "SEGMENT"]]),
        (longest + 1, true, &[&["ACK", "PLACED"], &["SEGMENT"]]),
    ] {
        let mut bench = Bench::new();
        bench.receive(&[arriving(segment(0))]);
        bench.post(1, single(length));
        if due {
            bench.now += MS;
        }
        let kinds: Vec<_> = bench.all().iter().map(Left::kinds).collect();
        assert_eq!(kinds, expected, "{length} {due}");
    }
}

/// Numbers with gaps between.
fn gaps(bench: &mut Bench, count: u64) {
    for _ in 0..count {
        bench.number += 1;
        bench.receive(&[arriving(segment(0))]);
    }
}

fn ranges(left: &Left) -> usize {
    let ranges = left.frames.iter().find_map(|frame| match frame {
        Frame::Ack(ack) => Some(ack.ranges().count()),
        _ => None,
    });
    ranges.unwrap_or(0)
}

#[test]
fn an_acknowledgement_has_as_many_ranges_as_fit() {
    for (datagram, expected) in [
        (ENVELOPE + ACKNOWLEDGEMENT - 1, 0),
        (ENVELOPE + ACKNOWLEDGEMENT, 1),
        (ENVELOPE + ACKNOWLEDGEMENT + 7, 1),
        (ENVELOPE + ACKNOWLEDGEMENT + 8, 2),
        (ENVELOPE + ACKNOWLEDGEMENT + 80, 11),
        (1472, 32),
    ] {
        let mut bench = Bench::new();
        gaps(&mut bench, 40);
        bench.shorten(datagram);
        let left = bench.transmit().unwrap();
        assert_eq!(ranges(&left), expected, "{datagram}");
        assert!(left.octets <= datagram.into());
    }
    // Beside a segment there are four.
    let mut bench = Bench::new();
    gaps(&mut bench, 40);
    bench.post(1, single(64));
    let left = bench.transmit().unwrap();
    assert_eq!((ranges(&left), left.count("SEGMENT")), (4, 1));
}

/// An error goes before each acknowledgement, which may cover segments of its message and must not be taken for success.
#[test]
fn errors_go_before_an_acknowledgement_as_many_as_fit() {
    let acknowledgement = ["ACK", "PLACED"];
    for (datagram, expected) in [
        (ENVELOPE + 35, names(&[("ERROR", 2)])),
        (ENVELOPE + 36, names(&[("ERROR", 3)])),
        (ENVELOPE + 36 + ACKNOWLEDGEMENT - 1, names(&[("ERROR", 3)])),
        (
            ENVELOPE + 36 + ACKNOWLEDGEMENT,
            [names(&[("ERROR", 3)]), acknowledgement.to_vec()].concat(),
        ),
    ] {
        let mut bench = Bench::new();
        bench.receive(&[arriving(segment(0))]);
        for message in 0..3 {
            assert!(bench.association.refuse(message, 7));
        }
        bench.shorten(datagram);
        let left = bench.transmit().unwrap();
        assert_eq!(left.kinds(), expected, "{datagram}");
        assert!(left.octets <= datagram.into());
    }
}

#[test]
fn no_segment_leaves_beside_an_error_and_no_acknowledgement_without_it() {
    let mut bench = Bench::new();
    bench.post(1, single(64));
    assert!(bench.association.refuse(3, 7));
    assert_eq!(bench.kinds(), ["ERROR", "ACK", "PLACED"]);
    bench.receive(&[arriving(segment(0))]);
    assert_eq!(bench.kinds(), ["SEGMENT"], "the error is not acknowledged");
    bench.now += MS;
    assert_eq!(bench.kinds(), ["ERROR", "ACK", "PLACED"]);
    // With the error acknowledged nothing is withheld.
    let last = bench.association.recovery.next() - 1;
    bench.receive(&[ack(0..=last), arriving(segment(1))]);
    bench.post(1, single(64));
    assert_eq!(bench.kinds(), ["ACK", "PLACED", "SEGMENT"]);
}

/// A datagram has the errors of all before its own; what acknowledges it acknowledges these.
#[test]
fn errors_are_repeated_until_they_are_acknowledged() {
    let mut bench = Bench::new();
    assert!(bench.association.refuse(3, 7));
    assert!(bench.association.refuse(4, 7));
    assert_eq!(bench.transmit().unwrap().count("ERROR"), 2);
    assert!(bench.association.refuse(5, 7));
    assert_eq!(bench.transmit().unwrap().count("ERROR"), 3);
    bench.receive(&[ack(0..=0)]);
    let open = |bench: &Bench| -> Vec<_> {
        let errors = bench.association.errors.iter();
        errors.map(|it| it.error.message).collect()
    };
    assert_eq!(open(&bench), [5]);
    assert_eq!(bench.timeout().map(|at| at > bench.now), Some(true));
    // Nothing acknowledges the second datagram: a probe has the error again.
    bench.expire();
    assert_eq!(bench.kinds(), ["ERROR", "ACK", "PLACED", "PING"]);
    bench.receive(&[ack(1..=2)]);
    assert_eq!(open(&bench), Vec::<u32>::new());
    for message in 0..32 {
        assert!(bench.association.refuse(message, 7), "{message}");
    }
    assert!(!bench.association.refuse(32, 7), "one too many");
}

#[test]
fn credit_that_grew_leaves_at_once_where_the_peer_knows_less_than_half() {
    // Receives that the peer knows of, and the more that are granted.
    for (known, more, expected) in [
        (16, 16, false),
        (16, 17, true),
        (15, 15, false),
        (15, 16, true),
        (1, 1, false),
        (1, 2, true),
        (0, 1, true),
        (0, 0, false),
        // More than a serial number shows.
        (1 << 31, 0, false),
    ] {
        let mut bench = Bench::with(0, 1 << 20, |config| config.receives = known);
        bench.association.grant(more);
        let kinds = bench.kinds();
        assert_eq!(kinds.contains(&"CREDIT"), expected, "{known} {more}");
        assert_eq!(bench.kinds(), Vec::<&str>::new(), "once");
    }
}

#[test]
fn receives_that_messages_took_count_no_more() {
    let mut bench = Bench::with(0, 1 << 20, |config| config.receives = 16);
    for number in 0..12 {
        let header = SegmentHeader {
            receive: true,
            ..segment(number)
        };
        bench.receive(&[arriving(header)]);
    }
    bench.now += MS;
    assert_eq!(bench.kinds(), ["ACK", "PLACED"]);
    // Four are left to the peer.
    bench.association.grant(4);
    assert_eq!(bench.kinds(), Vec::<&str>::new());
    bench.association.grant(1);
    assert_eq!(bench.kinds(), ["ACK", "PLACED", "CREDIT"]);
}

#[test]
fn a_window_that_changed_by_more_than_half_leaves_at_once() {
    let before = 100_000;
    for (window, expected) in [
        (2 * before + 1, false),
        (2 * before + 2, true),
        (before / 2, false),
        (before / 2 - 1, true),
        (before + 1, false),
        (before - 1, false),
    ] {
        let mut bench = Bench::with(0, 1 << 20, |config| config.window = before);
        bench.association.share(window, 0);
        assert_eq!(!bench.kinds().is_empty(), expected, "{window}");
    }
}

#[test]
fn credit_that_does_not_leave_at_once_goes_with_the_next_acknowledgement() {
    let mut bench = Bench::new();
    bench.association.grant(1);
    assert_eq!(bench.kinds(), Vec::<&str>::new());
    bench.receive(&[arriving(segment(0))]);
    bench.post(1, single(64));
    assert_eq!(bench.kinds(), ["ACK", "PLACED", "CREDIT", "SEGMENT"]);
    for (datagram, credits) in [(ACKNOWLEDGEMENT + 12, 1), (ACKNOWLEDGEMENT + 11, 0)] {
        let mut bench = Bench::new();
        bench.association.grant(1);
        bench.receive(&[arriving(segment(0))]);
        bench.now += MS;
        bench.shorten(ENVELOPE + datagram);
        assert_eq!(bench.transmit().unwrap().count("CREDIT"), credits);
    }
}

/// §6.1: an end that polls its socket may hold credit back with an acknowledgement until it finds no more input, 1 ms at most.
#[test]
fn an_end_that_polls_holds_credit_with_one_acknowledgement() {
    let grant = |waiting: u32, polls: bool| {
        let mut bench = Bench::with(0, 1 << 20, |config| {
            config.polls = polls;
            config.receives = 2;
        });
        for number in 0..waiting {
            bench.receive(&[arriving(segment(number))]);
        }
        bench.association.grant(100);
        let kinds = bench.kinds();
        (bench, kinds)
    };
    for (waiting, polls) in [(0, false), (1, false), (2, true), (2, false)] {
        let (_, kinds) = grant(waiting, polls);
        assert_eq!(kinds, ["ACK", "PLACED", "CREDIT"], "{waiting} {polls}");
    }
    let (mut bench, kinds) = grant(1, true);
    assert_eq!(kinds, Vec::<&str>::new());
    assert!(bench.association.holds());
    bench.config.polls = false;
    assert_eq!(bench.kinds(), ["ACK", "PLACED", "CREDIT"], "no more input");
    let (mut bench, _) = grant(0, true);
    bench.association.grant(100);
    assert_eq!(bench.kinds(), Vec::<&str>::new());
    assert_eq!(bench.timeout(), Some(bench.now + MS));
    bench.now += MS;
    assert_eq!(bench.kinds(), ["ACK", "PLACED", "CREDIT"]);
}

/// §6.1: acknowledgements of whole messages alone wait for the answer of a program that polls.
#[test]
fn an_end_that_polls_holds_no_acknowledgement_of_a_part() {
    for (last, expected) in [(true, &[][..]), (false, &["ACK", "PLACED"])] {
        let mut bench = Bench::new();
        bench.config.polls = true;
        let envelope = Envelope {
            eager: true,
            ..bench.envelope()
        };
        let part = arriving(SegmentHeader { last, ..segment(0) });
        let handled = bench.handle(first(), &envelope, Ecn::NotEct, &[part]);
        handled.unwrap();
        assert_eq!(bench.kinds(), expected, "last segment: {last}");
        assert_eq!(bench.association.holds(), last);
    }
}

/// §6.1: where the next datagram would come too late to share an acknowledgement, none is waited for.
#[test]
fn a_datagram_behind_a_pause_is_acknowledged_at_once() {
    let round = 4 * MS;
    let delay = round / 8;
    for (pause, at_once) in [(delay + US, true), (delay, false), (Duration::ZERO, false)] {
        let mut bench = Bench::on_path(round);
        bench.receive(&[arriving(segment(0))]);
        bench.now += delay;
        assert!(!bench.kinds().is_empty(), "the first is due");
        bench.now += pause - delay.min(pause);
        bench.receive(&[arriving(segment(1))]);
        let acknowledged = bench.kinds().contains(&"ACK");
        assert_eq!(acknowledged, at_once, "{pause:?} after it");
    }
}

#[test]
fn segments_that_found_no_receive_are_reported_as_many_as_fit() {
    for (datagram, expected) in [
        (ENVELOPE + ACKNOWLEDGEMENT + 40, [2, 1]),
        (ENVELOPE + ACKNOWLEDGEMENT + 39, [1, 1]),
        (1472, [3, 0]),
    ] {
        let mut bench = Bench::new();
        bench.verdict = Verdict::NotReady;
        bench.number = 10;
        for number in 0..3 {
            bench.receive(&[arriving(segment(number))]);
        }
        bench.shorten(datagram);
        let counts = [(); 2].map(|()| bench.transmit().map_or(0, |left| left.count("RNR")));
        assert_eq!(counts, expected, "{datagram}");
    }
    // The latest 16 are kept, with the delay of the configuration.
    let mut bench = Bench::new();
    bench.verdict = Verdict::NotReady;
    let before = bench.number;
    for number in 0..20 {
        bench.receive(&[arriving(segment(number))]);
    }
    let left = bench.transmit().unwrap();
    let reports: Vec<_> = left
        .frames
        .iter()
        .filter_map(|frame| match frame {
            Frame::NotReady(it) => Some((it.packet - before, it.message, it.delay)),
            _ => None,
        })
        .collect();
    let expected: Vec<_> = (4..20)
        .map(|number| (number.into(), number, 1000))
        .collect();
    assert_eq!(reports, expected);
    assert_eq!(bench.kinds(), Vec::<&str>::new());
}

#[test]
fn pings_have_pongs_one_in_a_datagram_and_four_at_most() {
    let mut bench = Bench::new();
    for data in [3, 0, 4, 5, 6, 7, 8] {
        bench.receive(&[Frame::Ping(Ping(data))]);
    }
    let pongs: Vec<_> = bench
        .all()
        .iter()
        .map(|left| {
            assert_eq!(left.kinds().last(), Some(&"PONG"));
            match left.frames.last() {
                Some(Frame::Pong(pong)) => pong.0,
                other => panic!("{other:?}"),
            }
        })
        .collect();
    assert_eq!(pongs, [3, 4, 5, 6], "none for 0");
    for (datagram, expected) in [
        (
            ENVELOPE + ACKNOWLEDGEMENT + 12,
            &["ACK", "PLACED", "PONG"][..],
        ),
        (ENVELOPE + ACKNOWLEDGEMENT + 11, &["ACK", "PLACED"]),
        (ENVELOPE + 12, &["PONG"]),
    ] {
        let mut bench = Bench::new();
        bench.receive(&[Frame::Ping(Ping(3))]);
        bench.association.granted = bench.association.grant;
        bench.shorten(datagram);
        assert_eq!(bench.kinds(), expected, "{datagram}");
    }
}

/// The peer's ping asks for credit, too, which may have been lost.
#[test]
fn a_ping_has_credit_and_an_acknowledgement_repeated_at_once() {
    let mut bench = Bench::new();
    bench.receive(&[Frame::Ping(Ping(0))]);
    assert_eq!(bench.kinds(), ["ACK", "PLACED", "CREDIT"]);
}

#[test]
fn a_close_acknowledges_what_fits_before_it() {
    for (datagram, expected) in [
        (
            ENVELOPE + 20 + ACKNOWLEDGEMENT,
            &["ACK", "PLACED", "CLOSE"][..],
        ),
        (ENVELOPE + 20 + ACKNOWLEDGEMENT - 1, &["CLOSE"]),
        (ENVELOPE, &["CLOSE"]),
    ] {
        let mut bench = Bench::new();
        bench.receive(&[arriving(segment(0))]);
        // The pong to another address does not go along.
        bench.receive_from(peer(1, 2), &[Frame::Ping(Ping(3))]);
        bench.association.granted = bench.association.grant;
        bench.shorten(datagram);
        let close = Close::new(CloseReason::Done);
        let mut out = b"before".to_vec();
        bench
            .association
            .emit_close(&bench.config, bench.now, &close, &mut out);
        let octets = out.split_off(6).leak();
        let (_, frames) = Envelope::open::<[u8]>(PayloadSlice::new(octets)).unwrap();
        let left = Left {
            to: first(),
            octets: octets.len(),
            envelope: bench.envelope(),
            frames: Frames::new(frames).map(Result::unwrap).collect(),
        };
        assert_eq!(left.kinds(), expected, "{datagram}");
    }
}

/// The time field is the sender's clock in microseconds, modulo 2^32.
#[test]
fn datagrams_carry_the_time_and_acknowledgements_repeat_the_peers() {
    let mut bench = Bench::new();
    for (after, expected) in [
        (Duration::from_micros(1234), 1234),
        (Duration::from_micros((1 << 32) + 5), 5),
    ] {
        bench.now = bench.config.origin + after;
        let envelope = Envelope {
            time: 77,
            ..bench.envelope()
        };
        let number = u32::try_from(envelope.number).unwrap();
        let frames = [arriving(segment(number - 2))];
        bench
            .handle(first(), &envelope, Ecn::NotEct, &frames)
            .unwrap();
        bench
            .association
            .received
            .elicited(bench.now, MS, (true, None));
        let left = bench.transmit().unwrap();
        assert_eq!((left.envelope.time, left.envelope.epoch), (expected, EPOCH));
        assert_eq!(left.envelope.association, PEERS);
        match &left.frames[0] {
            Frame::Ack(ack) => assert_eq!((ack.echo, ack.delay), (77, 0)),
            other => panic!("{other:?}"),
        }
    }
}

//! Addresses that are not validated, and addresses that a peer moves to (§4.3, §4.4).

use super::*;
use crate::rd::frame::{Close, CloseReason, Ping, Pong};

fn elsewhere() -> Peer {
    peer(1, 2)
}

/// An association that a peer opens whose address is not validated. Its hello has 64 octets.
fn accepted() -> Bench {
    let mut bench = Bench::opening(|_| ());
    bench.association.accept(false);
    let envelope = Envelope {
        association: 0,
        ..bench.envelope()
    };
    let frames = [Frame::Hello(hello(1000, 1 << 20))];
    bench
        .handle(first(), &envelope, Ecn::NotEct, &frames)
        .unwrap();
    assert_eq!(bench.association.budget(), 192);
    bench
}

#[test]
fn an_address_that_is_not_validated_gets_three_times_what_came() {
    let mut bench = accepted();
    let left = bench.transmit().unwrap();
    assert_eq!(left.kinds(), ["HELLO", "ACK", "PLACED"]);
    assert_eq!(bench.association.budget(), 192 - left.octets as u64);
    // 192 - 116 octets: less than the hello and a segment.
    bench.post(1, single(1000));
    assert_eq!(bench.kinds(), ["HELLO"]);
    assert_eq!(bench.association.budget(), 12);
    assert_eq!(bench.kinds(), Vec::<&str>::new());
    // More from the address gives more room, and a datagram with this end's identifier all.
    let envelope = Envelope {
        association: 0,
        ..bench.envelope()
    };
    bench
        .handle(first(), &envelope, Ecn::NotEct, &[Frame::Pad(96)])
        .unwrap();
    assert_eq!(bench.association.budget(), 12 + 3 * 128);
    bench.receive(&[]);
    assert_eq!(bench.association.budget(), u64::MAX);
    assert_eq!(bench.kinds(), ["SEGMENT"]);
}

#[test]
fn a_datagram_from_another_address_proves_nothing() {
    let mut bench = accepted();
    bench.receive_from(elsewhere(), &[]);
    assert!(bench.association.is_unvalidated());
    let envelope = Envelope {
        association: OWN + 1,
        ..bench.envelope()
    };
    bench.handle(first(), &envelope, Ecn::NotEct, &[]).unwrap();
    assert!(bench.association.is_unvalidated());
    assert!(
        bench.association.challenge.is_none(),
        "not before it is validated"
    );
}

#[test]
fn pongs_to_another_address_and_closes_count_as_sent() {
    let mut bench = accepted();
    let before = bench.association.budget();
    bench.receive_from(elsewhere(), &[Frame::Ping(Ping(3))]);
    let room = bench.association.budget();
    assert!(room >= before);
    let left = bench.transmit().unwrap();
    assert_eq!((left.to, left.kinds()), (elsewhere(), vec!["PONG"]));
    assert_eq!(left.octets, 40);
    assert_eq!(bench.association.budget(), room - 40);
    let close = Close::new(CloseReason::Done);
    let mut out = b"before".to_vec();
    bench
        .association
        .emit_close(&bench.config, bench.now, &close, &mut out);
    assert_eq!(
        bench.association.budget(),
        room - 40 - (out.len() as u64 - 6)
    );
}

/// Instants at which pings leave for another address, from the arrival of a datagram of so many octets from there.
fn pings(octets: u16) -> (Bench, Vec<Duration>) {
    let mut bench = Bench::new();
    let begin = bench.now;
    bench.receive_from(elsewhere(), &[Frame::Pad(octets - 32)]);
    let mut times = Vec::new();
    for _ in 0..10 {
        for left in bench.all() {
            assert_eq!((left.to, left.kinds()), (elsewhere(), vec!["PING"]));
            assert_eq!(left.octets, 40);
            assert_eq!(left.frames, [Frame::Ping(Ping(7))], "never 0");
            times.push(bench.now - begin);
        }
        if bench.timeout() > Some(begin + Duration::from_secs(1)) {
            break;
        }
        assert_eq!(bench.expire(), None);
    }
    (bench, times)
}

#[test]
fn another_address_is_pinged_three_times_and_gets_three_times_what_came() {
    let timeout = 31 * MS;
    for (octets, expected) in [(32, 2), (39, 2), (40, 3), (1472, 3)] {
        let (bench, times) = pings(octets);
        let all = [Duration::ZERO, timeout, 2 * timeout];
        assert_eq!(times, all[..expected], "{octets}");
        assert!(bench.association.challenge.is_none(), "given up");
    }
    // Timers may be late.
    for octets in [39, 1472] {
        let mut bench = Bench::new();
        bench.receive_from(elsewhere(), &[Frame::Pad(octets - 32)]);
        let mut count = 0;
        for _ in 0..10 {
            count += bench.all().len();
            bench.now += 31 * MS;
        }
        assert_eq!(count, if octets == 39 { 2 } else { 3 });
    }
}

#[test]
fn more_datagrams_from_another_address_give_more_room() {
    let mut bench = Bench::new();
    bench.receive_from(elsewhere(), &[]);
    let budget = |bench: &Bench| bench.association.challenge.map(|it| it.budget);
    assert_eq!(budget(&bench), Some(84));
    assert_eq!(bench.kinds(), ["PING"]);
    assert_eq!(budget(&bench), Some(44));
    bench.receive_from(elsewhere(), &[]);
    assert_eq!(budget(&bench), Some(44 + 84));
    bench.receive(&[]);
    assert_eq!(budget(&bench), Some(44 + 84), "from the peer's own");
    let tries = bench.association.challenge.map(|it| it.tries);
    assert_eq!(tries, Some(2), "the challenge goes on");
    // A third address takes its place.
    bench.receive_from(peer(1, 3), &[]);
    let address = bench.association.challenge.map(|it| it.address);
    assert_eq!(address, Some(peer(1, 3)));
}

#[test]
fn data_of_a_challenge_is_odd() {
    let mut bench = Bench::new();
    let envelope = bench.envelope();
    for random in [6, 7] {
        let datagram = Datagram {
            from: elsewhere(),
            octets: 28,
            ecn: Ecn::NotEct,
            envelope,
            frames: CheckedFrames::parse(PayloadSlice::<[u8]>::new(&[])).unwrap(),
        };
        let mut place = |_: &SegmentHeader, _, _: PayloadSlice<'_, [u8]>| Verdict::Placed;
        let association = &mut bench.association;
        association.challenge = None;
        association.received = Received::default();
        let (config, now, events) = (&bench.config, bench.now, &mut bench.events);
        association
            .handle(config, now, &datagram, || random, events, &mut place)
            .unwrap();
        assert_eq!(association.challenge.map(|it| it.data), Some(7));
    }
}

/// A datagram that was overtaken shows nothing of a new address.
#[test]
fn the_newest_datagram_alone_moves_a_peer() {
    let mut bench = Bench::new();
    let late = bench.envelope();
    bench.receive(&[]);
    bench.handle(elsewhere(), &late, Ecn::NotEct, &[]).unwrap();
    assert!(bench.association.challenge.is_none());
    bench.receive_from(elsewhere(), &[]);
    assert!(bench.association.challenge.is_some());
}

#[test]
fn an_address_is_proven_by_its_own_pong_alone() {
    let mut bench = Bench::new();
    bench.receive_from(elsewhere(), &[]);
    assert_eq!(bench.kinds(), ["PING"]);
    bench.receive(&[Frame::Pong(Pong(7))]);
    bench.receive_from(elsewhere(), &[Frame::Pong(Pong(5))]);
    assert_eq!(bench.association.address, first());
    bench.receive_from(elsewhere(), &[Frame::Pong(Pong(7))]);
    assert_eq!(bench.association.address, elsewhere());
    let moved = Event::Moved {
        peer: first(),
        to: elsewhere(),
    };
    assert_eq!(bench.events.pop_front(), Some(moved));
    bench.post(1, single(64));
    assert_eq!(bench.transmit().map(|it| it.to), Some(elsewhere()));
    bench.receive_from(elsewhere(), &[Frame::Pong(Pong(7))]);
    assert_eq!(bench.events.len(), 0, "once");
}

/// §4.4: of the path to another host nothing is known; that to another port of the host is the former one.
#[test]
fn a_peer_on_another_host_has_a_path_of_which_nothing_is_known() {
    for (to, kept) in [(peer(1, 2), true), (peer(2, 1), false)] {
        let mut bench = Bench::on_path(MS);
        bench.association.congestion.on_mark(bench.now, bench.now);
        bench.association.backoff = 3;
        bench
            .association
            .tuning
            .on_arrival(bench.now, 1, 0, &bench.association.rtt);
        let before = bench.association.path_state();
        bench.receive_from(to, &[]);
        bench.receive_from(to, &[Frame::Pong(Pong(7))]);
        let path = bench.association.path_state();
        if kept {
            assert_eq!((path, bench.association.backoff), (before, 3));
        } else {
            assert_eq!((path.window, path.minimum_rtt), (Some(14_720), None));
            assert_eq!(path.smoothed_rtt, 10 * MS);
            assert_eq!(bench.association.backoff, 0);
        }
    }
}

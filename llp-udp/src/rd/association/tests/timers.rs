//! Timers: probes, silence, loss, doubt and the end of an association (§6.2, §10).

use super::*;

/// Times of the timers that expire, from now on, until the association ends; and the cause.
fn expirations(bench: &mut Bench) -> (Vec<Duration>, Cause) {
    let begin = bench.now;
    let mut times = Vec::new();
    loop {
        let ended = bench.expire();
        times.push(bench.now - begin);
        if let Some(cause) = ended {
            return (times, cause);
        }
        bench.all();
        assert!(times.len() < 100, "{times:?}");
    }
}

/// RFC 9002: 10 ms and four times 5 ms before the first sample, and 1 ms of delay; doubled after each, up to a second.
#[test]
fn probe_timeouts_double_up_to_a_second() {
    let mut bench = Bench::new();
    bench.post(1, single(64));
    bench.all();
    let (times, cause) = expirations(&mut bench);
    let expected = [31, 93, 217, 465, 961, 1953, 2953, 3953, 4000].map(|at| at * MS);
    assert_eq!((times, cause), (expected.to_vec(), Cause::Unreachable));
}

/// §4.3: until the peer sends a datagram without a hello its first answers may be lost, and it may have used up all that it may send.
#[test]
fn an_opener_probes_until_the_peer_has_its_identifier() {
    let mut bench = Bench::opening(|_| ());
    bench.receive(&[Frame::Hello(hello(0, 1 << 20))]);
    assert_eq!(bench.kinds(), ["ACK", "PLACED"]);
    assert_eq!(bench.timeout(), Some(bench.now + 31 * MS));
    let anonymous = Envelope {
        association: 0,
        ..bench.envelope()
    };
    bench.handle(first(), &anonymous, Ecn::NotEct, &[]).unwrap();
    assert_eq!(bench.timeout(), Some(bench.now + 31 * MS));
    bench.expire();
    assert_eq!(bench.kinds(), ["ACK", "PLACED", "PING"]);
    bench.receive(&[ack(1..=1)]);
    assert_eq!(bench.timeout(), Some(bench.now + bench.config.rest));
}

#[test]
fn an_acknowledgement_ends_the_doubling() {
    let mut bench = Bench::new();
    bench.post(1, single(64));
    bench.all();
    for _ in 0..3 {
        bench.expire();
        bench.all();
    }
    assert_eq!(bench.association.backoff, 3);
    bench.receive(&[ack(3..=3)]);
    assert_eq!(bench.association.backoff, 0);
}

/// §6.2: the delay that the peer shows, while no more than 2,944 octets are in flight.
#[test]
fn a_probe_timeout_allows_for_all_of_the_delay_with_much_in_flight() {
    for (more, expected) in [(0, 3875 * US), (1, 4000 * US)] {
        let mut bench = Bench::new();
        bench.post(2, single(1424));
        bench.all();
        bench.post(more, single(2));
        bench.all();
        bench.association.rtt.sample(MS, Duration::ZERO);
        assert_eq!(bench.timeout(), Some(bench.now + expected));
    }
    // At least the delay of this end's own acknowledgements, where the peer shows none.
    for (round, expected) in [(4 * MS, 4600 * US), (100 * US, 225 * US)] {
        let mut bench = Bench::new();
        bench.post(1, single(2));
        bench.all();
        for _ in 0..300 {
            bench.association.rtt.sample(round, Duration::ZERO);
        }
        // The round trip, a granularity of 100 µs, and an eighth of the round trip or 25 µs.
        let timeout = bench.timeout().unwrap() - bench.now;
        assert_eq!(timeout.as_micros(), expected.as_micros());
    }
}

#[test]
fn acknowledgements_wait_for_an_eighth_of_the_round_trip() {
    for (round, expected) in [(4 * MS, 500 * US), (40 * US, 25 * US), (100 * MS, MS)] {
        let mut bench = Bench::on_path(round);
        bench.receive(&[arriving(segment(0))]);
        assert_eq!(bench.timeout(), Some(bench.now + expected), "{round:?}");
    }
}

#[test]
fn an_idle_association_is_forgotten() {
    let idle = Duration::from_secs(1);
    let mut bench = Bench::with(0, 1 << 20, |config| config.idle = idle);
    let (times, cause) = expirations(&mut bench);
    assert_eq!((times, cause), (vec![idle], Cause::Flushed));
    // A datagram that arrives puts it off.
    let mut bench = Bench::with(0, 1 << 20, |config| config.idle = idle);
    assert_eq!(bench.pass(idle / 2), None);
    bench.receive(&[]);
    assert_eq!(bench.pass(idle - MS), None);
    assert_eq!(bench.timeout(), Some(bench.now + MS));
    assert_eq!(bench.pass(MS), Some(Cause::Flushed));
}

#[test]
fn an_association_is_not_idle_while_something_is_under_way() {
    let idle = Duration::from_secs(1);
    let refused = |bench: &mut Bench| {
        bench.post(1, single(64));
        let number = bench.transmit().unwrap().envelope.number;
        let not_ready = NotReady {
            packet: number,
            message: 0,
            delay: 1_000_000,
        };
        bench.receive(&[Frame::NotReady(not_ready)]);
        assert_eq!(bench.association.recovery.in_flight(), 0);
    };
    let under_way: [fn(&mut Bench); 3] = [
        // A message in flight, an error in flight, and a peer that owes responses.
        |bench| bench.post(1, single(64)),
        |bench| assert!(bench.association.refuse(0, 7)),
        |bench| bench.association.awaits(true),
    ];
    for begin in under_way.into_iter().map(Some).chain([None]) {
        let mut bench = Bench::with(0, 1 << 20, |config| config.idle = idle);
        match begin {
            Some(begin) => begin(&mut bench),
            None => refused(&mut bench),
        }
        bench.all();
        let heard = bench.now;
        for _ in 0..100 {
            if bench.now < heard + idle {
                assert_eq!(bench.expire(), None);
                bench.all();
            }
        }
        assert!(bench.now >= heard + idle);
        assert_eq!(bench.pass(MS), None);
    }
}

/// §6.2: neither sent nor received anything for a quarter of the time after which an association is lost.
#[test]
fn a_peer_that_owes_responses_is_probed_after_a_quarter_of_the_silence() {
    let second = Duration::from_secs(1);
    let mut bench = Bench::new();
    bench.association.awaits(true);
    assert_eq!(bench.timeout(), Some(bench.now + second));
    assert_eq!(bench.pass(second / 2), None);
    bench.receive(&[]);
    assert_eq!(bench.timeout(), Some(bench.now + second), "heard");
    bench.expire();
    assert_eq!(bench.kinds(), ["ACK", "PLACED", "PING"]);
    let sent = bench.now;
    assert!(bench.timeout() < Some(sent + second), "a probe timeout");
    bench.receive(&[ack(0..=0)]);
    assert_eq!(bench.timeout(), Some(sent + second));
    // A message in flight has its own probes.
    bench.post(1, single(64));
    bench.now += second / 2;
    assert_eq!(bench.kinds(), ["SEGMENT"]);
    bench.receive(&[ack(1..=1)]);
    assert_eq!(bench.timeout(), Some(bench.now + second), "sent");
}

#[test]
fn a_probe_that_cannot_leave_sets_no_timer() {
    let mut bench = Bench::new();
    bench.post(1, single(64));
    assert_eq!(bench.kinds(), ["SEGMENT"]);
    bench.association.unvalidated = Some((100, 300));
    bench.association.probe();
    assert_eq!(bench.kinds(), Vec::<&str>::new());
    assert_eq!(bench.timeout(), Some(bench.now + Duration::from_secs(4)));
}

/// Three times the octets from an address that is not validated have to hold the envelope, hello and acknowledgement of an answer.
#[test]
fn an_acknowledgement_without_room_sets_no_timer() {
    for (sent, expected) in [(184, true), (185, false)] {
        let mut bench = Bench::new();
        bench.receive(&[arriving(segment(0))]);
        bench.association.unvalidated = Some((100, sent));
        let due = bench.now + bench.association.ack_delay();
        assert_eq!(bench.timeout() == Some(due), expected, "{sent}");
    }
}

#[test]
fn a_lost_error_goes_again() {
    let mut bench = Bench::new();
    assert!(bench.association.refuse(3, 7));
    assert_eq!(bench.kinds(), ["ERROR", "ACK", "PLACED"]);
    bench.post(4, single(1000));
    bench.now += 10 * MS;
    assert_eq!(
        bench.all().len(),
        4,
        "errors are withheld from none of them"
    );
    bench.receive(&[ack(3..=3)]);
    assert_eq!(bench.kinds(), ["ERROR", "ACK", "PLACED"]);
    // The error of another datagram stays in flight.
    assert!(bench.association.refuse(4, 7));
    assert_eq!(bench.transmit().unwrap().count("ERROR"), 2);
    bench.association.resend_error(Some(3));
    let due: Vec<_> = bench.association.errors.iter().map(|it| it.due).collect();
    assert_eq!(due, [true, false]);
    bench.association.resend_error(None);
    let due: Vec<_> = bench.association.errors.iter().map(|it| it.due).collect();
    assert_eq!(due, [true, false]);
}

/// RFC 9002: all datagrams of more than three probe timeouts are lost.
#[test]
fn persistent_congestion_takes_the_window_to_its_minimum() {
    // Samples of 8 ms: 3 × (8 + 4 × 3 + 1) ms.
    for (span, collapsed) in [(63 * MS, false), (63 * MS + Duration::from_nanos(1), true)] {
        let mut bench = Bench::new();
        bench.post(2, single(1000));
        assert_eq!(bench.transmit().unwrap().envelope.number, 0);
        bench.now += span;
        assert_eq!(bench.all().len(), 1);
        bench.now += 2 * MS;
        bench.post(1, single(64));
        assert_eq!(bench.all().len(), 1);
        bench.association.rtt.sample(8 * MS, Duration::ZERO);
        bench.now += 8 * MS;
        bench.receive(&[ack(2..=2)]);
        assert_eq!(bench.association.path_state().lost, Some(1));
        let window = bench.association.path_state().window;
        assert_eq!(window == Some(2 * 1472), collapsed, "{window:?}");
    }
}

#[test]
fn only_errors_about_recent_datagrams_of_the_association_raise_doubt() {
    let sent = 2000;
    let quoted = |number: u64| Envelope {
        eager: false,
        hello: false,
        association: PEERS,
        number,
        time: 0,
        epoch: EPOCH,
    };
    for (number, expected) in [
        (sent, false),
        (sent - 1, true),
        (sent - 1024, true),
        (sent - 1025, false),
        (u64::MAX, false),
    ] {
        let mut bench = Bench::new();
        for _ in 0..sent {
            bench.association.recovery.on_sent(bench.now, 0, None);
        }
        let (config, now) = (&bench.config, bench.now);
        let doubted = bench.association.doubt(config, now, &quoted(number));
        assert_eq!(doubted, expected, "{number}");
    }
}

/// A quarter of a second, three probe timeouts at least, and no longer than any silence.
#[test]
fn a_peer_in_doubt_has_time_for_three_probes() {
    let second = Duration::from_secs(1);
    for (round, unreachable, expected) in [
        (8 * MS, 4 * second, 250 * MS),
        // 3 × (100 + 4 × 50 + 1) ms.
        (100 * MS, 4 * second, 903 * MS),
        (100 * MS, second / 2, second / 2),
    ] {
        let mut bench = Bench::with(0, 1 << 20, |config| config.unreachable = unreachable);
        bench.association.rtt.sample(round, Duration::ZERO);
        bench.association.recovery.on_sent(bench.now, 0, None);
        bench.association.backoff = 5;
        let quoted = Envelope {
            association: PEERS,
            number: 0,
            ..bench.envelope()
        };
        let (config, now) = (&bench.config, bench.now);
        assert!(bench.association.doubt(config, now, &quoted));
        assert!(!bench.association.doubt(config, now, &quoted), "once");
        bench.association.rtt.sample(round, Duration::ZERO);
        let (times, cause) = expirations(&mut bench);
        assert_eq!(times.last(), Some(&expected));
        assert_eq!(cause, Cause::Unreachable);
    }
}

/// Probes of a peer in doubt do not double, and have 25 ms between them at least.
#[test]
fn probes_of_a_peer_in_doubt_are_even() {
    let mut bench = Bench::on_path(MS);
    bench.post(1, single(64));
    bench.now += MS;
    bench.all();
    let quoted = Envelope {
        association: PEERS,
        number: 0,
        ..bench.envelope()
    };
    let (config, now) = (&bench.config, bench.now);
    assert!(bench.association.doubt(config, now, &quoted));
    assert_eq!(bench.all().len(), 1);
    let (times, _) = expirations(&mut bench);
    let expected: Vec<_> = (1..=10).map(|at| at * 25 * MS).collect();
    assert_eq!(times[..9], expected[..9]);
    assert_eq!(times.last(), Some(&(250 * MS)));
}

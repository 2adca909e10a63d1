//! Contents and number of the datagrams that leave with segments (§2, §6).

use super::*;

/// Octets of a datagram beside its frames, of a segment frame beside its segment, and of the longest segment (§6.5).
const OVERHEAD: usize = 28;
const SEGMENT: usize = 20;
const LONGEST: u16 = 1472 - 48;

#[test]
fn a_hello_goes_along_where_it_fits_and_else_alone_before_the_first_segment() {
    let fits = LONGEST - 36;
    let mut bench = Bench::opening(|_| ());
    bench.post(2, single(fits));
    for _ in 0..2 {
        let left = bench.transmit().unwrap();
        assert_eq!(left.kinds(), ["HELLO", "SEGMENT"]);
        assert_eq!((left.octets, left.envelope.association), (1472, 0));
    }
    let mut bench = Bench::opening(|_| ());
    bench.post(2, single(fits + 1));
    assert_eq!(bench.kinds(), ["HELLO"]);
    assert_eq!(bench.kinds(), ["SEGMENT"], "greeted");
    assert_eq!(bench.kinds(), ["SEGMENT"]);
    // A probe has the hello again, which may be lost.
    bench.expire();
    assert_eq!(bench.kinds(), ["HELLO", "PING"]);
    assert_eq!(bench.kinds(), Vec::<&str>::new(), "one probe");
    bench.post(1, single(fits + 1));
    bench.association.probe();
    assert_eq!(bench.kinds(), ["HELLO", "PING"], "before a segment, too");
    assert_eq!(bench.kinds(), ["SEGMENT"]);
}

#[test]
fn a_datagram_has_as_many_segments_as_fit_and_eight_at_most() {
    for (length, count, expected) in [
        (702, 2, &[2][..]),
        (703, 2, &[1, 1]),
        (461, 3, &[3]),
        (462, 3, &[2, 1]),
        (64, 17, &[8, 8, 1]),
    ] {
        let mut bench = Bench::new();
        bench.post(count, single(length));
        let left = bench.all();
        let counts: Vec<_> = left.iter().map(|it| it.count("SEGMENT")).collect();
        assert_eq!(counts, expected, "{length}");
        let octets = OVERHEAD + expected[0] * (SEGMENT + usize::from(length));
        assert_eq!(left[0].octets, octets);
    }
}

#[test]
fn the_first_segment_of_a_datagram_leaves_though_the_path_became_smaller() {
    // The peer grants the least: one datagram.
    let mut bench = Bench::with(0, 0, |_| ());
    bench.post(2, single(1000));
    bench.shorten(600);
    let left = bench.all();
    assert_eq!(left.len(), 1);
    assert_eq!((left[0].kinds(), left[0].octets), (vec!["SEGMENT"], 1048));
}

#[test]
fn octets_in_flight_keep_to_the_window_that_the_peer_granted() {
    // Each datagram has 1,048 octets.
    for (window, expected) in [(2096, 2), (2095, 1), (1048, 1), (3144, 3), (0, 1)] {
        let mut bench = Bench::with(0, window, |_| ());
        bench.post(5, single(1000));
        assert_eq!(bench.all().len(), expected, "{window}");
        assert_eq!(
            bench.association.path_state().in_flight,
            1048 * expected as u64
        );
        assert_eq!(bench.kinds(), Vec::<&str>::new());
    }
}

#[test]
fn octets_in_flight_keep_to_the_congestion_window() {
    let mut bench = Bench::new();
    bench.post(20, single(LONGEST));
    let left = bench.all();
    assert_eq!(left.len(), 10, "14,720 octets");
    let eager: Vec<_> = left.iter().map(|it| it.envelope.eager).collect();
    assert_eq!(
        eager,
        [
            false, false, false, false, false, false, false, false, false, true
        ]
    );
    let mut bench = Bench::new();
    bench.post(20, single(LONGEST - 1));
    assert_eq!(bench.all().len(), 10);
    // The window was the limit, and doubles when all of it is acknowledged.
    bench.receive(&[ack(0..=9)]);
    assert_eq!(bench.association.path_state().window, Some(14_720 + 14_710));
    assert_eq!(bench.association.path_state().in_flight, 0);
}

#[test]
fn the_window_stays_where_the_program_was_the_limit() {
    let mut bench = Bench::new();
    bench.post(3, single(LONGEST));
    let left = bench.all();
    assert_eq!(left.len(), 3);
    assert!(left[2].envelope.eager, "nothing is queued behind it");
    assert!(!left[0].envelope.eager && !left[1].envelope.eager);
    bench.receive(&[ack(0..=2)]);
    assert_eq!(bench.association.path_state().window, Some(14_720));
}

#[test]
fn pacing_lets_two_datagrams_go_and_sets_a_timer_for_the_next() {
    let mut bench = Bench::on_path(20 * MS);
    bench.post(20, single(LONGEST));
    // 14,720 octets in half a round trip: 1,472 take a millisecond.
    bench.now += 100 * MS;
    assert_eq!(bench.all().len(), 2);
    let at = bench.timeout().unwrap();
    assert_eq!(at, bench.now + MS + Duration::from_nanos(1));
    assert_eq!(bench.pass(MS / 2), None);
    assert_eq!(bench.all().len(), 0);
    assert_eq!(bench.timeout(), Some(at), "the timer stays");
    // A probe does not wait for the pacer.
    bench.association.probe();
    let left = bench.all();
    assert_eq!((left.len(), left[0].count("SEGMENT")), (1, 1));
    let mut bench = Bench::on_path(20 * MS);
    bench.post(3, single(LONGEST));
    bench.now += 100 * MS;
    assert_eq!(bench.all().len(), 2);
    bench.expire();
    assert_eq!(bench.all().len(), 1);
    assert!(bench.timeout() > Some(bench.now), "the timer is no more");
}

/// Datagrams shorter than those of the path, and a segment from a longer path, take their own share of the rate.
#[test]
fn pacing_counts_octets_of_datagrams() {
    let mut bench = Bench::on_path(20 * MS);
    bench.post(40, single(1000));
    bench.now += 100 * MS;
    let left = bench.all();
    // Two datagrams of 1,472 octets are the burst: the third one of 1,048 would have 848 left, less than one of the path.
    assert_eq!(left.len(), 2);
    let mut bench = Bench::on_path(20 * MS);
    bench.post(40, single(LONGEST));
    bench.shorten(1000);
    bench.now += 100 * MS;
    assert_eq!(bench.all().len(), 2, "1,472 octets each");
}

#[test]
fn a_probe_leaves_though_the_windows_and_the_pacer_have_no_room() {
    let mut bench = Bench::on_path(20 * MS);
    bench.post(40, single(LONGEST));
    for _ in 0..15 {
        bench.pass(MS);
        bench.all();
    }
    let before = bench.association.path_state().in_flight;
    assert_eq!(before, 14_720);
    assert_eq!(bench.expire(), None);
    assert_eq!(bench.association.probes, 1);
    let left = bench.all();
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].kinds(), ["SEGMENT"], "a new one");
    assert!(left[0].envelope.eager, "a probe is acknowledged at once");
    assert_eq!(bench.association.path_state().in_flight, before + 1472);
}

#[test]
fn a_probe_without_new_segments_has_the_oldest_and_an_acknowledgement() {
    let mut bench = Bench::new();
    bench.post(2, single(1000));
    let first = bench.all();
    bench.expire();
    let left = bench.all();
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].kinds(), ["ACK", "PLACED", "SEGMENT"]);
    let number = |left: &Left| match left.frames.last() {
        Some(Frame::Segment(header, _)) => header.number,
        other => panic!("{other:?}"),
    };
    assert_eq!(number(&left[0]), number(&first[0]));
    assert!(left[0].envelope.eager);
}

/// §6.1: an acknowledgement is not repeated when it is lost, so segments that are sent again carry one.
#[test]
fn segments_that_are_sent_again_carry_an_acknowledgement() {
    let mut bench = Bench::new();
    bench.post(5, single(1000));
    assert_eq!(bench.all().len(), 5);
    bench.now += 20 * MS;
    bench.receive(&[ack(4..=4)]);
    let left = bench.all();
    let kinds: Vec<_> = left.iter().map(Left::kinds).collect();
    assert_eq!(
        kinds,
        [["ACK", "PLACED", "SEGMENT"], ["ACK", "PLACED", "SEGMENT"]]
    );
    bench.post(1, single(1000));
    bench.now += 20 * MS;
    assert_eq!(bench.kinds(), ["SEGMENT"]);
}

#[test]
fn a_probe_for_credit_is_a_ping() {
    let receive = Post {
        receive: true,
        ..single(64)
    };
    let mut bench = Bench::with(1, 1 << 20, |_| ());
    bench.post(2, receive);
    assert_eq!(bench.kinds(), ["SEGMENT"]);
    bench.expire();
    assert_eq!(bench.kinds(), ["ACK", "PLACED", "PING", "SEGMENT"]);
    bench.receive(&[ack(0..=0)]);
    // The next one leaves without credit, alone.
    assert_eq!(bench.kinds(), ["SEGMENT"]);
    bench.post(1, single(64));
    bench.expire();
    assert_eq!(bench.count_of_pings(), 0, "nothing waits for credit");
}

impl Bench {
    fn count_of_pings(&mut self) -> usize {
        self.all().iter().map(|it| it.count("PING")).sum()
    }
}

#[test]
fn a_ping_goes_beside_a_segment_where_it_fits() {
    for (length, pings) in [(LONGEST - 12, 1), (LONGEST - 11, 0)] {
        let mut bench = Bench::with(1, 1 << 20, |_| ());
        let receive = Post {
            receive: true,
            ..single(length)
        };
        bench.post(2, receive);
        assert_eq!(bench.kinds(), ["SEGMENT"]);
        bench.expire();
        let left = bench.transmit().unwrap();
        assert_eq!(left.count("PING"), pings);
        assert_eq!(left.octets, usize::from(length) + 48 + 12 * pings);
    }
}

#[test]
fn segments_behind_a_ping_and_an_acknowledgement_have_the_room_that_is_left() {
    let mut bench = Bench::with(1, 1 << 20, |_| ());
    let receive = Post {
        receive: true,
        ..single(153)
    };
    bench.post(1, receive);
    bench.post(7, single(153));
    bench.post(1, receive);
    assert_eq!(bench.transmit().unwrap().count("SEGMENT"), 8);
    bench.expire();
    let left = bench.transmit().unwrap();
    // 24 + 4 of the envelope, 36 + 16 of the acknowledgement, 12 of the ping: 8 segments of 173 octets would be 4 too many.
    assert_eq!((left.count("PING"), left.count("SEGMENT")), (1, 7));
    assert_eq!(left.octets, 28 + 52 + 12 + 7 * 173);
    assert_eq!(bench.transmit().unwrap().count("SEGMENT"), 1);
}

#[test]
fn octets_in_flight_are_those_of_datagrams_that_elicit_an_acknowledgement() {
    let mut bench = Bench::new();
    bench.post(1, single(500));
    let left = bench.transmit().unwrap();
    assert_eq!(bench.association.path_state().in_flight, left.octets as u64);
    bench.receive(&[arriving(segment(0))]);
    bench.pass(2 * MS);
    let alone = bench.transmit().unwrap();
    assert_eq!(alone.kinds(), ["ACK", "PLACED"]);
    assert!(!alone.envelope.eager, "nothing elicits an acknowledgement");
    assert_eq!(bench.association.path_state().in_flight, left.octets as u64);
}

/// Numbers that are skipped follow a xorshift generator (Marsaglia, 13, 7 and 17) of 64 bits from the random draw: those of the state 401 modulo 512.
#[test]
fn about_one_of_512_packet_numbers_is_skipped() {
    let mut bench = Bench::new();
    let mut numbers = Vec::new();
    let mut skipped = Vec::new();
    for message in 0..4000 {
        bench.post(1, single(64));
        let number = bench.transmit().unwrap().envelope.number;
        let next = numbers.last().map_or(0, |last| last + 1);
        skipped.extend(next..number);
        numbers.push(number);
        bench.receive(&[ack(number..=number)]);
        bench.now += MS;
        assert_eq!(bench.events.len(), message + 1);
    }
    assert_eq!(skipped, SKIPPED_NUMBERS);
}

const SKIPPED_NUMBERS: [u64; 10] = [401, 869, 1344, 1636, 2106, 2319, 2807, 3210, 3430, 3919];

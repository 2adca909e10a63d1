use super::*;
use crate::rd::association::Resting;
use crate::rd::frame::Ping;

impl Bench {
    /// State that stays after so long a silence, if the association rests then.
    fn rested_after(&mut self, silence: Duration) -> Option<Resting> {
        self.now += silence;
        self.association.rest(&self.config, self.now)
    }

    fn rest(&mut self) {
        let rested = self.rested_after(self.config.rest).unwrap();
        self.association = Association::from(rested);
    }
}

/// §10: most of an end's associations may rest.
#[test]
fn an_association_that_rests_is_small() {
    assert!(size_of::<Resting>() <= 320, "{}", size_of::<Resting>());
}

#[test]
fn an_association_rests_after_a_silence_with_nothing_under_way() {
    let mut bench = Bench::new();
    let rest = bench.config.rest;
    assert_eq!(bench.timeout(), Some(bench.now + rest));
    assert!(bench.rested_after(rest - US).is_none());
    let rested = bench.rested_after(US).unwrap();
    let forgotten = bench.now - rest + bench.config.idle;
    assert_eq!(rested.poll_timeout(&bench.config), forgotten);
    bench.association = Association::from(rested);
    assert_eq!(bench.kinds(), Vec::<&str>::new());
}

/// Each of these is lost by a rest.
#[test]
fn an_association_with_something_under_way_does_not_rest() {
    let part = SegmentHeader {
        last: false,
        ..segment(0)
    };
    type Case<'a> = (&'a str, &'a dyn Fn(&mut Bench));
    let cases: [Case<'_>; 12] = [
        ("a message waits", &|it| it.post(1, single(64))),
        ("a datagram is in flight", &|it| {
            it.post(1, single(64));
            it.all();
        }),
        ("an acknowledgement is owed", &|it| {
            it.receive(&[arriving(segment(0))]);
        }),
        ("a message arrived in part", &|it| {
            it.receive(&[arriving(part)]);
            it.now += MS;
            it.all();
        }),
        ("a segment is missing", &|it| {
            it.receive(&[arriving(segment(1))]);
            it.now += MS;
            it.all();
        }),
        ("a segment was refused", &|it| {
            it.verdict = Verdict::NotReady;
            it.receive(&[arriving(segment(0))]);
        }),
        ("an error is not acknowledged", &|it| {
            assert!(it.association.refuse(7, 0x0100_0000));
            it.all();
        }),
        ("a pong is owed", &|it| it.receive(&[Frame::Ping(Ping(6))])),
        ("another address is not proven", &|it| {
            it.receive_from(peer(2, 2), &[]);
            it.all();
        }),
        ("responses are owed", &|it| it.association.awaits(true)),
        ("the peer is to be probed", &|it| it.association.probe()),
        ("output is queued", &|it| it.association.queued = true),
    ];
    for (name, make) in cases {
        let mut bench = Bench::new();
        make(&mut bench);
        assert!(bench.rested_after(bench.config.rest).is_none(), "{name}");
    }
    let mut opening = Bench::opening(|_| ());
    assert!(opening.rested_after(opening.config.rest).is_none());
}

/// Numbers, credit and identifiers go on, the window is the first one, and the estimates of the path stay.
#[test]
fn an_association_goes_on_where_it_rested() {
    let mut bench = Bench::on_path(8 * MS);
    let first_window = bench.association.path_state().window;
    bench.receive(&[arriving(segment(0))]);
    bench.post(60, single(1400));
    while !bench.association.outbound.is_empty() {
        bench.now += 8 * MS;
        if let Some(last) = bench.all().last() {
            bench.receive(&[ack(0..=last.envelope.number)]);
        }
    }
    bench.association.grant(5);
    bench.all();
    let (before, sent) = (bench.association.path_state(), bench.number);
    assert!(before.window > first_window);
    let (next, granted) = (bench.association.recovery.next(), bench.association.granted);
    bench.rest();
    let after = bench.association.path_state();
    assert_eq!(after.window, first_window);
    assert_eq!(after.smoothed_rtt, before.smoothed_rtt);
    assert_eq!(after.minimum_rtt, before.minimum_rtt);
    assert_eq!(bench.association.granted, granted);
    bench.post(1, single(1400));
    let left = bench.transmit().unwrap();
    assert_eq!(left.kinds(), ["SEGMENT"]);
    assert_eq!(
        (left.envelope.association, left.envelope.number),
        (PEERS, next)
    );
    let Some(Frame::Segment(header, _)) = left.frames.last() else {
        panic!("{left:?}");
    };
    assert_eq!((header.number, header.message), (60, 60));
    // Numbers of before are old, and the acknowledgement of the next has none of them.
    bench.number = 1;
    let again = bench.envelope();
    let handled = bench.handle(first(), &again, Ecn::NotEct, &[arriving(segment(9))]);
    handled.unwrap();
    bench.number = sent + 1;
    bench.placed.clear();
    bench.receive(&[arriving(segment(1))]);
    assert_eq!(bench.placed.len(), 1);
    bench.now += MS;
    let left = bench.transmit().unwrap();
    let Some(Frame::Ack(ack)) = left.frames.first() else {
        panic!("{left:?}");
    };
    let ranges: Vec<_> = ack.ranges().collect();
    assert_eq!(ranges[0], sent + 1..=sent + 1);
    assert!(ranges.len() <= 2, "{ranges:?}");
}

/// A gap from before the rest is closed: its datagram was sent again under another number, or the peer gave up.
#[test]
fn numbers_below_the_last_range_count_as_received_after_a_rest() {
    let mut bench = Bench::new();
    bench.number += 1;
    bench.receive(&[arriving(segment(0))]);
    bench.now += MS;
    bench.all();
    let missing = bench.number - 2;
    assert!(!bench.association.received.contains(missing));
    bench.rest();
    assert!(bench.association.received.contains(missing));
    assert!(!bench.association.received.contains(bench.number));
}

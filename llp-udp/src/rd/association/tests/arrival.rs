//! Effect of frames that arrive (§3, §5).

use super::*;
use crate::rd::config::Scope;
use crate::rd::frame::{Close, CloseReason, EcnCounts, Placed};

const VIOLATION: Ended = Ended {
    cause: Cause::Violation,
    reason: Some(CloseReason::Violation),
};

#[test]
fn credit_that_was_overtaken_does_not_count() {
    let mut bench = Bench::with(1, 5000, |_| ());
    let late = bench.envelope();
    let credit = |receives, window| [Frame::Credit(Credit { receives, window })];
    bench.receive(&credit(8, 70_000));
    bench
        .handle(first(), &late, Ecn::NotEct, &credit(5, 60_000))
        .unwrap();
    assert_eq!(bench.association.window.0, 70_000);
    bench.receive(&credit(9, 1000));
    assert_eq!(bench.association.window.0, 1000, "windows may shrink");
    let mut bench = Bench::with(1, 5000, |_| ());
    let [former] = credit(8, 70_000);
    let [latter] = credit(9, 80_000);
    bench.receive(&[former, latter]);
    assert_eq!(bench.association.window.0, 80_000, "of one datagram");
}

#[test]
fn the_first_hello_names_the_peer_and_each_one_may_have_a_cookie() {
    let mut bench = Bench::opening(|_| ());
    bench.receive(&[Frame::Hello(Hello {
        cookie: 0x77,
        ..hello(4, 5000)
    })]);
    assert_eq!(bench.association.peer_id, Some(PEERS));
    assert_eq!(bench.association.window, (5000, 0));
    bench.receive(&[Frame::Hello(Hello {
        association: PEERS + 1,
        ..hello(9, 9000)
    })]);
    assert_eq!(bench.association.peer_id, Some(PEERS));
    assert_eq!(bench.association.window, (5000, 0));
    assert_eq!(bench.association.proof, 0x77, "0 is none");
}

/// §5.3: beyond the credit a message is accepted where no other may need the receive.
#[test]
fn a_message_beyond_the_credit_waits_for_those_before_it() {
    let receive = |number| SegmentHeader {
        receive: true,
        ..segment(number)
    };
    let mut bench = Bench::with(0, 1 << 20, |config| config.receives = 1);
    bench.receive(&[arriving(SegmentHeader {
        after: 1,
        ..receive(1)
    })]);
    assert_eq!(bench.placed.len(), 1, "within the credit");
    assert_eq!(
        (bench.placed[0].missing, bench.placed[0].delivered),
        (1, false)
    );
    bench.receive(&[arriving(SegmentHeader {
        after: 1,
        ..receive(3)
    })]);
    assert_eq!(bench.placed.len(), 1, "0 and 2 may need receives");
    assert!(bench.kinds().contains(&"RNR"));
    bench.receive(&[arriving(receive(0))]);
    assert_eq!(bench.placed.len(), 2, "none is missing before it");
    assert!(bench.placed[1].delivered, "it comes after none");
    assert_eq!(bench.association.grant.receives, 2, "taken and granted");
    bench.receive(&[arriving(receive(2))]);
    assert_eq!(
        (bench.association.taken, bench.association.grant.receives),
        (3, 3)
    );
    // A message that takes none is not refused.
    bench.receive(&[arriving(SegmentHeader {
        after: 1,
        ..segment(5)
    })]);
    assert_eq!(bench.placed.len(), 4);
    assert_eq!(bench.association.taken, 3);
}

#[test]
fn a_message_that_fails_takes_its_receive_and_is_reported_once() {
    let header = SegmentHeader {
        receive: true,
        ..segment(0)
    };
    for (receives, grant) in [(0, 1), (5, 5)] {
        let mut bench = Bench::with(0, 1 << 20, |config| config.receives = receives);
        bench.verdict = Verdict::Failed(7);
        bench.receive(&[arriving(header)]);
        assert_eq!(bench.kinds()[..3], ["ERROR", "ACK", "PLACED"]);
        assert_eq!(bench.association.taken, 1);
        assert_eq!(bench.association.grant.receives, grant);
        bench.receive(&[arriving(header)]);
        assert_eq!(bench.association.errors.len(), 1);
    }
    // Beyond the errors that are kept the segment is to come again.
    let mut bench = Bench::new();
    bench.verdict = Verdict::Failed(7);
    for number in 0..33 {
        bench.receive(&[arriving(segment(number))]);
    }
    assert_eq!(bench.association.errors.len(), 32);
    let number = bench.number - 1;
    assert!(
        !bench.association.received.contains(number),
        "not acknowledged"
    );
    assert!(bench.association.received.contains(number - 1));
}

#[test]
fn a_datagram_with_a_segment_that_has_no_room_is_not_acknowledged() {
    let mut bench = Bench::new();
    bench.verdict = Verdict::NoRoom;
    let number = bench.number;
    bench.receive(&[arriving(segment(0)), arriving(segment(1))]);
    assert_eq!(bench.placed.len(), 2);
    assert!(!bench.association.received.contains(number));
    assert_eq!(bench.kinds(), Vec::<&str>::new());
    bench.verdict = Verdict::Placed;
    bench.receive(&[arriving(segment(0)), arriving(segment(1))]);
    assert!(bench.association.received.contains(number + 1));
}

#[test]
fn a_repeated_datagram_has_no_effect() {
    let mut bench = Bench::new();
    let envelope = bench.envelope();
    for _ in 0..2 {
        let frames = [arriving(segment(0))];
        bench
            .handle(first(), &envelope, Ecn::NotEct, &frames)
            .unwrap();
    }
    assert_eq!(bench.placed.len(), 1);
}

/// §6.1: at once for the flag eager, a gap, the mark CE, a hello or a ping; after the delay else.
#[test]
fn some_datagrams_are_acknowledged_at_once() {
    let cases: [(bool, Ecn, u64, bool); 5] = [
        (false, Ecn::NotEct, 0, false),
        (true, Ecn::NotEct, 0, true),
        (false, Ecn::Ce, 0, true),
        (false, Ecn::Ect0, 0, false),
        (false, Ecn::NotEct, 1, true),
    ];
    for (eager, ecn, gap, at_once) in cases {
        let mut bench = Bench::new();
        bench.number += gap;
        let envelope = Envelope {
            eager,
            ..bench.envelope()
        };
        bench
            .handle(first(), &envelope, ecn, &[arriving(segment(0))])
            .unwrap();
        assert_eq!(
            bench.timeout() == Some(bench.now),
            at_once,
            "{eager} {ecn:?} {gap}"
        );
        assert_eq!(!bench.kinds().is_empty(), at_once);
    }
    let mut bench = Bench::new();
    bench.receive(&[Frame::Hello(hello(0, 0))]);
    assert_eq!(bench.timeout(), Some(bench.now));
}

#[test]
fn frames_behind_the_first_four_count_as_well() {
    let mut bench = Bench::new();
    let frames: Vec<_> = (0..7).map(|number| arriving(segment(number))).collect();
    bench.receive(&frames);
    assert_eq!(bench.placed.len(), 7);
    assert_eq!(bench.association.inbound.placed().next, 7);
}

#[test]
fn the_delay_that_a_peer_reports_counts_up_to_a_millisecond_with_much_in_flight() {
    for (count, smoothed) in [(2, 10_625), (4, 11_125)] {
        let mut bench = Bench::new();
        bench.post(count, single(1424));
        assert_eq!(bench.all().len(), count);
        bench.association.rtt.sample(10 * MS, Duration::ZERO);
        bench.now += 20 * MS;
        bench.receive(&[Frame::Ack(Ack::new(0..=0, 5000, 0))]);
        assert_eq!(
            bench.association.path_state().smoothed_rtt,
            smoothed * US,
            "{count}"
        );
    }
}

/// §6.3: counts of CE that grow are congestion; they are modulo 2^32, and those of an acknowledgement that was overtaken are smaller.
#[test]
fn marks_that_grow_are_congestion() {
    for (before, ce, congested) in [
        (0, 0, false),
        (0, 1, true),
        (5, 5, false),
        (5, 4, false),
        (5, 6, true),
        (u32::MAX, 0, true),
        (0, (1 << 31) - 1, true),
        (0, 1 << 31, false),
    ] {
        let mut bench = Bench::new();
        bench.post(1, single(64));
        bench.all();
        bench.now += MS;
        bench.association.counts.ce = before;
        let mut ack = Ack::new(0..=0, 0, 0);
        ack.ecn = Some(EcnCounts {
            ce,
            ..EcnCounts::default()
        });
        bench.receive(&[Frame::Ack(ack)]);
        let window = if congested { 10_304 } else { 14_720 };
        assert_eq!(
            bench.association.path_state().window,
            Some(window),
            "{before} {ce}"
        );
        assert_eq!(bench.association.counts.ce, ce);
    }
}

#[test]
fn a_report_of_placed_segments_completes_messages_or_is_a_violation() {
    let mut bench = Bench::new();
    bench.post(2, single(1000));
    assert_eq!(bench.all().len(), 2);
    bench.receive(&[Frame::Placed(Placed { next: 1, map: 0 })]);
    let completed = Event::Completed {
        peer: first(),
        token: 1,
    };
    assert_eq!(bench.events.drain(..).collect::<Vec<_>>(), [completed]);
    let never = Frame::Placed(Placed { next: 3, map: 0 });
    assert_eq!(bench.ends(&[never]), VIOLATION);
    let mut bench = Bench::new();
    assert_eq!(bench.ends(&[ack(0..=0)]), VIOLATION, "never sent");
}

#[test]
fn a_segment_that_breaks_the_rules_of_numbers_is_a_violation() {
    let mut bench = Bench::new();
    let header = SegmentHeader {
        after: 5000,
        ..segment(0)
    };
    assert_eq!(bench.ends(&[arriving(header)]), VIOLATION);
    // Segments beyond the window are dropped, and moot ones acknowledged.
    let mut bench = Bench::new();
    let number = bench.number;
    bench.receive(&[arriving(segment(20_000))]);
    assert!(!bench.association.received.contains(number));
    bench.receive(&[arriving(SegmentHeader {
        message: u32::MAX,
        ..segment(0)
    })]);
    assert!(bench.association.received.contains(number + 1));
    assert_eq!(bench.association.inbound.placed().next, 1);
    assert_eq!(bench.placed.len(), 0);
}

/// RNR names a datagram and the message in it that found no receive; others in it go again at once.
#[test]
fn messages_beside_a_refused_one_go_again_at_once() {
    let mut bench = Bench::new();
    bench.association.backoff = 4;
    let receive = Post {
        receive: true,
        ..single(64)
    };
    bench.post(1, receive);
    bench.post(2, single(64));
    let left = bench.transmit().unwrap();
    assert_eq!(left.count("SEGMENT"), 3);
    let not_ready = |packet| {
        Frame::NotReady(NotReady {
            packet,
            message: 0,
            delay: 5000,
        })
    };
    bench.receive(&[not_ready(left.envelope.number)]);
    assert_eq!(bench.association.backoff, 0, "the peer is there");
    let again = bench.transmit().unwrap();
    assert_eq!(again.count("SEGMENT"), 2);
    assert_eq!(
        bench.association.outbound.refused_until(),
        Some(bench.now + 5 * MS)
    );
    bench.receive(&[not_ready(left.envelope.number)]);
    assert_eq!(bench.kinds(), Vec::<&str>::new(), "once");
    bench.now += 5 * MS;
    bench.receive(&[ack(again.envelope.number..=again.envelope.number)]);
    bench.association.handle_timeout(&bench.config, bench.now);
    bench.now += MS;
    assert_eq!(bench.transmit().map(|it| it.count("SEGMENT")), Some(1));
}

#[test]
fn a_message_fails_after_its_refusals() {
    let mut bench = Bench::with(9, 1 << 20, |config| config.rnr_retries = Some(0));
    let posts = [10, 11].map(|token| Post {
        token,
        receive: true,
        ..single(64)
    });
    posts.into_iter().for_each(|post| bench.post(1, post));
    bench.all();
    let not_ready = NotReady {
        packet: 0,
        message: 1,
        delay: 5000,
    };
    let ended = bench.ends(&[Frame::NotReady(not_ready)]);
    let failed = Some(CloseReason::Failed);
    assert_eq!((ended.cause, ended.reason), (Cause::Flushed, failed));
    let causes: Vec<_> = bench.events.iter().copied().collect();
    let event = |token, cause| Event::Failed {
        peer: first(),
        token,
        cause,
    };
    assert_eq!(
        causes,
        [event(10, Cause::Flushed), event(11, Cause::RnrRetries)]
    );
}

#[test]
fn an_error_fails_its_message_or_is_about_one_that_ended() {
    for scope in [Scope::Peer, Scope::Message] {
        let mut bench = Bench::with(9, 1 << 20, |config| config.scope = scope);
        for token in [10, 11] {
            bench.post(
                1,
                Post {
                    token,
                    ..single(1000)
                },
            );
        }
        assert_eq!(bench.all().len(), 2);
        let error = |message| {
            Frame::Error(MessageError {
                message,
                control: 7,
            })
        };
        bench.receive(&[error(99)]);
        let refused = Event::Refused {
            peer: first(),
            message: 99,
            control: 7,
        };
        assert_eq!(bench.events.pop_front(), Some(refused));
        let event = |token, cause| Event::Failed {
            peer: first(),
            token,
            cause,
        };
        let remote = Cause::Remote(7);
        if scope == Scope::Peer {
            let ended = bench.ends(&[error(1)]);
            assert_eq!(ended.reason, Some(CloseReason::Failed));
            let flushed = event(10, Cause::Flushed);
            assert_eq!(bench.events, [flushed, event(11, remote)]);
        } else {
            bench.receive(&[error(1)]);
            assert_eq!(bench.events, [event(11, remote)]);
            assert_eq!(bench.association.outbound.len(), 1);
        }
    }
}

#[test]
fn a_close_ends_the_association_for_its_reason() {
    let mut bench = Bench::new();
    let close = Close::new(CloseReason::Exited);
    let ended = bench.ends(&[Frame::Close(close)]);
    let cause = Cause::Closed(CloseReason::Exited);
    assert_eq!((ended.cause, ended.reason), (cause, None));
}

#[test]
fn segments_that_use_up_the_window_of_a_long_path_have_it_grow() {
    let mut bench = Bench::on_path(20 * MS);
    let mut number = 0;
    for _ in 0..40 {
        for _ in 0..100 {
            bench.receive(&[arriving(segment(number)), Frame::Pad(1200)]);
            number += 1;
        }
        bench.now += 10 * MS;
    }
    let window = bench.association.tuning.window();
    assert!(window >= 512 << 10, "{window}");
    // Other datagrams are no use of it.
    let mut bench = Bench::on_path(20 * MS);
    for _ in 0..40 {
        for _ in 0..300 {
            bench.receive(&[Frame::Pad(1200)]);
        }
        bench.now += 10 * MS;
    }
    assert_eq!(bench.association.tuning.window(), 0);
}

#[test]
fn the_longest_datagram_of_the_peer_is_the_measure_of_its_window() {
    let mut bench = Bench::new();
    bench.association.share(0, 0);
    assert_eq!(bench.association.grant.window, 2 * 1472);
    bench.receive(&[Frame::Pad(2000 - 32)]);
    bench.association.share(0, 0);
    assert_eq!(bench.association.grant.window, 2 * 2000);
    bench.association.share(5000, 0);
    assert_eq!(bench.association.grant.window, 5000);
}

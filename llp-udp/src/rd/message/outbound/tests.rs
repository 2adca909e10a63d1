//! Messages and segments that leave, in turn or by credit, and that leave again.

use super::*;

#[expect(
    clippy::disallowed_methods,
    reason = "any instant serves as the origin"
)]
fn origin() -> Instant {
    Instant::now()
}

fn post(token: u64, segments: u32) -> Post {
    Post {
        token,
        segments,
        length: 1000,
        last_length: 10,
        trailer: None,
        stream: Some(0),
        receive: false,
    }
}

fn departures(outbound: &mut Outbound) -> Vec<Departure> {
    std::iter::from_fn(|| outbound.next()).collect()
}

fn acked(outbound: &mut Outbound, number: u32) -> Vec<u64> {
    let mut done = Vec::new();
    outbound.on_acked(number, |token| done.push(token));
    done
}

#[test]
fn messages_alternate_and_each_names_the_one_before() {
    let mut outbound = Outbound::default();
    assert!(outbound.is_empty());
    for (token, segments) in [(10, 3), (11, 1), (12, 2)] {
        outbound.post(post(token, segments));
    }
    assert_eq!((outbound.peek(), outbound.len()), (Some(1000), 3));
    let sent: Vec<_> = departures(&mut outbound)
        .iter()
        .map(|it| {
            let header = it.header;
            assert_eq!(header.last, it.length == 10);
            (header.number, it.token, header.index, header.after)
        })
        .collect();
    let expected = [
        (0, 10, 0, 0),
        (1, 11, 0, 1),
        (2, 12, 0, 1),
        (3, 10, 1, 0),
        (4, 12, 1, 1),
        (5, 10, 2, 0),
    ];
    assert_eq!(sent, expected);
    assert_eq!(outbound.token(1), Some(11));
    assert_eq!(acked(&mut outbound, 1), [11]);
    assert_eq!(outbound.token(1), None);
    assert_eq!(acked(&mut outbound, 1), [], "once");
    for number in [0, 2, 3] {
        assert_eq!(acked(&mut outbound, number), []);
    }
    assert_eq!(acked(&mut outbound, 4), [12]);
    // 12 is there, but 10 before it is not: the next still names 12.
    outbound.post(post(13, 1));
    assert_eq!(departures(&mut outbound)[0].header.after, 1);
    assert_eq!(acked(&mut outbound, 5), [10]);
    assert_eq!(acked(&mut outbound, 6), [13]);
    assert!(outbound.is_empty() && outbound.streams.is_empty());
    outbound.post(post(14, 1));
    assert_eq!(departures(&mut outbound)[0].header.after, 0);
}

#[test]
fn four_messages_alternate_and_of_an_rc_queue_pair_one() {
    for (in_turn, expected) in [(false, "012301230123454545"), (true, "000111222333444555")] {
        let mut outbound = Outbound::new(in_turn);
        for token in 0..6 {
            outbound.post(post(token, 3));
        }
        let departures = departures(&mut outbound);
        let order: String = departures.iter().map(|it| it.token.to_string()).collect();
        assert_eq!(order, expected);
    }
}

#[test]
fn lost_segments_go_again_first_and_once() {
    let mut outbound = Outbound::default();
    outbound.post(post(1, 4));
    let sent = departures(&mut outbound);
    outbound.post(post(2, 1));
    outbound.on_lost(1);
    outbound.on_lost(1);
    outbound.on_lost(2);
    outbound.on_lost(99);
    acked(&mut outbound, 2);
    assert_eq!(outbound.peek(), Some(1000));
    let again = departures(&mut outbound);
    assert_eq!(again[0], sent[1]);
    assert_eq!((again[1].token, again.len()), (2, 2));
    outbound.probe(0);
    outbound.probe(2);
    assert_eq!(departures(&mut outbound), [sent[0]]);
}

#[test]
fn windows_of_segments_and_messages_hold() {
    let mut outbound = Outbound::default();
    outbound.post(post(1, SEGMENTS + 5));
    assert_eq!(departures(&mut outbound).len(), 16_384);
    acked(&mut outbound, 1);
    assert_eq!(outbound.peek(), None);
    acked(&mut outbound, 0);
    assert_eq!(departures(&mut outbound).len(), 2);
    let mut outbound = Outbound::default();
    for token in 0..5000 {
        outbound.post(Post {
            stream: None,
            ..post(token, 1)
        });
    }
    assert_eq!(departures(&mut outbound).len(), 4096);
    assert!(outbound.is_blocked());
    acked(&mut outbound, 0);
    assert_eq!(departures(&mut outbound).len(), 1);
}

#[test]
fn a_trailer_follows_the_last_segment() {
    let mut outbound = Outbound::default();
    let lengths = |outbound: &mut Outbound| -> Vec<u16> {
        departures(outbound).iter().map(|it| it.length).collect()
    };
    for (segments, expected) in [(4, &[1000, 1000, 10, 26][..]), (2, &[10, 26])] {
        outbound.post(Post {
            trailer: Some(26),
            ..post(0, segments)
        });
        assert_eq!(lengths(&mut outbound), expected);
    }
    outbound.post(post(0, 2));
    assert_eq!(lengths(&mut outbound), [1000, 10]);
}

#[test]
fn one_message_at_a_time_goes_without_credit() {
    let now = origin();
    let ms = Duration::from_millis(1);
    let mut outbound = Outbound::default();
    outbound.grant(2);
    for token in 0..5 {
        outbound.post(Post {
            receive: true,
            ..post(token, 1)
        });
    }
    assert_eq!(departures(&mut outbound).len(), 2);
    assert!(outbound.is_blocked());
    acked(&mut outbound, 1);
    assert_eq!(departures(&mut outbound), [], "0 is still open");
    acked(&mut outbound, 0);
    let sent = departures(&mut outbound);
    assert_eq!((sent[0].token, sent.len()), (2, 1));
    assert_eq!(outbound.on_refused(now, 2, ms, Some(2)), Ok(()));
    assert_eq!(outbound.on_refused(now, 2, ms, Some(0)), Ok(()), "once");
    assert_eq!(outbound.refused_until(), Some(now + ms));
    outbound.handle_timeout(now + ms / 2);
    assert_eq!(departures(&mut outbound), []);
    outbound.handle_timeout(now + ms);
    assert_eq!(outbound.refused_until(), None);
    assert_eq!(departures(&mut outbound), sent);
    assert_eq!(outbound.on_refused(now, 2, ms, Some(2)), Ok(()));
    assert_eq!(outbound.refused_until(), Some(now + 2 * ms));
    outbound.grant(1);
    assert_eq!(departures(&mut outbound), [], "credit does not go back");
    outbound.grant(4);
    let tokens: Vec<_> = departures(&mut outbound)
        .iter()
        .map(|it| it.token)
        .collect();
    assert_eq!(tokens, [2, 3]);
    assert_eq!(
        outbound.on_refused(now, 2, ms, Some(2)),
        Err(RetriesExceeded { token: 2 })
    );
    acked(&mut outbound, 2);
    assert_eq!(departures(&mut outbound), [], "3 is still open");
    outbound.grant(5);
    assert_eq!(departures(&mut outbound).len(), 1);
}

/// Credit is a serial number: half of the range ahead is the most.
#[test]
fn credit_is_serial() {
    let mut outbound = Outbound::default();
    let receive = Post {
        receive: true,
        ..post(0, 1)
    };
    for _ in 0..3 {
        outbound.post(receive);
    }
    assert!(outbound.is_short_of_credit());
    outbound.grant(1 << 31);
    assert!(outbound.is_short_of_credit(), "behind, not ahead");
    outbound.grant((1 << 31) - 1);
    assert!(!outbound.is_short_of_credit());
    outbound.grant(1 << 31);
    assert!(!outbound.is_short_of_credit());
    assert_eq!(departures(&mut outbound).len(), 3);
}

/// Retries of an RC queue pair are those of its first message that is not acknowledged, and take 100 ms at least, if there are any.
#[test]
fn an_rc_queue_pair_retries_for_a_while() {
    let start = origin();
    let ms = Duration::from_millis(1);
    let receive = |token| Post {
        receive: true,
        ..post(token, 1)
    };
    let in_flight = || {
        let mut outbound = Outbound::new(true);
        outbound.grant(9);
        outbound.post(receive(4));
        outbound.post(receive(5));
        assert_eq!(departures(&mut outbound).len(), 2);
        outbound
    };
    let exceeded = |token| Err(RetriesExceeded { token });
    // None: the first refusal is the end, of the first message alone.
    let mut outbound = in_flight();
    assert_eq!(outbound.on_refused(start, 1, ms, Some(0)), Ok(()));
    assert_eq!(outbound.on_refused(start, 0, ms, Some(0)), exceeded(4));
    let mut outbound = in_flight();
    acked(&mut outbound, 0);
    assert_eq!(outbound.on_refused(start, 1, ms, Some(0)), exceeded(5));
    // Two: the third is the end, not before 100 ms have passed.
    for (last, expected) in [(100 * ms - ms / 100, Ok(())), (100 * ms, exceeded(4))] {
        let mut outbound = in_flight();
        for at in [start, start + ms] {
            assert_eq!(outbound.on_refused(at, 0, ms, Some(2)), Ok(()));
            outbound.handle_timeout(at + 50 * ms);
            departures(&mut outbound);
        }
        let refused = outbound.on_refused(start + last, 0, ms, Some(2));
        assert_eq!(refused, expected);
    }
    // Any number of them of another message, behind one that is not acknowledged.
    let mut outbound = in_flight();
    for at in 0..20 {
        let at = start + at * Duration::from_secs(2);
        assert_eq!(outbound.on_refused(at, 1, ms, Some(2)), Ok(()));
        outbound.handle_timeout(at + Duration::from_secs(1));
        departures(&mut outbound);
    }
}

/// Delays double with the refusals, up to a second; the shortest one of several messages counts.
#[test]
fn delays_after_rnr_double_up_to_a_second() {
    let mut now = origin();
    let ms = Duration::from_millis(1);
    let mut outbound = Outbound::default();
    outbound.post(post(1, 1));
    departures(&mut outbound);
    let mut delays = Vec::new();
    for _ in 0..9 {
        assert_eq!(outbound.on_refused(now, 0, 10 * ms, None), Ok(()));
        let until = outbound.refused_until().unwrap();
        delays.push((until - now).as_millis());
        now = until;
        outbound.handle_timeout(now);
        assert!(outbound.repeats());
        departures(&mut outbound);
        assert!(!outbound.repeats());
    }
    assert_eq!(delays, [10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
    outbound.post(post(2, 1));
    departures(&mut outbound);
    assert_eq!(outbound.on_refused(now, 0, 10 * ms, None), Ok(()));
    assert_eq!(outbound.refused_until(), Some(now + 1000 * ms));
    assert_eq!(outbound.on_refused(now, 1, 10 * ms, None), Ok(()));
    assert_eq!(outbound.refused_until(), Some(now + 10 * ms));
}

#[test]
fn a_refused_message_sends_nothing() {
    let now = origin();
    let ms = Duration::from_millis(1);
    let mut outbound = Outbound::default();
    outbound.post(post(1, 4));
    let sent = [outbound.next().unwrap(), outbound.next().unwrap()];
    assert_eq!(outbound.on_refused(now, 0, ms, None), Ok(()));
    outbound.on_lost(1);
    assert_eq!(departures(&mut outbound), []);
    outbound.handle_timeout(now + ms);
    let again = departures(&mut outbound);
    assert_eq!((again.len(), &again[..2]), (4, &sent[..]));
    assert_eq!(outbound.on_refused(now, 3, ms, None), Ok(()));
    assert_eq!(outbound.refused_until(), Some(now + 2 * ms));
}

#[test]
fn a_segment_that_was_refused_and_arrived_counts_once() {
    let now = origin();
    let mut outbound = Outbound::default();
    outbound.post(post(1, 2));
    departures(&mut outbound);
    assert_eq!(outbound.on_refused(now, 0, Duration::ZERO, None), Ok(()));
    assert_eq!(acked(&mut outbound, 0), []);
    outbound.handle_timeout(now);
    assert_eq!(departures(&mut outbound), []);
    assert_eq!(acked(&mut outbound, 0), []);
    assert_eq!(acked(&mut outbound, 1), [1]);
}

#[test]
fn a_report_of_placed_segments_acknowledges_them() {
    let mut outbound = Outbound::default();
    for token in 0..6 {
        outbound.post(post(token, 1));
    }
    departures(&mut outbound);
    let mut report = |next, map| {
        let mut done = Vec::new();
        let possible = outbound.on_placed(&Placed { next, map }, |token| done.push(token));
        possible.then_some(done)
    };
    assert_eq!(report(2, 0b101), Some(vec![0, 1, 3, 5]));
    assert_eq!(report(1, 0), Some(vec![]));
    assert_eq!(report(7, 0), None);
    assert_eq!(report(6, 0), Some(vec![2, 4]));
    assert!(outbound.is_empty());
}

#[test]
fn an_abandoned_message_leaves_nothing() {
    let mut outbound = Outbound::default();
    for token in 0..3 {
        outbound.post(post(token, 2));
    }
    for _ in 0..4 {
        outbound.next();
    }
    outbound.on_lost(0);
    outbound.abandon(0);
    assert_eq!(outbound.len(), 2);
    let tokens: Vec<_> = departures(&mut outbound)
        .iter()
        .map(|it| it.token)
        .collect();
    assert_eq!(tokens, [1, 2]);
    let mut done = Vec::new();
    for number in 1..6 {
        outbound.on_acked(number, |token| done.push(token));
    }
    assert_eq!(done, [1, 2]);
    assert!(outbound.is_empty() && outbound.segments.is_empty());
}

#[test]
fn what_did_not_end_is_drained() {
    let mut outbound = Outbound::default();
    for token in 0..7 {
        outbound.post(post(token, 2));
    }
    outbound.next();
    let mut all = Vec::new();
    outbound.drain(|token| all.push(token));
    assert_eq!(all, [0, 1, 2, 3, 4, 5, 6]);
    assert!(outbound.is_empty());
}

//! RC QPs: one peer, receives in order, and errors that end both ends.

use super::*;

const FLUSHED: WcStatus = WcStatus::Flushed;

/// Two ends that are each other's peers; the first begins with `psn`, and the second expects 5.
pub(super) fn pair(now: Instant, psn: u32, receives: u64) -> [End; 2] {
    let mut ends = [1, 2].map(|number| End::of(now, number, receives, Some(Lives::default())));
    for (at, other, lives) in [(0, 2, (psn, 6)), (1, 1, (6, 5))] {
        let (own, peer) = lives;
        assert!(ends[at].engine.connect(address(other), None));
        assert!(!ends[at].engine.connect(address(3), None), "one peer");
        ends[at].engine.set_lives(Lives { own, peer });
    }
    ends
}

fn lengths(end: &mut End) -> Vec<(u64, u32, WcStatus)> {
    let received = end.received();
    assert!(received.iter().all(|wc| wc.source.is_none()));
    received
        .iter()
        .map(|wc| (wc.wr_id, wc.byte_len, wc.status))
        .collect()
}

#[test]
fn receives_are_taken_in_the_order_of_messages_whatever_arrives_first() {
    let mut now = origin();
    let mut ends = pair(now, 5, 20);
    for wr_id in 0..20 {
        ends[0].send(wr_id, 2, 0, 100 + u32::try_from(wr_id).unwrap() * 300);
    }
    let mut count = 0;
    talk(&mut now, 3000 * MS, &mut ends, |_| {
        count += 1;
        count % 3 == 0
    });
    let expected: Vec<_> = (0..20)
        .map(|at| (u64::from(at), 100 + 300 * at, OK))
        .collect();
    assert_eq!(lengths(&mut ends[1]), expected);
    assert!(ends[0].sent().iter().all(|(_, status)| *status == OK));
}

#[test]
fn strangers_and_other_lives_are_not_heard() {
    let mut now = origin();
    // The first end is of another life than the second expects.
    let mut ends = pair(now, 4, 4);
    ends[0].send(0, 2, 0, 10);
    talk(&mut now, 1000 * MS, &mut ends, |_| false);
    assert_eq!((lengths(&mut ends[1]), ends[0].sent()), (vec![], vec![]));
    assert_eq!(ends[1].engine.associations(), 0);
    // A stranger, which is no RC QP either.
    let mut stranger = End::new(now, 3, 0);
    stranger.send(0, 2, 0, 10);
    stranger.pump(now);
    let (_, datagram) = stranger.wire.0.pop_front().unwrap();
    let heard = ends[1].take(now, stranger.address, &datagram);
    assert_eq!(heard, Some(DropReason::WrongPeer));
    // The peer's address does not help it.
    let heard = ends[1].take(now, address(1), &datagram);
    assert_eq!(heard, Some(DropReason::Late));
    assert_eq!((lengths(&mut ends[1]), ends[1].queue.len()), (vec![], 4));
}

#[test]
fn an_error_ends_both_ends_behind_what_came_before() {
    let mut now = origin();
    let mut ends = pair(now, 5, 4);
    ends[0].send(0, 2, 0, 10);
    ends[0].send(1, 2, 0, ROOM + 1);
    ends[0].send(2, 2, 0, 10);
    talk(&mut now, 500 * MS, &mut ends, |_| false);
    let expected = [(0, OK), (1, WcStatus::RemoteInvalidRequest), (2, FLUSHED)];
    assert_eq!(ends[0].sent(), expected);
    let received: Vec<_> = lengths(&mut ends[1]).iter().map(|it| it.2).collect();
    assert_eq!(received, [OK, WcStatus::LocalLength, FLUSHED, FLUSHED]);
    assert!(lengths(&mut ends[0]).iter().all(|it| it.2 == FLUSHED));
    for end in &ends {
        assert!(end.engine.is_over());
        assert_eq!((end.queue.len(), end.engine.associations()), (0, 0));
    }
}

#[test]
fn a_peer_that_leaves_ends_nothing_until_it_is_needed() {
    let mut now = origin();
    let mut ends = pair(now, 5, 4);
    ends[0].send(0, 2, 0, 10);
    talk(&mut now, 100 * MS, &mut ends, |_| false);
    let End {
        mrs,
        queue,
        completed,
        engine,
        ..
    } = &mut ends[0];
    let tables = Tables {
        mrs,
        recv_queue: queue,
    };
    engine.flush(now, tables, completed);
    talk(&mut now, 5000 * MS, &mut ends, |_| false);
    assert!(!ends[1].engine.is_over());
    assert_eq!(ends[1].queue.len(), 3);
    ends[1].send(7, 1, 0, 10);
    ends[1].send(8, 1, 0, 10);
    talk(&mut now, 900 * MS, &mut ends, |_| false);
    assert_eq!(ends[1].sent(), []);
    talk(&mut now, 200 * MS, &mut ends, |_| false);
    assert_eq!(ends[1].sent(), [(7, WcStatus::RetryExceeded), (8, FLUSHED)]);
    assert_eq!(ends[1].queue.len(), 0);
}

#[test]
fn an_end_that_only_receives_notices_a_peer_that_was_killed() {
    let mut now = origin();
    let mut ends = pair(now, 5, 4);
    ends[0].send(0, 2, 0, 10);
    talk(&mut now, 100 * MS, &mut ends, |_| false);
    assert_eq!(lengths(&mut ends[1]).len(), 1);
    // Idle for longer than an association of other queue pairs.
    talk(&mut now, 70_000 * MS, &mut ends, |_| false);
    assert!(!ends[1].engine.is_over());
    talk(&mut now, 5500 * MS, &mut ends[1..], |_| true);
    assert!(ends[1].engine.is_over());
    let received: Vec<_> = lengths(&mut ends[1]).iter().map(|it| it.2).collect();
    assert_eq!(received, [FLUSHED; 3]);
}

fn tables(end: &mut End) -> (&mut RdEngine, Tables<'_>, &mut RecordingSink) {
    let tables = Tables {
        mrs: &end.mrs,
        recv_queue: &end.queue,
    };
    (&mut end.engine, tables, &mut end.completed)
}

fn disconnect(end: &mut End, now: Instant) {
    let (engine, tables, completed) = tables(end);
    engine.disconnect(now, now + 1000 * MS, tables, completed);
}

fn route() -> Route {
    let host = Ipv4Addr::LOCALHOST.into();
    Route::new(
        host,
        0,
        None,
        host,
        Path::new(PathKind::Network, false, 1500),
    )
}

/// A peer that becomes ready much later than this end is not lost, and one that was heard of is, though nothing was ever posted.
#[test]
fn a_peer_is_greeted_in_vain_until_it_is_ready() {
    let mut now = origin();
    let mut ends = pair(now, 5, 4);
    ends[0].engine.greet_peer(now, &route());
    talk(&mut now, 20_000 * MS, &mut ends, |_| true);
    assert!(!ends[0].engine.is_over());
    // A work request has all of the time, though a greeting is under way.
    ends[0].engine.greet_peer(now, &route());
    talk(&mut now, 3000 * MS, &mut ends, |_| true);
    ends[0].send(9, 2, 0, 10);
    talk(&mut now, 3900 * MS, &mut ends, |_| true);
    assert_eq!(ends[0].sent(), []);
    talk(&mut now, 200 * MS, &mut ends, |_| true);
    assert_eq!(ends[0].sent(), [(9, WcStatus::RetryExceeded)]);

    let mut ends = pair(now, 5, 4);
    ends[0].engine.greet_peer(now, &route());
    talk(&mut now, 1000 * MS, &mut ends, |_| true);
    ends[1].engine.greet_peer(now, &route());
    talk(&mut now, 100 * MS, &mut ends, |_| false);
    ends[0].send(0, 2, 0, 10);
    talk(&mut now, 100 * MS, &mut ends, |_| false);
    assert_eq!(
        (ends[0].sent(), lengths(&mut ends[1]).len()),
        (vec![(0, OK)], 1)
    );

    let mut ends = pair(now, 5, 4);
    ends[0].engine.greet_peer(now, &route());
    ends[1].engine.greet_peer(now, &route());
    talk(&mut now, 100 * MS, &mut ends, |_| false);
    talk(&mut now, 5500 * MS, &mut ends[1..], |_| true);
    assert!(ends[1].engine.is_over());
    assert_eq!(lengths(&mut ends[1]).len(), 4);
}

#[test]
fn an_end_that_disconnects_has_its_messages_placed_first() {
    let mut now = origin();
    let mut ends = pair(now, 5, 8);
    for wr_id in 0..4 {
        ends[0].send(wr_id, 2, 0, 7000);
    }
    disconnect(&mut ends[0], now);
    disconnect(&mut ends[0], now);
    assert!(!ends[0].engine.is_over());
    let mut count = 0;
    talk(&mut now, 500 * MS, &mut ends, |_| {
        count += 1;
        count % 5 == 0
    });
    assert!(ends[0].engine.is_over(), "well before a second is over");
    assert_eq!(ends[0].sent(), [0, 1, 2, 3].map(|wr_id| (wr_id, OK)));
    let flushed = lengths(&mut ends[0]);
    assert!(flushed.len() == 8 && flushed.iter().all(|it| it.2 == FLUSHED));
    // The other end keeps its receives, until its program disconnects, too.
    assert_eq!((lengths(&mut ends[1]).len(), ends[1].queue.len()), (4, 4));
    assert!(!ends[1].engine.is_over());
    disconnect(&mut ends[1], now);
    assert!(ends[1].engine.is_over());
    assert_eq!(lengths(&mut ends[1]).len(), 4);
}

#[test]
fn an_end_that_disconnects_waits_a_second_for_a_peer_without_receives() {
    let mut now = origin();
    let mut ends = pair(now, 5, 0);
    ends[0].send(0, 2, 0, 10);
    talk(&mut now, 100 * MS, &mut ends, |_| false);
    assert!(!ends[0].engine.is_sending() && ends[0].engine.outstanding() == 1);
    disconnect(&mut ends[0], now);
    talk(&mut now, 990 * MS, &mut ends, |_| false);
    assert_eq!(ends[0].sent(), []);
    talk(&mut now, 20 * MS, &mut ends, |_| false);
    assert_eq!(ends[0].sent(), [(0, FLUSHED)]);
}

/// TCP ended beside it, and no CLOSE came: a program that only polls learns it, and one that posts does before.
#[test]
fn an_end_whose_peer_was_killed_ends_three_seconds_later() {
    for posts in [false, true] {
        let mut now = origin();
        let mut ends = pair(now, 5, 4);
        ends[0].send(0, 2, 0, 10);
        talk(&mut now, 100 * MS, &mut ends, |_| false);
        assert_eq!(lengths(&mut ends[1]).len(), 1);
        let (engine, tables, completed) = tables(&mut ends[1]);
        engine.peer_left(now, tables, completed);
        if posts {
            ends[1].send(7, 1, 0, 10);
        }
        let (least, status) = if posts {
            (990, vec![(7, WcStatus::RetryExceeded)])
        } else {
            (2990, vec![])
        };
        talk(&mut now, least * MS, &mut ends[1..], |_| true);
        assert!(!ends[1].engine.is_over());
        talk(&mut now, 20 * MS, &mut ends[1..], |_| true);
        assert!(ends[1].engine.is_over());
        assert_eq!((ends[1].sent(), lengths(&mut ends[1]).len()), (status, 3));
    }
}

/// The requester's QP is in error, and the responder stays ready, as on InfiniBand.
#[test]
fn rnr_retries_of_either_end_are_a_limit() {
    for of_requester in [false, true] {
        let mut now = origin();
        let mut ends = pair(now, 5, 0);
        if of_requester {
            ends[0].engine.set_rnr_retries(Some(2));
        } else {
            ends[1].engine.limit_peer_retries(Some(2));
        }
        ends[0].send(0, 2, 0, 10);
        ends[0].send(1, 2, 0, 10);
        talk(&mut now, 95 * MS, &mut ends, |_| false);
        assert_eq!(ends[0].sent(), [], "a tenth of a second at least");
        talk(&mut now, 400 * MS, &mut ends, |_| false);
        assert_eq!(
            ends[0].sent(),
            [(0, WcStatus::RnrRetryExceeded), (1, FLUSHED)]
        );
        assert!(ends[0].engine.is_over());
        assert_eq!(ends[1].engine.is_over(), !of_requester);
    }
    // Without a limit they wait.
    let mut now = origin();
    let mut ends = pair(now, 5, 0);
    ends[0].send(0, 2, 0, 10);
    talk(&mut now, 5000 * MS, &mut ends, |_| false);
    ends[1].post_recv(0);
    talk(&mut now, 1500 * MS, &mut ends, |_| false);
    assert_eq!(ends[0].sent(), [(0, OK)]);
}

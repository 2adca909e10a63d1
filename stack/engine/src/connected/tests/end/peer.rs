//! The peer's end as this end's program meets it: in order, with a bye, or killed, with nothing but TCP's end.

use crate::connected::tests::detect_peer::{detected_pair, resume, settle};
use crate::connected::tests::*;

over_each_llp! {
    a_peer_that_left_in_order_leaves_the_receives_posted,
    a_killed_peer_ends_the_receives_in_time,
    a_plain_peer_that_closed_ends_the_receives_in_time,
    a_killed_peer_ends_what_is_outstanding_at_once,
    messages_before_the_end_are_delivered_as_receives_come,
    messages_before_the_end_do_not_wait_for_ever,
}

/// Time within which programs are promised the end.
pub(super) const PROMISED: Duration = Duration::from_secs(5);

const OUTLIVING: RcOptions = RcOptions {
    outlives_peer: true,
    ..PLAIN
};

/// Two dgiwarp peers that outlive each other, or with `plain` ends of which the second is a plain one.
fn outliving_pair(llp: Lower, plain: bool) -> (End, End) {
    if plain {
        return pair_over(llp, 4, [OUTLIVING, PLAIN]);
    }
    let (mut client, mut server) = detected_pair(llp);
    client.engine.config.options.outlives_peer = true;
    server.engine.config.options.outlives_peer = true;
    (client, server)
}

/// TCP's stream ends at this time.
fn closes(end: &mut End, now: Instant) {
    end.work(|engine, tables, completed| engine.handle_end(now, TcpEnd::Fin, tables, completed));
}

pub(super) fn runs_timers(end: &mut End, now: Instant) {
    let tables = Tables {
        mrs: &end.mrs,
        recv_queue: &end.receives,
    };
    end.engine.handle_timeout(now);
    end.engine.make_fpdus(now, tables, &mut end.completed);
}

fn a_peer_that_left_in_order_leaves_the_receives_posted(llp: Lower) {
    let (mut client, mut server) = outliving_pair(llp, false);
    client.post_recv(1, 0, 10);
    server.work(|engine, tables, completed| engine.close(tables, completed));
    settle(&mut client, &mut server, 100);
    closes(&mut client, now());
    assert_eq!(client.engine.end(), Some(RcEnd::PeerLeft));
    assert_eq!(client.engine.poll_timeout(), None);
    runs_timers(&mut client, now() + 10 * PROMISED);
    assert!(client.completed.received.is_empty() && client.engine.is_dormant());
}

/// Checks that one receive of an end whose peer has closed is flushed, neither at once nor later than promised.
fn receives_end_in_time(mut end: End) {
    end.post_recv(1, 0, 10);
    let began = now();
    closes(&mut end, began);
    assert_eq!(end.engine.end(), Some(RcEnd::PeerLeft));
    assert!(end.completed.received.is_empty());
    let until = end.engine.poll_timeout().expect("a deadline");
    assert!(until < now() + PROMISED);
    runs_timers(&mut end, until - Duration::from_millis(1));
    assert!(end.completed.received.is_empty());
    runs_timers(&mut end, until);
    let wc = end.completed.received[0];
    assert_eq!((wc.wr_id, wc.status), (1, WcStatus::Flushed));
    assert!(!end.engine.is_dormant());
    assert_eq!(end.engine.poll_timeout(), None);
}

fn a_killed_peer_ends_the_receives_in_time(llp: Lower) {
    let (client, server) = outliving_pair(llp, false);
    receives_end_in_time(client);
    receives_end_in_time(server);
}

fn a_plain_peer_that_closed_ends_the_receives_in_time(llp: Lower) {
    receives_end_in_time(outliving_pair(llp, true).0);
}

fn a_killed_peer_ends_what_is_outstanding_at_once(llp: Lower) {
    let (mut client, _) = outliving_pair(llp, false);
    client.post_recv(1, 0, 10);
    client.post_send(2, &[client.sge(0, 4)]);
    client.post_send(3, &[client.sge(0, 4)]);
    closes(&mut client, now());
    assert_eq!(client.engine.end(), Some(RcEnd::PeerLost));
    let ended = |wcs: &[Wc]| {
        wcs.iter()
            .map(|wc| (wc.wr_id, wc.status))
            .collect::<Vec<_>>()
    };
    let sent = [(2, WcStatus::RetryExceeded), (3, WcStatus::Flushed)];
    assert_eq!(ended(&client.completed.sent), sent);
    assert_eq!(ended(&client.completed.received), [(1, WcStatus::Flushed)]);
}

/// A server whose peer has sent three messages without receives, and closed or was lost.
fn with_waiting_messages(llp: Lower, end: TcpEnd, began: Instant) -> End {
    let (mut client, mut server) = outliving_pair(llp, false);
    for wr_id in 1..=3 {
        client.post_send(wr_id, &[client.sge(0, 100)]);
    }
    client.carry_to(&mut server, 1000);
    server.work(|engine, tables, completed| engine.handle_end(began, end, tables, completed));
    assert_eq!(server.engine.end(), None);
    server
}

fn messages_before_the_end_are_delivered_as_receives_come(llp: Lower) {
    for end in [TcpEnd::Fin, TcpEnd::Lost] {
        let mut server = with_waiting_messages(llp, end, now());
        for wr_id in 10..=12 {
            assert_eq!(server.engine.end(), None);
            server.post_recv(wr_id, 0, 100);
            resume(&mut server);
        }
        assert!(server.engine.end().is_some());
        let received = server.completed.received.iter();
        let outcomes = received.map(|wc| (wc.wr_id, wc.status));
        let success = WcStatus::Success;
        assert!(outcomes.eq([(10, success), (11, success), (12, success)]));
    }
}

fn messages_before_the_end_do_not_wait_for_ever(llp: Lower) {
    let began = now();
    let mut server = with_waiting_messages(llp, TcpEnd::Fin, began);
    let until = server.engine.poll_timeout().expect("a deadline");
    assert!(until > began && until < began + PROMISED);
    server.post_recv(10, 0, 100);
    resume(&mut server);
    assert!(
        server.engine.poll_timeout() >= Some(until),
        "from the last delivery"
    );
    let until = server.engine.poll_timeout().expect("a deadline");
    runs_timers(&mut server, until - Duration::from_millis(1));
    assert_eq!(server.engine.end(), None);
    runs_timers(&mut server, until);
    assert!(server.engine.end().is_some());
}

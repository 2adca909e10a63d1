//! RNR limits: retries and timer of messages that wait for a receive.

use super::detect_peer::{ids, resume, send, settle};
use super::*;
use crate::types::RnrLimits;

over_each_llp! {
    rnr_retries_limit_the_wait,
    a_receive_in_time_begins_the_retries_anew,
    without_limits_messages_wait_for_ever,
    a_limit_overtakes_messages_that_wait,
}

/// A server without receives, which outlives its peer or not, and a client whose messages have so many RNR retries.
fn limited_pair(llp: Lower, retries: u8, outlives_peer: bool) -> (End, End) {
    let options = RcOptions {
        outlives_peer,
        ..RcOptions::default()
    };
    let (mut client, mut server) = pair_over(llp, 1, [options; 2]);
    // Before the peers are detected.
    client.engine.limit_rnr(RnrLimits {
        retries: Some(retries),
        ..RnrLimits::default()
    });
    server.engine.limit_rnr(RnrLimits {
        timer: Some(Duration::from_millis(200)),
        ..RnrLimits::default()
    });
    client.work(|_, _, _| ());
    settle(&mut client, &mut server, 100);
    (client, server)
}

fn time_passes(end: &mut End, to: Instant) {
    let tables = Tables {
        mrs: &end.mrs,
        recv_queue: &end.receives,
    };
    end.engine.handle_timeout(to);
    end.engine.make_fpdus(to, tables, &mut end.completed);
}

fn rnr_retries_limit_the_wait(llp: Lower) {
    for outlives in [false, true] {
        for (retries, millis) in [(0, 0), (1, 200), (3, 600), (6, 1200)] {
            let (mut client, mut server) = limited_pair(llp, retries, outlives);
            server.post_recv(7, 0, 100);
            send(&mut client, 1, 64);
            send(&mut client, 2, 64);
            send(&mut client, 3, 64);
            let before = now();
            client.carry_to(&mut server, 100);
            let due = server.engine.poll_timeout().unwrap();
            let wait = Duration::from_millis(millis);
            assert!((before + wait..=now() + wait).contains(&due), "{retries}");
            if millis > 0 {
                time_passes(&mut server, due - Duration::from_millis(1));
            }
            assert_eq!(server.engine.end(), None);
            time_passes(&mut server, due);
            let end = server.engine.end().unwrap();
            assert_eq!(end == RcEnd::PeerLeft, outlives, "{end}");
            server.carry_to(&mut client, 100);
            let of = |wc: &Wc| (wc.wr_id, wc.status);
            let statuses: Vec<_> = client.completed.sent.iter().map(of).collect();
            let expected = [
                (1, WcStatus::Success),
                (2, WcStatus::RnrRetryExceeded),
                (3, WcStatus::Flushed),
            ];
            assert_eq!(statuses, expected);
            // The responder goes on as InfiniBand's: it keeps receives, for ever, and messages that failed at their sender are not delivered.
            server.post_recv(8, 0, 100);
            resume(&mut server);
            time_passes(&mut server, due + Duration::from_secs(100));
            assert_eq!(server.completed.received.len(), 1);
            assert_eq!(server.engine.is_dormant(), outlives);
        }
    }
}

fn a_receive_in_time_begins_the_retries_anew(llp: Lower) {
    let (mut client, mut server) = limited_pair(llp, 1, true);
    send(&mut client, 1, 64);
    send(&mut client, 2, 64);
    client.carry_to(&mut server, 100);
    let first = server.engine.poll_timeout().unwrap();
    // It is posted between the timeout and the next FPDU.
    server.engine.handle_timeout(first);
    server.post_recv(7, 0, 100);
    server.work(|engine, tables, completed| engine.receive_posted(first, tables, completed));
    let second = server.engine.poll_timeout().unwrap();
    assert_eq!(second, first + Duration::from_millis(200));
    server.post_recv(8, 0, 100);
    resume(&mut server);
    settle(&mut client, &mut server, 100);
    server.work(|engine, _, _| assert!(engine.flush_acks(now(), true)));
    settle(&mut client, &mut server, 100);
    assert_eq!(ids(&client.completed.sent), [1, 2]);
    assert_eq!(
        (server.engine.rnr_deadline(), server.engine.end()),
        (None, None)
    );
}

fn without_limits_messages_wait_for_ever(llp: Lower) {
    let timer = Some(Duration::from_millis(1));
    let none = RnrLimits::default();
    let limited = |retries| RnrLimits { retries, ..none };
    for (of_client, of_server, peer) in [
        (none, RnrLimits { timer, ..none }, RcOptions::default()),
        (limited(Some(1)), none, RcOptions::default()),
        // A plain peer.
        (limited(Some(1)), RnrLimits { timer, ..none }, PLAIN),
    ] {
        let (mut client, mut server) = pair_over(llp, 1, [peer, RcOptions::default()]);
        client.engine.limit_rnr(of_client);
        server.engine.limit_rnr(of_server);
        client.work(|_, _, _| ());
        settle(&mut client, &mut server, 100);
        send(&mut client, 1, 64);
        client.carry_to(&mut server, 100);
        time_passes(&mut server, now() + Duration::from_secs(1000));
        assert_eq!(server.engine.end(), None);
    }
    // The least time, the receive timeout where that is shorter, and a limit of this end's own.
    for (retries, peer_retries, timeout, expected) in [
        (1, None, None, 100),
        (6, None, Some(50), 50),
        (7, Some(1), None, 100),
        (1, Some(7), None, 0),
    ] {
        let (mut client, mut server) = limited_pair(llp, retries, true);
        server.engine.config.options.receive_timeout = timeout.map(Duration::from_millis);
        server.engine.limit_rnr(RnrLimits {
            timer,
            peer_retries,
            ..none
        });
        send(&mut client, 1, 64);
        let before = now();
        client.carry_to(&mut server, 100);
        let due = server.engine.poll_timeout();
        let wait = Duration::from_millis(expected);
        match due {
            None => assert_eq!(expected, 0),
            Some(due) => assert!((before + wait..=now() + wait).contains(&due), "{expected}"),
        }
        if let Some(due) = due {
            time_passes(&mut server, due);
            assert_eq!(
                server.engine.end() == Some(RcEnd::PeerLeft),
                timeout.is_none()
            );
        }
    }
}

/// A limit that changes, and comes while messages wait.
fn a_limit_overtakes_messages_that_wait(llp: Lower) {
    let (mut client, mut server) = limited_pair(llp, 7, true);
    send(&mut client, 1, 64);
    client.carry_to(&mut server, 100);
    assert_eq!(server.engine.poll_timeout(), None);
    client.engine.limit_rnr(RnrLimits {
        retries: Some(2),
        ..RnrLimits::default()
    });
    client.work(|_, _, _| ());
    client.carry_to(&mut server, 100);
    assert!(server.engine.poll_timeout().is_some());
}

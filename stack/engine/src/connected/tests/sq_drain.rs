//! Drained send queues (InfiniBand specification volume 1, §10.3.1.5).

use std::time::Duration;

use super::detect_peer::{detected_pair, ids, settle};
use super::*;
use crate::sq_drain::SqDrain;
use crate::types::AsyncEvent;

over_each_llp! {
    what_has_begun_ends_and_the_rest_waits,
    an_unsignaled_message_is_asked_for,
    the_error_state_flushes_without_the_event,
}

const DRAINED: AsyncEvent = AsyncEvent::SqDrained { qpn: 70_000 };

fn drain(end: &mut End, notify: bool) {
    let mut drain = SqDrain::Off;
    drain.begin(notify);
    end.work(|engine, _, completed| engine.set_sq_drain(drain, completed));
}

fn resume(end: &mut End) {
    end.work(|engine, _, completed| engine.set_sq_drain(SqDrain::Off, completed));
}

/// Carries octets both ways, with polls that find nothing, so that acknowledgements leave.
fn acknowledge(a: &mut End, b: &mut End) {
    settle(a, b, 1 << 20);
    for end in [&mut *a, &mut *b] {
        let late = now() + Duration::from_secs(1);
        end.engine.flush_acks(late, true);
        end.work(|_, _, _| ());
    }
    settle(a, b, 1 << 20);
}

fn what_has_begun_ends_and_the_rest_waits(llp: Lower) {
    for notify in [false, true] {
        let (mut client, mut server) = detected_pair(llp);
        for wr_id in 1..=8 {
            server.post_recv(wr_id, 0, 16_000);
        }
        let sges = [client.sge(0, 16_000)];
        for wr_id in 0..8 {
            client.post_send(wr_id, &sges);
        }
        // The window is full: the last ones have not begun.
        drain(&mut client, notify);
        client.post_send(8, &sges);
        acknowledge(&mut client, &mut server);
        let begun = client.completed.sent.len();
        assert!((1..8).contains(&begun), "{begun}");
        let expected: &[AsyncEvent] = if notify { &[DRAINED] } else { &[] };
        assert_eq!(client.completed.events, expected);
        assert_eq!(client.engine.sq_drain(), SqDrain::Drained);
        // The receiving half goes on.
        client.post_recv(1, 0, 16);
        server.post_send(1, &[server.sge(0, 16)]);
        acknowledge(&mut server, &mut client);
        assert_eq!(client.completed.received.len(), 1);
        server.post_recv(9, 0, 16_000);
        resume(&mut client);
        acknowledge(&mut client, &mut server);
        assert_eq!(ids(&client.completed.sent), (0..9).collect::<Vec<_>>());
        assert_eq!(client.completed.events, expected);
    }
}

fn an_unsignaled_message_is_asked_for(llp: Lower) {
    let (mut client, mut server) = detected_pair(llp);
    server.post_recv(1, 0, 100);
    let work = RcWork::Send { invalidate: None };
    let sges = [client.sge(0, 64)];
    client.post_as(1, work, &sges, false);
    client.carry_to(&mut server, 1 << 20);
    assert_eq!(client.completed.retired, 0);
    drain(&mut client, true);
    assert!(client.engine.sq_drain().is_draining());
    assert!(client.waiting() > 0, "a request for an acknowledgement");
    acknowledge(&mut client, &mut server);
    assert_eq!(client.completed.events, [DRAINED]);
    assert_eq!(client.completed.retired, 1);
    // With nothing under way it is drained at once, each time.
    resume(&mut client);
    drain(&mut client, true);
    assert_eq!(client.completed.events, [DRAINED, DRAINED]);
}

fn the_error_state_flushes_without_the_event(llp: Lower) {
    let (mut client, _server) = detected_pair(llp);
    let sges = [client.sge(0, 64)];
    client.post_send(1, &sges);
    drain(&mut client, true);
    client.post_send(2, &sges);
    client.work(|engine, tables, completed| engine.close(tables, completed));
    let flushed = |wc: &Wc| (wc.wr_id, wc.status);
    let all: Vec<_> = client.completed.sent.iter().map(flushed).collect();
    assert_eq!(all, [(1, WcStatus::Flushed), (2, WcStatus::Flushed)]);
    assert!(client.completed.events.is_empty());
}

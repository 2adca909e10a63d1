//! Drained send queues (InfiniBand specification volume 1, §10.3.1.5).

use super::*;
use crate::sq_drain::SqDrain;
use crate::types::AsyncEvent;

fn drain(end: &mut End) {
    let mut drain = SqDrain::Off;
    drain.begin(true);
    end.engine.set_sq_drain(drain, &mut end.wcs);
}

fn ids(end: &End) -> Vec<u64> {
    end.wcs.sent.iter().map(|wc| wc.wr_id).collect()
}

const DRAINED: AsyncEvent = AsyncEvent::SqDrained { qpn: 1 };

#[test]
fn a_message_that_has_begun_ends_and_others_wait() {
    let mut end = End::new(1);
    let route = path(1500);
    let long = [end.sge(0, 200_000)];
    let short = [end.sge(0, 64)];
    end.post(1, SEND, &route, &long);
    end.post(2, SEND, &route, &short);
    let mut network = Network {
        outcomes: [SendOutcome::Sent, SendOutcome::WouldBlock].into(),
        ..Network::default()
    };
    assert_eq!(end.transmit(&mut network), Transmitted::Blocked);
    drain(&mut end);
    assert!(end.engine.sq_drain().is_draining());
    end.post(3, SEND, &route, &short);
    assert_eq!(end.transmit(&mut network), Transmitted::All);
    assert_eq!((ids(&end), end.engine.has_unsent()), (vec![1], false));
    assert_eq!(end.wcs.events, [DRAINED]);
    let sent = network.datagrams.len();
    assert_eq!(end.transmit(&mut network), Transmitted::All);
    assert_eq!(network.datagrams.len(), sent, "nothing begins");
    end.engine.set_sq_drain(SqDrain::Off, &mut end.wcs);
    assert!(end.engine.has_unsent());
    end.transmit(&mut network);
    assert_eq!((ids(&end), end.wcs.events.len()), (vec![1, 2, 3], 1));
}

/// A Read under way is waited for, and another one does not begin.
#[test]
fn reads_drain_too() {
    let mut end = End::new(1);
    let route = path(1500);
    let read = Operation::Read {
        rkey: 7,
        remote_addr: 0,
        timeout: Some(Duration::from_millis(1)),
    };
    let sges = [end.sge(0, 64)];
    let mut network = Network::default();
    end.post(1, read, &route, &sges);
    end.transmit(&mut network);
    drain(&mut end);
    end.post(2, read, &route, &sges);
    end.transmit(&mut network);
    assert!(end.wcs.events.is_empty() && end.engine.sq_drain().is_draining());
    let tables = Tables {
        mrs: &end.mrs,
        recv_queue: &end.recv_queue,
    };
    let late = now() + Duration::from_secs(5);
    end.engine.handle_timeout(late, tables, &mut end.wcs);
    assert_eq!(ids(&end), [1]);
    assert_eq!(end.wcs.events, [DRAINED]);
    assert!(!end.engine.has_unsent());
    end.engine.set_sq_drain(SqDrain::Off, &mut end.wcs);
    assert!(end.engine.has_unsent());
}

#[test]
fn a_pause_of_the_rate_does_not_wake_a_drained_queue() {
    let mut end = End::new(1);
    let route = path(1500);
    end.engine.set_max_rate(1000);
    let sges = [end.sge(0, 1000)];
    let mut network = Network::default();
    end.post(1, SEND, &route, &sges);
    assert_eq!(end.transmit(&mut network), Transmitted::All);
    end.post(2, SEND, &route, &sges);
    assert!(matches!(end.transmit(&mut network), Transmitted::Paused(_)));
    assert!(end.engine.poll_timeout().is_some());
    drain(&mut end);
    assert_eq!(end.engine.poll_timeout(), None);
    assert_eq!(end.wcs.events, [DRAINED]);
}

//! Reliable datagram queue pairs on real sockets: exactly once, in order, whatever is lost.

mod end;
mod failures;
mod hostile;
mod lanes;
mod operations;
mod shared;
mod stranger;

use std::collections::BTreeMap;
use std::time::Duration;

use dgiwarp::{Access, Config, Fault, PostError, RcOperation, WcOpcode, WcStatus};

use crate::common::now;
use end::{End, ROOM, SEND, octets_of};

/// Faults of every kind at every end.
fn faulty(seed: u64) -> Config {
    let mut config = Config::default();
    config.fault = Some(Fault {
        drop: 0.01,
        dup: 0.02,
        reorder: 0.05,
        corrupt: 0.002,
        delay: Duration::ZERO,
        seed,
    });
    config
}

/// Each end sends so many to each other.
const MESSAGES: usize = 150;
/// Posted and not completed.
const DEPTH: usize = 24;

/// Messages that an end exchanges with one peer.
#[derive(Debug, Default)]
struct Tally {
    posted: usize,
    completed: usize,
    received: usize,
}

/// Lengths of no octet, of one segment, and of many.
fn length(number: usize) -> usize {
    [0, 64, 1, 5000, 1406, 1407, ROOM, 300][number % 8]
}

/// All ends send to all others at once; every message arrives once, in order, whole, and completes in order.
fn exchange(ends: &[End]) {
    exchange_many(ends, MESSAGES, length, Duration::from_secs(60));
}

/// Exchanges so many messages, of these lengths by number, within this time.
fn exchange_many(ends: &[End], messages: usize, length: fn(usize) -> usize, within: Duration) {
    let mut tallies: Vec<BTreeMap<u16, Tally>> = ends
        .iter()
        .map(|end| {
            let others = ends.iter().map(|it| it.qp.qpn());
            let others = others.filter(|qpn| *qpn != end.qp.qpn());
            others.map(|qpn| (qpn, Tally::default())).collect()
        })
        .collect();
    let deadline = now() + within;
    let done = |tally: &Tally| tally.completed == messages && tally.received == messages;
    while !tallies.iter().all(|each| each.values().all(done)) {
        assert!(now() < deadline, "{tallies:?}");
        for (end, peers) in ends.iter().zip(&mut tallies) {
            for (qpn, tally) in &mut *peers {
                while tally.posted < messages && tally.posted - tally.completed < DEPTH {
                    let number = tally.posted;
                    end.post(number, *qpn, length(number)).unwrap();
                    tally.posted += 1;
                }
            }
            while let Some(wc) = end.poll() {
                assert_eq!(wc.status, WcStatus::Success, "{wc:?} {peers:?}");
                if wc.opcode == WcOpcode::Send {
                    let (number, qpn) = End::posted(wc.wr_id);
                    let tally = peers.get_mut(&qpn).unwrap();
                    assert_eq!(number, tally.completed, "completions are in order");
                    tally.completed += 1;
                    continue;
                }
                let qpn = wc.source.unwrap().port();
                let tally = peers.get_mut(&qpn).unwrap();
                let number = tally.received;
                assert_eq!(wc.byte_len as usize, length(number), "{number} of {qpn}");
                assert_eq!(end.received(&wc), octets_of(number, length(number)));
                tally.received += 1;
                end.post_recv(wc.wr_id);
            }
        }
    }
}

#[test]
fn messages_of_many_peers_arrive_once_and_in_order() {
    let ends: Vec<_> = (0..4).map(|_| End::new(Config::default(), 16)).collect();
    exchange(&ends);
    assert_eq!(ends[0].qp.peers(), 3);
}

#[test]
fn loss_duplication_reordering_and_corruption_change_nothing() {
    let ends: Vec<_> = (0..3).map(|seed| End::new(faulty(seed), 16)).collect();
    exchange(&ends);
    for end in &ends {
        let counters = end.qp.counters();
        assert!(counters.fault_dropped > 0, "{counters}");
        assert!(counters.fault_duplicated > 0, "{counters}");
    }
}

/// Ten million messages, half of them each way.
#[test]
#[ignore = "ten minutes"]
fn soak_ten_million_messages_arrive_once_and_in_order() {
    let harsh = |seed| {
        let mut config = Config::default();
        config.fault = Some(Fault {
            drop: 0.01,
            dup: 0.01,
            reorder: 0.2,
            corrupt: 0.01,
            delay: Duration::ZERO,
            seed,
        });
        config
    };
    let ends: Vec<_> = (0..2).map(|seed| End::new(harsh(seed), 48)).collect();
    let short = |number| [8, 64, 1, 200][number % 4];
    exchange_many(&ends, 5_000_000, short, Duration::from_secs(3600));
    for end in &ends {
        println!("{}", end.qp.counters());
    }
}

/// Few receives for many peers: senders wait, and none fails.
#[test]
fn messages_wait_for_receives() {
    let sender = End::new(Config::default(), 0);
    let receiver = End::new(Config::default(), 0);
    for number in 0..4 {
        sender.post(number, receiver.qp.qpn(), 3000).unwrap();
    }
    let pause = now() + Duration::from_millis(100);
    while now() < pause {
        assert!(sender.poll().is_none() && receiver.poll().is_none());
    }
    for number in 0..4 {
        receiver.post_recv(0);
        let wc = receiver.wait();
        assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, 3000));
        assert_eq!(receiver.received(&wc), octets_of(number, 3000));
    }
    for number in 0..4 {
        let wc = sender.wait();
        assert_eq!(wc.status, WcStatus::Success);
        assert_eq!(End::posted(wc.wr_id).0, number);
    }
}

/// Operations on local keys are refused when they are posted, and nothing of them is queued.
#[test]
fn operations_on_local_keys_are_refused() {
    let end = End::new(Config::default(), 1);
    let operations = [
        RcOperation::LocalInvalidate { rkey: 1 },
        RcOperation::RegisterMr {
            rkey: 1,
            access: Access::REMOTE_READ,
        },
    ];
    for operation in operations {
        let refused = end.post_without_memory(operation, 9).unwrap_err();
        assert_eq!(
            (refused.accepted, refused.source),
            (0, PostError::Unsupported)
        );
    }
    assert_eq!(end.qp.peers(), 0);
    end.post_operation(1, SEND, end.qp.qpn(), 0, 8).unwrap();
    let wc = end.wait();
    assert_eq!(wc.status, WcStatus::Success, "a queue pair reaches itself");
}

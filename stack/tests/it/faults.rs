//! Faults made on purpose, on real sockets.

use std::time::Duration;

use crate::common::node::{Node, SOON};
use crate::common::strangers::dropped;
use crate::common::{now, wait_until};
use dgiwarp::{Config, DropReason, Fault, QpCounters, Wc, WcOpcode};

const LENGTH: usize = 8;

fn config(text: &str) -> Config {
    let mut config = Config::default();
    config.fault = Some(text.parse::<Fault>().unwrap());
    config
}

/// Sends `count` numbered messages and returns those that arrive, in their order, until nothing more can.
fn run(fault: &str, count: usize) -> (Vec<u64>, QpCounters) {
    let receives = 2 * count;
    let source = Node::new(LENGTH);
    let target = Node::with(LENGTH * receives, config(fault), |attr| {
        attr.qp.max_recv_wr = receives;
    });
    for slot in 0..receives {
        target.post_recv(slot as u64, slot * LENGTH..(slot + 1) * LENGTH);
    }
    let to = source.to(&target.qp);
    let mut arrived = Vec::new();
    let mut take = |wc: Wc| {
        assert_eq!((wc.opcode, wc.byte_len), (WcOpcode::Recv, 8));
        let slot = usize::try_from(wc.wr_id).unwrap();
        let octets = target.memory.to_vec(slot * LENGTH, LENGTH);
        arrived.push(u64::from_be_bytes(octets.try_into().unwrap()));
    };
    for number in 0..count as u64 {
        source.memory.write(0, &number.to_be_bytes());
        source.send(number, &to, 0..LENGTH);
        assert_eq!(source.wait().wr_id, number);
        while let Some(wc) = target.cq.poll_one().unwrap() {
            take(wc);
        }
    }
    // Longer than anything waits.
    while let Some(wc) = target.cq.wait(Duration::from_millis(300)).unwrap() {
        take(wc);
    }
    (arrived, target.qp.counters())
}

#[test]
fn what_is_dropped_or_corrupted_is_counted_and_nothing_else_is_lost() {
    let count = 2000;
    let (arrived, counters) = run("drop=0.1,corrupt=0.1,seed=5", count);
    assert!(
        (100..=300).contains(&counters.fault_dropped),
        "{counters:?}"
    );
    assert!(
        (80..=300).contains(&counters.fault_corrupted),
        "{counters:?}"
    );
    assert_eq!(
        counters.dropped(DropReason::BadCrc),
        counters.fault_corrupted
    );
    assert_eq!(dropped(&counters), counters.fault_corrupted);
    let gone = counters.fault_dropped + counters.fault_corrupted;
    assert_eq!(arrived.len() as u64, count as u64 - gone);
    assert!(arrived.is_sorted(), "in order");
    // The socket that a busy peer gets draws from the same generator: the same arrivals, the same faults.
    let (again, _) = run("drop=0.1,corrupt=0.1,seed=5", count);
    assert_eq!(arrived, again);
}

#[test]
fn nothing_is_lost_by_reordering_duplication_and_delay() {
    let count = 2000;
    let (mut arrived, counters) = run("dup=0.1,reorder=0.2,delay=2ms,seed=5", count);
    assert_eq!(dropped(&counters), 0, "plain Sends cannot tell a duplicate");
    assert_eq!(
        arrived.len() as u64,
        count as u64 + counters.fault_duplicated
    );
    assert!(counters.fault_duplicated > 0 && counters.fault_reordered > 0);
    assert_eq!(counters.fault_delayed, count as u64);
    assert!(!arrived.is_sorted());
    arrived.sort_unstable();
    arrived.dedup();
    assert_eq!(arrived, (0..count as u64).collect::<Vec<_>>());
}

/// The timer of the queue pair lets go of what waits.
#[test]
fn a_delayed_write_arrives_though_nobody_polls() {
    let source = Node::new(LENGTH);
    let target = Node::with(LENGTH, config("delay=30ms"), |attr| attr.record_slots = 4);
    source.memory.write(0, &[7; LENGTH]);
    let begun = now();
    let operation = source.write_to(&target, 0);
    let sges = [source.mr.sge(..)];
    source
        .post(1, operation, &source.to(&target.qp), &sges)
        .unwrap();
    wait_until(SOON, "the octets", || {
        target.memory.to_vec(0, LENGTH) == [7; LENGTH]
    });
    assert!(now() - begun >= Duration::from_millis(30));
}

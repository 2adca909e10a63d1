//! What is made, used and dropped again and again leaves nothing behind: no memory, no descriptor, no thread.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "what the system refuses fails the test")]

mod common;

use std::fs;
use std::time::Duration;

use common::node::{Node, SEND, SOON};
use common::{Process, now, role, wait_until};
use dgiwarp::{Config, Rnic, WcOpcode, WcStatus};

/// Cycles until the first look, and until the last.
const CYCLES: [u32; 2] = [1_000, 10_000];
/// Far longer than they take on a busy machine.
const LONG: Duration = Duration::from_secs(200);

/// What this process has of the system.
#[derive(Debug, Clone, Copy)]
struct Resources {
    descriptors: usize,
    threads: usize,
    resident: u64,
}

impl Resources {
    fn now() -> Self {
        let entries = |path| fs::read_dir(path).unwrap().count();
        let statm = fs::read_to_string("/proc/self/statm").unwrap();
        let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
        Self {
            descriptors: entries("/proc/self/fd"),
            threads: entries("/proc/self/task"),
            resident: pages * 4096,
        }
    }
}

/// Makes a queue pair and all that it needs, sends itself a message and writes another, and drops all of it.
fn cycle(rnic: &Rnic, number: u32) {
    let channel = rnic.create_comp_channel().unwrap();
    let cq = rnic.create_cq_on(64, &channel).unwrap();
    let node = Node::on(rnic.clone(), cq, 8192, |attr| attr.record_slots = 4);
    let to = node.to(&node.qp);
    node.cq.request_notification(false);
    node.post_recv(1, 0..64);
    node.memory.write(4096, &number.to_le_bytes());
    node.post(2, SEND, &to, &[node.mr.sge(4096..4160)]).unwrap();
    let write = node.write_to(&node, 1024);
    node.post(3, write, &to, &[node.mr.sge(4096..7096)])
        .unwrap();
    assert_eq!(channel.next_event(true), Some(node.cq.id()));
    let mut opcodes = [(); 4].map(|()| {
        let wc = node.wait();
        assert_eq!(wc.status, WcStatus::Success);
        if wc.opcode == WcOpcode::WriteRecord {
            assert_eq!(wc.byte_len, 3000);
            // Every other one goes with its queue pair.
            if number.is_multiple_of(2) {
                assert!(node.qp.release_record(wc.record()));
            }
        }
        wc.opcode
    });
    opcodes.sort_by_key(|opcode| format!("{opcode:?}"));
    let expected = [
        WcOpcode::RdmaWrite,
        WcOpcode::Recv,
        WcOpcode::Send,
        WcOpcode::WriteRecord,
    ];
    assert_eq!(opcodes, expected);
    assert_eq!(node.memory.to_vec(0, 4), number.to_le_bytes());
    assert_eq!(node.memory.to_vec(1024, 4), number.to_le_bytes());
}

/// Runs the cycles in a process of their own, and compares what it has after the first thousand and after all.
fn compare(test: &str, mut cycle: impl FnMut(u32)) {
    if role().is_none() {
        return Process::start(test, "alone", &[]).finish(LONG);
    }
    let began = now();
    let mut number = 0;
    let [first, last] = CYCLES.map(|until| {
        while number < until {
            cycle(number);
            number += 1;
        }
        // The background thread may still be looking at what was there last.
        let mut resources = Resources::now();
        wait_until(SOON, "the process is at rest", || {
            let before = resources;
            common::sleep(Duration::from_millis(10));
            resources = Resources::now();
            resources.descriptors == before.descriptors && resources.threads == before.threads
        });
        resources
    });
    println!("{first:?}\n{last:?}\n{:?}", now() - began);
    assert_eq!(last.descriptors, first.descriptors);
    assert_eq!(last.threads, first.threads);
    let difference = last.resident.abs_diff(first.resident);
    assert!(difference < 1 << 20, "{first:?} {last:?}");
}

#[test]
fn ten_thousand_queue_pairs_leave_nothing() {
    let rnic = Rnic::open(Config::default()).unwrap();
    compare("ten_thousand_queue_pairs_leave_nothing", |number| {
        cycle(&rnic, number);
    });
}

#[test]
fn ten_thousand_devices_leave_nothing() {
    compare("ten_thousand_devices_leave_nothing", |number| {
        cycle(&Rnic::open(Config::default()).unwrap(), number);
    });
}

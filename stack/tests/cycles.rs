//! What is made, used and dropped again and again leaves nothing behind: no memory, no descriptor, no thread.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "what the system refuses fails the test")]

mod common;

use common::node::{Node, SEND};
use common::resources::compare;
use dgiwarp::{Config, Rnic, WcOpcode, WcStatus};

/// Cycles until the first look, and until the last.
const CYCLES: [u32; 2] = [1_000, 10_000];

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

#[test]
fn ten_thousand_queue_pairs_leave_nothing() {
    let rnic = Rnic::open(Config::default()).unwrap();
    compare("ten_thousand_queue_pairs_leave_nothing", CYCLES, |number| {
        cycle(&rnic, number);
    });
}

#[test]
fn ten_thousand_devices_leave_nothing() {
    compare("ten_thousand_devices_leave_nothing", CYCLES, |number| {
        cycle(&Rnic::open(Config::default()).unwrap(), number);
    });
}

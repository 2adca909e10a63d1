//! Objects that are made, used and dropped again and again leave nothing behind: no memory, no descriptor, no thread.

use crate::common::node::{Node, SEND};
use crate::common::resources::compare;
use std::time::Duration;

use crate::common::connected::{connect, depths};
use dgiwarp::{
    Access, Buffer, Config, MwType, RcOperation, RcQpAttr, RcSendWr, RecvWr, Rnic, WcOpcode,
    WcStatus,
};

const SOON: Duration = Duration::from_secs(10);

/// Cycles until the first measurement, and until the last.
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
    compare(
        here!("ten_thousand_queue_pairs_leave_nothing"),
        CYCLES,
        |number| {
            cycle(&rnic, number);
        },
    );
}

/// Makes two queue pairs, connects them, writes, reads and sends, and drops all of it: every other time without a word, else after one side has
/// disconnected, and now and then after a refusal.
fn connection_cycle(rnic: &Rnic, number: u32) {
    let pd = rnic.alloc_pd();
    let cq = rnic.create_cq(64).unwrap();
    let memory = Buffer::zeroed(8192).unwrap();
    let mr = pd.register(memory.region(), Access::all()).unwrap();
    let [client, server] = [0; 2].map(|_| pd.create_rc_qp(&RcQpAttr::new(&cq, &cq)).unwrap());
    connect(&client, &server, depths(1));
    server
        .post_recv(&[RecvWr {
            wr_id: 0,
            sges: &[],
        }])
        .unwrap();
    memory.write(0, &number.to_le_bytes());
    let (rkey, remote_addr) = (mr.rkey(), mr.addr() + 4096);
    let write = RcOperation::Write {
        rkey,
        remote_addr,
        immediate: None,
    };
    let read = RcOperation::Read { rkey, remote_addr };
    client
        .post_send(&[
            RcSendWr::new(1, write, &[mr.sge(..3000)]),
            RcSendWr::new(2, read, &[mr.sge(1000..4000)]),
            RcSendWr::send(3, &[]),
        ])
        .unwrap();
    for _ in 0..4 {
        let wc = cq.wait(SOON).unwrap().expect("a completion");
        assert_eq!(wc.status, WcStatus::Success);
    }
    assert_eq!(memory.to_vec(1000, 4), number.to_le_bytes());
    let mw = pd.alloc_mw(MwType::Two);
    let fast = pd.alloc_mr(8192);
    fast.map(memory.region(), 0).unwrap();
    let bind = RcOperation::BindMw {
        rkey: mw.rkey(),
        lkey: mr.lkey(),
        addr: mr.addr(),
        length: 100,
        access: Access::REMOTE_READ,
        zero_based: false,
    };
    let register = RcOperation::RegisterMr {
        rkey: fast.rkey(),
        access: Access::LOCAL_WRITE,
    };
    client
        .post_send(&[RcSendWr::new(5, bind, &[]), RcSendWr::new(6, register, &[])])
        .unwrap();
    for wr_id in [5, 6] {
        let wc = cq.wait(SOON).unwrap().expect("a completion");
        assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success));
    }
    match number % 4 {
        0 => server.disconnect(),
        1 => {
            let nowhere = RcOperation::Read {
                rkey: !rkey,
                remote_addr,
            };
            let sges = [mr.sge(..8)];
            let refused = RcSendWr::new(4, nowhere, &sges);
            client.post_send(&[refused]).unwrap();
            let wc = cq.wait(SOON).unwrap().expect("a completion");
            assert_ne!(wc.status, WcStatus::Success);
        }
        _ => {}
    }
}

#[test]
fn thousands_of_connections_leave_nothing() {
    let rnic = Rnic::open(Config::default()).unwrap();
    let cycles = [200, 1_000];
    compare(
        here!("thousands_of_connections_leave_nothing"),
        cycles,
        |number| {
            connection_cycle(&rnic, number);
        },
    );
}

#[test]
#[ignore = "the tenth of it runs every time"]
fn soak_ten_thousand_connections_leave_nothing() {
    let rnic = Rnic::open(Config::default()).unwrap();
    let test = here!("soak_ten_thousand_connections_leave_nothing");
    compare(test, CYCLES, |number| connection_cycle(&rnic, number));
}

#[test]
fn ten_thousand_devices_leave_nothing() {
    compare(
        here!("ten_thousand_devices_leave_nothing"),
        CYCLES,
        |number| {
            cycle(&Rnic::open(Config::default()).unwrap(), number);
        },
    );
}

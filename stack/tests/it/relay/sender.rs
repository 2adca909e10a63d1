//! The sending peer.

use std::time::Duration;

use dgiwarp::{
    Access, Buffer, Config, Destination, Operation, Rnic, SendWr, UdQpAttr, WcOpcode, WcStatus,
};

use super::control::{Control, Frame};
use super::plan::{Case, Kind, LONGEST, WRITE_SEGMENT};
use crate::common::given;

/// Datagrams under way to the relay beside the message at hand, at most.
const WINDOW: u64 = 96;

/// The settings of both peers.
pub(crate) fn config() -> Config {
    let mut config = Config::default();
    config.max_mtu = 1500;
    // Records are closed by the batch, not by how busy the machine is.
    config.record_timeout = Duration::from_secs(60);
    config
}

/// The sender's process.
pub(crate) fn run(case: Case) {
    let rnic = Rnic::open(config()).unwrap();
    let pd = rnic.alloc_pd();
    let cq = rnic.create_cq(16).unwrap();
    let qp = pd.create_ud_qp(&UdQpAttr::new(&cq, &cq)).unwrap();
    let mut relay = Control::connect(&given("RELAY_CONTROL"));
    relay.send(Frame::Sender {
        port: qp.qpn().into(),
    });
    let Frame::Welcome {
        from,
        longest,
        rkey,
        addr,
        ..
    } = relay.receive()
    else {
        panic!("no welcome");
    };
    let rkey = u32::try_from(rkey).unwrap();
    let memory = Buffer::zeroed(usize::try_from(LONGEST).unwrap()).unwrap();
    let mr = pd.register(memory.region(), Access::empty()).unwrap();
    let destination = Destination {
        ah: pd.create_ah("127.0.0.1".parse().unwrap()).unwrap(),
        qpn: u16::try_from(from).unwrap(),
        qkey: 0,
    };
    let mut arrived = 0;
    for batch in case.batches(u32::try_from(longest).unwrap()) {
        for message in batch {
            let segments = u64::from(message.length.div_ceil(WRITE_SEGMENT));
            let sent = qp.counters().segments_sent;
            let before = WINDOW.saturating_sub(segments).min(sent);
            arrived = wait_for(&mut relay, arrived, sent - before);
            memory.write(0, &case.pattern(message.index, message.length));
            let immediate = Some(message.index);
            let operation = match case.kind {
                Kind::Write | Kind::Nth => Operation::WriteRecord {
                    rkey,
                    remote_addr: addr + u64::from(message.place),
                    immediate,
                },
                Kind::Send => Operation::Send { immediate },
            };
            let length = usize::try_from(message.length).unwrap();
            let wr = SendWr {
                wr_id: u64::from(message.index),
                operation,
                destination: destination.clone(),
                sges: &[mr.sge(..length)],
                signaled: true,
                solicited: false,
            };
            qp.post_send(&[wr]).unwrap();
            let wc = cq.wait(Duration::from_secs(10)).unwrap();
            let wc = wc.expect("the send completes");
            assert_eq!((wc.status, wc.wr_id), (WcStatus::Success, wr_id(&message)));
            assert!(matches!(wc.opcode, WcOpcode::RdmaWrite | WcOpcode::Send));
        }
        let datagrams = qp.counters().segments_sent;
        arrived = wait_for(&mut relay, arrived, datagrams);
        relay.send(Frame::Sent { datagrams });
        assert_eq!(relay.receive(), Frame::Settled);
    }
    assert_eq!(qp.counters().send_errors, 0);
}

fn wr_id(message: &super::plan::Message) -> u64 {
    u64::from(message.index)
}

/// Waits until at least `enough` datagrams arrived at the relay.
fn wait_for(relay: &mut Control, mut arrived: u64, enough: u64) -> u64 {
    while arrived < enough {
        match relay.receive() {
            Frame::Progress { arrived: now } => arrived = now,
            frame => panic!("{frame:?} of the relay"),
        }
    }
    arrived
}

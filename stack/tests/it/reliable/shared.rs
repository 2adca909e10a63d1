//! Queue pairs that share their receives.

use std::net::Ipv4Addr;
use std::time::Duration;

use dgiwarp::{
    Access, Buffer, Config, QpAttr, RdQp, RdQpAttr, RecvWr, Rnic, SrqAttr, Wc, WcOpcode, WcStatus,
};

use super::end::{End, ROOM, octets_of};
use crate::common::now;

/// Receives of the queue: fewer than messages are under way.
const RECEIVES: usize = 24;
/// Messages of each sender.
const MESSAGES: usize = 60;

/// Two queue pairs on one queue, with four peers that send at once: every message arrives once, in order for its sender, whoever takes the receives.
fn exchange(config: &Config) {
    let rnic = Rnic::open(Config::default()).unwrap();
    let pd = rnic.alloc_pd();
    let cq = rnic.create_cq(1024).unwrap();
    let attr = SrqAttr {
        max_wr: RECEIVES,
        ..SrqAttr::default()
    };
    let srq = pd.create_srq(&attr).unwrap();
    let memory = Buffer::zeroed(RECEIVES * ROOM).unwrap();
    let mr = pd.register(memory.region(), Access::LOCAL_WRITE).unwrap();
    let post = |slot: u64| {
        let begin = usize::try_from(slot).unwrap() * ROOM;
        let sges = [mr.sge(begin..begin + ROOM)];
        let wr = RecvWr {
            wr_id: slot,
            sges: &sges,
        };
        srq.post_recv(&[wr]).unwrap();
    };
    (0..RECEIVES as u64).for_each(post);
    let qps: Vec<RdQp> = (0..2)
        .map(|_| {
            let qp = QpAttr {
                srq: Some(&srq),
                ..QpAttr::new(&cq, &cq)
            };
            pd.create_rd_qp(&RdQpAttr::new(qp)).unwrap()
        })
        .collect();
    let senders: Vec<End> = (0..4).map(|_| End::new(config.clone(), 0)).collect();
    let to = |sender: usize| qps[sender % 2].qpn();
    let length = |number: usize| [300, 4000, 0, ROOM][number % 4];
    for (at, sender) in senders.iter().enumerate() {
        for number in 0..MESSAGES {
            sender.post(number, to(at), length(number)).unwrap();
        }
    }
    let (mut received, mut completed) = ([0; 4], [0; 4]);
    let deadline = now() + Duration::from_secs(60);
    while received != [MESSAGES; 4] || completed != [MESSAGES; 4] {
        assert!(now() < deadline, "{received:?} {completed:?}");
        for (sender, completed) in senders.iter().zip(&mut completed) {
            while let Some(wc) = sender.poll() {
                assert_eq!(wc.status, WcStatus::Success);
                assert_eq!(End::posted(wc.wr_id).0, *completed);
                *completed += 1;
            }
        }
        let mut wcs = [Wc::default(); 8];
        let polled = cq.poll(&mut wcs).unwrap();
        for wc in &wcs[..polled] {
            assert_eq!((wc.status, wc.opcode), (WcStatus::Success, WcOpcode::Recv));
            let from = wc.source.unwrap();
            assert_eq!(from.ip(), Ipv4Addr::LOCALHOST);
            let is_its = |sender: &End| sender.qp.qpn() == from.port();
            let at = senders.iter().position(is_its).unwrap();
            assert_eq!(wc.qpn, u32::from(to(at)));
            let number = received[at];
            let begin = usize::try_from(wc.wr_id).unwrap() * ROOM;
            let octets = memory.to_vec(begin, wc.byte_len as usize);
            assert_eq!(octets, octets_of(number, length(number)), "{number}");
            received[at] += 1;
            post(wc.wr_id);
        }
    }
}

#[test]
fn messages_of_many_peers_take_the_receives_of_a_shared_queue() {
    exchange(&Config::default());
}

#[test]
fn loss_and_reordering_leave_shared_receives_to_those_who_need_them() {
    exchange(&super::faulty(5));
}

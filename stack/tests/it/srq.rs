//! Receive queues that queue pairs share.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use crate::common::connected::{connect, depths};
use crate::common::node::{Node, SOON};
use crate::common::strangers::dropped;
use crate::common::{crc32c, wait_until};
use dgiwarp::{
    Access, AsyncEvent, Buffer, Config, Cq, DropReason, Error, Mr, Pd, PostError, PostFailure,
    QpAttr, RcQpAttr, RcSendWr, RecvWr, Rnic, Srq, SrqAttr, UcOperation, UcQpAttr, UcSendWr, UdQp,
    UdQpAttr, Wc, WcOpcode, WcStatus,
};

/// Octets of a receive.
const ROOM: usize = 1024;

/// A shared receive queue on a device of its own, with memory for its receives.
struct Pool {
    srq: Srq,
    mr: Mr,
    memory: Buffer,
    pd: Pd,
    rnic: Rnic,
}

impl Pool {
    fn new(max_wr: usize) -> Self {
        let rnic = Rnic::open(Config::default()).unwrap();
        let pd = rnic.alloc_pd();
        let srq = pd.create_srq(&SrqAttr { max_wr, max_sge: 1 }).unwrap();
        let memory = Buffer::zeroed(max_wr * ROOM).unwrap();
        let mr = pd.register(memory.region(), Access::LOCAL_WRITE).unwrap();
        Self {
            srq,
            mr,
            memory,
            pd,
            rnic,
        }
    }

    /// Posts the receive of a slot; its number is the slot's.
    fn try_post(&self, slot: usize) -> Result<(), PostFailure> {
        let sges = [self.mr.sge(slot * ROOM..(slot + 1) * ROOM)];
        let wr_id = slot as u64;
        self.srq.post_recv(&[RecvWr { wr_id, sges: &sges }])
    }

    #[track_caller]
    fn post(&self, slots: impl IntoIterator<Item = usize>) {
        for slot in slots {
            self.try_post(slot).unwrap();
        }
    }

    fn ud_qp(&self, cq: &Cq) -> UdQp {
        let attr = UdQpAttr::from(QpAttr {
            srq: Some(&self.srq),
            ..QpAttr::new(cq, cq)
        });
        self.pd.create_ud_qp(&attr).unwrap()
    }

    fn event(&self) -> Option<AsyncEvent> {
        self.rnic.async_events().next_event(false)
    }

    /// The octets of a completed receive.
    fn received(&self, wc: &Wc) -> Vec<u8> {
        let slot = usize::try_from(wc.wr_id).unwrap();
        self.memory.to_vec(slot * ROOM, wc.byte_len as usize)
    }
}

#[track_caller]
fn wait(cq: &Cq) -> Wc {
    cq.wait(SOON).unwrap().expect("a completion")
}

#[test]
fn queue_pairs_take_from_it_in_order_and_complete_in_their_own_queues() {
    let pool = Pool::new(4);
    let cqs = [0; 2].map(|_| pool.rnic.create_cq(16).unwrap());
    let qps = [0, 1].map(|i| pool.ud_qp(&cqs[i]));
    let sender = Node::new(64);
    pool.post([2, 0, 1, 3]);
    let full = PostFailure {
        accepted: 0,
        source: PostError::QueueFull,
    };
    assert_eq!(pool.try_post(0), Err(full));
    for (which, slot, text) in [(1, 2, b"one"), (0, 0, b"two"), (1, 1, b"six")] {
        sender.memory.write(0, text);
        sender.send(0, &sender.to(&qps[which]), 0..3);
        let wc = wait(&cqs[which]);
        assert_eq!((wc.wr_id, wc.opcode), (slot, WcOpcode::Recv));
        assert_eq!(wc.qpn, u32::from(qps[which].qpn()));
        assert_eq!(pool.received(&wc), text);
    }
    let refused = PostFailure {
        accepted: 0,
        source: PostError::SharedReceiveQueue,
    };
    let wr = RecvWr {
        wr_id: 0,
        sges: &[],
    };
    assert_eq!(qps[0].post_recv(&[wr]), Err(refused));
}

#[test]
fn the_limit_raises_one_event_and_is_disarmed() {
    let pool = Pool::new(8);
    let cq = pool.rnic.create_cq(16).unwrap();
    let qp = pool.ud_qp(&cq);
    let sender = Node::new(64);
    let to = sender.to(&qp);
    let take = || {
        sender.send(0, &to, 0..1);
        wait(&cq);
    };
    let limit = Some(AsyncEvent::SrqLimit { srq: pool.srq.id() });
    pool.post(0..5);
    pool.srq.arm_limit(4).unwrap();
    take();
    assert_eq!(pool.event(), None, "four are left");
    take();
    assert_eq!(pool.event(), limit);
    take();
    assert_eq!(pool.event(), None);
    pool.srq.arm_limit(3).unwrap();
    assert_eq!(pool.event(), limit, "it was so when asked");
    pool.srq.arm_limit(2).unwrap();
    pool.srq.arm_limit(0).unwrap();
    take();
    assert_eq!(pool.event(), None);
    assert!(matches!(
        pool.srq.arm_limit(9),
        Err(Error::Limit {
            value: 9,
            max: 8,
            ..
        })
    ));
}

#[test]
fn a_flushed_queue_pair_leaves_the_receives() {
    let pool = Pool::new(4);
    let cq = pool.rnic.create_cq(16).unwrap();
    let (one, other) = (pool.ud_qp(&cq), pool.ud_qp(&cq));
    pool.post([1, 2]);
    one.flush();
    assert_eq!(cq.poll_one(), Ok(None));
    drop(one);
    let sender = Node::new(64);
    for slot in [1, 2] {
        sender.send(0, &sender.to(&other), 0..1);
        assert_eq!(wait(&cq).wr_id, slot);
    }
}

/// The first segment of a Send of 1,000 octets, with 100 of them.
fn first_segment(number: u32) -> Vec<u8> {
    let mut datagram = vec![0x01, 0x4d];
    for word in [0, 0, number, 0] {
        datagram.extend(u32::to_be_bytes(word));
    }
    datagram.extend([0; 4]);
    for word in [0x1234_5678, number, 1000, 0, 0] {
        datagram.extend(u32::to_be_bytes(word));
    }
    datagram.extend([7; 100]);
    datagram.extend(crc32c(&datagram).to_le_bytes());
    datagram
}

#[test]
fn incomplete_sends_return_their_receives() {
    let pool = Pool::new(8);
    let cq = pool.rnic.create_cq(16).unwrap();
    let sender = Node::new(64);
    let stranger = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let other = pool.ud_qp(&cq);
    pool.post([4]);
    for flushed in [false, true] {
        let qp = pool.ud_qp(&cq);
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, qp.qpn()));
        stranger.send_to(&first_segment(1), to).unwrap();
        wait_until(SOON, "the segment takes the receive", || {
            qp.counters().segments_received == 1
        });
        sender.send(0, &sender.to(&other), 0..1);
        wait_until(SOON, "there is none for another", || {
            other.counters().dropped(DropReason::NoReceive) == 1 + u64::from(flushed)
        });
        if flushed {
            qp.flush();
        } else {
            drop(qp);
        }
        assert_eq!(cq.poll_one(), Ok(None));
    }
    sender.send(0, &sender.to(&other), 0..1);
    assert_eq!(wait(&cq).wr_id, 4);
}

/// The shares of queue pairs in a queue are bounded apart: one with many incomplete Sends leaves something to others.
#[test]
fn incomplete_sends_of_one_queue_pair_leave_receives_to_others() {
    let pool = Pool::new(40);
    let cq = pool.rnic.create_cq(64).unwrap();
    let (busy, other) = (pool.ud_qp(&cq), pool.ud_qp(&cq));
    pool.post(0..24);
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, busy.qpn()));
    let bind = |_| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    // All at one time: each has a port of its own.
    let strangers: Vec<_> = (0..12).map(bind).collect();
    for stranger in &strangers {
        // Two of each source, and half of the queue in all.
        for number in 1..=2 {
            stranger.send_to(&first_segment(number), to).unwrap();
        }
    }
    wait_until(SOON, "all are counted", || {
        let counters = busy.counters();
        let full = counters.dropped(DropReason::ReassemblyFull);
        (counters.segments_received, full) == (20, 4)
    });
    let sender = Node::new(64);
    sender.send(0, &sender.to(&other), 0..1);
    assert_eq!(wait(&cq).wr_id, 20);
}

#[test]
fn the_memory_is_of_the_queues_domain() {
    let pool = Pool::new(4);
    let cq = pool.rnic.create_cq(16).unwrap();
    let elsewhere = pool.rnic.alloc_pd();
    let attr = UdQpAttr::from(QpAttr {
        srq: Some(&pool.srq),
        ..QpAttr::new(&cq, &cq)
    });
    let qp = elsewhere.create_ud_qp(&attr).unwrap();
    let foreign = Buffer::zeroed(100).unwrap();
    let mr = elsewhere
        .register(foreign.region(), Access::LOCAL_WRITE)
        .unwrap();
    pool.post([3]);
    let sges = [mr.sge(..)];
    let wr = RecvWr {
        wr_id: 9,
        sges: &sges,
    };
    pool.srq.post_recv(&[wr]).unwrap();
    let sender = Node::new(64);
    for (wr_id, status) in [(3, WcStatus::Success), (9, WcStatus::LocalProtection)] {
        sender.send(0, &sender.to(&qp), 0..1);
        let wc = wait(&cq);
        assert_eq!((wc.wr_id, wc.status), (wr_id, status));
    }
}

/// UD, UC and RC queue pairs take from one queue.
#[test]
fn all_transports_share_it() {
    let pool = Pool::new(8);
    let cq = pool.rnic.create_cq(16).unwrap();
    let srq = Some(&pool.srq);
    pool.post(0..4);

    let ud = pool.ud_qp(&cq);
    let sender = Node::new(64);
    sender.send(0, &sender.to(&ud), 0..10);
    assert_eq!(wait(&cq).wr_id, 0);

    let attr = UcQpAttr::from(QpAttr {
        srq,
        ..QpAttr::new(&cq, &cq)
    });
    let ah = pool.pd.create_ah(Ipv4Addr::LOCALHOST.into()).unwrap();
    let uc = [0; 2].map(|_| pool.pd.create_uc_qp(&attr).unwrap());
    uc[0].connect(&ah, uc[1].qpn()).unwrap();
    uc[1].connect(&ah, uc[0].qpn()).unwrap();
    let wr = UcSendWr {
        wr_id: 0,
        operation: UcOperation::Send { immediate: None },
        sges: &[],
        signaled: false,
        solicited: false,
    };
    uc[0].post_send(&[wr]).unwrap();
    let wc = wait(&cq);
    assert_eq!((wc.wr_id, wc.qpn), (1, u32::from(uc[1].qpn())));
    assert_eq!(
        uc[0].post_recv(&[]).unwrap_err().source,
        PostError::SharedReceiveQueue
    );

    let attr = RcQpAttr::from(QpAttr {
        srq,
        ..QpAttr::new(&cq, &cq)
    });
    let [client, server] = [0; 2].map(|_| pool.pd.create_rc_qp(&attr).unwrap());
    connect(&client, &server, depths(0));
    let wr = RcSendWr {
        signaled: false,
        ..RcSendWr::send(0, &[])
    };
    client.post_send(&[wr]).unwrap();
    let wc = wait(&cq);
    assert_eq!((wc.wr_id, wc.qpn), (2, server.qpn()));
    assert_eq!(
        client.post_recv(&[]).unwrap_err().source,
        PostError::SharedReceiveQueue
    );
    // The end of the connection is no end of the queue's receives.
    drop((client, server));
    assert_eq!(cq.poll_one(), Ok(None));
    sender.send(0, &sender.to(&ud), 0..10);
    assert_eq!(wait(&cq).wr_id, 3);
}

/// Several queue pairs, each polled by a thread of its own that also posts again what it consumed: no receive is lost, none is used twice,
/// every message comes whole.
#[test]
fn threads_share_it() {
    const QPS: usize = 4;
    const MESSAGES: usize = 2000;
    const WINDOW: usize = 8;
    let pool = Pool::new(QPS * WINDOW);
    pool.post(0..QPS * WINDOW);
    // Which slots are not posted, to catch one that completes twice.
    let taken: Vec<_> = (0..QPS * WINDOW).map(|_| Mutex::new(())).collect();
    let used = Mutex::new(BTreeMap::<u64, usize>::new());
    thread::scope(|scope| {
        for thread in 0..QPS {
            let (pool, taken, used) = (&pool, &taken, &used);
            scope.spawn(move || {
                let cq = pool.rnic.create_cq(64).unwrap();
                let qp = pool.ud_qp(&cq);
                let sender = Node::new(4096);
                let to = sender.to(&qp);
                let (mut sent, mut received) = (0, 0);
                while received < MESSAGES {
                    while sent < MESSAGES && sent - received < WINDOW {
                        let length = 1 + (sent * 37 + thread) % ROOM;
                        let octet = u8::try_from(sent % 251).unwrap();
                        sender.memory.write(0, &vec![octet; length]);
                        sender.send(0, &to, 0..length);
                        assert_eq!(sender.wait().status, WcStatus::Success);
                        sent += 1;
                    }
                    let wc = wait(&cq);
                    let slot = usize::try_from(wc.wr_id).unwrap();
                    let guard = taken[slot].try_lock().expect("the slot is ours alone");
                    let length = 1 + (received * 37 + thread) % ROOM;
                    let octet = u8::try_from(received % 251).unwrap();
                    assert_eq!(pool.received(&wc), vec![octet; length]);
                    *used.lock().unwrap().entry(wc.wr_id).or_default() += 1;
                    drop(guard);
                    pool.post([slot]);
                    received += 1;
                }
                assert_eq!(dropped(&qp.counters()), 0);
            });
        }
    });
    let used = used.into_inner().unwrap();
    assert_eq!(used.values().sum::<usize>(), QPS * MESSAGES);
    assert_eq!(used.len(), QPS * WINDOW, "all slots went round");
    // All are there again.
    let cq = pool.rnic.create_cq(64).unwrap();
    let qp = pool.ud_qp(&cq);
    let sender = Node::new(64);
    let mut left: Vec<_> = (0..QPS * WINDOW)
        .map(|_| {
            sender.send(0, &sender.to(&qp), 0..1);
            wait(&cq).wr_id
        })
        .collect();
    left.sort_unstable();
    assert!(left.into_iter().eq(0..(QPS * WINDOW) as u64));
    assert_eq!(cq.wait(Duration::from_millis(1)), Ok(None));
}

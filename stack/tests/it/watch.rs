//! Event loops that wait for completion queues of every kind of queue pair, woken by changes alone, as mio and tokio are.

use std::net::Ipv4Addr;
use std::sync::mpsc;
use std::thread;

use dgiwarp::{
    Access, Buffer, Config, Cq, CqWatch, Destination, MpaConfig, QpAttr, RcListener, RcOperation,
    RcQpAttr, RcSendWr, RdQpAttr, RdSendWr, ReadDepths, RecvWr, Rnic, SameHostMode, Wc, WcOpcode,
    WcStatus,
};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use crate::common::node::{Node, SOON};
use crate::common::now;

const SEND: RcOperation = RcOperation::Send { invalidate: None };
const DEPTHS: ReadDepths = ReadDepths { ird: 4, ord: 4 };
const ROUNDS: usize = 300;

struct EventLoop {
    cq: Cq,
    watch: CqWatch,
    epoll: Epoll,
}

impl EventLoop {
    fn new(cq: &Cq) -> Self {
        let watch = cq.watch().unwrap();
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
        epoll.add(&watch, EpollEvent::new(flags, 0)).unwrap();
        let cq = cq.clone();
        Self { cq, watch, epoll }
    }

    fn next(&self) -> Wc {
        let deadline = now() + SOON;
        loop {
            if let Some(wc) = self.cq.poll_one().unwrap() {
                assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
                return wc;
            }
            assert!(now() < deadline, "no completion in time");
            if self.watch.arm() {
                let mut events = [EpollEvent::empty()];
                let timeout = EpollTimeout::try_from(SOON).unwrap();
                let count = self.epoll.wait(&mut events, timeout).unwrap();
                assert!(count > 0, "not woken in time");
                self.watch.disarm();
            }
        }
    }

    /// Receives what another thread sends, a message at a time, in times that differ.
    fn receive(&self, repost: impl Fn(), send: impl Fn() + Send) {
        let (request, requests) = mpsc::channel::<usize>();
        thread::scope(|scope| {
            scope.spawn(move || {
                for number in requests {
                    for _ in 0..number * 61 % 3000 {
                        std::hint::spin_loop();
                    }
                    send();
                }
            });
            for round in 0..ROUNDS {
                request.send(round).unwrap();
                while self.next().opcode != WcOpcode::Recv {}
                repost();
            }
            drop(request);
        });
    }
}

fn config(same_host: SameHostMode) -> Config {
    let mut config = Config::default();
    config.same_host = same_host;
    config.same_host_after = 0;
    config
}

fn rc(same_host: SameHostMode) {
    let [here, there] = [(); 2].map(|()| Rnic::open(config(same_host)).unwrap());
    let (pd, peer_pd) = (here.alloc_pd(), there.alloc_pd());
    let (cq, peer_cq) = (here.create_cq(64).unwrap(), there.create_cq(64).unwrap());
    let qp = pd.create_rc_qp(&RcQpAttr::new(&cq, &cq)).unwrap();
    let peer = RcQpAttr::new(&peer_cq, &peer_cq);
    let peer = peer_pd.create_rc_qp(&peer).unwrap();
    let memory = Buffer::zeroed(64).unwrap();
    let mr = pd.register(memory.region(), Access::LOCAL_WRITE).unwrap();
    let post = || {
        let sges = [mr.sge(..)];
        let wr = RecvWr {
            wr_id: 1,
            sges: &sges,
        };
        qp.post_recv(&[wr]).unwrap();
    };
    post();
    let listener = RcListener::bind((Ipv4Addr::LOCALHOST, 0).into(), MpaConfig::default()).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let request = listener.accept(SOON).unwrap().expect("a request");
            request.accept(&peer, DEPTHS, b"").unwrap();
        });
        let to = listener.local_addr();
        qp.connect(to, &MpaConfig::default(), b"").unwrap();
    });
    let event_loop = EventLoop::new(&cq);
    event_loop.receive(post, || {
        let wr = RcSendWr {
            inline: &[7; 40],
            ..RcSendWr::send(2, &[])
        };
        peer.post_send(&[wr]).unwrap();
        while peer_cq.wait(SOON).unwrap().is_none() {}
    });
    let octets = here.counters().lane_octets_received;
    assert_eq!(octets > 0, same_host != SameHostMode::Off, "{octets}");
}

#[test]
fn a_loop_is_woken_by_rc_over_tcp() {
    rc(SameHostMode::Off);
}

#[test]
fn a_loop_is_woken_by_rc_through_memory() {
    rc(SameHostMode::Ring);
}

fn ud(same_host: SameHostMode) {
    let [target, source] = [(); 2].map(|()| Node::with(64, config(same_host), |_| ()));
    let post = || target.post_recv(1, 0..64);
    post();
    let to = source.to(&target.qp);
    let event_loop = EventLoop::new(&target.cq);
    event_loop.receive(post, || {
        source.send(2, &to, 0..64);
        source.wait();
    });
}

#[test]
fn a_loop_is_woken_by_ud() {
    ud(SameHostMode::Off);
}

#[test]
fn a_loop_is_woken_by_ud_through_memory() {
    ud(SameHostMode::Ring);
}

fn rd(same_host: SameHostMode) {
    let [here, there] = [(); 2].map(|()| Rnic::open(config(same_host)).unwrap());
    let (pd, peer_pd) = (here.alloc_pd(), there.alloc_pd());
    let (cq, peer_cq) = (here.create_cq(64).unwrap(), there.create_cq(64).unwrap());
    let attr = RdQpAttr::new(QpAttr::new(&cq, &cq));
    let qp = pd.create_rd_qp(&attr).unwrap();
    let attr = RdQpAttr::new(QpAttr::new(&peer_cq, &peer_cq));
    let peer = peer_pd.create_rd_qp(&attr).unwrap();
    let memory = Buffer::zeroed(64).unwrap();
    let mr = pd.register(memory.region(), Access::LOCAL_WRITE).unwrap();
    let source = Buffer::zeroed(64).unwrap();
    let source = peer_pd
        .register(source.region(), Access::LOCAL_WRITE)
        .unwrap();
    let post = || {
        let sges = [mr.sge(..)];
        let wr = RecvWr {
            wr_id: 1,
            sges: &sges,
        };
        qp.post_recv(&[wr]).unwrap();
    };
    post();
    let destination = Destination {
        ah: peer_pd.create_ah(Ipv4Addr::LOCALHOST.into()).unwrap(),
        qpn: qp.qpn(),
        qkey: 0,
    };
    let event_loop = EventLoop::new(&cq);
    event_loop.receive(post, || {
        let sges = [source.sge(..)];
        peer.post_send(&[RdSendWr {
            destination: destination.clone(),
            wr: RcSendWr::new(2, SEND, &sges),
        }])
        .unwrap();
        while peer_cq.wait(SOON).unwrap().is_none() {}
    });
}

#[test]
fn a_loop_is_woken_by_rd() {
    rd(SameHostMode::Off);
}

#[test]
fn a_loop_is_woken_by_rd_through_memory() {
    rd(SameHostMode::Ring);
}

/// Completions that the timer of a queue pair makes wake the loop, and so do those of posts of other threads.
#[test]
fn a_loop_is_woken_by_timers_and_posts_of_other_threads() {
    let mut faulty = Config::default();
    // Some datagrams of the message are lost, with this seed; the record completes by its timer.
    faulty.fault = Some("drop=0.2,seed=1".parse().unwrap());
    let target = Node::with(20_000, faulty, |attr| attr.record_slots = 4);
    let event_loop = EventLoop::new(&target.cq);
    let mut config = Config::default();
    config.max_mtu = 1500;
    let source = Node::with(20_000, config, |_| ());
    let operation = source.write_to(&target, 0);
    let sges = [source.mr.sge(..)];
    source
        .post(1, operation, &source.to(&target.qp), &sges)
        .unwrap();
    let wc = event_loop.next();
    assert!(wc.byte_len > 0 && wc.byte_len < 20_000, "{wc:?}");
    let to = target.to(&source.qp);
    thread::scope(|scope| {
        scope.spawn(|| target.send(7, &to, 0..64));
        assert_eq!(event_loop.next().wr_id, 7);
    });
}

/// A loop that does not come is no reason not to answer: the peer's Reads complete meanwhile.
#[test]
fn peers_are_answered_while_the_loop_is_away() {
    let [here, there] = [(); 2].map(|()| Rnic::open(config(SameHostMode::Off)).unwrap());
    let (pd, peer_pd) = (here.alloc_pd(), there.alloc_pd());
    let (cq, peer_cq) = (here.create_cq(64).unwrap(), there.create_cq(64).unwrap());
    let qp = pd.create_rc_qp(&RcQpAttr::new(&cq, &cq)).unwrap();
    let peer = RcQpAttr::new(&peer_cq, &peer_cq);
    let peer = peer_pd.create_rc_qp(&peer).unwrap();
    crate::common::connected::connect(&qp, &peer, DEPTHS);
    let memory = Buffer::zeroed(64).unwrap();
    let mr = pd.register(memory.region(), Access::REMOTE_READ).unwrap();
    let sink = Buffer::zeroed(64).unwrap();
    let sink = peer_pd
        .register(sink.region(), Access::LOCAL_WRITE)
        .unwrap();
    let event_loop = EventLoop::new(&cq);
    assert!(event_loop.watch.arm());
    for _ in 0..3 {
        let read = RcOperation::Read {
            rkey: mr.rkey(),
            remote_addr: mr.addr(),
        };
        let sges = [sink.sge(..)];
        peer.post_send(&[RcSendWr::new(1, read, &sges)]).unwrap();
        let wc = peer_cq.wait(SOON).unwrap().expect("a completion");
        assert_eq!(wc.status, WcStatus::Success);
    }
}

//! Failures that a user of datagram queue pairs meets, and operations that go on all the same.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use crate::common::node::{Node, SEND, SOON};
use crate::common::strangers::nobody;
use crate::common::{Process, inside, now, role, wait_until};
use dgiwarp::{
    Access, AsyncEvent, Buffer, Config, CqError, Error, ErrorReason, Operation, PostError, RecvWr,
    Rnic, SendWr, Sge, UdQpAttr, WcOpcode, WcStatus,
};
use nix::errno::Errno;
use nix::sys::resource::{Resource, setrlimit};

/// An error is reported at once, not after a time-out.
const PROMPTLY: Duration = Duration::from_secs(1);

/// A Send from `from` arrives at `to`.
#[track_caller]
fn assert_works(from: &Node, to: &Node) {
    to.post_recv(77, 0..32);
    from.memory.write(0, b"still alive");
    from.send(78, &from.to(&to.qp), 0..11);
    assert_eq!(from.wait().status, WcStatus::Success);
    let wc = to.wait();
    assert_eq!(
        (wc.wr_id, wc.status, wc.byte_len),
        (77, WcStatus::Success, 11)
    );
    assert_eq!(to.memory.to_vec(0, 11), b"still alive");
}

#[test]
fn a_port_that_is_taken_is_named() {
    let node = Node::new(64);
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let by_stranger = socket.local_addr().unwrap();
    let by_us = SocketAddr::from((Ipv4Addr::LOCALHOST, node.qp.qpn()));
    let not_ours = SocketAddr::from(([192, 0, 2, 1], 4000));
    for (wanted, errno) in [
        (by_stranger, Errno::EADDRINUSE),
        (by_us, Errno::EADDRINUSE),
        (not_ours, Errno::EADDRNOTAVAIL),
    ] {
        let began = now();
        let refused = node.pd.create_ud_qp(&UdQpAttr {
            bind: Some(wanted),
            ..UdQpAttr::new(&node.cq, &node.cq)
        });
        assert!(now() - began < PROMPTLY);
        let error = refused.unwrap_err();
        assert!(matches!(&error, Error::Bind { address, .. } if *address == wanted));
        assert!(error.to_string().contains(&wanted.to_string()), "{error}");
        assert_eq!(Errno::from_raw(error.errno()), errno);
    }
    assert_works(&Node::new(64), &node);
}

#[test]
fn where_no_route_leads_an_address_handle_says_so() {
    let name = here!("where_no_route_leads_an_address_handle_says_so");
    // Without so much as a loopback address.
    if !inside(name, "exec \"$PROGRAM\" \"$TEST\" --exact --nocapture") {
        return;
    }
    let pd = Rnic::open(Config::default()).unwrap().alloc_pd();
    for destination in ["198.51.100.1", "127.0.0.1"] {
        let error = pd.create_ah(destination.parse().unwrap()).unwrap_err();
        assert!(
            matches!(&error, Error::Route { address, .. } if address.to_string() == destination)
        );
        assert!(error.to_string().contains(destination), "{error}");
        assert_eq!(Errno::from_raw(error.errno()), Errno::ENETUNREACH);
    }
}

#[test]
fn nobody_listening_is_lost_datagrams_and_no_more() {
    let (sender, receiver) = (Node::new(64), Node::new(64));
    let (_held, dead) = nobody(Ipv4Addr::LOCALHOST.into());
    let to_nobody = sender.to_port(dead.ip(), dead.port());
    // Often enough for a connected socket, which ICMP errors come back to.
    for wr_id in 0..200 {
        sender.send(wr_id, &to_nobody, 0..64);
        let wc = sender.wait();
        assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success));
        if wr_id % 50 == 0 {
            assert_works(&sender, &receiver);
        }
    }
    let event = AsyncEvent::ErrorQueue {
        qpn: sender.qp.qpn().into(),
    };
    assert_eq!(
        sender.pd.rnic().async_events().next_event(true),
        Some(event)
    );
    let entry = sender.qp.poll_error().expect("the event told of it");
    assert_eq!(entry.peer.port(), to_nobody.qpn);
    let errno = nix::libc::ECONNREFUSED;
    assert_eq!(entry.reason, ErrorReason::Network { errno });
    assert_works(&sender, &receiver);
    assert_works(&receiver, &sender);
}

#[test]
fn full_queues_say_how_many_they_took() {
    let sender = Node::with(64, Config::default(), |attr| attr.qp.max_send_wr = 8);
    let receiver = Node::with(64, Config::default(), |attr| attr.qp.max_recv_wr = 8);
    let sges = [receiver.mr.sge(..)];
    let receives: Vec<_> = (0..9).map(|wr_id| RecvWr { wr_id, sges: &sges }).collect();
    let failure = receiver.qp.post_recv(&receives).unwrap_err();
    assert_eq!(
        (failure.accepted, failure.source),
        (8, PostError::QueueFull)
    );

    let destination = sender.to(&receiver.qp);
    let sges = [sender.mr.sge(..)];
    let sends: Vec<_> = (0..9)
        .map(|wr_id| SendWr {
            wr_id,
            operation: SEND,
            destination: destination.clone(),
            sges: &sges,
            signaled: true,
            solicited: false,
        })
        .collect();
    let failure = sender.qp.post_send(&sends).unwrap_err();
    assert_eq!(
        (failure.accepted, failure.source),
        (8, PostError::QueueFull)
    );
    for wr_id in 0..8 {
        assert_eq!(sender.wait().wr_id, wr_id);
        assert_eq!(receiver.wait().wr_id, wr_id);
    }
    assert_eq!(sender.cq.poll_one(), Ok(None));
    assert_works(&sender, &receiver);
}

#[test]
fn what_can_never_be_sent_is_not_accepted() {
    let (sender, receiver) = (Node::new(64), Node::new(64));
    let to = sender.to(&receiver.qp);
    let sge = sender.mr.sge(..1);
    let refused = |operation, sges: &[Sge]| sender.post(1, operation, &to, sges).unwrap_err();
    assert_eq!(refused(SEND, &[sge; 5]).source, PostError::TooManySges);
    let of = |length| Sge { length, ..sge };
    let write = sender.write_to(&receiver, 0);
    assert_eq!(
        refused(SEND, &[of((1 << 24) + 1)]).source,
        PostError::TooLong
    );
    assert_eq!(
        refused(write, &[of((1 << 30) + 1)]).source,
        PostError::TooLong
    );
    let failure = refused(write, &[of(u32::MAX), of(u32::MAX)]);
    assert_eq!((failure.accepted, failure.source), (0, PostError::TooLong));
    assert_eq!(sender.cq.poll_one(), Ok(None));
    assert_works(&sender, &receiver);
}

#[test]
fn memory_that_may_not_be_read_fails_its_send_only() {
    let (sender, receiver) = (Node::new(64), Node::new(64));
    let to = sender.to(&receiver.qp);
    let other_domain = sender.pd.rnic().alloc_pd();
    let foreign = other_domain
        .register(sender.memory.region(), Access::empty())
        .unwrap();
    let gone = sender.pd.register(sender.memory.region(), Access::empty());
    let gone = gone.unwrap();
    let gone_lkey = gone.lkey();
    gone.deregister().unwrap();
    let good = sender.mr.sge(..);
    let bad = [
        sender.mr.sge(1..65),
        Sge {
            addr: good.addr - 1,
            ..good
        },
        Sge {
            lkey: good.lkey ^ 1,
            ..good
        },
        Sge {
            lkey: gone_lkey,
            ..good
        },
        foreign.sge(..),
    ];
    for (wr_id, sge) in (0..).zip(bad) {
        for operation in [SEND, sender.write_to(&receiver, 0)] {
            sender.post(wr_id, operation, &to, &[good, sge]).unwrap();
            let wc = sender.wait();
            assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::LocalProtection));
        }
        assert_works(&sender, &receiver);
    }
    assert_eq!(
        receiver.qp.counters().segments_received,
        5,
        "nothing of the others left"
    );
}

#[test]
fn memory_deregistered_under_a_receive_fails_the_receive() {
    let (sender, receiver) = (Node::new(64), Node::new(64));
    let gone = Buffer::zeroed(64).unwrap();
    let mr = receiver
        .pd
        .register(gone.region(), Access::LOCAL_WRITE)
        .unwrap();
    let sges = [mr.sge(..)];
    receiver
        .qp
        .post_recv(&[RecvWr {
            wr_id: 5,
            sges: &sges,
        }])
        .unwrap();
    drop(mr);
    sender.memory.write(0, &[0xff; 64]);
    sender.send(1, &sender.to(&receiver.qp), 0..64);
    assert_eq!(sender.wait().status, WcStatus::Success);
    let wc = receiver.wait();
    assert_eq!((wc.wr_id, wc.status), (5, WcStatus::LocalProtection));
    assert_eq!(gone.to_vec(0, 64), [0; 64]);
    assert_works(&sender, &receiver);
}

#[test]
fn a_completion_queue_that_is_too_small_overruns() {
    let receiver = Node::new(64);
    let rnic = Rnic::open(Config::default()).unwrap();
    let cq = rnic.create_cq(4).unwrap();
    let sender = Node::on(rnic, cq, 64, |_| ());
    let to = sender.to(&receiver.qp);
    for wr_id in 0..5 {
        sender.send(wr_id, &to, 0..1);
    }
    for wr_id in 0..4 {
        assert_eq!(
            sender.wait().wr_id,
            wr_id,
            "what came before the lost one is there"
        );
    }
    assert_eq!(sender.cq.poll_one(), Err(CqError::Overrun));
    assert_eq!(sender.cq.wait(SOON), Err(CqError::Overrun));
    let events = sender.pd.rnic().async_events();
    let overrun = AsyncEvent::CqOverrun { cq: sender.cq.id() };
    assert_eq!(events.next_event(false), Some(overrun));
    assert_eq!(events.next_event(false), None, "told once");
}

#[test]
fn exhausted_descriptors_are_an_error_and_pass() {
    let name = here!("exhausted_descriptors_are_an_error_and_pass");
    if role().is_none() {
        return Process::start(name, "poor", &[]).finish(SOON);
    }
    let (sender, receiver) = (Node::new(64), Node::new(64));
    assert_works(&sender, &receiver);
    let to = sender.to(&receiver.qp);
    let limit = 200;
    setrlimit(Resource::RLIMIT_NOFILE, limit, limit).unwrap();
    let rnic = sender.pd.rnic();
    let is_exhaustion = |error: Error| {
        assert!(matches!(error, Error::System { .. }), "{error:?}");
        assert!(error.to_string().contains(Errno::EMFILE.desc()), "{error}");
        assert_eq!(Errno::from_raw(error.errno()), Errno::EMFILE);
    };
    let mut qps = Vec::new();
    let attr = UdQpAttr::new(&sender.cq, &sender.cq);
    is_exhaustion(loop {
        match sender.pd.create_ud_qp(&attr) {
            Ok(qp) => qps.push(qp),
            Err(error) => break error,
        }
        assert!(qps.len() < 300);
    });
    is_exhaustion(rnic.create_cq(1).unwrap_err());
    is_exhaustion(rnic.create_comp_channel().unwrap_err());
    is_exhaustion(Rnic::open(Config::default()).unwrap_err());
    // Open sockets work on, though a busy peer would get one of its own.
    for wr_id in 0..40 {
        receiver.post_recv(wr_id, 0..1);
        sender.send(wr_id, &to, 0..1);
        assert_eq!(sender.wait().status, WcStatus::Success);
        assert_eq!(receiver.wait().wr_id, wr_id);
    }
    drop(qps);
    assert_works(&sender, &receiver);
    sender.pd.create_ud_qp(&attr).unwrap();
    rnic.create_cq(1).unwrap();
}

#[test]
fn a_peer_that_is_killed_leaves_the_others_alone() {
    let name = here!("a_peer_that_is_killed_leaves_the_others_alone");
    if role().is_some() {
        let victim = Node::with(1 << 20, Config::default(), |attr| attr.record_slots = 16);
        println!(
            "victim {} {} {}",
            victim.qp.qpn(),
            victim.mr.rkey(),
            victim.mr.addr()
        );
        loop {
            let wc = victim.wait();
            victim.qp.release_record(wc.record());
        }
    }
    let sender = Node::new(1 << 20);
    let survivor = Node::with(1 << 20, Config::default(), |attr| attr.record_slots = 16);
    let mut victim = Process::start(name, "victim", &[]);
    let told = victim.tells("victim ", SOON);
    let words: Vec<u64> = told.split(' ').map(|word| word.parse().unwrap()).collect();
    let qpn = u16::try_from(words[0]).unwrap();
    let to_victim = sender.to_port(Ipv4Addr::LOCALHOST.into(), qpn);
    let into_victim = Operation::WriteRecord {
        rkey: u32::try_from(words[1]).unwrap(),
        remote_addr: words[2],
        immediate: None,
    };
    let to_survivor = sender.to(&survivor.qp);
    let into_survivor = sender.write_to(&survivor, 0);
    for round in 0..100u8 {
        if round == 40 {
            // In the middle of a message that is under way.
            sender
                .post(1, into_victim, &to_victim, &[sender.mr.sge(..)])
                .unwrap();
            victim.kill();
            assert_eq!(sender.wait().status, WcStatus::Success);
        }
        sender.memory.write(0, &vec![round; 1 << 20]);
        sender
            .post(1, into_victim, &to_victim, &[sender.mr.sge(..)])
            .unwrap();
        sender
            .post(2, into_survivor, &to_survivor, &[sender.mr.sge(..50_000)])
            .unwrap();
        for wr_id in [1, 2] {
            let wc = sender.wait();
            assert_eq!(
                (wc.wr_id, wc.status),
                (wr_id, WcStatus::Success),
                "round {round}"
            );
        }
        let wc = survivor.wait();
        assert_eq!((wc.opcode, wc.byte_len), (WcOpcode::WriteRecord, 50_000));
        assert!(survivor.memory.to_vec(0, 50_000) == vec![round; 50_000]);
        assert!(survivor.qp.release_record(wc.record()));
    }
    assert_works(&sender, &survivor);
}

#[test]
fn a_wait_ends_in_time() {
    let node = Node::new(64);
    for timeout in [0, 1, 30, 250].map(Duration::from_millis) {
        // The machine may be late now and then; we may not be always.
        let spans = (0..5).map(|_| {
            let began = now();
            assert_eq!(node.cq.wait(timeout), Ok(None));
            now() - began
        });
        let shortest = spans
            .inspect(|span| assert!(*span >= timeout, "{span:?} < {timeout:?}"))
            .min()
            .unwrap();
        assert!(
            shortest <= timeout + Duration::from_millis(50),
            "{shortest:?} for {timeout:?}"
        );
    }
}

/// Descriptors and threads of this process, and resident memory in octets.
fn resources() -> (usize, usize, u64) {
    let entries = |path| fs::read_dir(path).unwrap().count();
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    (
        entries("/proc/self/fd"),
        entries("/proc/self/task"),
        pages * 4096,
    )
}

#[test]
fn what_is_made_and_dropped_leaves_nothing() {
    let name = here!("what_is_made_and_dropped_leaves_nothing");
    if role().is_none() {
        return Process::start(name, "alone", &[]).finish(Duration::from_secs(60));
    }
    let before_all = resources();
    let rnic = Rnic::open(Config::default()).unwrap();
    let keep = Node::on(rnic.clone(), rnic.create_cq(16).unwrap(), 4096, |_| ());
    let cycle = || {
        let cq = rnic.create_cq(64).unwrap();
        let node = Node::on(rnic.clone(), cq, 1 << 16, |attr| attr.record_slots = 8);
        // Long enough for a connected socket.
        for round in 0..20 {
            node.post_recv(round, 0..64);
            node.send(round, &node.to(&node.qp), 64..128);
            assert_eq!(node.wait().status, WcStatus::Success);
            assert_eq!(node.wait().status, WcStatus::Success);
        }
        let to = node.to(&node.qp);
        node.post(
            1,
            node.write_to(&node, 0),
            &to,
            &[node.mr.sge(40_000..60_000)],
        )
        .unwrap();
        let both = [node.wait(), node.wait()];
        assert!(
            both.iter().any(|wc| wc.opcode == WcOpcode::WriteRecord),
            "{both:?}"
        );
    };
    let (descriptors, threads, _) = resources();
    assert_eq!(threads, before_all.1 + 1, "one thread of ours");
    (0..60).for_each(|_| cycle());
    let resident = resources().2;
    (0..300).for_each(|_| cycle());
    let after = resources();
    println!("resident {resident} -> {}", after.2);
    assert!(after.2 <= resident + (1 << 20), "{resident} -> {}", after.2);
    assert_eq!(after.1, threads);
    // The background thread may be polling the last queue while it goes.
    wait_until(SOON, "descriptors are closed", || {
        resources().0 == descriptors
    });
    drop(keep);
    assert_eq!(resources().1, threads, "the device is still open");
    drop(rnic);
    wait_until(SOON, "the thread ends", || resources().1 == before_all.1);
    assert_eq!(resources().0, before_all.0, "and closes its descriptors");
}

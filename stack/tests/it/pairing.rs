//! QPs that find each other by the numbers that their programs exchanged.

#![expect(
    clippy::disallowed_methods,
    reason = "these tests are about what happens when, on real sockets"
)]

use std::net::{IpAddr, TcpStream};
use std::time::{Duration, Instant};

use dgiwarp::{
    Access, Buffer, Config, ConnectError, Cq, MpaConfig, Mr, Pairing, Pd, RcListener, RcOperation,
    RcQp, RcQpAttr, RcSendWr, ReadDepths, RecvWr, Rnic, Wc, WcOpcode, WcStatus,
};

const SOON: Duration = Duration::from_secs(10);
const LENGTH: usize = 1000;

/// One end with memory of its own.
struct End {
    qp: RcQp,
    cq: Cq,
    memory: Buffer,
    mr: Mr,
    pd: Pd,
    psn: u32,
}

fn end(rnic: &Rnic, psn: u32) -> End {
    let pd = rnic.alloc_pd();
    let cq = rnic.create_cq(64).unwrap();
    let memory = Buffer::zeroed(LENGTH).unwrap();
    let mr = pd
        .register(memory.region(), Access::LOCAL_WRITE | Access::REMOTE_READ)
        .unwrap();
    let qp = pd
        .create_rc_qp(&RcQpAttr {
            paired: true,
            ..RcQpAttr::new(&cq, &cq)
        })
        .unwrap();
    let end = End {
        qp,
        cq,
        memory,
        mr,
        pd,
        psn,
    };
    end.post_recv();
    end
}

fn here() -> IpAddr {
    "127.0.0.1".parse().unwrap()
}

impl End {
    fn pair(&self, peer: &Self, peer_psn: u32) {
        self.pair_at(here(), peer.qp.qpn(), peer_psn);
    }

    fn pair_at(&self, address: IpAddr, peer_qpn: u32, rq_psn: u32) {
        let pairing = Pairing {
            peer: address,
            scope_id: 0,
            peer_qpn,
            source: address,
            rq_psn,
            ird: 4,
        };
        self.qp.pair(&pairing).unwrap();
    }

    fn post_recv(&self) {
        let sges = [self.mr.sge(..)];
        let wr = RecvWr {
            wr_id: 77,
            sges: &sges,
        };
        self.qp.post_recv(&[wr]).unwrap();
    }

    fn start(&self, patience: Option<Duration>) {
        self.qp.start(self.psn, 4, patience).unwrap();
    }

    fn send(&self, octets: &[u8]) {
        let wr = RcSendWr {
            inline: octets,
            ..RcSendWr::send(1, &[])
        };
        self.qp.post_send(&[wr]).unwrap();
    }

    /// The next completion of a kind; others are passed over.
    fn next(&self, opcode: WcOpcode) -> Wc {
        let until = Instant::now() + SOON;
        while Instant::now() < until {
            if let Some(wc) = self.cq.wait(Duration::from_millis(100)).unwrap()
                && wc.opcode == opcode
            {
                return wc;
            }
        }
        panic!("no {opcode:?} in time");
    }
}

fn exchange(one: &End, two: &End) {
    one.send(b"one");
    let wc = two.next(WcOpcode::Recv);
    assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, 3));
    assert_eq!(two.memory.to_vec(0, 3), b"one");
    two.send(b"two!");
    let wc = one.next(WcOpcode::Recv);
    assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, 4));
    assert_eq!(one.memory.to_vec(0, 4), b"two!");
}

#[test]
fn whoever_is_told_first_they_find_each_other() {
    let rnic = Rnic::open(Config::default()).unwrap();
    for order in 0..4 {
        let (one, two) = (end(&rnic, 5), end(&rnic, 6));
        assert!(one.qp.qpn() >= 1 << 16 && one.qp.qpn() != two.qp.qpn());
        let (first, second) = if order & 1 == 0 {
            (&one, &two)
        } else {
            (&two, &one)
        };
        first.pair(second, second.psn);
        first.start(None);
        if order & 2 != 0 {
            // Its request is waiting, or it is waiting for one.
            std::thread::sleep(Duration::from_millis(150));
        }
        second.pair(first, first.psn);
        second.start(None);
        exchange(&one, &two);
    }
}

/// A program may send as soon as its own end is ready, and one that never sends may stay at ready-to-receive.
#[test]
fn sends_wait_for_the_connection() {
    let rnic = Rnic::open(Config::default()).unwrap();
    for swap in [false, true] {
        let (one, two) = (end(&rnic, 5), end(&rnic, 6));
        let (sender, receiver) = if swap { (&two, &one) } else { (&one, &two) };
        sender.pair(receiver, receiver.psn);
        sender.start(Some(SOON));
        sender.send(b"early");
        std::thread::sleep(Duration::from_millis(50));
        receiver.pair(sender, sender.psn);
        assert_eq!(receiver.next(WcOpcode::Recv).byte_len, 5);
        assert_eq!(sender.next(WcOpcode::Send).status, WcStatus::Success);
        // It reads too: the receiver's Read depth came with its peer.
        let read = RcOperation::Read {
            rkey: receiver.mr.rkey(),
            remote_addr: receiver.mr.addr(),
        };
        let sges = [sender.mr.sge(0..5)];
        sender
            .qp
            .post_send(&[RcSendWr::new(9, read, &sges)])
            .unwrap();
        assert_eq!(sender.next(WcOpcode::RdmaRead).status, WcStatus::Success);
        assert_eq!(sender.memory.to_vec(0, 5), b"early");
    }
}

#[test]
fn without_a_peer_work_requests_end_in_time() {
    let rnic = Rnic::open(Config::default()).unwrap();
    // A port where nobody listens, and a QPN that nobody has.
    let lonely = end(&rnic, 5);
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = silent.local_addr().unwrap().port();
    drop(silent);
    for (peer_qpn, name) in [
        (u32::from(closed) << 8, "no port"),
        (lonely.qp.qpn() ^ 0x80, "no QP"),
    ] {
        let one = end(&rnic, 5);
        one.pair_at(here(), peer_qpn, 6);
        one.start(Some(Duration::from_secs(1)));
        let began = Instant::now();
        one.send(b"lost");
        one.send(b"flushed");
        assert_eq!(
            one.next(WcOpcode::Send).status,
            WcStatus::RetryExceeded,
            "{name}"
        );
        assert_eq!(one.next(WcOpcode::Send).status, WcStatus::Flushed, "{name}");
        assert_eq!(one.next(WcOpcode::Recv).status, WcStatus::Flushed, "{name}");
        assert!(one.qp.is_over() && began.elapsed() < Duration::from_secs(5));
        // Later work requests are flushed at once.
        one.send(b"late");
        assert_eq!(one.next(WcOpcode::Send).status, WcStatus::Flushed, "{name}");
    }
}

/// A QP of an earlier life has the number and address of the one that is meant, and another PSN.
#[test]
fn another_life_of_the_peer_is_not_taken_for_it() {
    let rnic = Rnic::open(Config::default()).unwrap();
    for swap in [false, true] {
        let (one, two) = (end(&rnic, 5), end(&rnic, 6));
        let (right, wrong) = if swap { (&two, &one) } else { (&one, &two) };
        right.pair(wrong, wrong.psn);
        wrong.pair(right, right.psn + 1);
        right.start(Some(Duration::from_millis(700)));
        wrong.start(Some(Duration::from_millis(700)));
        right.send(b"one");
        wrong.send(b"two");
        assert_eq!(right.next(WcOpcode::Send).status, WcStatus::RetryExceeded);
        assert_eq!(wrong.next(WcOpcode::Send).status, WcStatus::RetryExceeded);
    }
}

#[test]
fn strangers_are_sent_away_and_do_not_disturb() {
    use std::io::{Read, Write};
    let rnic = Rnic::open(Config::default()).unwrap();
    let (one, two) = (end(&rnic, 5), end(&rnic, 6));
    let port = u16::try_from(one.qp.qpn() >> 8).unwrap();
    let mut noise = TcpStream::connect((here(), port)).unwrap();
    noise.write_all(&[b'x'; 600]).unwrap();
    let mut request = b"MPA ID Req Frame".to_vec();
    request.extend_from_slice(&[0x40, 1, 0, 3]);
    request.extend_from_slice(b"who");
    let mut stranger = TcpStream::connect((here(), port)).unwrap();
    stranger.write_all(&request).unwrap();
    let mut reply = Vec::new();
    stranger.read_to_end(&mut reply).unwrap();
    assert!(reply.starts_with(b"MPA ID Rep Frame"));
    assert_eq!(reply[16] & 0x20, 0x20, "rejected");
    one.pair(&two, two.psn);
    two.pair(&one, one.psn);
    one.start(None);
    two.start(None);
    exchange(&one, &two);
}

#[test]
fn the_error_state_flushes_whether_connected_or_not() {
    let rnic = Rnic::open(Config::default()).unwrap();
    let (one, two) = (end(&rnic, 5), end(&rnic, 6));
    one.pair(&two, two.psn);
    two.pair(&one, one.psn);
    one.start(None);
    two.start(None);
    exchange(&one, &two);
    two.qp
        .post_recv(&[RecvWr {
            wr_id: 78,
            sges: &[],
        }])
        .unwrap();
    one.qp.flush();
    assert!(one.qp.is_over());
    // The other end is in error once it needs this one.
    let sent = two.next(WcOpcode::Send);
    assert_eq!(sent.status, WcStatus::Success, "of the exchange");
    two.send(b"hello?");
    assert_eq!(two.next(WcOpcode::Send).status, WcStatus::RetryExceeded);
    assert_eq!(two.next(WcOpcode::Recv).status, WcStatus::Flushed);
    let alone = end(&rnic, 5);
    alone.pair_at(here(), 0x00ff_fe00, 6);
    alone.start(None);
    alone.send(b"never");
    alone.qp.flush();
    assert_eq!(alone.next(WcOpcode::Send).status, WcStatus::Flushed);
    assert_eq!(alone.next(WcOpcode::Recv).status, WcStatus::Flushed);
    assert!(
        alone
            .qp
            .pair(&Pairing {
                peer: here(),
                scope_id: 0,
                peer_qpn: 1 << 16,
                source: here(),
                rq_psn: 0,
                ird: 0,
            })
            .is_err()
    );
    drop(alone.pd);
}

/// As on InfiniBand: receives stay, and the next that needs the peer finds out.
#[test]
fn a_peer_that_leaves_is_noticed_by_who_needs_it() {
    let rnic = Rnic::open(Config::default()).unwrap();
    let (one, two) = (end(&rnic, 5), end(&rnic, 6));
    one.pair(&two, two.psn);
    two.pair(&one, one.psn);
    one.start(None);
    two.start(None);
    exchange(&one, &two);
    two.qp
        .post_recv(&[RecvWr {
            wr_id: 78,
            sges: &[],
        }])
        .unwrap();
    drop(one);
    // Earlier messages come; nothing else does.
    while let Some(wc) = two.cq.wait(Duration::from_millis(500)).unwrap() {
        assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
    }
    assert!(!two.qp.is_over());
    two.send(b"hello?");
    two.send(b"hello??");
    for (opcode, status) in [
        (WcOpcode::Send, WcStatus::RetryExceeded),
        (WcOpcode::Send, WcStatus::Flushed),
        (WcOpcode::Recv, WcStatus::Flushed),
    ] {
        let wc = two.cq.wait(SOON).unwrap().expect("a completion");
        assert_eq!((wc.opcode, wc.status), (opcode, status));
    }
    assert!(two.qp.is_over());
}

/// A completion with an error is not visible before the error state is (`ibv_query_qp(3)`), whichever thread makes it.
#[test]
fn a_failing_completion_comes_with_the_error_state() {
    let rnic = Rnic::open(Config::default()).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..4).for_each(|_| fail_while_polled(&rnic)));
        }
    });
}

fn fail_while_polled(rnic: &Rnic) {
    let (one, two) = (end(rnic, 5), end(rnic, 6));
    one.pair(&two, two.psn);
    two.pair(&one, one.psn);
    one.start(None);
    two.start(None);
    exchange(&one, &two);
    one.post_recv();
    let in_error = || {
        let until = Instant::now() + SOON;
        while Instant::now() < until {
            if let Some(wc) = two.cq.poll_one().unwrap()
                && wc.status != WcStatus::Success
            {
                return two.qp.is_over();
            }
        }
        panic!("no completion with an error");
    };
    std::thread::scope(|scope| {
        let polls = scope.spawn(in_error);
        one.qp.flush();
        two.send(b"hello?");
        two.send(b"hello??");
        assert!(polls.join().unwrap());
    });
}

/// A QP may be made before it is decided how it will be connected.
#[test]
fn one_that_could_be_paired_may_be_connected_otherwise() {
    let rnic = Rnic::open(Config::default()).unwrap();
    let (one, two) = (end(&rnic, 5), end(&rnic, 6));
    let listener = RcListener::bind((here(), 0).into(), MpaConfig::default()).unwrap();
    let address = listener.local_addr();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let request = listener.accept(SOON).unwrap().unwrap();
            let depths = ReadDepths { ird: 1, ord: 1 };
            request.accept(&two.qp, depths, b"").unwrap();
        });
        let connected = one.qp.connect(address, &MpaConfig::default(), b"");
        connected.unwrap();
    });
    exchange(&one, &two);
    let late = Pairing {
        peer: here(),
        scope_id: 0,
        peer_qpn: two.qp.qpn(),
        source: here(),
        rq_psn: 6,
        ird: 1,
    };
    assert!(one.qp.pair(&late).is_err() && two.qp.pair(&late).is_err());
    // One that is on its way to a peer takes no other connection.
    let paired = end(&rnic, 7);
    paired.pair_at(here(), 0x00ff_fe00, 6);
    let refused = paired.qp.connect(address, &MpaConfig::default(), b"");
    assert!(matches!(refused, Err(ConnectError::State)));
}

/// A program that starts over with the same QPs draws new PSNs and exchanges them again.
#[test]
fn after_a_reset_queue_pairs_are_like_new() {
    let rnic = Rnic::open(Config::default()).unwrap();
    let (mut one, mut two) = (end(&rnic, 5), end(&rnic, 6));
    for life in 0..3 {
        one.pair(&two, two.psn);
        two.pair(&one, one.psn);
        one.start(None);
        two.start(None);
        exchange(&one, &two);
        let unused = |wr_id| RecvWr { wr_id, sges: &[] };
        for end in [&mut one, &mut two] {
            end.qp.post_recv(&[unused(800), unused(801)]).unwrap();
            end.psn += 10;
        }
        if life == 1 {
            // The end of one is reported to the other, which needs it.
            one.qp.reset();
            two.send(b"to nobody");
            let mut sent = two.next(WcOpcode::Send);
            if sent.status == WcStatus::Success {
                sent = two.next(WcOpcode::Send);
            }
            assert_eq!(sent.status, WcStatus::RetryExceeded);
            assert_eq!(two.next(WcOpcode::Recv).status, WcStatus::Flushed);
            two.qp.reset();
        } else {
            two.qp.reset();
            one.qp.reset();
        }
        for end in [&one, &two] {
            assert!(!end.qp.is_over());
            assert_eq!(end.cq.wait(Duration::from_millis(50)).unwrap(), None);
            let early = RcSendWr::send(1, &[]);
            assert!(end.qp.post_send(&[early]).is_err(), "not ready to send");
            end.post_recv();
        }
    }
    let segments = one.qp.counters().segments_sent;
    assert!(segments >= 6, "of all lives: {segments}");
}

/// Whatever is on its way when a QP is reset is not meant for what it becomes.
#[test]
fn a_reset_ends_attempts_too() {
    let rnic = Rnic::open(Config::default()).unwrap();
    for swap in [false, true] {
        let (one, two) = (end(&rnic, 5), end(&rnic, 6));
        let (first, second) = if swap { (&two, &one) } else { (&one, &two) };
        first.pair_at(here(), second.qp.qpn() ^ 0x40, 9);
        first.start(Some(SOON));
        first.send(b"to nobody");
        std::thread::sleep(Duration::from_millis(120));
        first.qp.reset();
        first.post_recv();
        first.pair(second, second.psn);
        first.start(None);
        second.pair(first, first.psn);
        second.start(None);
        exchange(first, second);
    }
}

/// As programs do that try the API with one QP.
#[test]
fn one_can_be_connected_to_itself() {
    let rnic = Rnic::open(Config::default()).unwrap();
    let one = end(&rnic, 5);
    for life in 0..2 {
        one.pair(&one, one.psn);
        one.start(Some(SOON));
        one.send(b"myself");
        assert_eq!(one.next(WcOpcode::Recv).byte_len, 6);
        assert_eq!(one.memory.to_vec(0, 6), b"myself");
        let sges = [one.mr.sge(500..506)];
        let (rkey, remote_addr) = (one.mr.rkey(), one.mr.addr());
        let read = RcOperation::Read { rkey, remote_addr };
        one.qp.post_send(&[RcSendWr::new(2, read, &sges)]).unwrap();
        assert_eq!(one.next(WcOpcode::RdmaRead).status, WcStatus::Success);
        assert_eq!(one.memory.to_vec(500, 6), b"myself");
        // More than its socket takes at once, in both directions of the one connection.
        for number in 0..200 {
            let sges = [one.mr.sge(..LENGTH)];
            let wr = RcSendWr {
                signaled: number == 199,
                ..RcSendWr::send(3, &sges)
            };
            one.post_recv();
            one.qp.post_send(&[wr]).unwrap();
            assert_eq!(one.next(WcOpcode::Recv).byte_len as usize, LENGTH);
        }
        if life == 0 {
            one.qp.reset();
            one.post_recv();
        } else {
            one.qp.flush();
            assert!(one.qp.is_over());
        }
    }
}

/// An Initiator whose connection is lost before it has the answer, or that does not agree with it: the Responder goes on waiting for the next attempt.
#[test]
fn an_answer_that_nobody_takes_leaves_the_responder_as_it_was() {
    use std::io::{Read, Write};
    let rnic = Rnic::open(Config::default()).unwrap();
    let (low, high) = (end(&rnic, 5), end(&rnic, 6));
    assert!(low.qp.qpn() < high.qp.qpn(), "the first one connects");
    high.pair(&low, low.psn);
    high.start(None);
    high.send(b"patient");
    // The Request of the right peer, twice.
    let mut request = b"MPA ID Req Frame\x40\x01\0\x28DGiP\x01\x01\0\0".to_vec();
    request.extend(low.qp.qpn().to_be_bytes());
    request.extend(high.qp.qpn().to_be_bytes());
    request.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1]);
    request.extend(high.psn.to_be_bytes());
    request.extend(low.psn.to_be_bytes());
    let port = u16::try_from(high.qp.qpn() >> 8).unwrap();
    let ask = || {
        let mut stream = TcpStream::connect((here(), port)).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream.write_all(&request).unwrap();
        let mut reply = [0; 60];
        stream.read_exact(&mut reply).unwrap();
        assert!(reply.starts_with(b"MPA ID Rep Frame\x40\x01\0\x28DGiP"));
        stream
    };
    drop(ask());
    let mut first = ask();
    let second = ask();
    // A repeated request gives the earlier one up.
    assert_eq!(first.read(&mut [0]).unwrap(), 0);
    assert!(!high.qp.is_over());
    low.pair(&high, high.psn);
    low.start(None);
    assert_eq!(low.next(WcOpcode::Recv).byte_len, 7);
    low.post_recv();
    exchange(&low, &high);
    drop(second);
}

/// QPNs of all kinds of connected QPs are different ones, whichever device they are of.
#[test]
fn numbers_are_unique_in_the_process() {
    let devices = [(); 2].map(|()| Rnic::open(Config::default()).unwrap());
    let mut kept = Vec::new();
    let mut numbers = std::collections::BTreeSet::new();
    for rnic in &devices {
        let (pd, cq) = (rnic.alloc_pd(), rnic.create_cq(4).unwrap());
        for paired in [false, true, false, true] {
            let attr = RcQpAttr {
                paired,
                ..RcQpAttr::new(&cq, &cq)
            };
            let qp = pd.create_rc_qp(&attr).unwrap();
            assert!(numbers.insert(qp.qpn()), "{:#x}", qp.qpn());
            assert!((1 << 16..0x00ff_ff00).contains(&qp.qpn()));
            kept.push(qp);
        }
    }
}

/// More than one port's worth, all at once.
#[test]
fn three_hundred_pairs() {
    let rnic = Rnic::open(Config::default()).unwrap();
    let ends: Vec<(End, End)> = (0..300).map(|_| (end(&rnic, 5), end(&rnic, 6))).collect();
    for (one, two) in &ends {
        one.pair(two, two.psn);
        one.start(None);
    }
    for (one, two) in &ends {
        two.pair(one, one.psn);
        two.start(None);
    }
    for (one, two) in &ends {
        exchange(one, two);
    }
}

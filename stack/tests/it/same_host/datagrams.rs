//! Datagram queue pairs within this host through shared memory.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::thread;

use super::{Waits, arenas, config};
use crate::common::node::{Node, SOON};
use crate::common::{Process, crc32c, now, role, wait_until};
use dgiwarp::{
    Access, Buffer, Config, Cq, Destination, DropReason, Fault, Operation, RecvWr, Rnic,
    SameHostMode, Sge, ShortData, ShortSendWr, UcOperation, UcQp, UcQpAttr, UcSendWr, UdQpAttr, Wc,
    WcOpcode, WcStatus,
};

/// Octets of the longest message: two datagrams.
const LONGEST: usize = 100_000;
const RECEIVES: usize = 8;
/// Lengths of the messages, by turns.
const LENGTHS: [usize; 8] = [1, 64, 0, 1000, 8192, 65_000, LONGEST, 4096];

/// A queue pair, and its peer.
pub(super) struct End {
    pub(super) node: Node,
    waits: Waits,
}

impl End {
    pub(super) fn new(config: Config, waits: Waits) -> Self {
        Self::with(config, waits, |_| ())
    }

    fn with(config: Config, waits: Waits, change: impl FnOnce(&mut UdQpAttr<'_>)) -> Self {
        let node = Node::with((RECEIVES + 1) * LONGEST, config, change);
        let end = Self { node, waits };
        for slot in 0..RECEIVES {
            end.post_recv(slot);
        }
        end
    }

    fn post_recv(&self, slot: usize) {
        let octets = slot * LONGEST..(slot + 1) * LONGEST;
        self.node.post_recv(slot as u64, octets);
    }

    pub(super) fn next(&self) -> Wc {
        let until = now() + SOON;
        loop {
            let wc = match self.waits {
                Waits::Polling => self.node.cq.poll_one().unwrap(),
                Waits::Sleeping => self.node.cq.wait(SOON).unwrap(),
            };
            if let Some(wc) = wc {
                assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
                return wc;
            }
            assert!(now() < until, "no completion in time");
            if self.waits == Waits::Polling {
                thread::yield_now();
            }
        }
    }

    pub(super) fn send(&self, number: usize, to: &Destination) {
        let octets = message(number);
        let at = RECEIVES * LONGEST;
        self.node.memory.write(at, &octets);
        self.node.send(1000, to, at..at + octets.len());
    }

    /// Receives the message with this number, of which nothing is left afterwards.
    pub(super) fn take(&self, number: usize) {
        let wc = loop {
            let wc = self.next();
            if wc.wr_id != 1000 {
                break wc;
            }
        };
        let slot = usize::try_from(wc.wr_id).unwrap();
        let octets = self
            .node
            .memory
            .to_vec(slot * LONGEST, wc.byte_len as usize);
        assert!(octets == message(number), "message {number}");
        self.post_recv(slot);
    }

    /// Octets sent and received through shared memory.
    pub(super) fn lane_octets(&self) -> (u64, u64) {
        let counters = self.node.qp.counters();
        (counters.lane_octets_sent, counters.lane_octets_received)
    }
}

/// Octets of a message.
fn message(number: usize) -> Vec<u8> {
    let length = LENGTHS[number % LENGTHS.len()];
    (0..251).cycle().skip(number % 251).take(length).collect()
}

/// Two ends answer each other, one message at a time.
pub(super) fn ping_pong([a, b]: [&End; 2], messages: usize) {
    let (to_b, to_a) = (a.node.to(&b.node.qp), b.node.to(&a.node.qp));
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..messages {
                b.take(number);
                b.send(number, &to_a);
            }
        });
        for number in 0..messages {
            a.send(number, &to_b);
            a.take(number);
        }
    });
}

fn at_once() -> Config {
    super::at_once(SameHostMode::Ring)
}

/// Each message arrives, before the peers have met, while they do, and through their lanes.
#[test]
fn messages_go_through_memory_however_their_ends_wait() {
    for waits in [
        [Waits::Polling, Waits::Polling],
        [Waits::Polling, Waits::Sleeping],
        [Waits::Sleeping, Waits::Polling],
        [Waits::Sleeping, Waits::Sleeping],
    ] {
        let ends = waits.map(|waits| End::new(at_once(), waits));
        let [a, b] = &ends;
        ping_pong([a, b], 400);
        let (sent, received) = a.lane_octets();
        let octets: usize = (200..400).map(|number| message(number).len()).sum();
        assert!(
            sent > octets as u64 && received > octets as u64,
            "{waits:?}: {sent} sent, {received} received"
        );
        assert_eq!(b.lane_octets(), (received, sent));
        // They have got to memory, and nothing is by the socket any more.
        let dropped = [a, b].map(|end| end.node.qp.counters().dropped_in_all());
        assert_eq!(dropped, [0, 0]);
    }
}

/// Octets of the program and registered ones go into memory at once, where the peer shares it and no fault is asked for.
#[test]
fn short_sends_are_posted_at_once() {
    let ends = [(); 2].map(|()| End::new(at_once(), Waits::Polling));
    let [a, b] = &ends;
    let to = a.node.to(&b.node.qp);
    let octets: Vec<u8> = (0..200).collect();
    let post = |wr_id, data, signaled| {
        a.node.qp.post_short(&ShortSendWr {
            wr_id,
            ah: &to.ah,
            qpn: to.qpn,
            qkey: to.qkey,
            data,
            signaled,
            solicited: false,
        })
    };
    assert!(
        !post(1, ShortData::Inline(&octets), true),
        "before the peers have met"
    );
    ping_pong([a, b], 400);
    while let Some(wc) = a.node.cq.poll_one().unwrap() {
        assert_eq!(wc.wr_id, 1000);
    }
    let take = |expected: &[u8]| {
        let wc = b.next();
        assert_eq!(wc.byte_len as usize, expected.len());
        let slot = usize::try_from(wc.wr_id).unwrap();
        let found = b.node.memory.to_vec(slot * LONGEST, expected.len());
        assert_eq!(found, expected);
        b.post_recv(slot);
    };
    while b.node.cq.poll_one().unwrap().is_some() {}
    assert!(post(7, ShortData::Inline(&octets), true));
    a.node.memory.write(0, &octets);
    assert!(post(8, ShortData::Sge(a.node.mr.sge(10..90)), false));
    assert!(post(9, ShortData::Inline(&[]), true));
    for expected in [&octets, &octets[10..90], &[]] {
        take(expected);
    }
    let ids = [a.next(), a.next()].map(|wc| (wc.wr_id, wc.opcode));
    assert_eq!(ids, [(7, WcOpcode::Send), (9, WcOpcode::Send)]);
    // Memory that is not the program's to send, and a message that is not short.
    let foreign = Sge {
        lkey: 0,
        ..a.node.mr.sge(0..64)
    };
    assert!(!post(10, ShortData::Sge(foreign), true));
    assert!(!post(11, ShortData::Sge(a.node.mr.sge(0..2000)), true));
    assert!(a.node.cq.poll_one().unwrap().is_none());
}

/// Octets of each message of a burst, and messages of one: 1.5 MB are under way, and a lane has 1 MiB.
const LENGTH: usize = 65_000;
const BURST: usize = 24;
const BURSTS: usize = 60;
/// Numbers of work requests that are no messages.
const CREDIT: u64 = 1000;
const SENT: u64 = 2000;

/// Sends bursts of numbered messages, each when the one before was received.
fn send_bursts(node: &Node, to: &Destination) {
    for burst in 0..BURSTS {
        node.post_recv(CREDIT, 0..8);
        for slot in 0..BURST {
            let number = (burst * BURST + slot) as u64;
            node.memory.write(slot * LENGTH, &number.to_le_bytes());
            node.send(SENT, to, slot * LENGTH..(slot + 1) * LENGTH);
        }
        for _ in 0..=BURST {
            assert_eq!(node.wait().status, WcStatus::Success);
        }
    }
}

/// Receives them, each in its turn.
fn take_bursts(node: &Node, waits: Waits, back: &Destination) {
    for number in 0..BURSTS * BURST {
        let until = now() + SOON;
        let wc = loop {
            assert!(now() < until, "no message {number}");
            let wc = match waits {
                Waits::Sleeping => node.cq.wait(SOON).unwrap(),
                Waits::Polling => node.cq.poll_one().unwrap(),
            };
            if let Some(wc) = wc.filter(|wc| wc.wr_id < CREDIT) {
                break wc;
            }
        };
        let at = usize::try_from(wc.wr_id).unwrap() * LENGTH;
        assert_eq!(node.memory.to_vec(at, 8), (number as u64).to_le_bytes());
        node.post_recv(wc.wr_id, at..at + LENGTH);
        if (number + 1) % BURST == 0 {
            node.send(CREDIT, back, 0..8);
        }
    }
}

/// More than a lane has room for is under way at a time: the socket carries the rest, and all of it arrives in order.
#[test]
fn nothing_is_lost_or_overtaken_where_a_lane_is_full() {
    for waits in [Waits::Polling, Waits::Sleeping] {
        let [sender, receiver] = [(); 2].map(|()| Node::with(BURST * LENGTH, at_once(), |_| ()));
        let (to, back) = (sender.to(&receiver.qp), receiver.to(&sender.qp));
        for slot in 0..BURST {
            receiver.post_recv(slot as u64, slot * LENGTH..(slot + 1) * LENGTH);
        }
        thread::scope(|scope| {
            scope.spawn(|| send_bursts(&sender, &to));
            take_bursts(&receiver, waits, &back);
        });
        let counters = receiver.qp.counters();
        let carried = counters.lane_octets_received;
        assert!(carried > 0 && counters.dropped_in_all() == 0, "{counters}");
        // The long records of a hot lane are placed from where they lie.
        let placed = counters.lane_octets_placed;
        assert!(placed > 0 && placed <= carried, "{counters}");
    }
}

/// One-sided operations take the same way.
#[test]
fn write_records_and_reads_go_through_memory() {
    let [near, far] =
        [(); 2].map(|()| Node::with(400_000, at_once(), |attr| attr.record_slots = 64));
    let (to, back) = (near.to(&far.qp), far.to(&near.qp));
    // Traffic both ways, until they have met.
    wait_until(SOON, "the ends meet", || {
        for (end, other, to) in [(&near, &far, &to), (&far, &near, &back)] {
            other.post_recv(1, 0..8);
            end.send(2, to, 0..8);
            assert_eq!(end.wait().status, WcStatus::Success);
            assert_eq!(other.wait().status, WcStatus::Success);
        }
        let met = |end: &Node| {
            let counters = end.qp.counters();
            counters.lane_octets_sent > 0 && counters.lane_octets_received > 0
        };
        met(&near) && met(&far)
    });
    let carried = |end: &Node| end.qp.counters().lane_octets_sent;
    let before = [carried(&near), carried(&far)];
    let octets: Vec<u8> = (0..251).cycle().take(180_000).collect();
    near.memory.write(0, &octets);
    let write = near.write_to(&far, 0);
    near.post(3, write, &to, &[near.mr.sge(..180_000)]).unwrap();
    assert_eq!(near.wait().status, WcStatus::Success);
    let wc = far.wait();
    assert_eq!(wc.opcode, WcOpcode::WriteRecord);
    assert!(far.memory.to_vec(0, 180_000) == octets);
    assert!(carried(&near) >= before[0] + 180_000);
    let remote = far
        .pd
        .register(far.memory.region(), Access::REMOTE_READ)
        .unwrap();
    let read = Operation::Read {
        rkey: remote.rkey(),
        remote_addr: remote.addr(),
        timeout: Some(SOON),
    };
    near.post(4, read, &to, &[near.mr.sge(200_000..380_000)])
        .unwrap();
    thread::scope(|scope| {
        // Its target polls nothing: it waits for what does not come.
        scope.spawn(|| assert_eq!(far.cq.wait(std::time::Duration::from_millis(500)), Ok(None)));
        assert_eq!(near.wait().status, WcStatus::Success);
    });
    assert!(near.memory.to_vec(200_000, 180_000) == octets);
    assert!(carried(&far) >= before[1] + 180_000);
}

fn uc(config: Config) -> (UcQp, Cq, Buffer, dgiwarp::Mr, dgiwarp::Pd) {
    let rnic = Rnic::open(config).unwrap();
    let pd = rnic.alloc_pd();
    let cq = rnic.create_cq(64).unwrap();
    let qp = pd.create_uc_qp(&UcQpAttr::new(&cq, &cq)).unwrap();
    let memory = Buffer::zeroed(2 * LONGEST).unwrap();
    let mr = pd.register(memory.region(), Access::LOCAL_WRITE).unwrap();
    (qp, cq, memory, mr, pd)
}

/// The one peer of a UC queue pair is met as well.
#[test]
fn unreliable_connections_go_through_memory() {
    let ends = [(); 2].map(|()| uc(at_once()));
    for (end, other) in [(0, 1), (1, 0)] {
        let ah = ends[end].4.create_ah(Ipv4Addr::LOCALHOST.into()).unwrap();
        ends[end].0.connect(&ah, ends[other].0.qpn()).unwrap();
    }
    for number in 0..200 {
        for (end, other) in [(0, 1), (1, 0)] {
            let (qp, cq, memory, mr, _) = &ends[end];
            let (to, to_cq, there, to_mr, _) = &ends[other];
            let octets = message(number);
            let sges = [to_mr.sge(LONGEST..)];
            to.post_recv(&[RecvWr {
                wr_id: 1,
                sges: &sges,
            }])
            .unwrap();
            memory.write(0, &octets);
            qp.post_send(&[UcSendWr {
                wr_id: 2,
                operation: UcOperation::Send { immediate: None },
                sges: &[mr.sge(..octets.len())],
                signaled: true,
                solicited: false,
            }])
            .unwrap();
            assert_eq!(cq.wait(SOON).unwrap().unwrap().status, WcStatus::Success);
            let wc = to_cq.wait(SOON).unwrap().expect("the message");
            assert!(
                there.to_vec(LONGEST, wc.byte_len as usize) == octets,
                "message {number}"
            );
        }
    }
    for (qp, ..) in &ends {
        let counters = qp.counters();
        let carried = (counters.lane_octets_sent, counters.lane_octets_received);
        assert!(
            carried.0 > 1_000_000 && carried.1 > 1_000_000,
            "{carried:?}"
        );
    }
}

/// Ends that do not both share memory, or say little, stay on their sockets.
#[test]
fn ends_that_do_not_share_memory_stay_on_their_sockets() {
    let faulty = || {
        let mut config = at_once();
        config.fault = Some(Fault::default());
        config
    };
    let late = || {
        let mut config = at_once();
        config.same_host_after = 1 << 30;
        config
    };
    for configs in [
        [config(SameHostMode::Off), at_once()],
        [at_once(), config(SameHostMode::Off)],
        [faulty(), at_once()],
        [at_once(), faulty()],
        [late(), late()],
    ] {
        let [a, b] = configs.map(|config| End::new(config, Waits::Sleeping));
        ping_pong([&a, &b], 60);
        assert_eq!([a.lane_octets(), b.lane_octets()], [(0, 0), (0, 0)]);
    }
}

/// A queue pair that gets the port of one that is gone gets what is sent there from then on.
#[test]
fn a_new_queue_pair_at_an_old_port_gets_what_is_sent_to_it() {
    let a = End::new(at_once(), Waits::Sleeping);
    let mut bind = None;
    for round in 0..4 {
        // Another test may have got the number meanwhile.
        let is_free = || bind.is_none_or(|it: SocketAddr| UdpSocket::bind(it).is_ok());
        wait_until(SOON, "the port is free", is_free);
        let b = End::with(at_once(), Waits::Sleeping, |attr| attr.bind = bind);
        ping_pong([&a, &b], 100);
        assert!(b.lane_octets() > (0, 0), "round {round}");
        bind = Some(SocketAddr::from((Ipv4Addr::UNSPECIFIED, b.node.qp.qpn())));
    }
}

/// Variable with the number of the survivor's queue pair.
const SURVIVOR: &str = "DGIWARP_TEST_SURVIVOR";

/// The peer process: answers for ever.
fn peer() {
    let qpn: u16 = std::env::var(SURVIVOR).unwrap().parse().unwrap();
    let end = End::new(at_once(), Waits::Polling);
    let to = end.node.to_port(Ipv4Addr::LOCALHOST.into(), qpn);
    println!("at {}", end.node.qp.qpn());
    for number in 0.. {
        end.take(number);
        end.send(number, &to);
    }
}

/// A peer that is killed amid an exchange takes nothing with it: its lanes go, and others are served.
#[test]
fn a_killed_peer_leaves_nothing_behind() {
    if role().is_some() {
        return peer();
    }
    let before = arenas();
    let end = End::new(at_once(), Waits::Sleeping);
    for round in 0..6 {
        let survivor = end.node.qp.qpn().to_string();
        let test = here!("a_killed_peer_leaves_nothing_behind");
        let mut process = Process::start(test, "peer", &[(SURVIVOR, survivor)]);
        let qpn = process.tells("at ", SOON).parse().unwrap();
        let to = end.node.to_port(Ipv4Addr::LOCALHOST.into(), qpn);
        let carried = end.lane_octets();
        let mut number = 0;
        while number < 100 || end.lane_octets() == carried {
            end.send(number, &to);
            end.take(number);
            number += 1;
        }
        // Amid the next message, or before it.
        if round % 2 == 0 {
            end.send(number, &to);
        }
        process.kill();
        wait_until(SOON, "the lanes are gone", || {
            let _ = end.node.cq.poll_one();
            arenas() == before
        });
        // Nobody gets this.
        for _ in 0..40 {
            end.send(number, &to);
        }
        // The last answer may come before.
        while end.next().wr_id != 1000 {}
        while end.node.cq.poll_one().unwrap().is_some() {}
        for slot in 0..RECEIVES {
            end.post_recv(slot);
        }
    }
}

/// A datagram of a stranger that invites to a Unix socket that is not there.
fn invitation(token: u128) -> Vec<u8> {
    let mut octets = vec![0x49, 3, 0, 0];
    octets.extend(b"DGiH");
    octets.extend(token.to_be_bytes());
    octets.extend([0; 8]);
    let crc = crc32c(&octets);
    octets.extend(crc.to_le_bytes());
    octets
}

/// An invitation without a socket costs one attempt, and nothing else.
#[test]
fn an_invitation_to_nowhere_is_tried_once() {
    let end = End::new(at_once(), Waits::Sleeping);
    let stranger = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    stranger
        .connect((Ipv4Addr::LOCALHOST, end.node.qp.qpn()))
        .unwrap();
    for token in 0..1000 {
        stranger.send(&invitation(token)).unwrap();
    }
    // One of more bits is no token.
    stranger.send(&invitation(u128::MAX)).unwrap();
    let counters = || end.node.qp.counters();
    wait_until(SOON, "the invitations are looked at", || {
        assert_eq!(end.node.cq.poll_one(), Ok(None));
        counters().dropped(DropReason::Malformed) == 1 && counters().lane_refused_unreachable > 0
    });
    assert_eq!(counters().lane_refused_unreachable, 1);
    let other = End::new(at_once(), Waits::Polling);
    ping_pong([&end, &other], 100);
    assert!(end.lane_octets() > (0, 0));
}

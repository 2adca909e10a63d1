//! Ends in memory, and a network of vectors between them.

mod connection;
mod operations;
mod write_order;

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use dgiwarp_llp_udp::rd::{RdConfig, Scope};
use dgiwarp_llp_udp::{Path, PathKind};
use dgiwarp_memory::{Access, Buffer};
use rand::SeedableRng as _;
use rand_chacha::ChaCha20Rng;

use super::*;
use crate::connected::{RcData, RcSendWqe, RcWork};
use crate::datagram::Transmitted;
use crate::mr::{Keys, MrTable, PdId};
use crate::recording_sink::RecordingSink;
use crate::recv_queue::{RecvQueue, SgeList};
use crate::types::{RecvWr, Route, Sge, Wc, WcStatus};

const PD: PdId = PdId(7);
const QKEY: u32 = 0x1111_1111;
/// Rights to the memory of an end.
const RIGHTS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);
/// Octets of each receive.
const ROOM: u32 = 8000;
const MS: Duration = Duration::from_millis(1);

#[expect(
    clippy::disallowed_methods,
    reason = "any instant serves as the origin"
)]
fn origin() -> Instant {
    Instant::now()
}

#[derive(Default)]
struct Wire(VecDeque<(Peer, Vec<u8>)>);

impl DatagramSink for Wire {
    fn send(&mut self, peer: Peer, _: Option<IpAddr>, octets: &[u8], train: &Train) -> SendOutcome {
        let size = train.datagram();
        assert!(size <= 1472, "{size}");
        assert_eq!(octets.chunks(size).count(), train.len());
        for datagram in octets.chunks(size) {
            self.0.push_back((peer, datagram.to_vec()));
        }
        SendOutcome::Sent
    }

    fn path(&mut self, _: Peer, _: Option<IpAddr>) -> Option<Route> {
        None
    }
}

struct End {
    engine: RdEngine,
    address: Peer,
    mrs: MrTable,
    queue: RecvQueue,
    memory: Buffer,
    lkey: u32,
    keys: Keys,
    completed: RecordingSink,
    wire: Wire,
}

impl End {
    fn new(now: Instant, number: u16, receives: u64) -> Self {
        Self::of(now, number, receives, None)
    }

    /// An end of any number of peers, or of an RC QP.
    fn of(now: Instant, number: u16, receives: u64, connection: Option<Lives>) -> Self {
        let memory = Buffer::zeroed(1 << 20).unwrap();
        let mrs = MrTable::new(ChaCha20Rng::seed_from_u64(number.into()));
        let keys = mrs.register(memory.region(), 0, RIGHTS, PD);
        let mut rd = RdConfig::new(now, number.into(), [number.into(), 1]);
        rd.receives = 0;
        rd.connection = connection;
        if connection.is_some() {
            rd.scope = Scope::Message;
        }
        let config = RdQpConfig {
            qpn: number,
            pd: PD,
            qkey: connection.map_or(QKEY, |_| 0),
            denied: Access::empty(),
            rd,
        };
        let this = Self {
            engine: RdEngine::new(config),
            address: address(number),
            mrs,
            queue: RecvQueue::new(64, 1),
            memory,
            lkey: keys.lkey,
            keys,
            completed: RecordingSink::default(),
            wire: Wire::default(),
        };
        (0..receives).for_each(|slot| this.post_recv(slot));
        this
    }

    fn post_recv(&self, slot: u64) {
        let sges = [Sge {
            addr: slot * u64::from(ROOM),
            length: ROOM,
            lkey: self.lkey,
        }];
        let wr = RecvWr {
            wr_id: slot,
            sges: &sges,
        };
        self.queue.post(&wr).unwrap();
    }

    fn send(&mut self, wr_id: u64, to: u16, qkey: u32, length: u32) {
        let addr = 1 << 19;
        let octets = (0..length).map(pattern).collect::<Vec<_>>();
        self.memory.write(1 << 19, &octets);
        let sges = [Sge {
            addr,
            length,
            lkey: self.lkey,
        }];
        let work = RcWork::Send { invalidate: None };
        self.post(
            wr_id,
            (to, qkey),
            work,
            RcData::Sges(SgeList::from_slice(&sges)),
        );
    }

    fn post(&mut self, wr_id: u64, (to, qkey): (u16, u32), work: RcWork, data: RcData) {
        let host = Ipv4Addr::LOCALHOST.into();
        let path = Path::new(PathKind::Network, false, 1500);
        let length = match &data {
            RcData::Sges(sges) => sges.iter().map(|sge| sge.length).sum(),
            RcData::Inline(octets) => u32::try_from(octets.len()).unwrap(),
        };
        self.engine.accept(RdSendWqe {
            send: RcSendWqe {
                wr_id,
                work,
                data,
                length,
                signaled: true,
                solicited: wr_id % 2 == 1,
                fence: false,
                remote_srqn: 0,
            },
            peer: address(to),
            route: Route::new(host, 0, None, host, path),
            qkey,
        });
    }

    fn pump(&mut self, now: Instant) {
        let tables = Tables {
            mrs: &self.mrs,
            recv_queue: &self.queue,
        };
        if self.engine.poll_timeout().is_some_and(|at| at <= now) {
            self.engine.handle_timeout(now, tables, &mut self.completed);
        }
        let done =
            self.engine
                .transmit(now, usize::MAX, tables, &mut self.wire, &mut self.completed);
        assert_eq!(done, Transmitted::All);
    }

    fn take(&mut self, now: Instant, from: Peer, octets: &[u8]) -> Option<DropReason> {
        let tables = Tables {
            mrs: &self.mrs,
            recv_queue: &self.queue,
        };
        let arrival = Arrival {
            by_memory: false,
            from,
            to: None,
            to_group: false,
            octets,
            stride: octets.len(),
        };
        self.engine
            .handle_input(now, arrival, tables, &mut self.completed)
    }

    fn sent(&mut self) -> Vec<(u64, WcStatus)> {
        let sent = std::mem::take(&mut self.completed.sent);
        sent.iter().map(|wc| (wc.wr_id, wc.status)).collect()
    }

    fn received(&mut self) -> Vec<Wc> {
        std::mem::take(&mut self.completed.received)
    }
}

fn pattern(at: u32) -> u8 {
    (at % 251).to_le_bytes()[0]
}

fn address(number: u16) -> Peer {
    Peer::ip(SocketAddr::from((Ipv4Addr::LOCALHOST, number)))
}

/// Lets the ends talk until `until`, a tenth of a millisecond at a time; `lost` decides about each datagram.
fn talk(now: &mut Instant, until: Duration, ends: &mut [End], mut lost: impl FnMut(u16) -> bool) {
    let end = *now + until;
    while *now < end {
        for at in 0..ends.len() {
            ends[at].pump(*now);
            let from = ends[at].address;
            while let Some((to, datagram)) = ends[at].wire.0.pop_front() {
                let port = to.socket_addr().unwrap().port();
                if lost(port) {
                    continue;
                }
                if let Some(end) = ends.iter_mut().find(|end| end.address == to) {
                    end.take(*now, from, &datagram);
                }
            }
        }
        *now += MS / 10;
    }
}

const OK: WcStatus = WcStatus::Success;

#[test]
fn one_queue_pair_sends_to_many_under_loss() {
    let mut now = origin();
    let mut ends: Vec<_> = (1..4).map(|number| End::new(now, number, 8)).collect();
    for wr_id in 0..10 {
        for to in [2, 3] {
            ends[0].send(wr_id, to, QKEY, 7000);
        }
    }
    let mut count = 0;
    for _ in 0..100 {
        talk(&mut now, 20 * MS, &mut ends, |_| {
            count += 1;
            count % 7 == 0
        });
        for end in &mut ends[1..] {
            for wc in end.received() {
                assert_eq!((wc.status, wc.byte_len), (OK, 7000));
                assert_eq!(wc.source, address(1).socket_addr());
                let place = usize::try_from(wc.wr_id * u64::from(ROOM)).unwrap();
                let octets = end.memory.to_vec(place, 7000);
                assert!((0..).zip(octets).all(|(at, octet)| octet == pattern(at)));
                end.post_recv(wc.wr_id);
            }
        }
    }
    let sent = ends[0].sent();
    assert_eq!(sent.len(), 20);
    assert!(sent.iter().all(|(_, status)| *status == OK), "{sent:?}");
    assert_eq!(
        (ends[0].completed.retired, ends[0].engine.outstanding()),
        (20, 0)
    );
    assert_eq!(ends[0].engine.associations(), 2);
    for end in &mut ends[1..] {
        // All receives are posted again: none was taken twice.
        assert_eq!(end.queue.len(), 8);
    }
}

/// Messages of programs that poll take a datagram each way: acknowledgements and credit go with them, and alone once nothing follows.
#[test]
fn a_ping_pong_of_polling_programs_takes_a_datagram_each_way() {
    const ROUNDS: u64 = 200;
    let mut now = origin();
    let mut ends = [End::new(now, 1, 4), End::new(now, 2, 4)];
    for (from, to) in [(0, 2), (1, 1)] {
        ends[from].send(0, to, QKEY, 64);
        talk(&mut now, 50 * MS, &mut ends, |_| false);
    }
    ends.iter_mut().for_each(|end| {
        for wc in end.received() {
            end.post_recv(wc.wr_id);
        }
    });
    talk(&mut now, 50 * MS, &mut ends, |_| false);
    let mut datagrams = 0;
    for round in 1..=ROUNDS {
        for _ in 0..2 {
            let [from, to] = &mut ends;
            let number = to.address.socket_addr().unwrap().port();
            from.send(round, number, QKEY, 64);
            from.pump(now);
            while let Some((_, datagram)) = from.wire.0.pop_front() {
                datagrams += 1;
                to.engine.note_poll(true, true);
                assert_eq!(to.take(now, from.address, &datagram), None);
                to.pump(now);
            }
            for _ in 0..20 {
                from.engine.note_poll(false, true);
                from.pump(now);
            }
            assert_eq!(from.wire.0.len(), 0, "nothing waited");
            // The program polls until its queue is empty, and posts its receive before it answers.
            for wc in to.received() {
                to.post_recv(wc.wr_id);
            }
            for _ in 1..EMPTY_POLLS {
                assert!(!to.engine.note_poll(false, true));
                to.pump(now);
            }
            assert_eq!(to.wire.0.len(), 0, "acknowledgements wait");
            now += MS / 200;
            ends.reverse();
        }
    }
    assert_eq!(datagrams, 2 * ROUNDS);
    let last = &mut ends[0];
    assert_eq!(last.wire.0.len(), 0);
    assert!(last.engine.note_poll(false, true));
    last.pump(now);
    assert_eq!(last.wire.0.len(), 1, "the last acknowledgement");
}

/// Memory for messages goes back after a second of silence, and messages go on then.
#[test]
fn a_peer_that_rests_keeps_no_memory_for_messages() {
    let mut now = origin();
    let mut ends = [End::new(now, 1, 4), End::new(now, 2, 4)];
    for round in 0..3 {
        ends[0].send(round, 2, QKEY, 64);
        for (silence, has_memory) in [(50 * MS, true), (1100 * MS, false)] {
            talk(&mut now, silence, &mut ends, |_| false);
            let [from, to] = &ends;
            let sends = from.engine.outbound.capacity(to.address);
            let receives = to.engine.inbound.capacity(from.address);
            assert_eq!([sends > 0, receives > 0], [has_memory; 2], "{silence:?}");
        }
        assert_eq!(ends[0].sent(), [(round, WcStatus::Success)]);
        assert_eq!(ends[1].received().len(), 1);
    }
}

/// As many receives as messages suffice, whoever has credit that is not used.
#[test]
fn credit_that_a_peer_does_not_use_is_in_nobodys_way() {
    let mut now = origin();
    let mut ends: Vec<_> = (1..10).map(|number| End::new(now, number, 0)).collect();
    (0..8).for_each(|slot| ends[0].post_recv(slot));
    for from in 1..9 {
        ends[from].send(7, 1, QKEY, 3000);
        let mut count = 0;
        talk(&mut now, 300 * MS, &mut ends, |_| {
            count += 1;
            count % 5 == 0
        });
        assert_eq!(ends[from].sent(), [(7, OK)], "{from}");
        assert_eq!(ends[0].received().len(), 1);
    }
    assert_eq!(ends[0].queue.len(), 0);
}

/// With two receives and much credit no message holds the receive that one before it needs.
#[test]
fn messages_of_a_peer_do_not_block_each_other() {
    for lost in 0..12 {
        let mut now = origin();
        let mut ends = [End::new(now, 1, 0), End::new(now, 2, 40)];
        ends[0].send(0, 2, QKEY, 10);
        talk(&mut now, 10 * MS, &mut ends, |_| false);
        assert_eq!(ends[1].received().len(), 1);
        // The credit stays; another queue pair takes all but two.
        while ends[1].queue.len() > 2 {
            ends[1]
                .queue
                .take(0, &mut RecordingSink::default())
                .unwrap();
        }
        for wr_id in 1..9 {
            ends[0].send(wr_id, 2, QKEY, 3000);
        }
        let mut count = 0;
        let mut arrived = 0;
        for _ in 0..100 {
            talk(&mut now, 5 * MS, &mut ends, |to| {
                count += u32::from(to == 2);
                to == 2 && count == lost
            });
            for wc in ends[1].received() {
                assert_eq!((wc.status, wc.byte_len), (OK, 3000));
                arrived += 1;
                ends[1].post_recv(wc.wr_id);
            }
        }
        assert_eq!((arrived, ends[0].sent().len()), (8, 9), "{lost}");
    }
}

/// Completions are in the order of posts, and receives in that of their solicited marks, though the first message is lost at first.
#[test]
fn completions_keep_the_order_of_posts() {
    let mut now = origin();
    let mut ends = [End::new(now, 1, 0), End::new(now, 2, 40)];
    ends[0].send(0, 2, QKEY, 10);
    talk(&mut now, 50 * MS, &mut ends, |_| false);
    assert_eq!(ends[0].sent(), [(0, OK)]);
    for wr_id in 1..9 {
        ends[0].send(wr_id, 2, QKEY, 1400);
    }
    let mut first = true;
    talk(&mut now, 50 * MS, &mut ends, |to| {
        to == 2 && std::mem::take(&mut first)
    });
    let expected: Vec<_> = (1..9).map(|wr_id| (wr_id, OK)).collect();
    assert_eq!(ends[0].sent(), expected);
    let solicited: Vec<_> = ends[1].received().iter().map(|wc| wc.solicited).collect();
    assert_eq!(
        solicited,
        [false, true, false, true, false, true, false, true, false]
    );
}

#[test]
fn failures_are_of_one_peer_and_in_order() {
    let mut now = origin();
    let mut ends = [
        End::new(now, 1, 0),
        End::new(now, 2, 8),
        End::new(now, 3, 8),
    ];
    ends[0].send(0, 9, QKEY, 10);
    ends[0].send(1, 9, QKEY, 10);
    ends[0].send(2, 2, QKEY + 1, 10);
    ends[0].send(3, 3, QKEY, ROOM + 1);
    talk(&mut now, 100 * MS, &mut ends, |_| false);
    let invalid = WcStatus::RemoteInvalidRequest;
    assert_eq!(ends[0].sent(), [(2, WcStatus::RemoteAccess), (3, invalid)]);
    assert_eq!(ends[1].received(), []);
    assert_eq!(ends[2].received()[0].status, WcStatus::LocalLength);
    assert_eq!((ends[1].queue.len(), ends[2].queue.len()), (8, 7));
    for to in [2, 3] {
        ends[0].send(4, to, QKEY, ROOM);
    }
    talk(&mut now, 100 * MS, &mut ends, |_| false);
    assert_eq!(ends[0].sent(), [(4, OK), (4, OK)]);
    talk(&mut now, 4000 * MS, &mut ends, |_| false);
    let lost = WcStatus::RetryExceeded;
    let [first, second] = ends[0].sent()[..] else {
        panic!("two were left");
    };
    assert_eq!((first, second.0), ((0, lost), 1));
    assert_ne!(second.1, OK);
}

/// Memory that goes while a message waits fails the message; nothing else of the process's memory leaves.
#[test]
fn a_message_whose_memory_is_gone_fails() {
    let mut now = origin();
    let mut ends = [End::new(now, 1, 0), End::new(now, 2, 0)];
    ends[0].send(0, 2, QKEY, 100);
    talk(&mut now, 10 * MS, &mut ends, |_| false);
    ends[0].mrs.deregister(ends[0].keys);
    ends[1].post_recv(0);
    talk(&mut now, 2000 * MS, &mut ends, |_| false);
    assert_eq!(ends[0].sent(), [(0, WcStatus::LocalProtection)]);
    assert_eq!(ends[1].received(), []);
    assert_eq!(ends[1].queue.len(), 1);
    ends[0].send(1, 2, QKEY, 100);
    talk(&mut now, 10 * MS, &mut ends, |_| false);
    assert_eq!(ends[0].sent(), [(1, WcStatus::LocalProtection)]);
}

#[test]
fn a_queue_pair_that_ends_tells_its_peers_and_gives_receives_back() {
    let mut now = origin();
    let mut ends = [End::new(now, 1, 0), End::new(now, 2, 4)];
    ends[0].send(0, 2, QKEY, 7000);
    // Only the first datagrams come through.
    let mut count = 0;
    talk(&mut now, MS, &mut ends, |to| {
        count += u32::from(to == 2);
        to == 2 && count > 3
    });
    assert_eq!(ends[1].queue.len(), 3);
    let End {
        engine,
        mrs,
        queue,
        completed,
        ..
    } = &mut ends[0];
    let tables = Tables {
        mrs,
        recv_queue: queue,
    };
    engine.close(now, tables, completed);
    assert_eq!(ends[0].sent(), [(0, WcStatus::Flushed)]);
    talk(&mut now, 10 * MS, &mut ends, |_| false);
    assert_eq!((ends[1].queue.len(), ends[1].engine.associations()), (4, 0));
}

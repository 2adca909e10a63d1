//! Two engines, and octets carried between them in pieces.

mod ack_request;
mod detect_peer;
mod end;
mod memory;
pub(super) mod memory_llp;
mod one_sided;
mod operation;
mod rnr_limits;
mod short;
mod sq_drain;
mod stream;
mod xrc;
mod zero_copy;

use dgiwarp_llp_tcp_mpa::{Config, Connection, ReadDepths, TcpEnd};
use dgiwarp_memory::{Access, Buffer};
use dgiwarp_rdmap::stream::StreamError;
use rand::SeedableRng;
use rand_chacha::ChaCha20Rng;

use std::time::{Duration, Instant};

use self::memory_llp::MemoryLlp;
use super::end::RcEnd;
use super::engine::RcEngine;
use super::llp::Llp;
use super::state::RcConfig;
use super::transmit::{CheckedEngine, WINDOW};
use super::wqe::{MemoryWork, RcData, RcSendWqe, RcWork};
use super::zero_copy::{StreamSink, Taken};
use crate::mr::{Keys, MrTable, PdId, StreamId};
use crate::recording_sink::RecordingSink;
use crate::recv_queue::{RecvQueue, Tables, Waiter, copy_sges};
use crate::types::{Completion, NoReceive, RcOptions, RecvWr, Sge, Wc, WcStatus};

pub(super) const PD: PdId = PdId(1);

/// Runs tests over MPA and over memory.
macro_rules! over_each_llp {
    ($($test:ident,)*) => {
        mod over_mpa {
            $(#[test] fn $test() { super::$test(crate::connected::tests::Lower::Mpa); })*
        }
        mod over_memory {
            $(#[test] fn $test() { super::$test(crate::connected::tests::Lower::Memory); })*
        }
    };
}
use over_each_llp;

/// The lower layer of a pair of engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lower {
    Mpa,
    Memory,
}

impl Lower {
    /// Octets that a ULPDU of `len` octets takes.
    fn octets(self, len: usize) -> usize {
        match self {
            // Length, pad, CRC.
            Self::Mpa => (2 + len).next_multiple_of(4) + 4,
            Self::Memory => len,
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "an instant cannot be made otherwise"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Waits for no receive: tests go on with what waits themselves.
#[derive(Debug)]
struct Nobody;

impl Waiter for Nobody {
    fn receive_posted(&self) {}
}

/// Ends that keep to the RFCs.
pub(super) const PLAIN: RcOptions = RcOptions {
    hello: false,
    completion: Completion::Local,
    no_receive: NoReceive::Terminate,
    receive_timeout: None,
    outlives_peer: false,
};

/// One end, with 16 KiB of registered memory.
pub(super) struct End {
    pub(super) engine: CheckedEngine,
    pub(super) mrs: MrTable,
    pub(super) keys: Keys,
    pub(super) memory: Buffer,
    pub(super) receives: RecvQueue,
    pub(super) completed: RecordingSink,
}

impl End {
    fn new(llp: Llp, options: RcOptions) -> Self {
        let mrs = MrTable::new(ChaCha20Rng::seed_from_u64(7));
        let memory = Buffer::zeroed(16_384).unwrap();
        let keys = mrs.register(memory.region(), 0, Access::LOCAL_WRITE, PD);
        let config = RcConfig {
            qpn: 70_000,
            pd: PD,
            peer: ([192, 0, 2, 1], 7).into(),
            options,
            paired: false,
            denied: Access::empty(),
        };
        Self {
            engine: RcEngine::new(config, llp, std::sync::Weak::<Nobody>::new()).into(),
            mrs,
            keys,
            memory,
            receives: RecvQueue::new(8, 4),
            completed: RecordingSink::default(),
        }
    }

    pub(super) fn sge(&self, addr: u64, length: u32) -> Sge {
        Sge {
            addr,
            length,
            lkey: self.keys.lkey,
        }
    }

    fn post_send(&mut self, wr_id: u64, sges: &[Sge]) {
        self.post(wr_id, RcWork::Send { invalidate: None }, sges, false);
    }

    pub(super) fn post(&mut self, wr_id: u64, work: RcWork, sges: &[Sge], fence: bool) {
        self.accept(wr_id, work, sges, [true, fence]);
    }

    pub(super) fn post_as(&mut self, wr_id: u64, work: RcWork, sges: &[Sge], signaled: bool) {
        self.accept(wr_id, work, sges, [signaled, false]);
    }

    fn accept(&mut self, wr_id: u64, work: RcWork, sges: &[Sge], [signaled, fence]: [bool; 2]) {
        self.engine.accept(RcSendWqe {
            wr_id,
            work,
            data: RcData::Sges(copy_sges(sges)),
            length: sges.iter().map(|sge| sge.length).sum(),
            signaled,
            solicited: wr_id == 9,
            fence,
            remote_srqn: 0,
        });
        self.work(|_, _, _| ());
    }

    pub(super) fn post_recv(&mut self, wr_id: u64, addr: u64, length: u32) {
        let sges = [
            self.sge(addr, length / 2),
            self.sge(addr + u64::from(length / 2), length - length / 2),
        ];
        self.receives.post(&RecvWr { wr_id, sges: &sges }).unwrap();
    }

    pub(super) fn work(
        &mut self,
        first: impl FnOnce(&mut RcEngine, Tables<'_>, &mut RecordingSink),
    ) {
        let tables = Tables {
            mrs: &self.mrs,
            recv_queue: &self.receives,
        };
        first(&mut self.engine, tables, &mut self.completed);
        self.engine.make_fpdus(now(), tables, &mut self.completed);
    }

    /// Whether messages are placed and not acknowledged.
    pub(super) fn has_pending_acks(&self) -> bool {
        self.engine.stream.dgiwarp_ext().pending_acks() > 0
    }

    /// Octets that are left to transmit.
    pub(super) fn waiting(&self) -> usize {
        self.engine.llp.untransmitted(now())
    }

    /// Takes up to `most` of them: as many pieces as the lower layer keeps apart.
    pub(super) fn take(&mut self, most: usize) -> Vec<Vec<u8>> {
        let (mut pieces, mut left) = (Vec::new(), most);
        loop {
            let octets = self.engine.poll_transmit(now());
            let octets = match self.engine.llp {
                Llp::Mpa(_) => &octets[..octets.len().min(left)],
                Llp::Memory(_) if octets.len() > left => &[],
                Llp::Memory(_) => octets,
            }
            .to_vec();
            if octets.is_empty() {
                return pieces;
            }
            self.work(|engine, _, completed| engine.transmitted(now(), octets.len(), completed));
            left -= octets.len();
            pieces.push(octets);
        }
    }

    /// These have arrived.
    pub(super) fn arrive(&mut self, pieces: &[Vec<u8>]) {
        for octets in pieces {
            self.work(|engine, tables, completed| {
                engine.handle_input(now(), octets, tables, completed);
            });
        }
    }

    /// Moves what waits here to `other`, in pieces of `piece` octets where octets make a stream, until nothing is left.
    pub(super) fn carry_to(&mut self, other: &mut Self, piece: usize) {
        loop {
            let octets = self.engine.poll_transmit(now()).to_vec();
            if octets.is_empty() {
                return;
            }
            self.engine
                .transmitted(now(), octets.len(), &mut self.completed);
            self.work(|_, _, _| ());
            let piece = match other.engine.llp {
                Llp::Mpa(_) => piece,
                Llp::Memory(_) => octets.len(),
            };
            for octets in octets.chunks(piece) {
                other.work(|engine, tables, completed| {
                    engine.handle_input(now(), octets, tables, completed);
                });
            }
        }
    }
}

/// Both ends of a connection: the Initiator first.
pub(super) fn pair(lower: Lower) -> (End, End) {
    pair_over(lower, 1, [PLAIN; 2])
}

/// Both ends of a connection with these Read depths and options.
pub(super) fn pair_over(lower: Lower, depth: u16, options: [RcOptions; 2]) -> (End, End) {
    let llps = startup(depth, &Config::default()).map(|mpa| match lower {
        Lower::Mpa => Llp::Mpa(mpa),
        Lower::Memory => Llp::Memory(MemoryLlp::new(*mpa.negotiation().unwrap())),
    });
    ends(llps, options)
}

/// Both ends of a connection over MPA with these settings.
pub(super) fn pair_of(depth: u16, config: &Config, options: [RcOptions; 2]) -> (End, End) {
    ends(startup(depth, config).map(Llp::Mpa), options)
}

fn ends([client, server]: [Llp; 2], options: [RcOptions; 2]) -> (End, End) {
    (End::new(client, options[0]), End::new(server, options[1]))
}

/// The ends of a connection of MPA in full operation.
fn startup(depth: u16, config: &Config) -> [Connection; 2] {
    let mut client = Connection::initiator(now(), config.clone(), b"").unwrap();
    let mut server = Connection::responder(now(), config.clone());
    let request = client.poll_transmit(now()).to_vec();
    client.transmitted(request.len());
    server.handle_input(now(), &mut &request[..]);
    let depths = ReadDepths {
        ird: depth,
        ord: depth,
    };
    server.accept(depths, b"").unwrap();
    let reply = server.poll_transmit(now()).to_vec();
    server.transmitted(reply.len());
    client.handle_input(now(), &mut &reply[..]);
    while client.poll_event().is_some() {}
    while server.poll_event().is_some() {}
    [client, server]
}

over_each_llp! {
    a_send_each_way_whatever_the_pieces,
    more_than_the_window_goes_on_as_tcp_takes_it,
    the_end_flushes_everything_in_order,
    a_message_without_a_receive_ends_the_connection,
    too_long_a_message_fails_its_receive,
    memory_that_is_gone_ends_the_connection,
    a_silent_peer_is_probed_three_times_and_others_never,
}

fn a_send_each_way_whatever_the_pieces(llp: Lower) {
    for piece in [1, 7, 100, 1 << 20] {
        let (mut client, mut server) = pair(llp);
        let message: Vec<u8> = (0..5000u32).map(|i| (i * 7).to_le_bytes()[0]).collect();
        client.memory.write(100, &message);
        server.post_recv(1, 0, 8000);
        // Two scatter/gather elements at each end, cut at different places.
        let sges = [client.sge(100, 1234), client.sge(1334, 3766)];
        client.post_send(9, &sges);
        if llp == Lower::Mpa {
            // A Responder's Send waits for the first FPDU of the Initiator.
            server.post_send(3, &[server.sge(0, 16)]);
            assert!(server.engine.poll_transmit(now()).is_empty());
            assert!(!server.engine.has_unsent(now()));
        }

        client.carry_to(&mut server, piece);
        let wc = server.completed.received[0];
        assert_eq!(
            (wc.wr_id, wc.status, wc.byte_len),
            (1, WcStatus::Success, 5000)
        );
        assert!(wc.solicited);
        assert_eq!(server.memory.to_vec(0, 5000), message);
        assert_eq!(client.completed.sent[0].wr_id, 9);

        client.post_recv(4, 10_000, 16);
        if llp == Lower::Memory {
            server.post_send(3, &[server.sge(0, 16)]);
        }
        server.carry_to(&mut client, piece);
        assert_eq!(client.completed.received[0].byte_len, 16);
        assert_eq!(client.memory.to_vec(10_000, 16), message[..16]);
        assert_eq!((client.completed.retired, server.completed.retired), (1, 1));
    }
}

fn more_than_the_window_goes_on_as_tcp_takes_it(llp: Lower) {
    let (mut client, mut server) = pair(llp);
    let sges = [client.sge(0, 16_000)];
    for wr_id in 0..8 {
        server.post_recv(wr_id, 0, 16_000);
        client.post_send(wr_id, &sges);
    }
    let waiting = client.waiting();
    assert!((WINDOW..WINDOW + 2000).contains(&waiting), "{waiting}");
    assert!(client.completed.sent.is_empty(), "TCP has taken nothing");
    client.carry_to(&mut server, 5000);
    let ids = |wcs: &[Wc]| wcs.iter().map(|wc| wc.wr_id).collect::<Vec<_>>();
    assert_eq!(ids(&client.completed.sent), (0..8).collect::<Vec<_>>());
    assert_eq!(ids(&server.completed.received), (0..8).collect::<Vec<_>>());
}

fn the_end_flushes_everything_in_order(llp: Lower) {
    let (mut client, _) = pair(llp);
    client.post_recv(1, 0, 10);
    client.post_recv(2, 0, 10);
    client.post_send(3, &[client.sge(0, 4)]);
    client
        .work(|engine, tables, completed| engine.handle_end(now(), TcpEnd::Fin, tables, completed));
    assert_eq!(client.engine.end(), Some(RcEnd::PeerClosed));
    client.post_send(4, &[client.sge(0, 4)]);
    let flushed = |wcs: &[Wc]| {
        assert!(wcs.iter().all(|wc| wc.status == WcStatus::Flushed));
        wcs.iter().map(|wc| wc.wr_id).collect::<Vec<_>>()
    };
    assert_eq!(flushed(&client.completed.received), [1, 2]);
    assert_eq!(flushed(&client.completed.sent), [3, 4]);
    assert_eq!(client.completed.retired, 2);
}

fn a_message_without_a_receive_ends_the_connection(llp: Lower) {
    let (mut client, mut server) = pair(llp);
    client.post_send(1, &[client.sge(0, 4)]);
    client.carry_to(&mut server, 100);
    let end = server.engine.end().unwrap();
    assert_eq!(
        end.to_string(),
        "untagged segment: no buffer available for the message"
    );
}

fn too_long_a_message_fails_its_receive(llp: Lower) {
    let (mut client, mut server) = pair(llp);
    server.post_recv(1, 0, 3);
    server.post_recv(2, 0, 9);
    client.post_send(1, &[client.sge(0, 4)]);
    client.carry_to(&mut server, 100);
    let outcomes: Vec<_> = server
        .completed
        .received
        .iter()
        .map(|wc| (wc.wr_id, wc.status))
        .collect();
    assert_eq!(
        outcomes,
        [(1, WcStatus::LocalLength), (2, WcStatus::Flushed)]
    );
}

fn memory_that_is_gone_ends_the_connection(llp: Lower) {
    let (mut client, mut server) = pair(llp);
    client.mrs.deregister(client.keys);
    client.post_send(1, &[client.sge(0, 4)]);
    assert_eq!(client.completed.sent[0].status, WcStatus::LocalProtection);
    assert_eq!(client.engine.end(), Some(RcEnd::LocalProtection));

    let (mut client, _) = pair(llp);
    server.post_recv(1, 0, 8);
    server.mrs.deregister(server.keys);
    client.post_send(1, &[client.sge(0, 4)]);
    client.carry_to(&mut server, 100);
    assert_eq!(
        server.completed.received[0].status,
        WcStatus::LocalProtection
    );
    assert_eq!(server.engine.end(), Some(RcEnd::LocalProtection));
}

/// Takes what waits without carrying it anywhere; gives the number of octets.
fn lose(end: &mut End, at: Instant) -> usize {
    let mut lost = 0;
    loop {
        let octets = end.engine.poll_transmit(at).len();
        if octets == 0 {
            return lost;
        }
        end.engine.transmitted(at, octets, &mut end.completed);
        lost += octets;
    }
}

fn a_silent_peer_is_probed_three_times_and_others_never(llp: Lower) {
    let (mut client, mut server) = pair(llp);
    let start = now();
    let at = |millis| start + Duration::from_millis(millis);
    assert_eq!(client.engine.poll_timeout(), None);
    client.post_send(1, &[client.sge(0, 4)]);
    assert_eq!(client.engine.poll_timeout(), None, "nothing has left yet");
    lose(&mut client, start);
    assert_eq!(client.engine.poll_timeout(), Some(at(20)));
    client.engine.handle_timeout(at(19));
    assert_eq!(lose(&mut client, at(19)), 0);
    for due in [20, 120, 620] {
        assert_eq!(client.engine.poll_timeout(), Some(at(due)));
        client.engine.handle_timeout(at(due));
        // A tagged header.
        assert_eq!(lose(&mut client, at(due)), llp.octets(14));
    }
    assert_eq!(client.engine.poll_timeout(), None);

    // A Responder never probes, and a probe leaves no trace there.
    let (mut client, mut peer) = pair(llp);
    peer.post_recv(1, 0, 8);
    client.post_send(1, &[client.sge(0, 4)]);
    let octets = client.engine.poll_transmit(start).to_vec();
    client
        .engine
        .transmitted(start, octets.len(), &mut client.completed);
    client.engine.handle_timeout(at(20));
    peer.work(|engine, tables, completed| engine.handle_input(start, &octets, tables, completed));
    client.carry_to(&mut peer, 3);
    assert_eq!(peer.completed.received.len(), 1);
    assert_eq!(
        (peer.engine.end(), peer.engine.poll_timeout()),
        (None, None)
    );
    peer.post_send(2, &[peer.sge(0, 4)]);
    client.post_recv(1, 0, 8);
    peer.carry_to(&mut client, 100);
    assert_eq!(client.engine.poll_timeout(), None);

    // No probe leaves while octets wait for TCP.
    server.post_recv(1, 0, 8);
    let (mut client, _) = pair(llp);
    client.post_send(1, &[client.sge(0, 4)]);
    lose(&mut client, start);
    client.post_send(1, &[client.sge(0, 4)]);
    let waiting = client.waiting();
    client.engine.handle_timeout(at(20));
    assert_eq!(client.waiting(), waiting);
    assert_eq!(client.engine.poll_timeout(), Some(at(40)));
}

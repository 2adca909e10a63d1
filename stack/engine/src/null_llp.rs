//! The stack over a network that takes everything and delivers it to its sender: what posting, receiving and polling cost without one. For benchmarks; not
//! part of the API.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use dgiwarp_llp_udp::{Path, PathKind, Peer, ShimConfig, Train};
use dgiwarp_memory::Piece;
use dgiwarp_memory::{Access, Buffer};
use rand::SeedableRng as _;
use rand_chacha::ChaCha20Rng;

use crate::cq_ring::{CompletionSink, CqRing};
use crate::datagram::{Arrival, Random, SendOutcome, SendWqe, TransmitSink, UdConfig, UdEngine};
use crate::mr::{MrTable, PdId, Terms};
use crate::recv_queue::{RecvQueue, SgeList, Tables};
use crate::types::{AsyncEvent, Operation, RecvWr, Route, Sge, Wc};

const PD: PdId = PdId(1);
const QKEY: u32 = 0x1111_1111;
/// The longest message.
const MOST: usize = 1024;

/// A datagram queue pair that sends to itself.
#[derive(Debug)]
pub struct NullLlp {
    engine: UdEngine,
    mrs: MrTable,
    receives: RecvQueue,
    ring: Ring,
    network: Network,
    route: Route,
    peer: Peer,
    lkey: u32,
    now: Instant,
    _memory: Buffer,
}

/// Takes completions.
#[derive(Debug)]
struct Ring(CqRing);

impl CompletionSink for Ring {
    fn sent(&mut self, wc: Wc) {
        self.0.push(wc);
    }

    fn received(&mut self, wc: Wc) {
        self.0.push(wc);
    }

    fn segment(&mut self, wc: Wc) -> bool {
        self.0.push(wc);
        true
    }

    fn retired(&mut self) {}

    fn event(&mut self, _event: AsyncEvent) {}
}

/// Keeps the datagram that was sent last.
#[derive(Debug, Default)]
struct Network {
    staging: Vec<u8>,
    datagram: Vec<u8>,
}

impl TransmitSink for Network {
    fn staging(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.staging)
    }

    fn give_back(&mut self, staging: Vec<u8>) {
        self.staging = staging;
    }

    fn send(
        &mut self,
        _peer: Peer,
        _ah: &Route,
        pieces: &[Piece<'_>],
        _train: &Train,
    ) -> SendOutcome {
        self.datagram.clear();
        for piece in pieces {
            if let Piece::Bytes(octets) = piece {
                self.datagram.extend_from_slice(octets);
            }
        }
        SendOutcome::Sent
    }

    fn send_short(
        &mut self,
        _peer: Peer,
        _from: Option<IpAddr>,
        _octets: &[u8],
        _train: &Train,
    ) -> SendOutcome {
        SendOutcome::Sent
    }

    fn path(&mut self, _peer: Peer, _from: Option<IpAddr>) -> Option<Route> {
        None
    }
}

impl NullLlp {
    /// A queue pair with memory for the longest message and its receive.
    ///
    /// # Panics
    /// Where there is no such memory.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        let host = IpAddr::from(Ipv4Addr::LOCALHOST);
        let memory = Buffer::zeroed(2 * MOST).expect("memory for two messages");
        let mrs = MrTable::new(ChaCha20Rng::seed_from_u64(1));
        let terms = Terms {
            iova: 0,
            access: Access::LOCAL_WRITE,
            pd: PD,
            only_from: None,
            cookie: false,
            well_known: None,
        };
        let keys = mrs.register_with(memory.region(), terms);
        let lkey = keys.expect("no key is asked for").lkey;
        let engine = UdEngine::new(UdConfig {
            qpn: 1,
            pd: PD,
            connected: false,
            qkey: QKEY,
            grh: false,
            max_recv_wr: 16,
            record_slots: 0,
            send_copy: false,
            segment_completions: false,
            record_timeout: Duration::from_millis(200),
            reorder_window: 64,
            max_rate: 0,
            receive_buffer: 1 << 20,
            read_timeout: Duration::from_secs(2),
            shim: ShimConfig::Plain,
            random: Random {
                seed: [1, 2, 3],
                group_key: [0; 4],
                secret: [1, 2, 3, 4],
                record_generation: 0,
            },
        });
        let path = Path::new(PathKind::Network, false, 1500);
        Self {
            engine,
            mrs,
            receives: RecvQueue::new(16, 4),
            ring: Ring(CqRing::new(64).expect("memory for a few slots")),
            network: Network::default(),
            route: Route::new(host, 0, None, host, path),
            peer: Peer::ip((host, 1).into()),
            lkey,
            now,
            _memory: memory,
        }
    }

    /// Posts a receive and a Send of `length` octets, up to 1024, which arrives, and polls. Returns how many completions there were: two.
    ///
    /// # Panics
    /// Where the receive queue is full.
    pub fn message(&mut self, length: u32) -> usize {
        let sge = |addr| Sge {
            addr,
            length,
            lkey: self.lkey,
        };
        let receive = RecvWr {
            wr_id: 1,
            sges: &[sge(MOST as u64)],
        };
        let posted = self.receives.post_all(&[receive]);
        posted.expect("there is room");
        self.engine.accept(SendWqe {
            wr_id: 2,
            operation: Operation::Send { immediate: None },
            route: self.route.clone(),
            peer: self.peer,
            qkey: QKEY,
            sges: SgeList::from_slice(&[sge(0)]),
            length,
            signaled: true,
            solicited: false,
            unrecorded: false,
        });
        self.engine
            .transmit(self.now, 1, &self.mrs, &mut self.network, &mut self.ring);
        let arrival = Arrival {
            by_memory: false,
            from: self.peer,
            to: None,
            to_group: false,
            octets: &self.network.datagram,
            stride: self.network.datagram.len(),
        };
        let tables = Tables {
            mrs: &self.mrs,
            recv_queue: &self.receives,
        };
        self.engine
            .handle_input(self.now, arrival, tables, &mut self.ring);
        let mut out = [Wc::default(); 4];
        self.ring.0.poll(&mut out)
    }
}

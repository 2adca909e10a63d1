//! A datagram queue pair's engine, with what its program posted and what the network took.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use dgiwarp_llp_udp::{Path, PathKind, Peer, ShimConfig, Train};
use dgiwarp_memory::Piece;
use dgiwarp_rdmap::datagram::RecordHandle;
use rand::SeedableRng as _;
use rand_chacha::ChaCha20Rng;

use super::guarded::{Guarded, PD, pattern};
use super::start;
use super::tally::Tally;
use crate::datagram::{Arrival, Random, SendOutcome, SendWqe, TransmitSink, UdConfig, UdEngine};
use crate::mr::MrTable;
use crate::recording_sink::RecordingSink;
use crate::recv_queue::{RecvQueue, Tables};
use crate::types::{RecvWr, Route, Wc, WcOpcode, WcStatus};

/// Most work requests in a queue: there are as many slots.
pub(super) const DEPTH: usize = 16;
/// The Q_Key of all ends.
pub(super) const QKEY: u32 = 0x1111_1111;
/// Octets before a message, where a receive begins with a GRH.
const GRH: usize = 40;
/// More datagrams on their way at a time are lost.
const WIRE: usize = 400;

/// Expectations of a posted work request, checked when it has completed.
#[derive(Debug)]
pub(super) enum Asked {
    /// Nothing.
    Other,
    /// A Read of what is known, from an offset, to a slot's elements.
    Read { from: usize, elements: (u32, u32) },
}

/// Takes what is sent, or not.
struct Network<'a> {
    wire: &'a mut VecDeque<Vec<u8>>,
    outcomes: VecDeque<SendOutcome>,
    mtu: u32,
    now: Instant,
}

impl Network<'_> {
    fn put(&mut self, octets: &[u8], size: usize) -> SendOutcome {
        for datagram in octets.chunks(size.max(1)) {
            self.wire.push_back(datagram.to_vec());
        }
        // The network loses what it has no room for.
        self.wire.truncate(WIRE);
        SendOutcome::Sent
    }
}

impl TransmitSink for Network<'_> {
    fn staging(&mut self) -> Vec<u8> {
        Vec::new()
    }

    fn give_back(&mut self, _staging: Vec<u8>) {}

    fn send(
        &mut self,
        _peer: Peer,
        route: &Route,
        pieces: &[Piece<'_>],
        train: &Train,
    ) -> SendOutcome {
        let datagram = train.datagram();
        let size = u16::try_from(datagram).expect("a datagram has sixteen bits of length");
        match self.outcomes.pop_front() {
            // A datagram that cannot be smaller is not too big.
            Some(SendOutcome::TooBig) if !route.handle_too_big(self.now, size, self.mtu) => {}
            None | Some(SendOutcome::Sent) => {}
            Some(outcome) => return outcome,
        }
        let mut octets = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Bytes(bytes) => octets.extend_from_slice(bytes),
                Piece::Region(slice) => {
                    let at = octets.len();
                    octets.resize(at + slice.len(), 0);
                    slice.copy_to(octets.split_at_mut(at).1);
                }
            }
        }
        assert_eq!(octets.len(), train.octets());
        assert!(datagram <= usize::from(route.limit(self.now).get()));
        let size = train.segment_size().map_or(octets.len(), usize::from);
        self.put(&octets, size)
    }

    fn send_short(
        &mut self,
        _peer: Peer,
        _from: Option<IpAddr>,
        octets: &[u8],
        train: &Train,
    ) -> SendOutcome {
        assert!(train.datagram() <= 512);
        match self.outcomes.pop_front() {
            None | Some(SendOutcome::Sent | SendOutcome::TooBig) => {
                self.put(octets, train.datagram())
            }
            Some(outcome) => outcome,
        }
    }

    fn path(&mut self, _peer: Peer, from: Option<IpAddr>) -> Option<Route> {
        Some(path(from, self.mtu))
    }
}

/// The way to the other end.
pub(super) fn path(from: Option<IpAddr>, mtu: u32) -> Route {
    let host = Ipv4Addr::LOCALHOST.into();
    Route::new(
        host,
        0,
        from,
        host,
        Path::new(PathKind::Network, false, mtu),
    )
}

pub(super) struct End {
    pub(super) engine: UdEngine,
    pub(super) mrs: MrTable,
    pub(super) memory: Guarded,
    receives: RecvQueue,
    done: RecordingSink,
    pub(super) sends: Tally<Asked>,
    posted: usize,
    retired: usize,
    receiving: Tally<(u32, u32)>,
    grh: bool,
    /// Datagrams on their way to the peer.
    pub(super) wire: VecDeque<Vec<u8>>,
    /// Records that the program has not given back.
    records: VecDeque<RecordHandle>,
    now: Duration,
}

/// Settings in which queue pairs differ.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub(super) connected: bool,
    pub(super) grh: bool,
    pub(super) record_slots: usize,
    pub(super) segment_completions: bool,
    pub(super) send_copy: bool,
    pub(super) max_rate: u64,
}

impl End {
    pub(super) fn new(number: u32, plan: Plan) -> Self {
        let mrs = MrTable::new(ChaCha20Rng::seed_from_u64(number.into()));
        let engine = UdEngine::new(UdConfig {
            qpn: 1,
            pd: PD,
            connected: plan.connected,
            qkey: QKEY,
            grh: plan.grh,
            max_recv_wr: DEPTH,
            record_slots: plan.record_slots,
            send_copy: plan.send_copy,
            segment_completions: plan.segment_completions,
            record_timeout: Duration::from_millis(200),
            reorder_window: 64,
            max_rate: plan.max_rate,
            receive_buffer: 1 << 17,
            read_timeout: Duration::from_secs(2),
            shim: ShimConfig::Plain,
            random: Random {
                seed: [number, u32::MAX - 1, u32::MAX],
                group_key: [0; 4],
                secret: [number, 2, 3, 4],
                record_generation: 0,
            },
        });
        Self {
            engine,
            memory: Guarded::new(&mrs),
            mrs,
            receives: RecvQueue::new(DEPTH, 4),
            done: RecordingSink::default(),
            sends: Tally::default(),
            posted: 0,
            retired: 0,
            receiving: Tally::default(),
            grh: plan.grh,
            wire: VecDeque::new(),
            records: VecDeque::new(),
            now: Duration::ZERO,
        }
    }

    fn now(&self) -> Instant {
        start() + self.now
    }

    fn work<R>(
        &mut self,
        first: impl FnOnce(&mut UdEngine, Instant, Tables<'_>, &mut RecordingSink) -> R,
    ) -> R {
        let now = self.now();
        let tables = Tables {
            mrs: &self.mrs,
            recv_queue: &self.receives,
        };
        let result = first(&mut self.engine, now, tables, &mut self.done);
        self.retired += std::mem::take(&mut self.done.retired);
        assert!(
            self.retired <= self.posted,
            "more is complete than was posted"
        );
        result
    }

    pub(super) fn room_to_send(&self) -> bool {
        self.posted - self.retired < DEPTH
    }

    pub(super) fn post(&mut self, wqe: SendWqe, about: Asked) {
        self.posted += 1;
        self.sends.post(wqe.signaled, about);
        self.work(|engine, _, _, _| engine.accept(wqe));
    }

    pub(super) fn post_receive(&mut self, elements: (u32, u32)) {
        let wr_id = self.receiving.next();
        // Receives may come back to the queue's head, so the slot may be in use although there is room.
        if self.receiving.has(wr_id.wrapping_sub(DEPTH as u64)) || self.receiving.len() == DEPTH {
            return;
        }
        let sges = self.memory.receives.elements(wr_id, elements);
        self.memory.clear_slot(self.memory.receives, wr_id);
        let posted = self.receives.post_all(&[RecvWr { wr_id, sges: &sges }]);
        if posted.is_ok() {
            self.receiving.post(true, elements);
        }
    }

    pub(super) fn transmit(&mut self, outcomes: VecDeque<SendOutcome>, mtu: u32) {
        let mut wire = std::mem::take(&mut self.wire);
        let mut network = Network {
            wire: &mut wire,
            outcomes,
            mtu,
            now: self.now(),
        };
        self.work(|engine, now, tables, done| {
            engine.transmit(now, 8, tables.mrs, &mut network, done);
        });
        self.wire = wire;
    }

    /// A datagram arrives.
    pub(super) fn receive(&mut self, datagram: &[u8], from: Peer, to_group: bool) {
        let arrival = Arrival {
            by_memory: false,
            from,
            to: Some(Ipv4Addr::LOCALHOST.into()),
            to_group,
            octets: datagram,
            stride: datagram.len(),
        };
        self.work(|engine, now, tables, done| engine.handle_input(now, arrival, tables, done));
    }

    pub(super) fn time_passes(&mut self, time: Duration) {
        self.now += time;
        self.work(|engine, now, tables, done| engine.handle_timeout(now, tables, done));
    }

    pub(super) fn complete_now(&mut self) {
        self.work(|engine, _, tables, done| engine.complete_now(tables, done));
    }

    pub(super) fn release_record(&mut self) {
        if let Some(handle) = self.records.pop_front() {
            assert!(self.engine.release_record(handle), "nobody released it");
            assert!(self.engine.record(handle).is_none(), "a stale handle");
        }
    }

    /// Looks at what completed. `messages` are Sends that may have arrived, and the octets of the open area that did; nothing if a stranger sends.
    pub(super) fn look(&mut self, arrived: Option<(&[Vec<u8>], &[bool])>) {
        for wc in std::mem::take(&mut self.done.sent) {
            self.look_at_sent(&wc, arrived.is_some());
        }
        for wc in std::mem::take(&mut self.done.received) {
            match wc.opcode {
                WcOpcode::WriteRecord => self.look_at_record(&wc, arrived.map(|it| it.1)),
                WcOpcode::WriteRecordSegment => {}
                _ => self.look_at_receive(&wc, arrived.map(|it| it.0)),
            }
        }
    }

    fn look_at_sent(&mut self, wc: &Wc, exact: bool) {
        let Asked::Read { from, elements } = self.sends.complete_any(wc).about else {
            return;
        };
        let found = self.memory.slot(self.memory.sinks, wc.wr_id, elements);
        let ranges = if wc.status == WcStatus::Success {
            vec![(0, u32::try_from(found.len()).expect("slots are short"))]
        } else {
            let failed = self.engine.take_failed_read(wc.wr_id);
            failed.map_or_else(Vec::new, |failed| failed.map.ranges().to_vec())
        };
        for (start, end) in ranges.into_iter().filter(|_| exact) {
            let (start, end) = (start as usize, end as usize);
            let expected = pattern(from + start, end - start);
            assert!(found.get(start..end) == Some(&expected[..]), "{wc:?}");
        }
    }

    fn look_at_receive(&mut self, wc: &Wc, messages: Option<&[Vec<u8>]>) {
        let elements = self.receiving.complete_any(wc).about;
        let found = self.memory.slot(self.memory.receives, wc.wr_id, elements);
        let whole = wc.status == WcStatus::Success && wc.opcode == WcOpcode::Recv;
        if let Some(messages) = messages.filter(|_| whole) {
            let at = if self.grh { GRH } else { 0 };
            let end = at + wc.byte_len as usize;
            let message = found.get(at..end).expect("it fits its receive");
            assert!(
                messages.iter().any(|it| it == message),
                "nobody sent {wc:?}"
            );
        }
    }

    /// Valid octets arrived, and are in memory.
    fn look_at_record(&mut self, wc: &Wc, arrived: Option<&[bool]>) {
        let handle = RecordHandle::from_u64(wc.wr_id);
        let record = self.engine.record(handle).expect("it is not released");
        assert_eq!(record.map.octets(), wc.byte_len);
        let mut before = None;
        for (start, end) in record.map.ranges() {
            assert!(start < end && *end <= record.length && before.is_none_or(|it| it < *start));
            before = Some(*end);
        }
        if let Some(arrived) = arrived {
            let base = record.base.get() - self.memory.open.addr();
            let base = usize::try_from(base).expect("inside");
            for (start, end) in record.map.ranges() {
                let (from, to) = (base + *start as usize, base + *end as usize);
                let all = arrived.get(from..to).expect("inside");
                assert!(
                    all.iter().all(|it| *it),
                    "valid, and did not arrive: {wc:?}"
                );
                assert!(self.memory.open_octets(from, to) == pattern(from, to - from));
            }
        }
        self.records.push_back(handle);
    }

    /// Everything ends; each work request has completed then.
    pub(super) fn check_over(&mut self) {
        self.work(|engine, _, tables, done| {
            engine.complete_now(tables, done);
            engine.flush(tables, done);
        });
        self.look(None);
        assert_eq!(
            self.retired, self.posted,
            "work requests that left the queue"
        );
        self.sends.check_over();
        self.receiving.check_over();
        self.memory.check();
    }
}

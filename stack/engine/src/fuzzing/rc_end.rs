//! One end of a connection, with what its program posted.

use std::collections::VecDeque;
use std::sync::Weak;
use std::time::{Duration, Instant};

use dgiwarp_llp_tcp_mpa::framing::LONGEST_FPDU;
use dgiwarp_llp_tcp_mpa::{Connection, TcpEnd};
use dgiwarp_memory::Piece;
use rand::SeedableRng as _;
use rand_chacha::ChaCha20Rng;

use super::guarded::{Guarded, PD, pattern};
use super::start;
use super::tally::Tally;
use crate::connected::{
    ROOM, RcConfig, RcData, RcEngine, RcSendWqe, RcWork, StreamSink, Taken, flush_receives,
};
use crate::mr::MrTable;
use crate::recording_sink::RecordingSink;
use crate::recv_queue::{RecvQueue, Tables, Waiter};
use crate::types::{MwType, RcOptions, RecvWr, Wc, WcOpcode, WcStatus};
use dgiwarp_memory::Access;

/// Most work requests in a queue: there are as many slots.
pub(super) const DEPTH: usize = 16;

const QPN: u32 = 70_000;

/// The harness goes on with what waits for receives itself.
#[derive(Debug)]
struct Nobody;

impl Waiter for Nobody {
    fn receive_posted(&self) {}
}

/// Expectations of a posted work request, checked when it has completed.
#[derive(Debug)]
pub(super) enum Sent {
    /// Nothing but its order.
    Other,
    /// A Read of the peer's area of messages, from an offset, to a slot's elements.
    Read { from: usize, elements: (u32, u32) },
}

/// A message that takes a receive of the peer.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) octets: Vec<u8>,
    pub(super) immediate: Option<u32>,
}

/// TCP as it takes octets: so many at most with one call.
struct Tcp<'a> {
    most: usize,
    wire: &'a mut VecDeque<u8>,
}

impl StreamSink for Tcp<'_> {
    fn send(&mut self, pieces: &[Piece<'_>]) -> Taken {
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
        octets.truncate(self.most);
        if octets.is_empty() {
            return Taken::WouldBlock;
        }
        self.wire.extend(&octets);
        Taken::Octets(octets.len())
    }
}

pub(super) struct End {
    pub(super) engine: RcEngine,
    pub(super) mrs: MrTable,
    pub(super) memory: Guarded,
    pub(super) window: u32,
    pub(super) fast: u32,
    receives: RecvQueue,
    done: RecordingSink,
    pub(super) sends: Tally<Sent>,
    posted: usize,
    retired: usize,
    receiving: Tally<(u32, u32)>,
    /// Messages on their way to the peer, or at it, that take a receive.
    pub(super) messages: VecDeque<Message>,
    /// Octets on their way to the peer.
    pub(super) wire: VecDeque<u8>,
    spare: Vec<u8>,
    /// TCP's end has left behind them, or arrived.
    pub(super) has_ended: bool,
    now: Duration,
}

impl End {
    pub(super) fn new(mpa: Connection, options: RcOptions, paired: bool, shared: bool) -> Self {
        let mrs = MrTable::new(ChaCha20Rng::seed_from_u64(7));
        let memory = Guarded::new(&mrs);
        let window = mrs.alloc_mw(PD, MwType::Two);
        let fast = mrs.alloc_fast(PD).rkey;
        mrs.map(fast, memory.open_region(), memory.open.addr());
        let config = RcConfig {
            qpn: QPN,
            pd: PD,
            peer: ([192, 0, 2, 1], 7).into(),
            options,
            paired,
            denied: Access::empty(),
        };
        Self {
            engine: RcEngine::new(config, mpa, Weak::<Nobody>::new()),
            mrs,
            memory,
            window,
            fast,
            receives: if shared {
                RecvQueue::shared(DEPTH, 4, 5, PD)
            } else {
                RecvQueue::new(DEPTH, 4)
            },
            done: RecordingSink::default(),
            sends: Tally::default(),
            posted: 0,
            retired: 0,
            receiving: Tally::default(),
            messages: VecDeque::new(),
            wire: VecDeque::new(),
            spare: Vec::new(),
            has_ended: false,
            now: Duration::ZERO,
        }
    }

    pub(super) fn now(&self) -> Instant {
        start() + self.now
    }

    /// Does something with the engine, and then what its driver does after everything.
    pub(super) fn work(
        &mut self,
        first: impl FnOnce(&mut RcEngine, Instant, Tables<'_>, &mut RecordingSink),
    ) {
        let now = self.now();
        let tables = Tables {
            mrs: &self.mrs,
            recv_queue: &self.receives,
        };
        first(&mut self.engine, now, tables, &mut self.done);
        self.engine.make_fpdus(now, tables, &mut self.done);
        let waiting = self.engine.poll_transmit(now).len();
        assert!(waiting < 2 * ROOM, "{waiting} octets wait for TCP");
        self.retired += std::mem::take(&mut self.done.retired);
        assert!(
            self.retired <= self.posted,
            "more is complete than was posted"
        );
    }

    pub(super) fn time_passes(&mut self, time: Duration) {
        self.now += time;
        if self
            .engine
            .poll_timeout()
            .is_some_and(|at| at <= self.now())
        {
            self.work(|engine, now, _, _| engine.handle_timeout(now));
        }
    }

    pub(super) fn room_to_send(&self) -> bool {
        self.posted - self.retired < DEPTH
    }

    pub(super) fn post(&mut self, wqe: RcSendWqe, about: Sent) {
        // Work requests that the queue pair does not accept from programs.
        let refused = matches!(wqe.work, RcWork::SendImmediate { .. })
            && self.engine.peer_refuses_immediates();
        if refused {
            return;
        }
        if let RcWork::Send { .. } | RcWork::SendImmediate { .. } = wqe.work {
            self.messages.push_back(Message {
                octets: octets_of(&wqe, &self.memory),
                immediate: match wqe.work {
                    RcWork::SendImmediate { immediate } => Some(immediate),
                    _ => None,
                },
            });
        }
        if let RcWork::Write {
            immediate: Some(immediate),
            ..
        } = wqe.work
        {
            self.messages.push_back(Message {
                octets: Vec::new(),
                immediate: Some(immediate),
            });
        }
        self.posted += 1;
        self.sends.post(wqe.signaled, about);
        self.work(|engine, _, _, _| engine.accept(wqe));
    }

    pub(super) fn post_receive(&mut self, elements: (u32, u32), bad_key: bool) {
        let wr_id = self.receiving.next();
        let mut sges = self.memory.receives.elements(wr_id, elements);
        if bad_key {
            sges[1].lkey = self.memory.foreign.keys.lkey;
        }
        if self.receiving.len() < DEPTH {
            self.memory.clear_slot(self.memory.receives, wr_id);
            let posted = self.receives.post_all(&[RecvWr { wr_id, sges: &sges }]);
            if posted.is_ok() {
                self.receiving.post(true, elements);
            }
        }
        self.resume();
    }

    pub(super) fn resume(&mut self) {
        self.work(|engine, now, tables, done| engine.receive_posted(now, tables, done));
    }

    /// Hands octets to TCP, which takes so many with one call.
    pub(super) fn transmit(&mut self, most: usize, copies: bool) {
        self.engine.copy_all(copies);
        let mut wire = std::mem::take(&mut self.wire);
        let mut tcp = Tcp {
            most,
            wire: &mut wire,
        };
        self.work(|engine, now, tables, done| {
            if engine.send_zero_copy(now, tables, &mut tcp, done).is_some() {
                return;
            }
            let octets = engine.poll_transmit(now);
            let taken = octets.len().min(most);
            tcp.wire.extend(octets.split_at(taken).0);
            engine.transmitted(now, taken, done);
        });
        self.wire = wire;
    }

    /// Takes octets that arrive, from `wire`: as many as it reads at a time, and `most`. Read to their place where it has one, or not.
    pub(super) fn receive(&mut self, wire: &mut VecDeque<u8>, most: usize, in_place: bool) {
        let most = most.min(wire.len());
        let parking = self.engine.rnr_room();
        let (room, behind) = self.engine.input_room(most.min(parking));
        let placed = room.len().min(most);
        let behind = behind.min(most - placed);
        let arrived: Vec<u8> = wire.drain(..placed + behind).collect();
        let (now, later) = arrived.split_at(if in_place { placed } else { 0 });
        room.split_at_mut(now.len()).0.copy_from_slice(now);
        self.engine.input_placed(now.len());
        if in_place {
            if self.spare.is_empty() {
                self.spare = vec![0xee; LONGEST_FPDU];
            }
            self.spare = self.engine.lend_input(std::mem::take(&mut self.spare));
        }
        self.work(|engine, now, tables, done| engine.handle_input(now, later, tables, done));
        if let Some(memory) = self.engine.reclaim_input() {
            self.spare = memory;
        }
    }

    pub(super) fn tcp_ends(&mut self, end: TcpEnd) {
        self.has_ended = true;
        self.work(|engine, now, tables, done| engine.handle_end(now, end, tables, done));
    }

    /// Checks completions. `sources` are the peer's messages; with `exact` they arrive as they were sent.
    pub(super) fn look(&mut self, sources: Option<&mut VecDeque<Message>>, exact: bool) {
        for wc in std::mem::take(&mut self.done.sent) {
            let posted = self.sends.complete(&wc);
            let Sent::Read { from, elements } = posted.about else {
                continue;
            };
            let found = self.memory.slot(self.memory.sinks, wc.wr_id, elements);
            if exact && wc.status == WcStatus::Success {
                assert!(found == pattern(from, found.len()), "another Read's octets");
            }
        }
        let mut sources = sources;
        for wc in std::mem::take(&mut self.done.received) {
            let elements = self.receiving.complete(&wc).about;
            let found = self.memory.slot(self.memory.receives, wc.wr_id, elements);
            let message = sources.as_mut().and_then(|sources| {
                (wc.status == WcStatus::Success).then(|| sources.pop_front().expect("it was sent"))
            });
            if let Some(message) = message.filter(|_| exact) {
                check_message(&wc, &found, &message);
            }
        }
    }

    /// The program closes; afterwards nothing is left.
    pub(super) fn close(&mut self) {
        self.work(|engine, _, tables, done| engine.close(tables, done));
        // The driver flushes receives that were posted after the end.
        flush_receives(&self.receives, QPN, &mut self.done);
        assert!(self.engine.end().is_some());
    }

    pub(super) fn check_over(&self) {
        assert_eq!(
            self.retired, self.posted,
            "work requests that left the queue"
        );
        self.sends.check_over();
        // Receives that queue pairs share are nobody's to flush.
        if !self.receives.is_shared() {
            self.receiving.check_over();
        }
        self.memory.check();
    }
}

fn check_message(wc: &Wc, found: &[u8], message: &Message) {
    assert_eq!(wc.immediate, message.immediate, "{wc:?}");
    if wc.opcode == WcOpcode::Recv {
        assert_eq!(wc.byte_len as usize, message.octets.len(), "{wc:?}");
        let (octets, _) = found.split_at(message.octets.len());
        assert!(octets == message.octets, "another message's octets: {wc:?}");
    }
}

/// The octets that a Send carries: all its elements lie in the area of messages, or it fails.
fn octets_of(wqe: &RcSendWqe, memory: &Guarded) -> Vec<u8> {
    match &wqe.data {
        RcData::Inline(octets) => octets.to_vec(),
        RcData::Sges(sges) => sges
            .iter()
            .flat_map(|sge| {
                let from = sge.addr.wrapping_sub(memory.source.addr());
                let inside = usize::try_from(from)
                    .ok()
                    .filter(|from| *from < memory.source.len);
                inside.map_or_else(Vec::new, |from| pattern(from, sge.length as usize))
            })
            .collect(),
    }
}

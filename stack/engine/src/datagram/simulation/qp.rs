//! One QP: its engine, the oracle's picture of it, and the comparison of both after every call.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use dgiwarp_llp_udp::{Peer, ShimConfig};
use dgiwarp_memory::Access;
use dgiwarp_rdmap::datagram::{DropReason, RecordHandle};
use dgiwarp_sim::{Address, Rng};
use rand::RngExt as _;

use super::ledger::{Kind, Ledger, MessageId, Offer, Outcome, Piece, SentAs, socket_addr};
use super::memory::{Memory, source};
use super::model::{Expected, Limits, Model, Placement, Receive, Region, octets_in};
use super::outgoing::{Outgoing, Refusals};
use super::reads::{End, Ended};
use super::scenario::QpPlan;
use crate::cq_ring::CompletionSink;
use crate::datagram::{Arrival, Random, UdConfig, UdEngine};
use crate::mr::{Keys, MrTable, PdId};
use crate::recv_queue::{RecvQueue, Tables};
use crate::types::{AsyncEvent, RecvWr, Sge, Wc, WcOpcode, WcStatus};

/// Octets of the region that peers write to.
const TARGET: usize = 4 << 20;
const GRH: u32 = 40;

/// Completions of the engine since they were last taken.
#[derive(Debug, Default)]
pub(super) struct Completed {
    pub(super) sent: Vec<Wc>,
    pub(super) received: Vec<Wc>,
    pub(super) retired: usize,
    /// Of Reads.
    read: Vec<Wc>,
    segments: Vec<Wc>,
    /// Most of these.
    room: usize,
    /// Times that the application was told of a full ring of records.
    ring_full: usize,
}

impl CompletionSink for Completed {
    fn sent(&mut self, wc: Wc) {
        if wc.opcode == WcOpcode::RdmaRead {
            self.read.push(wc);
        } else {
            self.sent.push(wc);
        }
    }

    fn received(&mut self, wc: Wc) {
        self.received.push(wc);
    }

    fn segment(&mut self, wc: Wc) -> bool {
        let fits = self.segments.len() < self.room;
        if fits {
            self.received.push(wc);
            self.segments.push(wc);
        }
        fits
    }

    fn retired(&mut self) {
        self.retired += 1;
    }

    fn event(&mut self, event: AsyncEvent) {
        match event {
            AsyncEvent::RecordRingFull { .. } => self.ring_full += 1,
            other => panic!("{other:?} for nothing that a simulation does"),
        }
    }
}

/// Next action of the application because of completions.
#[derive(Debug, Clone, Copy)]
pub(super) enum FollowUp {
    /// Post the receive of this slot again.
    Receive(usize),
    /// Release this record.
    Release(RecordHandle),
}

/// One QP.
pub(super) struct Qp {
    pub(super) address: Address,
    pub(super) plan: QpPlan,
    /// Counts restarts.
    pub(super) life: u32,
    pd: PdId,
    pub(super) engine: UdEngine,
    recv_queue: RecvQueue,
    pub(super) completed: Completed,
    pub(super) model: Model,
    pub(super) outgoing: Outgoing,
    target: Memory,
    receives: Memory,
    /// Where Reads go, used in turn.
    sinks: Memory,
    sinks_used: usize,
    sinks_lkey: u32,
    slots: Vec<(usize, u32)>,
    receive_lkey: u32,
    pub(super) source_lkey: u32,
    target_keys: Keys,
    read_only: u32,
    pub(super) follow_ups: Vec<FollowUp>,
    /// The record released last: its handle names nothing, also when its slot has another.
    released: Option<RecordHandle>,
}

impl Qp {
    pub(super) fn new(address: Address, plan: QpPlan, mrs: &MrTable, rng: &mut Rng) -> Self {
        let pd = PdId(address.port.into());
        let mut next = 0;
        let slots: Vec<_> = plan
            .receives
            .iter()
            .map(|&length| {
                let start = next;
                next += length as usize;
                (start, length)
            })
            .collect();
        let (target, receives, sinks) = (
            Memory::new(TARGET),
            Memory::at_least(next),
            Memory::new(TARGET),
        );
        let local = Access::LOCAL_WRITE;
        let source_keys = mrs.register(source().buffer.region(), 0, Access::REMOTE_READ, pd);
        let sink_keys = mrs.register(sinks.buffer.region(), 0, local, pd);
        let receive_keys = mrs.register(receives.buffer.region(), 0, local, pd);
        let target_keys = mrs.register(
            target.buffer.region(),
            plan.iova,
            Access::REMOTE_WRITE | local,
            pd,
        );
        let (engine, model, outgoing) = live(address, &plan, pd, rng);
        let mut qp = Self {
            recv_queue: RecvQueue::new(slots.len(), 4),
            completed: Completed {
                room: plan.reports.unwrap_or_default(),
                ..Completed::default()
            },
            receive_lkey: receive_keys.lkey,
            source_lkey: source_keys.lkey,
            read_only: source_keys.rkey,
            life: 0,
            follow_ups: Vec::new(),
            released: None,
            address,
            plan,
            pd,
            engine,
            model,
            outgoing,
            target,
            receives,
            sinks,
            sinks_used: 0,
            sinks_lkey: sink_keys.lkey,
            slots,
            target_keys,
        };
        qp.know_regions();
        qp
    }

    fn know_regions(&mut self) {
        self.model.regions = vec![
            Region {
                stag: self.target_keys.rkey,
                iova: self.plan.iova,
                octets: TARGET as u64,
                writable: true,
            },
            Region {
                stag: self.read_only,
                iova: 0,
                octets: u64::MAX,
                writable: false,
            },
        ];
    }

    /// Address and keys for others that send here.
    pub(super) fn offer(&self) -> Offer {
        Offer {
            qkey: self.plan.qkey,
            stag: self.target_keys.rkey,
            read_only: self.read_only,
            iova: self.plan.iova,
            octets: TARGET as u64,
            used: 0,
        }
    }

    /// The application posts the receive of a slot.
    pub(super) fn post_receive(&mut self, slot: usize, rng: &mut Rng) {
        let (start, length) = self.slots[slot];
        let sges = split(start as u64, length, self.receive_lkey, rng);
        let wr_id = slot as u64;
        let wr = RecvWr { wr_id, sges: &sges };
        self.recv_queue
            .post(&wr)
            .expect("the queue has a place for each slot");
        self.model.post(Receive {
            wr_id,
            start,
            length,
        });
    }

    /// The application releases a record, unless the QP that had it is gone.
    pub(super) fn release(&mut self, handle: RecordHandle) {
        assert!(
            self.engine.release_record(handle),
            "a record is released once"
        );
        assert!(
            self.engine.record(handle).is_none(),
            "a released record is gone"
        );
        self.model.release();
        self.released = Some(handle);
    }

    /// Datagrams that arrived in one call: the oracle's entry of each, and their octets.
    pub(super) fn arrive(
        &mut self,
        at: (Instant, Duration),
        from: Address,
        train: &Train<'_>,
        mrs: &MrTable,
        ledger: &RefCell<Ledger>,
    ) {
        let arrival = Arrival {
            by_memory: false,
            from: Peer::ip(socket_addr(from)),
            to: Some(socket_addr(self.address).ip()),
            to_group: false,
            octets: train.octets,
            stride: train.stride,
        };
        let tables = Tables {
            mrs,
            recv_queue: &self.recv_queue,
        };
        self.engine
            .handle_input(at.0 + at.1, arrival, tables, &mut self.completed);
        let mut memory = Placement {
            target: &mut self.target,
            receives: &mut self.receives,
            sinks: &mut self.sinks,
        };
        for (piece, _, length) in train.known.iter().filter(|(_, corrupted, _)| !corrupted) {
            let talk = &mut ledger.borrow_mut().talk;
            talk.arrived(from, self.address, piece.role, *length);
        }
        let ledger_now = ledger.borrow();
        for &known in train.known {
            self.model.arrive(at.1, known, &ledger_now, &mut memory);
        }
        drop(ledger_now);
        self.compare(at, ledger);
    }

    /// The engine's timer is due.
    pub(super) fn expire(
        &mut self,
        at: (Instant, Duration),
        mrs: &MrTable,
        ledger: &RefCell<Ledger>,
    ) {
        let tables = Tables {
            mrs,
            recv_queue: &self.recv_queue,
        };
        self.engine
            .handle_timeout(at.0 + at.1, tables, &mut self.completed);
        let returned = self.model.expire(at.1);
        self.model.adopt_order(returned, &self.recv_queue.wr_ids());
        self.compare(at, ledger);
    }

    /// The application wants all records now.
    pub(super) fn complete_now(
        &mut self,
        at: (Instant, Duration),
        mrs: &MrTable,
        ledger: &RefCell<Ledger>,
    ) {
        let tables = Tables {
            mrs,
            recv_queue: &self.recv_queue,
        };
        self.engine.complete_now(tables, &mut self.completed);
        self.model.complete_now();
        self.compare(at, ledger);
    }

    /// Engine and oracle must agree in everything that can be seen.
    fn compare(&mut self, at: (Instant, Duration), ledger: &RefCell<Ledger>) {
        let mut expected = std::mem::take(&mut self.model.expected);
        let received = std::mem::take(&mut self.completed.received);
        for wc in &received {
            let position = match wc.opcode {
                WcOpcode::WriteRecord => self.find_record(wc, &expected, &ledger.borrow()),
                // So do reports, each before its record.
                WcOpcode::WriteRecordSegment => expected
                    .iter()
                    .position(|one| matches!(one, Expected::Segment(_))),
                // Receives complete in order.
                _ => expected
                    .iter()
                    .position(|one| matches!(one, Expected::Receive { .. })),
            };
            let Some(position) = position else {
                panic!("{:?}: {wc:?} where {expected:?} are expected", self.address);
            };
            match expected.remove(position) {
                Expected::Receive { receive, message } => {
                    self.check_receive(wc, receive, message, &mut ledger.borrow_mut());
                }
                Expected::Record { message, .. } => {
                    self.check_record(wc, message, &mut ledger.borrow_mut());
                }
                Expected::Segment(piece) => self.check_report(wc, piece, &ledger.borrow()),
            }
        }
        assert!(
            expected.is_empty(),
            "{:?}: {expected:?} did not complete",
            self.address
        );
        self.completed.segments.clear();
        let told = std::mem::take(&mut self.completed.ring_full);
        assert_eq!(told, std::mem::take(&mut self.model.ring_full));
        self.compare_reads(&mut ledger.borrow_mut());
        self.compare_counters();
        let posted = self.recv_queue.wr_ids();
        assert!(
            self.model.posted().eq(posted),
            "{:?}: the receive queue",
            self.address
        );
        if let Some(expiry) = self.model.next_expiry() {
            let timeout = self.engine.poll_timeout().expect("a timer runs");
            assert!(timeout <= at.0 + expiry, "the timer comes in time");
        }
    }

    fn compare_counters(&self) {
        let counters = self.engine.counters();
        // The outcome of requests at a target is not foretold: each is used or dropped, for one of its reasons.
        let mut left = self.model.unforetold + self.model.segments - counters.segments_received;
        for reason in DropReason::ALL {
            let (is, must) = (
                counters.dropped(*reason),
                self.model.dropped[reason.index()],
            );
            if may_refuse_request(*reason) {
                assert!(
                    (must..=must + left).contains(&is),
                    "{reason:?}: {is} for {must}"
                );
                left -= is - must;
            } else {
                assert_eq!(is, must, "{reason:?} at {:?}", self.address);
            }
        }
        assert_eq!(left, 0, "every datagram is counted at {:?}", self.address);
        assert!(
            counters.octets_received >= self.model.octets,
            "{:?}",
            self.address
        );
        if self.model.unforetold == 0 {
            assert_eq!(
                counters.octets_received, self.model.octets,
                "{:?}",
                self.address
            );
        }
        assert_eq!(counters.segments_sent, self.outgoing.segments);
    }

    /// The expected record that a completion is about.
    fn find_record(&self, wc: &Wc, expected: &[Expected], ledger: &Ledger) -> Option<usize> {
        let record = self.engine.record(RecordHandle::from_u64(wc.wr_id))?;
        expected.iter().position(|one| match one {
            Expected::Receive { .. } | Expected::Segment(_) => false,
            Expected::Record { message, ranges } => {
                let message = &ledger.messages[*message];
                let is = (record.stag.get(), record.base.get(), record.length);
                let must = (message.target.stag, message.target.base, message.length);
                let source = Peer::ip(socket_addr(message.from));
                is == must && record.source == source && record.map.ranges() == &ranges[..]
            }
        })
    }

    fn check_completion(&self, wc: &Wc, octets: u32, id: MessageId, ledger: &Ledger) {
        let message = &ledger.messages[id];
        let expected = Wc {
            byte_len: octets,
            immediate: message.immediate,
            solicited: message.solicited,
            grh: self.plan.grh && wc.opcode == WcOpcode::Recv,
            source: Some(socket_addr(message.from)),
            destination: wc.destination,
            ..Wc::new(wc.wr_id, wc.opcode, self.address.port.into())
        };
        assert_eq!(*wc, expected, "completion of message {id}");
        // A restarted QP has no state of what the one before it received.
        let before = message.outcome.is_some() && message.ended_in == self.life;
        assert!(
            !before || message.sent_as == Some(SentAs::Plain),
            "message {id} completes once"
        );
        assert_eq!(message.to, self.address);
    }

    fn check_receive(&mut self, wc: &Wc, receive: Receive, id: MessageId, ledger: &mut Ledger) {
        self.check_completion(wc, ledger.messages[id].length, id, ledger);
        assert_eq!((wc.opcode, wc.wr_id), (WcOpcode::Recv, receive.wr_id));
        assert_eq!(ledger.messages[id].kind, Kind::Send);
        let message = ledger.messages[id].length as usize;
        if self.plan.grh {
            let mut header = [0; GRH as usize];
            self.receives.buffer.read(receive.start, &mut header);
            check_grh(&header, ledger.messages[id].from, self.address);
            self.receives.expect(receive.start, &header);
        }
        let whole = self
            .receives
            .first_difference(receive.start, receive.length as usize);
        assert_eq!(
            whole, None,
            "message {id} of {message} octets at {}",
            receive.start
        );
        let times = match ledger.messages[id].outcome {
            Some(Outcome::Delivered(times)) => times + 1,
            Some(Outcome::Recorded(_) | Outcome::Read(..)) | None => 1,
        };
        ledger.messages[id].outcome = Some(Outcome::Delivered(times));
        ledger.messages[id].ended_in = self.life;
        let slot = usize::try_from(receive.wr_id).unwrap();
        self.follow_ups.push(FollowUp::Receive(slot));
    }

    fn check_record(&mut self, wc: &Wc, id: MessageId, ledger: &mut Ledger) {
        let handle = RecordHandle::from_u64(wc.wr_id);
        let stale = self.released.and_then(|handle| self.engine.record(handle));
        assert!(stale.is_none(), "a stale handle names a record");
        let record = self.engine.record(handle).expect("it was found");
        self.check_completion(wc, record.map.octets(), id, ledger);
        let message = &ledger.messages[id];
        let start = usize::try_from(message.target.base - self.plan.iova).unwrap();
        let differs = self.target.first_difference(start, message.length as usize);
        assert_eq!(differs, None, "message {id} at {start}");
        // Not only as the oracle replayed it, but as it was sent, unless the region went round since.
        let used = ledger.offers[&self.address].used;
        if used < TARGET as u64 {
            for &(from, to) in record.map.ranges() {
                let placed = self
                    .target
                    .buffer
                    .to_vec(start + from as usize, (to - from) as usize);
                assert!(placed == message.octets()[from as usize..to as usize]);
            }
        }
        let outcome = Outcome::Recorded(record.map.clone());
        ledger.messages[id].outcome = Some(outcome);
        ledger.messages[id].ended_in = self.life;
        self.follow_ups.push(FollowUp::Release(handle));
    }

    fn check_report(&self, wc: &Wc, piece: Piece, ledger: &Ledger) {
        let handle = RecordHandle::from_u64(wc.wr_id);
        let record = self.engine.record(handle).expect("its record is there");
        let message = &ledger.messages[piece.message];
        assert_eq!(record.base.get(), message.target.base);
        let expected = Wc {
            byte_len: piece.length,
            offset: piece.offset,
            immediate: message.immediate,
            source: Some(socket_addr(message.from)),
            destination: wc.destination,
            ..Wc::new(wc.wr_id, wc.opcode, self.address.port.into())
        };
        assert_eq!(*wc, expected, "a segment of message {}", piece.message);
    }

    /// Compares the completions of what was posted, after a transmission.
    pub(super) fn compare_sent(&mut self, ledger: &Ledger) {
        let count = std::mem::take(&mut self.completed.retired);
        let retired = self.outgoing.retire(count, ledger);
        self.compare_send_completions(&retired, ledger);
    }

    fn compare_send_completions(&mut self, retired: &[(MessageId, WcStatus)], ledger: &Ledger) {
        let mut sent = std::mem::take(&mut self.completed.sent).into_iter();
        for &(id, status) in retired {
            let message = &ledger.messages[id];
            if !message.signaled && status == WcStatus::Success {
                continue;
            }
            let wc = sent.next().expect("each message completes");
            assert_eq!((wc.wr_id, wc.status), (id as u64, status), "message {id}");
            let opcode = match message.kind {
                Kind::Send => WcOpcode::Send,
                Kind::Write => WcOpcode::RdmaWrite,
                Kind::Read => unreachable!("Reads complete elsewhere"),
            };
            assert_eq!((wc.opcode, wc.byte_len), (opcode, message.length));
        }
        assert_eq!(sent.next(), None, "{:?}", self.address);
    }

    /// Closes the QP and opens another at the same address. Returns what was never sent entirely.
    pub(super) fn restart(&mut self, mrs: &MrTable, ledger: &RefCell<Ledger>, rng: &mut Rng) {
        let tables = Tables {
            mrs,
            recv_queue: &self.recv_queue,
        };
        self.engine.flush(tables, &mut self.completed);
        let ledger_now = ledger.borrow();
        let flushed: Vec<_> = self.outgoing.flush();
        self.model.reader.flush();
        let reads = self.completed.read.len();
        assert_eq!(self.completed.retired, flushed.len() + reads);
        self.completed.retired = reads;
        let flushed: Vec<_> = flushed
            .into_iter()
            .map(|id| (id, WcStatus::Flushed))
            .collect();
        self.compare_send_completions(&flushed, &ledger_now);
        let mut expected = self.model.unfinished_receives();
        for wc in std::mem::take(&mut self.completed.received) {
            assert_eq!((wc.opcode, wc.status), (WcOpcode::Recv, WcStatus::Flushed));
            let position = expected.iter().position(|wr_id| *wr_id == wc.wr_id);
            let slot = expected.swap_remove(position.expect("each receive is flushed once"));
            self.follow_ups
                .push(FollowUp::Receive(usize::try_from(slot).unwrap()));
        }
        assert!(
            expected.is_empty(),
            "receives {expected:?} were not flushed"
        );
        drop(ledger_now);
        self.compare_reads(&mut ledger.borrow_mut());
        self.compare_counters();
        ledger.borrow_mut().talk.forget(self.address);
        if rng.random_bool(0.5) {
            mrs.deregister(self.target_keys);
            let access = Access::REMOTE_WRITE | Access::LOCAL_WRITE;
            let region = self.target.buffer.region();
            self.target_keys = mrs.register(region, self.plan.iova, access, self.pd);
        }
        (self.engine, self.model, self.outgoing) = live(self.address, &self.plan, self.pd, rng);
        self.know_regions();
        self.life += 1;
        self.released = None;
    }

    /// Nothing may be left to do, and memory holds what it must.
    pub(super) fn check_at_rest(&self) {
        let address = self.address;
        assert!(
            !self.engine.has_unsent() && self.outgoing.is_empty(),
            "{address:?}"
        );
        assert_eq!(self.engine.poll_timeout(), None, "{address:?}");
        assert!(self.model.is_at_rest(), "{address:?}");
        assert_eq!(
            self.sinks.first_difference_anywhere(),
            None,
            "{address:?}: sinks"
        );
        assert_eq!(
            self.target.first_difference_anywhere(),
            None,
            "{address:?}: target"
        );
        assert_eq!(
            self.receives.first_difference_anywhere(),
            None,
            "{address:?}: receives"
        );
    }

    /// Room for a Read, and its local key.
    pub(super) fn allocate_sink(&mut self, length: u32) -> (usize, u32) {
        let length = length as usize;
        if self.sinks_used + length > TARGET {
            self.sinks_used = 0;
        }
        let start = self.sinks_used;
        self.sinks_used += length;
        (start, self.sinks_lkey)
    }

    /// The application posted a Read.
    pub(super) fn post_read(
        &mut self,
        id: MessageId,
        sink: usize,
        deadline: Duration,
        refused: bool,
    ) {
        self.model.reader.post(id, sink, deadline);
        if refused {
            self.model.reader.refuse(id);
        }
    }

    /// Compares the completions of Reads, which come whenever they end.
    pub(super) fn compare_reads(&mut self, ledger: &mut Ledger) {
        let mut ended = std::mem::take(&mut self.model.reader.ended);
        self.completed.retired -= self.completed.read.len();
        for wc in std::mem::take(&mut self.completed.read) {
            let position = ended.iter().position(|one| one.message as u64 == wc.wr_id);
            let Some(position) = position else {
                panic!("{:?}: {wc:?} where {ended:?} are expected", self.address);
            };
            let Ended {
                message,
                end,
                ranges,
            } = ended.swap_remove(position);
            assert!(end.is(wc.status), "message {message}: {wc:?} for {end:?}");
            assert_eq!(wc.byte_len, octets_in(&ranges), "message {message}");
            if end != End::Complete {
                let failed = self.engine.take_failed_read(wc.wr_id);
                let map = failed.as_ref().map(|failed| failed.map.ranges());
                // A Read that never began has no map.
                assert!(
                    map.is_none_or(|map| map == &ranges[..]),
                    "the map of message {message}"
                );
                let began = !matches!(end, End::LocalProtection | End::Flushed);
                assert!(map.is_some() || !began, "message {message} has a map");
            }
            ledger.messages[message].outcome = Some(Outcome::Read(end, ranges));
        }
        assert!(
            ended.is_empty(),
            "{:?}: {ended:?} did not complete",
            self.address
        );
    }

    /// Datagrams dropped in this life, by reason.
    pub(super) fn dropped(&self) -> &[u64] {
        &self.model.dropped
    }

    pub(super) const fn refusals(&self) -> Refusals {
        self.plan.refusals
    }
}

/// Whether a Read Request, a cookie request or a cookie may be dropped for this reason.
fn may_refuse_request(reason: DropReason) -> bool {
    matches!(
        reason,
        DropReason::BadStag
            | DropReason::NoAccess
            | DropReason::OutOfBounds
            | DropReason::Duplicate
            | DropReason::NoSourceSlot
            | DropReason::UnvalidatedRead
            | DropReason::ReadQueueFull
            | DropReason::Unsolicited
    )
}

/// Datagrams of equal length that arrive in one call.
pub(super) struct Train<'a> {
    pub(super) octets: &'a [u8],
    pub(super) stride: usize,
    pub(super) known: &'a [(Piece, bool, usize)],
}

/// A new life of a QP.
fn live(address: Address, plan: &QpPlan, pd: PdId, rng: &mut Rng) -> (UdEngine, Model, Outgoing) {
    let [epoch, number, msn] = rng.random();
    // Some begin shortly before the wrap.
    let number = if rng.random_bool(0.3) {
        u32::MAX - number % 20
    } else {
        number
    };
    let engine = UdEngine::new(UdConfig {
        qpn: address.port,
        pd,
        connected: false,
        qkey: plan.qkey,
        grh: plan.grh,
        max_recv_wr: plan.receives.len(),
        record_slots: plan.record_slots,
        segment_completions: plan.reports.is_some(),
        send_copy: false,
        record_timeout: plan.record_timeout,
        reorder_window: 64,
        max_rate: plan.max_rate,
        receive_buffer: plan.receive_buffer,
        read_timeout: Duration::from_secs(2),
        shim: ShimConfig::Plain,
        random: Random {
            seed: [epoch, number, msn],
            secret: rng.random(),
            group_key: rng.random(),
            record_generation: 0,
        },
    });
    let limits = Limits {
        record_slots: plan.record_slots,
        record_timeout: plan.record_timeout,
        receives: plan.receives.len(),
        headroom: if plan.grh { GRH } else { 0 },
        reports: plan.reports,
    };
    (engine, Model::new(limits), Outgoing::new(epoch))
}

/// The range in one to three elements.
pub(super) fn split(addr: u64, length: u32, lkey: u32, rng: &mut Rng) -> Vec<Sge> {
    let mut cuts = [0, length, length, length];
    for cut in cuts.iter_mut().take(3).skip(1) {
        if rng.random_bool(0.3) {
            *cut = rng.random_range(0..=length);
        }
    }
    cuts.sort_unstable();
    let parts = cuts.windows(2).map(|pair| Sge {
        addr: addr + u64::from(pair[0]),
        length: pair[1] - pair[0],
        lkey,
    });
    parts.collect()
}

/// The IPv4 header that verbs programs read addresses from.
fn check_grh(header: &[u8], from: Address, to: Address) {
    assert_eq!(header[..20], [0; 20]);
    let host = |address: Address| match socket_addr(address).ip() {
        std::net::IpAddr::V4(ip) => ip.octets(),
        std::net::IpAddr::V6(_) => unreachable!("the simulation has IPv4 addresses"),
    };
    assert_eq!(
        (&header[32..36], &header[36..]),
        (&host(from)[..], &host(to)[..])
    );
}

//! A datagram QP, sans I/O (`rfc-notes/datagram-mapping.md`).
//!
//! Order of calls: `accept` for each work request posted; `transmit(now, …)` until it reports that nothing is left or
//! that the network is full; `handle_input(now, …)` for every datagram received; `handle_timeout(now, …)` at or
//! after `poll_timeout()`. Bytes go out through a [`TransmitSink`] and not through a buffer that the caller drains, because large
//! segments leave from registered memory, which may only be held for the length of one call.

mod arrival;
mod config;
pub(crate) mod errors;
mod grh;
mod invitation;
mod numbering;
mod pacer;
mod reads;
mod receive;
mod response_share;
mod transmit;
mod ulp;

use std::time::Instant;

use dgiwarp_llp_udp::{Peer, Shim, Train};
use dgiwarp_memory::Placeable;
use dgiwarp_rdmap::datagram::read::Class;
use dgiwarp_rdmap::datagram::{DropReason, Receiver, ReceiverConfig, Record, RecordHandle};

use super::cq_ring::{CompletionSink, Unheard};
use super::mr::MrTable;
use super::recv_queue::{RecvWqe, Tables};
use super::sq_drain::SqDrain;
use crate::types::{AsyncEvent, Operation, QpCounters, earliest};

pub use arrival::Arrival;
pub use config::{Associations, Random, UdConfig};
use errors::ErrorQueue;
pub use errors::{ErrorEntry, ErrorReason};
pub use grh::ip_header;
pub use invitation::Invited;
use pacer::Pacer;
pub use reads::FailedRead;
use reads::{Progress, Reads};
pub(crate) use receive::drop_reason;
pub use response_share::Round;
use response_share::{ResponseShare, Turn};
use transmit::{PeerState, Sends};
pub use transmit::{SendOutcome, SendWqe, ShortSend, TransmitSink, Transmitted, check_length};
use ulp::{UdUlp, WithPayload};

/// Most receives bound to incomplete Sends: with messages longer than the path's MTU, two of each of 32 sources.
const MAX_ASSEMBLIES: usize = 64;

/// The engine of one datagram QP.
#[derive(Debug)]
pub struct UdEngine {
    config: UdConfig,
    shim: Shim,
    associations: Associations,
    send: Sends,
    receiver: Receiver<Peer, RecvWqe>,
    reads: Reads,
    counters: QpCounters,
    /// Counters before the latest reset.
    past: QpCounters,
    errors: ErrorQueue,
    /// End of a pause of the pacer.
    paused_until: Option<Instant>,
    response_share: ResponseShare,
    /// The turn that the driver granted.
    turn: Turn,
    /// A datagram of the shim's own, or an invitation, that the network has not taken, and its peer.
    shim_output: (Vec<u8>, Option<Peer>),
    sq_drain: SqDrain,
    /// The next segment of the peer raises [`AsyncEvent::CommunicationEstablished`].
    awaits_first_message: bool,
    /// A peer's invitation to share memory.
    invited: Option<Invited>,
}

impl UdEngine {
    /// An engine without work requests and peers.
    pub fn new(config: UdConfig) -> Self {
        let [_, _, msn] = config.random.seed;
        let make = if config.connected {
            Receiver::new_connected
        } else {
            Receiver::new
        };
        let receiver = make(ReceiverConfig {
            qkey: config.qkey,
            record_slots: config.record_slots,
            record_generation: config.random.record_generation,
            segment_completions: config.segment_completions,
            record_timeout: config.record_timeout,
            reorder_window: config.reorder_window,
            max_assemblies: (config.max_recv_wr / 2).clamp(1, MAX_ASSEMBLIES),
            ..ReceiverConfig::default()
        });
        let shim = Shim::new(config.shim);
        let mut send = Sends::new(msn);
        send.pacer = Pacer::new(config.max_rate);
        Self {
            associations: config.associations(),
            send,
            paused_until: None,
            receiver,
            reads: Reads::new(&config, &shim),
            shim,
            counters: QpCounters::default(),
            past: QpCounters::default(),
            errors: ErrorQueue::default(),
            response_share: ResponseShare::default(),
            turn: Turn::OF_ALL,
            shim_output: (Vec::new(), None),
            sq_drain: SqDrain::Off,
            awaits_first_message: false,
            invited: None,
            config,
        }
    }

    /// Makes the QP a new one that has counted what this one did. All that was posted is forgotten, but for receives that QPs share, and so are
    /// records and the peer of a UC QP. Peers see another source: its epochs are new.
    pub fn reset(&mut self, random: Random, tables: Tables<'_>) {
        self.abandon_sends(tables, &mut Unheard);
        self.close_reads(tables, &mut Unheard);
        drop(tables.recv_queue.drain());
        let past = self.counters();
        let config = UdConfig {
            random,
            ..self.config
        };
        *self = Self {
            past,
            ..Self::new(config)
        };
    }

    /// Gives a UC QP its peer. Returns whether it is one and had none.
    pub fn connect(&mut self, peer: Peer) -> bool {
        self.receiver.connect(peer)
    }

    /// Takes over a posted work request.
    #[inline(always)]
    pub fn accept(&mut self, wqe: SendWqe) {
        match wqe.operation {
            Operation::Send { .. } | Operation::WriteRecord { .. } => self.send.push(wqe),
            Operation::Read { .. } => self.reads.accept(wqe),
        }
    }

    /// The associations, to validate our address at a peer.
    pub fn associations(&mut self) -> &mut Associations {
        self.reads.wake();
        &mut self.associations
    }

    /// Hands queued messages to the network until none is left, the network is full, the rate makes a pause, or `budget` trains went out.
    ///
    /// It and what it calls for posted messages is made a part of its caller, down to the system call: after one, the processor does not know
    /// where functions return to, and takes long to find out.
    #[inline(always)]
    pub fn transmit(
        &mut self,
        now: Instant,
        budget: usize,
        mrs: &MrTable,
        sink: &mut impl TransmitSink,
        completions: &mut impl CompletionSink,
    ) -> Transmitted {
        let context = transmit::Context {
            now,
            mrs,
            pd: self.config.pd,
            qpn: self.config.qpn.into(),
            copy: self.config.send_copy,
        };
        let sent = if self.has_other_output() {
            self.transmit_in_turn(context, budget, sink, completions)
        } else {
            let mut peers = PeerState {
                shim: &mut self.shim,
                associations: &mut self.associations,
            };
            self.send.transmit(
                context,
                &mut peers,
                budget,
                sink,
                completions,
                &mut self.counters,
            )
        };
        self.paused_until = match sent {
            Transmitted::Paused(until) => Some(until),
            Transmitted::All | Transmitted::Blocked | Transmitted::Budget => None,
        };
        if self.sq_drain.is_draining() {
            self.note_drained(completions);
        }
        sent
    }

    /// Whether something but posted messages may leave now.
    #[inline]
    fn has_other_output(&self) -> bool {
        self.reads_have_output() || self.has_turn_of_responses() || self.shim_has_output()
    }

    #[inline]
    fn has_turn_of_responses(&self) -> bool {
        let mut classes = self.turn.classes.iter();
        classes.any(|class| self.reads.responses_have_output(*class))
    }

    #[inline]
    fn shim_has_output(&self) -> bool {
        self.shim.has_transmit() || self.shim_output.1.is_some()
    }

    /// Sends the shim's own datagrams. Returns whether the network took all.
    fn transmit_of_shim(&mut self, sink: &mut impl TransmitSink) -> bool {
        loop {
            let (datagram, to) = &mut self.shim_output;
            let Some(peer) = to.take().or_else(|| self.shim.poll_transmit(datagram)) else {
                return true;
            };
            let mut train = Train::new();
            train.add(datagram.len());
            match sink.send_short(peer, None, datagram, &train) {
                SendOutcome::Sent => self.counters.count_sent(1, 0),
                SendOutcome::WouldBlock => {
                    *to = Some(peer);
                    return false;
                }
                SendOutcome::TooBig | SendOutcome::Failed(_) => self.counters.count_send_error(),
            }
        }
    }

    /// Posted messages, Reads and responses take turns, so that none starves. The rate is that of posted messages.
    #[inline(never)]
    fn transmit_in_turn(
        &mut self,
        context: transmit::Context<'_>,
        budget: usize,
        sink: &mut impl TransmitSink,
        completions: &mut impl CompletionSink,
    ) -> Transmitted {
        if !self.transmit_of_shim(sink) {
            return Transmitted::Blocked;
        }
        let (turn, counters) = (self.turn, &mut self.counters);
        let mut peers = PeerState {
            shim: &mut self.shim,
            associations: &mut self.associations,
        };
        let mut octets = 0;
        for count in 0..budget {
            let config = self.config;
            if !self.reads.transmit_requests(
                context,
                &mut peers,
                config,
                sink,
                completions,
                counters,
            ) {
                return Transmitted::Blocked;
            }
            let mut is_idle = true;
            for class in turn.classes {
                let (answered, sent) = self
                    .reads
                    .answer(*class, context, &mut peers, sink, counters);
                if answered == Progress::Blocked {
                    return Transmitted::Blocked;
                }
                is_idle &= answered == Progress::Idle;
                octets += sent;
            }
            if turn.with_posted {
                let share = if is_idle { budget - count } else { 1 };
                let sent =
                    self.send
                        .transmit(context, &mut peers, share, sink, completions, counters);
                if is_idle || sent == Transmitted::Blocked {
                    return sent;
                }
            }
            if is_idle || octets >= turn.octets {
                break;
            }
        }
        match self.paused_until {
            Some(until) if !turn.with_posted && !self.has_output() => Transmitted::Paused(until),
            Some(_) | None if self.has_unsent() => Transmitted::Budget,
            Some(_) | None => Transmitted::All,
        }
    }

    /// Handles what one receive call brought: one datagram, or a train of equal ones. Returns why the last one that was dropped was.
    #[inline]
    pub fn handle_input<P: Placeable + ?Sized>(
        &mut self,
        now: Instant,
        arrival: Arrival<'_, P>,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) -> Option<DropReason> {
        let before = self.counters.segments_received;
        let takers = receive::Takers {
            associations: &mut self.associations,
            receiver: &mut self.receiver,
            reads: &mut self.reads,
            errors: &mut self.errors,
            config: &self.config,
            invited: &mut self.invited,
        };
        let lower = (&mut self.shim, &mut self.counters);
        let arrived = (now, &arrival);
        let dropped = receive::handle_input(lower, takers, arrived, tables, completions);
        if self.awaits_first_message && self.counters.segments_received > before {
            self.awaits_first_message = false;
            let qpn = self.config.qpn.into();
            completions.event(AsyncEvent::CommunicationEstablished { qpn });
        }
        if self.sq_drain.is_draining() {
            self.note_drained(completions);
        }
        dropped
    }

    /// Whether [`poll_timeout`](Self::poll_timeout) may yield a time: no more than this needs to be found out for most messages.
    #[inline]
    pub fn may_time_out(&self) -> bool {
        self.receiver.poll_timeout().is_some()
            || self.associations.poll_timeout().is_some()
            || self.response_share.poll_timeout().is_some()
            || self.shim.poll_timeout().is_some()
            || self.paused_until.is_some()
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let paused = self.paused_until.filter(|_| self.send.has_output());
        let timers = [
            self.receiver.poll_timeout(),
            self.associations.poll_timeout(),
            self.response_share.poll_timeout(),
            self.shim.poll_timeout(),
            paused,
        ];
        earliest(timers)
    }

    /// When sending goes on, where the rate made it pause.
    pub fn paused_until(&self) -> Option<Instant> {
        self.paused_until
    }

    /// Whether it keeps to a rate, so that [`transmit`](Self::transmit) needs the exact time.
    #[inline]
    pub fn is_paced(&self) -> bool {
        self.send.pacer.is_limited()
    }

    /// Changes the rate; 0 is no limit.
    pub fn set_max_rate(&mut self, octets_per_second: u64) {
        self.config.max_rate = octets_per_second;
        self.send.pacer = Pacer::new(octets_per_second);
        self.paused_until = None;
    }

    /// Closes records and gives up incomplete Sends whose time is over.
    pub fn handle_timeout(
        &mut self,
        now: Instant,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) {
        self.with_ulp(tables, completions, |receiver, ulp| {
            receiver.handle_timeout(now, ulp);
        });
        self.shim.handle_timeout(now);
        self.response_share.handle_timeout(now);
        let reads = (&mut self.associations, self.config);
        self.reads
            .handle_timeout(now, reads, tables.mrs, completions);
        if self.sq_drain.is_draining() {
            self.note_drained(completions);
        }
    }

    /// Puts the send queue into this state of a drain, or ends the drain with [`SqDrain::Off`]; [`transmit`](Self::transmit) comes next.
    pub fn set_sq_drain(&mut self, drain: SqDrain, completions: &mut impl CompletionSink) {
        self.sq_drain = drain;
        self.send.hold(drain.holds());
        self.reads.hold(drain.holds());
        self.note_drained(completions);
    }

    /// Whether a UC QP is ready to receive and not yet to send: a segment that is taken then raises [`AsyncEvent::CommunicationEstablished`], once.
    pub fn await_first_message(&mut self, awaits: bool) {
        self.awaits_first_message = awaits;
    }

    /// State of the drain.
    pub fn sq_drain(&self) -> SqDrain {
        self.sq_drain
    }

    /// Ends the drain if no message is partly sent and no Read under way.
    fn note_drained(&mut self, completions: &mut impl CompletionSink) {
        if self.send.is_between_messages() && !self.reads.is_waiting() {
            self.sq_drain.complete(self.config.qpn.into(), completions);
        }
    }

    /// Closes all open records now.
    pub fn complete_now(&mut self, tables: Tables<'_>, completions: &mut impl CompletionSink) {
        self.with_ulp(tables, completions, |receiver, ulp| {
            receiver.complete_now(ulp);
        });
    }

    /// Returns the receives of incomplete Sends to their queue.
    pub fn abandon_sends(&mut self, tables: Tables<'_>, completions: &mut impl CompletionSink) {
        self.with_ulp(tables, completions, |receiver, ulp| {
            receiver.abandon_sends(ulp);
        });
    }

    /// Ends everything that was posted with `Flushed`, but for receives that QPs share.
    pub fn flush(&mut self, tables: Tables<'_>, completions: &mut impl CompletionSink) {
        self.sq_drain.abandon();
        self.abandon_sends(tables, completions);
        self.send.flush(self.config.qpn.into(), completions);
        let reads = (&mut self.associations, self.config);
        self.reads.flush(reads, tables.mrs, completions);
        for wqe in tables.recv_queue.drain() {
            completions.received(receive::flushed(&wqe, self.config.qpn));
        }
    }

    fn with_ulp<C: CompletionSink>(
        &mut self,
        tables: Tables<'_>,
        completions: &mut C,
        run: impl FnOnce(&mut Receiver<Peer, RecvWqe>, &mut WithPayload<'_, '_, C, [u8]>),
    ) {
        let around = receive::send_datagram(&self.shim, 0);
        let config = (&self.config, around);
        let mut ulp = UdUlp::new(config, None, tables, completions, &mut self.counters);
        run(&mut self.receiver, &mut WithPayload::of(&mut ulp));
    }

    /// Changes the Q_Key for what arrives from now on.
    pub fn set_qkey(&mut self, qkey: u32) {
        self.config.qkey = qkey;
        self.receiver.set_qkey(qkey);
    }

    /// The QPN.
    pub fn qpn(&self) -> u16 {
        self.config.qpn
    }

    /// The Q_Key.
    pub fn qkey(&self) -> u32 {
        self.config.qkey
    }

    /// The record of a handle, until it is released.
    pub fn record(&self, handle: RecordHandle) -> Option<&Record<Peer>> {
        self.receiver.record(handle)
    }

    /// Releases the slot of a record. Returns whether the handle named one.
    pub fn release_record(&mut self, handle: RecordHandle) -> bool {
        self.receiver.release(handle)
    }

    /// Whether posted messages, or any other output, may be left.
    #[inline]
    pub fn has_unsent(&self) -> bool {
        self.send.has_output() || self.has_output()
    }

    /// The turns of responses and of posted messages in one call of the driver: [`next_turn`](Self::next_turn) until there is none, each followed by
    /// [`transmit`](Self::transmit) and [`end_turn`](Self::end_turn). While much arrives (`is_busy`), responses may have to wait; posted messages and Reads
    /// never do.
    pub fn begin_round(is_busy: bool) -> Round {
        Round::new(is_busy)
    }

    /// Begins the next turn, and returns how many trains it may send.
    pub fn next_turn(&mut self, round: &mut Round, now: Instant) -> Option<usize> {
        let reads = &self.reads;
        let has_output = |class| reads.responses_have_output(class);
        self.turn = self.response_share.next_turn(round, now, has_output)?;
        Some(self.turn.trains)
    }

    /// Ends a turn.
    pub fn end_turn(&mut self, began: Instant, ended: Instant) {
        let turn = std::mem::replace(&mut self.turn, Turn::WITHOUT_RESPONSES);
        self.response_share.spent(&turn, began, ended);
    }

    /// Lets responses leave without regard to their share, for a QP that is taken out of service.
    pub fn release_responses(&mut self) {
        self.turn = Turn::OF_ALL;
    }

    /// Whether Reads that were posted may have requests to send.
    #[inline]
    pub fn reads_have_output(&self) -> bool {
        self.reads.has_output(&self.associations)
    }

    /// Whether peers may have to be answered: Read Responses, cookies, Terminates. Requesters that wait for their share have a timer.
    #[inline]
    pub fn responses_have_output(&self) -> bool {
        self.reads.responses_have_output(Class::Validated)
            || (self.reads.responses_have_output(Class::Unvalidated)
                && !self.response_share.holds_unvalidated())
    }

    /// Whether something received, or a timer, may have made output.
    #[inline]
    pub fn has_output(&self) -> bool {
        self.reads_have_output() || self.responses_have_output() || self.shim_has_output()
    }

    /// Whether a transmission may have changed [`poll_timeout`](Self::poll_timeout): a posted Read has not completed, or requesters wait for
    /// their share.
    #[inline]
    pub fn has_timers(&self) -> bool {
        self.reads.is_waiting() || self.response_share.holds_unvalidated()
    }

    /// Ends posted Reads with `Flushed` and answers no more requests, for a QP that goes.
    pub fn close_reads(&mut self, tables: Tables<'_>, completions: &mut impl CompletionSink) {
        let reads = (&mut self.associations, self.config);
        self.reads.close(reads, tables.mrs, completions);
    }

    /// Valid octets of a failed Read; the latest with this number, once.
    pub fn take_failed_read(&mut self, wr_id: u64) -> Option<FailedRead> {
        self.reads.take_failure(wr_id)
    }

    /// Counters of the QP since it was created.
    pub fn counters(&self) -> QpCounters {
        let mut counters = self.counters.clone();
        counters.errors_lost = self.errors.lost();
        self.reads.count_into(&mut counters);
        counters.add(&self.past);
        counters
    }

    /// Adds to the error queue what a peer or the network reported of an earlier message.
    pub fn report_error(&mut self, entry: ErrorEntry, completions: &mut impl CompletionSink) {
        if let ErrorReason::Network { errno } = entry.reason {
            let peer = Peer::ip(entry.peer);
            self.reads.note_error(peer, errno, &mut self.associations);
        }
        if self.errors.push(entry) {
            completions.event(AsyncEvent::ErrorQueue {
                qpn: self.config.qpn.into(),
            });
        }
    }

    /// Counts reports that never became entries, because too many came at once.
    pub fn lose_errors(&mut self, count: u64) {
        self.errors.lose(count);
    }

    /// The oldest entry of the error queue.
    pub fn poll_error(&mut self) -> Option<ErrorEntry> {
        self.errors.pop()
    }

    /// Counts datagrams that arrived before the queue pair is ready to receive: `wrong-peer` where a UC queue pair would refuse their source, else
    /// `no-receive`.
    pub fn drop_unready(&mut self, arrival: Arrival<'_>) {
        let reason = if self.receiver.takes_from(arrival.from) {
            DropReason::NoReceive
        } else {
            DropReason::WrongPeer
        };
        arrival.each().for_each(|_| self.count_drop(reason));
    }

    /// Counts a datagram that never became a segment.
    pub fn count_drop(&mut self, reason: DropReason) {
        self.counters.count_drop(reason);
    }
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

//! A datagram QP, sans I/O (`rfc-notes/datagram-mapping.md`).
//!
//! Order of calls: `accept` for each work request posted; `transmit(now, …)` until it says that nothing is left or
//! that the network is full; `handle_input(now, …)` for every datagram received; `handle_timeout(now, …)` at or
//! after `poll_timeout()`. Bytes go out through a [`TransmitSink`] and not through a buffer that the caller drains, because large
//! segments leave from registered memory, which may only be held for the length of one call.

mod epochs;
mod errors;
mod grh;
mod pace;
mod receive;
mod send;

use std::time::{Duration, Instant};

use dgiwarp_llp_udp::Peer;
use dgiwarp_rdmap::datagram::{
    DropReason, Numbers, Receiver, ReceiverConfig, Record, RecordHandle,
};

use super::cq::CompletionSink;
use super::mr::{MrTable, PdId};
use super::queue::{RecvWqe, Tables};
use crate::{AsyncEvent, QpCounters};

use epochs::Epochs;
use errors::ErrorQueue;
pub use errors::{ErrorEntry, ErrorReason};
use pace::Pace;
pub(crate) use receive::Arrival;
use send::SendQueue;
pub(crate) use send::{SendOutcome, SendWqe, TransmitSink, Transmitted, check_length};

/// Settings of a datagram QP's engine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UdConfig {
    pub(crate) qpn: u16,
    pub(crate) pd: PdId,
    /// Whether it is a UC QP, which hears its one peer only.
    pub(crate) connected: bool,
    pub(crate) qkey: u32,
    /// Whether receives begin with 40 octets for a GRH, as the verbs ask.
    pub(crate) grh: bool,
    pub(crate) max_recv_wr: usize,
    pub(crate) record_slots: usize,
    /// Whether all that is sent is copied.
    pub(crate) send_copy: bool,
    /// Whether each segment of a record is reported.
    pub(crate) segment_completions: bool,
    pub(crate) record_timeout: Duration,
    /// Octets of datagrams that may leave per second; 0 is no limit.
    pub(crate) max_rate: u64,
    /// Random: epoch, first message number, first MSN.
    pub(crate) seed: [u32; 3],
    /// Random: what the epochs of groups are made from.
    pub(crate) group_key: [u32; 4],
}

/// The engine of one datagram QP.
#[derive(Debug)]
pub(crate) struct UdEngine {
    config: UdConfig,
    send: SendQueue,
    receiver: Receiver<Peer, RecvWqe>,
    counters: QpCounters,
    errors: ErrorQueue,
    /// The rate made sending pause; it goes on at this time.
    paused_until: Option<Instant>,
}

impl UdEngine {
    pub(crate) fn new(config: UdConfig) -> Self {
        let [epoch, number, msn] = config.seed;
        let make = if config.connected {
            Receiver::new_connected
        } else {
            Receiver::new
        };
        let receiver = make(ReceiverConfig {
            qkey: config.qkey,
            record_slots: config.record_slots,
            segment_completions: config.segment_completions,
            record_timeout: config.record_timeout,
            max_assemblies: (config.max_recv_wr / 2).clamp(1, 16),
            ..ReceiverConfig::default()
        });
        let epochs = Epochs::new(epoch, config.group_key);
        let mut send = SendQueue::new(epochs, Numbers::new(number), msn);
        send.pace = Pace::new(config.max_rate);
        Self {
            send,
            paused_until: None,
            receiver,
            counters: QpCounters::default(),
            errors: ErrorQueue::default(),
            config,
        }
    }

    /// Gives a UC QP its peer. Returns whether it is one and had none.
    pub(crate) fn connect(&mut self, peer: Peer) -> bool {
        self.receiver.connect(peer)
    }

    /// Takes over a posted work request.
    #[inline]
    pub(crate) fn accept(&mut self, wqe: SendWqe) {
        self.send.push(wqe);
    }

    /// Hands queued messages to the network until none is left, the network is full, the rate makes a pause, or `budget` trains went out.
    #[inline]
    pub(crate) fn transmit(
        &mut self,
        now: Instant,
        budget: usize,
        mrs: &MrTable,
        sink: &mut impl TransmitSink,
        completions: &mut impl CompletionSink,
    ) -> Transmitted {
        let context = send::Context {
            now,
            mrs,
            pd: self.config.pd,
            qpn: self.config.qpn.into(),
            copy: self.config.send_copy,
        };
        let sent = self
            .send
            .transmit(context, budget, sink, completions, &mut self.counters);
        self.paused_until = match sent {
            Transmitted::Paused(until) => Some(until),
            Transmitted::All | Transmitted::Blocked | Transmitted::Budget => None,
        };
        sent
    }

    /// Handles what one receive call brought: one datagram, or a train of equal ones. Returns why the last one that was dropped was.
    #[inline]
    pub(crate) fn handle_input(
        &mut self,
        now: Instant,
        arrival: Arrival<'_>,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) -> Option<DropReason> {
        receive::handle_input(
            &mut self.receiver,
            &mut self.counters,
            self.config,
            (now, arrival),
            tables,
            completions,
        )
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let paused = if self.send.is_empty() {
            None
        } else {
            self.paused_until
        };
        match (self.receiver.poll_timeout(), paused) {
            (Some(timeout), Some(until)) => Some(timeout.min(until)),
            (timeout, until) => timeout.or(until),
        }
    }

    /// When sending goes on, where the rate made it pause.
    pub(crate) fn paused_until(&self) -> Option<Instant> {
        self.paused_until
    }

    /// Whether it keeps to a rate, so that [`transmit`](Self::transmit) needs to know the time well.
    pub(crate) fn is_paced(&self) -> bool {
        self.send.pace.is_limited()
    }

    /// Changes the rate; 0 is no limit.
    pub(crate) fn set_max_rate(&mut self, octets_per_second: u64) {
        self.send.pace = Pace::new(octets_per_second);
        self.paused_until = None;
    }

    /// Closes records and gives up incomplete Sends whose time is over.
    pub(crate) fn handle_timeout(
        &mut self,
        now: Instant,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) {
        self.with_upper(tables, completions, |receiver, upper| {
            receiver.handle_timeout(now, upper);
        });
    }

    /// Closes all open records now.
    pub(crate) fn complete_now(
        &mut self,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) {
        self.with_upper(tables, completions, |receiver, upper| {
            receiver.complete_now(upper);
        });
    }

    /// Returns the receives of incomplete Sends to their queue.
    pub(crate) fn abandon_sends(
        &mut self,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) {
        self.with_upper(tables, completions, |receiver, upper| {
            receiver.abandon_sends(upper);
        });
    }

    /// Ends everything that was posted with `Flushed`, but for receives that QPs share.
    pub(crate) fn flush(&mut self, tables: Tables<'_>, completions: &mut impl CompletionSink) {
        self.abandon_sends(tables, completions);
        self.send.flush(self.config.qpn.into(), completions);
        for wqe in tables.recv_queue.drain() {
            completions.received(receive::flushed(&wqe, self.config.qpn));
        }
    }

    fn with_upper<C: CompletionSink>(
        &mut self,
        tables: Tables<'_>,
        completions: &mut C,
        run: impl FnOnce(&mut Receiver<Peer, RecvWqe>, &mut receive::UdUpper<'_, C>),
    ) {
        let mut upper =
            receive::UdUpper::new(self.config, None, tables, completions, &mut self.counters);
        run(&mut self.receiver, &mut upper);
    }

    /// Changes the Q_Key for what arrives from now on.
    pub(crate) fn set_qkey(&mut self, qkey: u32) {
        self.config.qkey = qkey;
        self.receiver.set_qkey(qkey);
    }

    pub(crate) fn qkey(&self) -> u32 {
        self.config.qkey
    }

    pub(crate) fn record(&self, handle: RecordHandle) -> Option<&Record<Peer>> {
        self.receiver.record(handle)
    }

    pub(crate) fn release_record(&mut self, handle: RecordHandle) -> bool {
        self.receiver.release(handle)
    }

    pub(crate) fn has_unsent(&self) -> bool {
        !self.send.is_empty()
    }

    pub(crate) fn counters(&self) -> QpCounters {
        let mut counters = self.counters.clone();
        counters.errors_lost = self.errors.lost();
        counters
    }

    /// Adds to the error queue what a peer or the network reported of an earlier message.
    pub(crate) fn report_error(
        &mut self,
        entry: ErrorEntry,
        completions: &mut impl CompletionSink,
    ) {
        if self.errors.push(entry) {
            completions.event(AsyncEvent::ErrorQueue {
                qpn: self.config.qpn.into(),
            });
        }
    }

    /// Counts reports that never became entries, because too many came at once.
    pub(crate) fn lose_errors(&mut self, count: u64) {
        self.errors.lose(count);
    }

    /// The oldest entry of the error queue.
    pub(crate) fn poll_error(&mut self) -> Option<ErrorEntry> {
        self.errors.pop()
    }

    /// Counts a datagram that never became a segment.
    pub(crate) fn count_drop(&mut self, reason: DropReason) {
        self.counters.count_drop(reason);
    }
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

//! Acknowledgements between dgiwarp peers, sent and requested: delayed acknowledgement, as in TCP (rfc-notes/rc-extensions.md).
//!
//! A pending acknowledgement leaves in front of the next message. Where none leaves, it is flushed: at once after enough messages, or when the driver
//! will not receive again soon; after [`AWAITED_FOR`] if the sender waits for it; and after [`UNAWAITED_FOR`] in any case, so that the sender need not
//! infer placement from the end of the connection.

use std::time::{Duration, Instant};

use dgiwarp_rdmap::stream::{AckRequest, Peer};

use super::engine::RcEngine;
use super::state::CROWD;
use super::wqe::RcWork;
use crate::cq_ring::CompletionSink;
use crate::types::Completion;

/// Messages, and octets of them, that are placed before an acknowledgement is flushed without a request.
const FLUSH_MESSAGES: u64 = 64;
const FLUSH_OCTETS: usize = 256 << 10;
/// Delay of an acknowledgement that the sender waits for and has not requested.
const AWAITED_FOR: Duration = Duration::from_micros(20);
/// Delay of an acknowledgement that the sender does not wait for.
const UNAWAITED_FOR: Duration = Duration::from_millis(250);

/// When the driver receives from the connection again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextReceive {
    /// Perhaps never: nothing may be left for later.
    Unknown,
    /// Soon, and the program had a chance to post since the receive before.
    Soon,
    /// Soon, directly behind the receive before.
    SoonAgain,
}

/// The sending side of messages: acknowledgements are requested.
impl RcEngine {
    /// Sets the capacity of the send queue, from which follows when the room of unsignaled work requests is wanted.
    pub fn limit_sends(&mut self, capacity: usize) {
        self.acks.crowd = capacity.div_ceil(2).min(CROWD);
    }

    /// Requests acknowledgements of all Sends and Writes, signaled or not.
    pub fn request_all_acks(&mut self) {
        self.acks.all_wanted = true;
        self.acks.in_memory = false;
    }

    /// Sets whether the driver [takes](Self::acknowledged_in_memory) acknowledgements from memory that the peer shares, on each poll: none is requested
    /// then.
    #[inline]
    pub fn take_acks_from_memory(&mut self, polled: bool) {
        self.acks.in_memory = polled && !self.acks.all_wanted;
    }

    /// The peer reports in shared memory that it has placed `messages` Sends and Writes. More than were sent are ignored. Returns whether more
    /// are acknowledged than before.
    #[inline]
    pub fn acknowledged_in_memory(
        &mut self,
        messages: u64,
        completions: &mut impl CompletionSink,
    ) -> bool {
        let dgiwarp_ext = self.stream.dgiwarp_ext_mut();
        if messages <= dgiwarp_ext.acknowledged() || messages > dgiwarp_ext.sent() {
            return false;
        }
        dgiwarp_ext.set_acknowledged(messages);
        self.complete_sends(completions);
        true
    }

    /// Sends and Writes of the peer that are placed, for its word in shared memory.
    #[inline]
    pub fn placed(&self) -> u64 {
        self.stream.dgiwarp_ext().placed()
    }

    /// The `messages`th Send or Write, a signaled one, has left.
    #[inline]
    pub(super) fn note_wanted(&mut self, messages: u64) {
        self.acks.wanted = messages;
    }

    /// Sends and Writes that the peer has acknowledged; `None` where completion does not depend on the peer.
    pub(super) fn placed_by_peer(&mut self) -> Option<u64> {
        if self.config.options.completion == Completion::Local {
            return None;
        }
        let proven = self.acks.proven;
        let waits = self.completions_wait();
        let dgiwarp_ext = self.stream.dgiwarp_ext_mut();
        dgiwarp_ext.set_acknowledged(proven);
        match dgiwarp_ext.peer() {
            Peer::Dgiwarp(_) => Some(dgiwarp_ext.acknowledged()),
            Peer::Unknown => waits.then_some(dgiwarp_ext.acknowledged()),
            Peer::Plain => None,
        }
    }

    /// Whether everything posted has left, and the peer has not acknowledged all of it.
    pub fn awaits_placement(&self) -> bool {
        let left = self.has_begun_all() && !self.is_amid();
        self.end.is_none()
            && left
            && self
                .sends
                .oldest_is_framed(|extent| extent.octets <= self.taken)
    }

    /// Whether no posted work request is going to begin.
    #[inline]
    fn has_begun_all(&self) -> bool {
        self.sq_drain.holds() || self.pending_end.is_some() || self.sends.unstarted().is_none()
    }

    /// Whether the peer is no dgiwarp end, as far as is known.
    #[must_use]
    pub fn has_plain_peer(&self) -> bool {
        !matches!(self.stream.dgiwarp_ext().peer(), Peer::Dgiwarp(_))
    }

    /// Whether an acknowledgement may be requested at all.
    #[inline]
    fn may_request_ack(&self) -> bool {
        let dgiwarp_ext = self.stream.dgiwarp_ext();
        matches!(dgiwarp_ext.peer(), Peer::Dgiwarp(_))
            && self.config.options.completion == Completion::Placed
            && dgiwarp_ext.may_request_ack()
            && !self.acks.in_memory
    }

    /// Whether an acknowledgement of something that has left is wanted.
    #[inline]
    fn is_ack_wanted(&self) -> bool {
        let dgiwarp_ext = self.stream.dgiwarp_ext();
        let acknowledged = dgiwarp_ext.acknowledged();
        let any = self.acks.all_wanted
            || self.sq_drain.is_draining()
            || self.sends.len() >= self.acks.crowd;
        acknowledged < self.acks.wanted || (any && acknowledged < dgiwarp_ext.sent())
    }

    /// Whether to request an acknowledgement of the work request that leaves next.
    fn requests_ack_of_next(&self) -> bool {
        self.may_request_ack()
            && self.startable().is_some_and(|(_, wqe)| {
                let is_message = matches!(
                    wqe.work,
                    RcWork::Send { .. } | RcWork::SendImmediate { .. } | RcWork::Write { .. }
                );
                let crowd = self.sends.len() >= self.acks.crowd;
                is_message && (wqe.signaled || crowd || self.is_ack_wanted())
            })
    }

    /// Whether to request an acknowledgement of all that has left, since no message follows that the request could go with.
    #[inline]
    fn requests_ack_of_all(&self) -> bool {
        self.is_ack_wanted()
            && self.may_request_ack()
            && self.stream.dgiwarp_ext().peer_requests_acks()
            && self.has_begun_all()
            && self.llp.may_send()
            && !self.is_amid()
    }
}

/// The receiving side of messages: acknowledgements are sent.
impl RcEngine {
    /// Octets of messages were received and handled.
    #[inline]
    pub(super) fn note_placed(&mut self, now: Instant, octets: usize) {
        let pending = self.stream.dgiwarp_ext().pending_acks();
        if pending == 0 {
            return;
        }
        self.acks.octets += octets;
        self.acks.pending_since.get_or_insert(now);
        if pending >= FLUSH_MESSAGES || self.acks.octets >= FLUSH_OCTETS {
            self.acks.flush = true;
        }
        if !self.stream.dgiwarp_ext().is_ack_awaited() {
            let until = &mut self.acks.unawaited_until;
            until.get_or_insert_with(|| now + UNAWAITED_FOR);
        }
    }

    /// Whether messages are placed and not acknowledged.
    #[inline]
    fn has_pending_acks(&self) -> bool {
        self.end.is_none() && self.stream.dgiwarp_ext().pending_acks() > 0
    }

    /// Whether the sender waits for an acknowledgement, so that [`flush_acks`](Self::flush_acks) is to be called soon.
    #[inline]
    pub fn is_ack_awaited(&self) -> bool {
        self.end.is_none() && self.stream.dgiwarp_ext().is_ack_awaited()
    }

    /// The driver has received from the connection, and `found` something or not. Returns whether an acknowledgement is to leave now. A driver that
    /// receives again soon leaves it to messages that the program may post until then.
    #[inline]
    pub fn flush_acks_after(
        &mut self,
        found: bool,
        next: NextReceive,
        now: impl FnOnce() -> Instant,
    ) -> bool {
        let at_once = match (next, found) {
            (NextReceive::Unknown, _) => true,
            (NextReceive::Soon, false) => false,
            (NextReceive::Soon, true) | (NextReceive::SoonAgain, _) => return false,
        };
        // Most calls find nothing pending, and read no clock.
        self.has_pending_acks() && self.flush_acks(now(), at_once)
    }

    /// Flushes the acknowledgement that the sender waits for: `at_once`, or if it was requested or has waited for long enough. Returns whether one is to
    /// leave now.
    #[inline]
    pub fn flush_acks(&mut self, now: Instant, at_once: bool) -> bool {
        if !self.has_pending_acks() {
            return false;
        }
        let dgiwarp_ext = self.stream.dgiwarp_ext();
        let is_overdue = || {
            let since = self.acks.pending_since;
            since.is_none_or(|since| since + AWAITED_FOR <= now)
        };
        if dgiwarp_ext.is_ack_awaited()
            && (at_once || dgiwarp_ext.is_ack_requested() || is_overdue())
        {
            self.acks.flush = true;
        }
        self.acks.flush
    }

    /// When acknowledgements that the sender does not wait for are flushed.
    #[inline]
    pub(super) fn ack_deadline(&self) -> Option<Instant> {
        self.acks.unawaited_until
    }

    pub(super) fn time_out_acks(&mut self, now: Instant) {
        if self.acks.unawaited_until.is_some_and(|it| it <= now) {
            self.acks.unawaited_until = None;
            self.acks.flush |= self.has_pending_acks();
        }
    }

    /// Whether a notice is to leave even if nothing else does.
    #[inline]
    pub(super) fn has_notice(&self) -> bool {
        let dgiwarp_ext = self.stream.dgiwarp_ext();
        dgiwarp_ext.is_hello_due(self.is_initiator)
            || self.has_rare_notice
            || (self.acks.flush && dgiwarp_ext.pending_acks() > 0)
            || self.requests_ack_of_all()
    }

    /// Sends an acknowledgement, a request for one, or both in one notice: in front of the message that leaves next (`with_others`), so that completions
    /// come in the order of events, or alone where it is flushed. No message may have begun.
    #[inline]
    pub(super) fn send_ack(&mut self, now: Instant, with_others: bool) {
        let request = if self.requests_ack_of_next() {
            Some(AckRequest::Next)
        } else if self.requests_ack_of_all() {
            Some(AckRequest::All)
        } else {
            None
        };
        if !(with_others || self.acks.flush || request.is_some()) {
            return;
        }
        if self.stream.dgiwarp_ext().pending_acks() > 0 || request.is_some() {
            let ulpdu = self.stream.dgiwarp_ext_mut().acknowledge(request);
            self.put(now, &ulpdu, &[]);
        }
        self.acks.flush = false;
        self.acks.octets = 0;
        self.acks.pending_since = None;
    }
}

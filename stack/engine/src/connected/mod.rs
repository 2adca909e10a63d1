//! A connected QP, sans I/O: RDMAP over DDP over MPA, on the octets of one TCP connection.
//!
//! Order of calls: `accept` for each work request posted; `handle_input(now, …)` for what TCP brought and `handle_end(now, …)` for its
//! end; after each of these `make_fpdus(…)`, then `poll_transmit(now)` and `transmitted(…)` for the octets until there are none.
//! `end()` tells when and why the connection is over; everything posted has completed then, and what is left to transmit, a Terminate at
//! its end, is for the peer.
//!
//! Posted work requests wait until MPA lets them go: a Responder has to receive an FPDU first (RFC 5044 §7.1.2 rule 4).

mod acks;
mod close;
mod end;
mod first_fpdu_probe;
mod llp;
mod receive;
mod rnr_queue;
mod rx_buffer;
mod transmit;
mod ulp;
mod wqe;
mod zero_copy;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use dgiwarp_llp_tcp_mpa::{Role, Rtr, TcpEnd};
use dgiwarp_rdmap::stream::{Depths, Stream, StreamError};

use super::cq_ring::CompletionSink;
use super::mr::{PdId, StreamId};
use super::recv_queue::{RecvQueue, RecvWqe, Tables, WeakWaiter};
use crate::types::{AsyncEvent, QpCounters, RcOptions, WcStatus};
use acks::Placement;
use dgiwarp_memory::Access;
use first_fpdu_probe::FirstFpduProbe;
use llp::LlpEvent;
use rnr_queue::RnrQueue;
use transmit::Sending;
use ulp::failed_receive;
use wqe::SendQueue;
use zero_copy::Batch;

pub use acks::LATE;
pub use close::{
    CloseStep, DeferredDisconnect, GracefulClose, GracefulStep, LINGER_FOR, Outstanding, TcpClose,
};
pub use end::RcEnd;
pub use llp::Llp;
pub use transmit::ROOM;
pub use wqe::{MAX_INLINE, MemoryWork, RcData, RcSendWqe, RcWork};
pub use zero_copy::{StreamSink, Taken};

type RcStream = Stream<RecvWqe, u64>;

/// How long a work request for a peer that left takes to fail: a program that is about to end the same way is not told of it on the way.
const RETRIES_TAKE: Duration = Duration::from_secs(1);

/// Stands for the Read that is an RTR indication and no work request.
const RTR_READ: u64 = u64::MAX;

/// Settings of a connected QP's engine.
#[derive(Debug, Clone, Copy)]
pub struct RcConfig {
    pub qpn: u32,
    pub pd: PdId,
    /// The other end, for completions.
    pub peer: SocketAddr,
    pub options: RcOptions,
    /// The QPs were connected by their programs' exchanged numbers, and know nothing of a connection that could end.
    pub paired: bool,
    /// What no key gives the peer the right to.
    pub denied: Access,
}

impl RcConfig {
    /// Which STags are this QP's.
    pub(super) const fn stream(&self) -> StreamId {
        StreamId {
            pd: self.pd,
            qpn: self.qpn,
        }
    }
}

/// Flushes the receives that are posted, unless QPs share them.
pub fn flush_receives(queue: &RecvQueue, qpn: u32, completions: &mut impl CompletionSink) {
    for wqe in queue.drain() {
        completions.received(failed_receive(&wqe, qpn, WcStatus::Flushed));
    }
}

/// The engine of one connected QP.
#[derive(Debug)]
pub struct RcEngine {
    config: RcConfig,
    llp: Llp,
    is_initiator: bool,
    stream: RcStream,
    placement: Placement,
    /// What arrived and waits for a receive.
    parked: RnrQueue,
    /// It has waited for too long.
    parked_too_long: bool,
    /// Whom to tell when one is posted.
    waiter: WeakWaiter,
    sends: SendQueue,
    /// The message of which some segments have left.
    sending: Option<Sending>,
    /// Whether it is the turn of an answer, if both an answer and a work request may begin.
    answer_next: bool,
    /// Whether large segments are copied like small ones. Those that are not leave with `send_uncopied`.
    copies: bool,
    batch: Batch,
    /// Octets of all FPDUs that were made.
    made: u64,
    /// Octets of them that TCP has taken.
    taken: u64,
    end: Option<RcEnd>,
    /// The peer left, and the program has not noticed.
    dormant: bool,
    /// When it will: something needs the peer.
    dormant_until: Option<Instant>,
    nudge: FirstFpduProbe,
    counters: QpCounters,
}

impl RcEngine {
    /// An engine on a connection whose startup is over. `waiter` is told when a receive is posted that [`resume`](Self::resume) waits for.
    pub fn new(config: RcConfig, llp: impl Into<Llp>, waiter: WeakWaiter) -> Self {
        let llp = llp.into();
        let negotiation = llp.negotiation();
        let is_initiator = negotiation.is_some_and(|it| it.role == Role::Initiator);
        let depths = negotiation.map_or(Depths { ird: 0, ord: 0 }, |it| Depths {
            // RFC 6581 §9.1: a Read as RTR indication has to be taken even where no others are.
            ird: match it.rtr {
                Some(rtr) if rtr.read => it.depths.ird.max(1),
                Some(_) | None => it.depths.ird,
            },
            ord: it.depths.ord,
        });
        let stream = Stream::new(depths);
        Self {
            config,
            nudge: if is_initiator {
                FirstFpduProbe::Idle
            } else {
                FirstFpduProbe::Done
            },
            llp,
            is_initiator,
            stream: match acks::capabilities(config.options) {
                Some(capabilities) => stream.with_extensions(capabilities),
                None => stream,
            },
            placement: Placement::default(),
            parked: RnrQueue::default(),
            parked_too_long: false,
            waiter,
            sends: SendQueue::default(),
            sending: None,
            answer_next: false,
            copies: true,
            batch: Batch::default(),
            made: 0,
            taken: 0,
            end: None,
            dormant: false,
            dormant_until: None,
            counters: QpCounters::default(),
        }
    }

    /// Sends the RTR indication that was agreed on. It comes before everything else (RFC 6581 §5).
    pub fn send_rtr(&mut self, now: Instant, rtr: Rtr) {
        match rtr {
            // The greeting is one.
            Rtr::Write => self.say_hello(now),
            Rtr::Read => {
                let ulpdu = self.stream.rtr_read(RTR_READ);
                self.put(now, &ulpdu, &[]);
            }
            // Not one that this end says it can send.
            Rtr::Send => {}
        }
    }

    /// Whether this end may send: the Initiator's always, the Responder's once the peer has sent something (RFC 5044 §7.1.2).
    pub fn may_send(&self) -> bool {
        self.llp.may_send()
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let deadlines = [
            self.nudge.deadline(),
            self.acquaintance_deadline(),
            self.greeting_deadline(),
            self.parked_deadline(),
        ];
        let first = deadlines.into_iter().flatten().min();
        match self.end {
            None => first,
            Some(_) => self.dormant_until,
        }
    }

    /// Does what the time has come for; `make_fpdus` goes on with it.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.end_acquaintance(now);
        self.parked_too_long |= self.parked_deadline().is_some_and(|it| it <= now);
        self.nudge(now);
    }

    /// Nudges a peer that was silent for too long.
    fn nudge(&mut self, now: Instant) {
        if self.end.is_some() || !self.nudge.is_due(now) {
            return;
        }
        // While TCP does not take what there is, one octet more would not help; and a message must not be interrupted.
        let nudges = !self.is_amid() && self.llp.poll_transmit(now).is_empty();
        if nudges {
            self.say_hello(now);
        }
        self.nudge.advance(now, nudges);
    }

    /// Says what no key gives the peer the right to from now on.
    pub fn deny(&mut self, denied: Access) {
        self.config.denied = denied;
    }

    /// Takes over a posted work request. After the end it completes with the next `make_fpdus`.
    #[inline]
    pub fn accept(&mut self, wqe: RcSendWqe) {
        self.sends.push(wqe);
    }

    /// TCP has ended.
    pub fn handle_end(
        &mut self,
        now: Instant,
        end: TcpEnd,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) {
        self.llp.handle_end(now, end);
        self.handle_events(tables, completions);
    }

    fn handle_events(&mut self, tables: Tables<'_>, completions: &mut impl CompletionSink) {
        while let Some(event) = self.llp.poll_event() {
            match event {
                LlpEvent::PeerClosed => {
                    let stays = self.config.options.outlives_peer && self.sends.is_empty();
                    let end = match self.stream.dgiwarp_ext().peer_sent_bye() {
                        _ if !self.config.paired && stays => RcEnd::PeerLeft,
                        _ if !self.config.paired => RcEnd::PeerClosed,
                        true => RcEnd::PeerLeft,
                        false => RcEnd::PeerLost,
                    };
                    let blamed = (!self.sends.is_empty()).then(|| self.sends.oldest());
                    self.finish(end, blamed, tables, completions);
                }
                LlpEvent::Failed(error) => {
                    // RFC 5044 §8: what leaves TCP open is told to the peer.
                    if !error.closes_tcp() {
                        self.stream.fail(StreamError::Llp(error.code().get()));
                    }
                    let blamed = self.sends.oldest_begun();
                    self.finish(RcEnd::Mpa(error), blamed, tables, completions);
                }
            }
        }
    }

    /// The octets to hand to TCP next; empty if there are none.
    #[inline]
    pub fn poll_transmit(&self, now: Instant) -> &[u8] {
        self.llp.poll_transmit(now)
    }

    /// Whether there is nothing to transmit, to complete or to close.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.end.is_none() && self.llp.is_drained() && !self.can_make() && !self.has_timed_out()
    }

    /// Whether something is there for TCP now.
    #[inline]
    pub fn has_octets(&self, now: Instant) -> bool {
        !self.llp.poll_transmit(now).is_empty() || self.leaves_uncopied()
    }

    /// TCP took the first `len` of these. Sends and Writes that it has in full are complete with a foreign peer: completion is local, as
    /// RFC 5040 §5.5 has it in rule 14. One of our own kind tells us when it has placed them.
    pub fn transmitted(&mut self, now: Instant, len: usize, completions: &mut impl CompletionSink) {
        self.note_sent(now);
        self.llp.transmitted(len);
        self.taken += len as u64;
        self.complete_sends(completions);
    }

    /// Something left: an answer is expected from now on.
    #[inline]
    fn note_sent(&mut self, now: Instant) {
        self.nudge.sent(now);
        self.expect_acquaintance(now);
    }

    /// Whether something is on its way that TCP could take: octets, or work requests that may become some.
    pub fn has_unsent(&self, now: Instant) -> bool {
        !self.llp.poll_transmit(now).is_empty() || (self.end.is_none() && self.can_make())
    }

    /// Ends the connection from our side. What waits for credit or TCP is flushed: transmit first.
    pub fn close(&mut self, tables: Tables<'_>, completions: &mut impl CompletionSink) {
        if self.dormant {
            self.end_dormancy(tables, completions);
        }
        self.take_leave(true);
        self.finish(RcEnd::Closed, None, tables, completions);
    }

    /// Tells the peer the last that there is to tell, between two messages; that this end leaves, where that is what it does (`says_so`).
    pub fn take_leave(&mut self, says_so: bool) {
        if self.end.is_some() || !self.llp.may_send() || self.is_amid() {
            return;
        }
        let dgiwarp_ext = self.stream.dgiwarp_ext_mut();
        let placed = (dgiwarp_ext.pending_acks() > 0).then(|| dgiwarp_ext.acknowledge(None));
        let farewell = dgiwarp_ext.bye().filter(|_| says_so && self.config.paired);
        for ulpdu in placed.into_iter().chain(farewell) {
            let nothing: &[u8] = &[];
            if self.llp.send_ulpdu(&ulpdu, nothing).is_ok() {
                self.counters.count_sent(1, ulpdu.len() as u64);
            }
        }
    }

    /// Sets whether large segments are copied like small ones, so that their CRC is right whatever the program does with its memory before
    /// they are complete. A new engine copies.
    pub fn copy_all(&mut self, copies: bool) {
        self.copies = copies;
    }

    /// Gives room for the FPDUs that are made from now on, at least [`ROOM`] octets. Returns room that is not needed.
    pub fn lend(&mut self, room: Vec<u8>) -> Vec<u8> {
        self.llp.lend(room)
    }

    /// Gives it back, if TCP has taken everything.
    pub fn reclaim(&mut self) -> Option<Vec<u8>> {
        self.llp.reclaim()
    }

    /// Whether the peer ended the connection because a CRC of ours was wrong: a program that changes memory before its work request is
    /// complete makes them so (RFC 5044 §8 code 2).
    pub fn had_bad_crc(&self) -> bool {
        let Some(RcEnd::Stream(StreamError::Terminated(cause))) = self.end else {
            return false;
        };
        (cause.layer, cause.error_type, cause.code) == (2, 0, 2)
    }

    /// Why the connection is over, if it is.
    pub fn end(&self) -> Option<RcEnd> {
        self.end
    }

    pub fn counters(&self) -> QpCounters {
        let mut counters = self.counters.clone();
        counters.octets_kept = self.llp.octets_kept();
        counters
    }

    fn complete_sends(&mut self, completions: &mut impl CompletionSink) {
        let placed = self.placed_by_peer();
        let qpn = self.config.qpn;
        wqe::complete(&mut self.sends, self.taken, placed, qpn, completions);
    }

    /// The connection is over: the peer is told if it has to be, and all that was posted ends in order, as in the error state of a QP. The
    /// work request that is the reason, `blamed`, tells it; the others are `Flushed`.
    fn finish(
        &mut self,
        end: RcEnd,
        blamed: Option<u64>,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) {
        if self.end.is_some() {
            return;
        }
        self.end = Some(end);
        self.parked = RnrQueue::default();
        match end {
            // RFC 5040 §7.1 rule 1: the peer is told of local errors too, without headers.
            RcEnd::LocalProtection | RcEnd::Bind(_) | RcEnd::NoReads | RcEnd::NoImmediates => {
                self.stream.fail(StreamError::LocalProtection);
            }
            RcEnd::PeerClosed
            | RcEnd::PeerLeft
            | RcEnd::PeerLost
            | RcEnd::Closed
            | RcEnd::Mpa(_)
            | RcEnd::Stream(_) => {}
        }
        // RFC 5040 §6.2.1: not always is it possible to send it.
        if let Some(terminate) = self.stream.take_terminate() {
            let nothing: &[u8] = &[];
            if self.llp.send_ulpdu(&terminate, nothing).is_ok() {
                self.counters.count_sent(1, terminate.len() as u64);
            }
        }
        self.complete_sends(completions);
        if end == RcEnd::PeerLeft {
            // InfiniBand has no connection that could tell: who only receives does not notice, and who sends finds out when its
            // retries are over.
            self.dormant = true;
            return;
        }
        if let Some(event) = end::event(end, self.config.qpn) {
            completions.event(event);
        }
        self.flush_sends(blamed.map(|number| (number, end::blame(end))), completions);
        for wqe in self
            .stream
            .abandon()
            .into_iter()
            .chain(tables.recv_queue.drain())
        {
            completions.received(failed_receive(&wqe, self.config.qpn, WcStatus::Flushed));
        }
        // Whoever closes knows it.
        if end != RcEnd::Closed {
            self.leave_shared_queue(tables, completions);
        }
    }

    /// Says that no more receives are taken from a queue that others use too.
    fn leave_shared_queue(&self, tables: Tables<'_>, completions: &mut impl CompletionSink) {
        if tables.recv_queue.is_shared() {
            let qpn = self.config.qpn;
            completions.event(AsyncEvent::LastWqeReached { qpn });
        }
    }

    /// The receive that a message has begun to fill, of an engine that is given up.
    pub fn abandon(&mut self) -> Option<RecvWqe> {
        self.stream.abandon()
    }

    /// Whether the peer left and nothing was posted since that would have needed it.
    pub fn is_dormant(&self) -> bool {
        self.dormant
    }

    /// Notices in time that the peer has left.
    pub(super) fn go_on_dormant(
        &mut self,
        now: Instant,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) {
        if self.sends.is_empty() {
            return;
        }
        if now >= *self.dormant_until.get_or_insert(now + RETRIES_TAKE) {
            self.end_dormancy(tables, completions);
        }
    }

    /// The program notices that the peer has left: all that is posted ends.
    fn end_dormancy(&mut self, tables: Tables<'_>, completions: &mut impl CompletionSink) {
        self.dormant = false;
        self.dormant_until = None;
        let first = self.sends.oldest();
        self.flush_sends(Some((first, WcStatus::RetryExceeded)), completions);
        let unfinished = self.stream.abandon().into_iter();
        for wqe in unfinished.chain(tables.recv_queue.drain()) {
            completions.received(failed_receive(&wqe, self.config.qpn, WcStatus::Flushed));
        }
        self.leave_shared_queue(tables, completions);
    }

    fn flush_sends(
        &mut self,
        blamed: Option<(u64, WcStatus)>,
        completions: &mut impl CompletionSink,
    ) {
        self.sending = None;
        let qpn = self.config.qpn;
        self.sends.flush(|number, wqe| {
            let status = match blamed {
                Some((blamed, status)) if blamed == number => status,
                Some(_) | None => WcStatus::Flushed,
            };
            wqe.complete(qpn, status, completions);
        });
    }
}

#[cfg(test)]
mod tests;

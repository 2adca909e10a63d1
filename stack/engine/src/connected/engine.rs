//! The engine: its parts, its end, and the calls that concern no part alone.

use std::time::{Duration, Instant};

use dgiwarp_ddp::STag;
use dgiwarp_llp_tcp_mpa::{Role, Rtr, TcpEnd};
use dgiwarp_memory::Access;
use dgiwarp_rdmap::stream::{Capabilities, Depths, Peer, Stream, StreamError};

use super::close::{AnswerTime, PendingEnd};
use super::end::{self, RcEnd};
use super::first_fpdu_probe::FirstFpduProbe;
use super::llp::{Llp, LlpEvent};
use super::rnr_queue::RnrQueue;
use super::state::{Acks, Batch, DetectPeer, RcConfig, RcStream, Sending, capabilities};
use super::transmit::send_queue::SendQueue;
use super::ulp::failed_receive;
use super::wqe::RcSendWqe;
use crate::cm::connect::stream_depths;
use crate::cq_ring::CompletionSink;
use crate::recv_queue::{RecvQueue, RecvWqe, Tables, WeakWaiter};
use crate::sq_drain::SqDrain;
use crate::types::{AsyncEvent, QpCounters, RnrLimits, WcStatus, earliest};
use crate::xrc::{Xrc, XrcRole};

/// Time for a work request to fail after the peer left: a program that is about to end in the same way gets no failure before.
const RETRIES_TAKE: Duration = Duration::from_secs(1);

/// Time for posted receives to be flushed after the peer closed without a bye: a program that acts on its disconnect event, which may be deferred for
/// [one second](super::close::DeferredDisconnect), ends the queue pair itself before.
const RECEIVES_STAY: Duration = Duration::from_secs(3);

/// Time that messages which wait for a receive have after TCP's end, from the last one that was delivered.
const MESSAGES_STAY: Duration = Duration::from_secs(3);

/// Request number of the Read that is an RTR indication and no work request.
const RTR_READ: u64 = u64::MAX;

/// Flushes the receives that are posted, unless QPs share them.
pub fn flush_receives(queue: &RecvQueue, qpn: u32, completions: &mut impl CompletionSink) {
    for wqe in queue.drain() {
        completions.received(failed_receive(&wqe, qpn, WcStatus::Flushed));
    }
}

/// The engine of one connected QP.
#[derive(Debug)]
pub struct RcEngine {
    pub(super) config: RcConfig,
    pub(super) llp: Llp,
    pub(super) is_initiator: bool,
    pub(super) stream: RcStream,
    pub(super) acks: Acks,
    /// The STag that the peer has used last.
    pub(super) used: Option<STag>,
    pub(super) detect_peer: DetectPeer,
    pub(super) rnr_queue: RnrQueue,
    /// The first ULPDU of `rnr_queue` has waited for too long.
    pub(super) rnr_timed_out: bool,
    pub(super) rnr_limits: RnrLimits,
    /// The connection ended because the RNR retries of a message of the peer's were exhausted.
    pub(super) rnr_exhausted: bool,
    /// Waits for a receive while `rnr_queue` is not empty.
    pub(super) waiter: WeakWaiter,
    pub(super) sends: SendQueue,
    /// The message of which some segments have left.
    pub(super) sending: Option<Sending>,
    /// Whether an answer begins next where both an answer and a work request may.
    pub(super) answer_next: bool,
    /// Whether large segments are copied like small ones. Others leave with `send_zero_copy`.
    pub(super) copies: bool,
    pub(super) batch: Batch,
    /// Octets of all FPDUs that were made.
    pub(super) made: u64,
    /// Octets of them that TCP has taken.
    pub(super) taken: u64,
    pub(super) end: Option<RcEnd>,
    pub(super) pending_end: Option<PendingEnd>,
    pub(super) answer_time: AnswerTime,
    /// TCP's end, behind messages that wait for a receive, and when it counts although they wait.
    pub(super) deferred_end: Option<(TcpEnd, Instant)>,
    /// The time of `deferred_end` has passed.
    pub(super) deferred_end_due: bool,
    /// The peer left, and nothing was posted that would have needed it.
    pub(super) dormant: bool,
    /// When posted work requests end, since the peer has left. `None` while nothing posted needs the peer and it sent a bye.
    pub(super) dormant_until: Option<Instant>,
    pub(super) first_fpdu_probe: FirstFpduProbe,
    /// Our token, until its notices leave.
    pub(super) token: Option<u128>,
    /// A token or an RNR limit is to leave.
    pub(super) has_rare_notice: bool,
    pub(super) xrc: Xrc,
    pub(super) sq_drain: SqDrain,
    /// The next message of the peer raises [`AsyncEvent::CommunicationEstablished`].
    pub(super) awaits_first_message: bool,
    pub(super) counters: QpCounters,
}

impl RcEngine {
    /// An engine on a connection whose startup is over. `waiter` is called when a receive is posted, for
    /// [`receive_posted`](Self::receive_posted).
    pub fn new(config: RcConfig, llp: impl Into<Llp>, waiter: WeakWaiter) -> Self {
        let llp = llp.into();
        let negotiation = llp.negotiation();
        let is_initiator = negotiation.is_some_and(|it| it.role == Role::Initiator);
        let depths = negotiation.map_or(Depths { ird: 0, ord: 0 }, stream_depths);
        let stream = Stream::new(depths);
        Self {
            config,
            first_fpdu_probe: if is_initiator {
                FirstFpduProbe::Idle
            } else {
                FirstFpduProbe::Done
            },
            llp,
            is_initiator,
            stream: match capabilities(config.options) {
                Some(capabilities) => stream.with_extensions(capabilities),
                None => stream,
            },
            acks: Acks::default(),
            used: None,
            detect_peer: DetectPeer::default(),
            rnr_queue: RnrQueue::default(),
            rnr_timed_out: false,
            rnr_limits: RnrLimits::default(),
            rnr_exhausted: false,
            waiter,
            sends: SendQueue::default(),
            sending: None,
            answer_next: false,
            copies: true,
            batch: Batch::default(),
            made: 0,
            taken: 0,
            end: None,
            pending_end: None,
            answer_time: AnswerTime::default(),
            deferred_end: None,
            deferred_end_due: false,
            dormant: false,
            dormant_until: None,
            token: None,
            has_rare_notice: false,
            xrc: Xrc::None,
            sq_drain: SqDrain::Off,
            awaits_first_message: false,
            counters: QpCounters::default(),
        }
    }

    /// Makes a new engine that of an XRC initiator or target.
    #[must_use]
    pub fn with_xrc(mut self, role: XrcRole) -> Self {
        if let (XrcRole::Target(_), Some(capabilities)) = (&role, capabilities(self.config.options))
        {
            let capabilities = capabilities.with(Capabilities::XRC_TARGET);
            self.stream = self.stream.with_extensions(capabilities);
        }
        self.xrc = role.into();
        self
    }

    /// Sends the RTR indication that was agreed on. It comes before everything else (RFC 6581 §5).
    pub fn send_rtr(&mut self, now: Instant, rtr: Rtr) {
        match rtr {
            // The hello is a Write.
            Rtr::Write => self.send_hello(now),
            Rtr::Read => {
                let ulpdu = self.stream.rtr_read(RTR_READ);
                self.put(now, &ulpdu, &[]);
            }
            // Not among the indications that startup offers.
            Rtr::Send => {}
        }
    }

    /// Whether this end may send: an Initiator always, a Responder once it has received an FPDU (RFC 5044 §7.1.2).
    pub fn may_send(&self) -> bool {
        self.llp.may_send()
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    #[inline]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let [completions, immediate] = self.detection_deadlines();
        let deadlines = [
            self.first_fpdu_probe.deadline(),
            completions,
            immediate,
            self.rnr_deadline(),
            self.ack_deadline(),
            self.answer_deadline(),
            self.deferred_end.map(|(_, until)| until),
        ];
        let first = earliest(deadlines);
        match self.end {
            None => first,
            Some(_) => self.dormant_until,
        }
    }

    /// Handles deadlines that have passed; `make_fpdus` comes next.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.time_out_detection(now);
        self.time_out_acks(now);
        self.time_out_answers(now);
        self.rnr_timed_out |= self.rnr_deadline().is_some_and(|it| it <= now);
        self.deferred_end_due |= self.deferred_end.is_some_and(|(_, until)| until <= now);
        self.probe(now);
    }

    /// Sends a first-FPDU probe if one is due.
    pub(super) fn probe(&mut self, now: Instant) {
        if self.end.is_some() || !self.first_fpdu_probe.is_due(now) {
            return;
        }
        // More octets would not help while TCP does not take those that are there; and a message must not be interrupted.
        let probes = !self.is_amid() && self.llp.is_drained();
        if probes {
            self.send_hello(now);
        }
        self.first_fpdu_probe.advance(now, probes);
    }

    /// Puts the send queue into this state of a drain, or ends the drain with [`SqDrain::Off`]; `make_fpdus` comes next.
    pub fn set_sq_drain(&mut self, drain: SqDrain, completions: &mut impl CompletionSink) {
        self.sq_drain = drain;
        self.complete_sends(completions);
    }

    /// Whether the QP is ready to receive and not yet to send: a message of the peer then raises [`AsyncEvent::CommunicationEstablished`], once (InfiniBand
    /// specification volume 1, §11.6.3.2).
    pub fn await_first_message(&mut self, awaits: bool) {
        self.awaits_first_message = awaits;
    }

    /// State of the drain.
    pub fn sq_drain(&self) -> SqDrain {
        self.sq_drain
    }

    /// Whether no posted work request needs the peer: there is none, or those that are there may not begin.
    fn needs_no_peer(&self) -> bool {
        self.sends.is_empty() || (self.sq_drain.holds() && self.sends.oldest_begun().is_none())
    }

    /// Whether all posted work requests are complete.
    #[inline]
    pub fn has_completed_all(&self) -> bool {
        self.sends.is_empty()
    }

    /// Sets the rights that no key gives the peer from now on.
    pub fn deny(&mut self, denied: Access) {
        self.config.denied = denied;
    }

    /// Takes over a posted work request. After the end it completes with the next `make_fpdus`.
    #[inline]
    pub fn accept(&mut self, wqe: RcSendWqe) {
        self.sends.push(wqe);
    }

    /// TCP's stream has ended. Messages of before that wait for a receive are delivered first, while receives are posted.
    pub fn handle_end(
        &mut self,
        now: Instant,
        end: TcpEnd,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) {
        if self.end.is_none() && !self.rnr_queue.is_empty() {
            self.deferred_end.get_or_insert((end, now + MESSAGES_STAY));
            return;
        }
        self.llp.handle_end(now, end);
        self.handle_events(tables, completions);
    }

    /// The stream is read again before its end.
    pub fn resume_input(&mut self) {
        self.deferred_end = None;
    }

    /// Messages before the deferred end were delivered: the others have their time anew.
    pub(super) fn extend_deferred_end(&mut self, now: Instant) {
        if let Some((_, until)) = &mut self.deferred_end {
            *until = now + MESSAGES_STAY;
        }
    }

    /// Handles a deferred end: no message waits before it any more, or for too long.
    pub(super) fn handle_deferred_end(
        &mut self,
        now: Instant,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) {
        self.deferred_end_due = false;
        if let Some((end, _)) = self.deferred_end.take() {
            self.llp.handle_end(now, end);
            self.handle_events(tables, completions);
        }
    }

    pub(super) fn handle_events(
        &mut self,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) {
        while let Some(event) = self.llp.poll_event() {
            match event {
                LlpEvent::PeerClosed => {
                    let end = self.end_by_peer();
                    let blamed = (!self.needs_no_peer()).then(|| self.sends.oldest());
                    self.finish(end, blamed, tables, completions);
                }
                LlpEvent::Failed(error) => {
                    // RFC 5044 §8: an error that leaves TCP open is reported to the peer.
                    if !error.closes_tcp() {
                        self.stream.fail(StreamError::Llp(error.code().get()));
                    }
                    let blamed = self.sends.oldest_begun();
                    self.finish(RcEnd::Mpa(error), blamed, tables, completions);
                }
            }
        }
    }

    /// The end that the peer's close makes. Only a dgiwarp peer in order sends a bye before.
    fn end_by_peer(&self) -> RcEnd {
        let outlives = self.config.options.outlives_peer;
        let dgiwarp_ext = self.stream.dgiwarp_ext();
        let is_lost =
            matches!(dgiwarp_ext.peer(), Peer::Dgiwarp(_)) && !dgiwarp_ext.peer_sent_bye();
        if self.config.paired {
            return if dgiwarp_ext.peer_sent_bye() {
                RcEnd::PeerLeft
            } else {
                RcEnd::PeerLost
            };
        }
        match (outlives, self.needs_no_peer()) {
            (true, true) => RcEnd::PeerLeft,
            (true, false) if is_lost => RcEnd::PeerLost,
            (true | false, _) => RcEnd::PeerClosed,
        }
    }

    /// Whether a message has begun and not ended: nothing may come in between.
    pub(super) fn is_amid(&self) -> bool {
        self.sending.is_some() || self.stream.is_amid_response()
    }

    /// The octets to hand to TCP next; empty if there are none.
    #[inline]
    pub fn poll_transmit(&self, now: Instant) -> &[u8] {
        self.llp.poll_transmit(now)
    }

    /// Whether a deadline has passed that `make_fpdus` has to act on.
    #[inline]
    pub(super) fn has_timeout_work(&self) -> bool {
        self.rnr_timed_out || self.deferred_end_due || self.has_detection_work()
    }

    /// Whether there is nothing to transmit, to complete or to close.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.end.is_none() && self.llp.is_drained() && !self.can_make() && !self.has_timeout_work()
    }

    /// Whether something is there for TCP now.
    #[inline]
    pub fn has_octets(&self, now: Instant) -> bool {
        !self.llp.poll_transmit(now).is_empty() || self.is_next_zero_copy()
    }

    /// TCP took the first `len` of these. With a plain peer Sends and Writes are complete when TCP has them in full (RFC 5040 §5.5 rule 14); a dgiwarp
    /// peer acknowledges their placement.
    pub fn transmitted(&mut self, now: Instant, len: usize, completions: &mut impl CompletionSink) {
        self.note_sent(now);
        self.llp.transmitted(len);
        self.taken += len as u64;
        self.complete_sends(completions);
    }

    /// Octets left: a message of the peer is expected from now on.
    #[inline]
    pub(super) fn note_sent(&mut self, now: Instant) {
        self.first_fpdu_probe.sent(now);
        self.expect_peer(now);
    }

    /// Whether octets, or work requests that may become some, wait for TCP.
    pub fn has_unsent(&self, now: Instant) -> bool {
        !self.llp.poll_transmit(now).is_empty() || (self.end.is_none() && self.can_make())
    }

    /// Whether [`make_fpdus`](Self::make_fpdus) is of no use until there is room for octets: no deadline has passed, and the connection is not over.
    #[inline]
    pub fn waits_for_room(&self, now: Instant) -> bool {
        self.end.is_none() && !self.has_timeout_work() && self.has_unsent(now)
    }

    /// Ends the connection from this end. Work requests that wait for credit or TCP are flushed: transmit first.
    pub fn close(&mut self, tables: Tables<'_>, completions: &mut impl CompletionSink) {
        if self.dormant {
            self.end_dormancy(tables, completions);
        }
        self.send_last_notices(true);
        self.finish(RcEnd::Closed, None, tables, completions);
    }

    /// Sends the last acknowledgement, and with `bye` the bye, unless a message has begun.
    pub fn send_last_notices(&mut self, bye: bool) {
        if self.end.is_some() || !self.llp.may_send() || self.is_amid() {
            return;
        }
        let dgiwarp_ext = self.stream.dgiwarp_ext_mut();
        let placed = (dgiwarp_ext.unacknowledged() > 0).then(|| dgiwarp_ext.acknowledge(None));
        let bye = dgiwarp_ext.bye().filter(|_| bye);
        for ulpdu in placed.into_iter().chain(bye) {
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

    /// Gives room for the FPDUs that are made from now on, at least `ROOM` octets. Returns room that is not needed.
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

    /// Counters of this connection.
    pub fn counters(&self) -> QpCounters {
        let mut counters = self.counters.clone();
        counters.octets_kept = self.llp.octets_kept();
        counters
    }

    pub(super) fn complete_sends(&mut self, completions: &mut impl CompletionSink) {
        let placed = self.placed_by_peer();
        let qpn = self.config.qpn;
        self.sends.complete(self.taken, placed, qpn, completions);
        if self.sq_drain.is_draining() && self.end.is_none() && self.sends.oldest_begun().is_none()
        {
            self.sq_drain.complete(qpn, completions);
        }
    }

    /// The connection is over: a Terminate is sent where one is due, and all posted work requests complete in order, as in the error state of a QP:
    /// `blamed`, the reason, with its error, the others as flushed.
    pub(super) fn finish(
        &mut self,
        end: RcEnd,
        blamed: Option<u64>,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) {
        if self.end.is_some() {
            return;
        }
        let pending = self.pending_end.take();
        // An error of the peer's has happened; one of a work request has not, as long as others are before it.
        let of_peer = pending.filter(|it| it.blamed.is_none());
        let end = of_peer.map_or(end, |it| it.end);
        self.end = Some(end);
        self.sq_drain.abandon();
        self.rnr_queue = RnrQueue::default();
        match end {
            // RFC 5040 §7.1 rule 1: local errors are reported to the peer too, without headers.
            RcEnd::LocalProtection
            | RcEnd::Bind(_)
            | RcEnd::NoReads
            | RcEnd::NoImmediates
            | RcEnd::NoXrcTarget => {
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
            self.acknowledge_before_terminate();
            if self.llp.send_ulpdu(&terminate, nothing).is_ok() {
                self.counters.count_sent(1, terminate.len() as u64);
            }
        }
        self.complete_sends(completions);
        if end == RcEnd::PeerLeft {
            // InfiniBand has no connection that could end: a program that only receives does not notice, and one that sends finds out when its
            // retries are over.
            self.dormant = true;
            return;
        }
        if let Some(event) = end::event(end, self.config.qpn) {
            completions.event(event);
        }
        self.flush_sends(blamed.map(|number| (number, end::blame(end))), completions);
        self.flush_receives(tables, completions);
    }

    /// Flushes the receive that a message has begun to fill, and those that are posted to a queue of this QP alone.
    fn flush_receives(&mut self, tables: Tables<'_>, completions: &mut impl CompletionSink) {
        let qpn = self.config.qpn;
        if let Some(wqe) = self.stream.abandon() {
            let selected = self.xrc.selected();
            let queue = selected.as_deref().unwrap_or(tables.recv_queue);
            queue.complete(failed_receive(&wqe, qpn, WcStatus::Flushed), completions);
        }
        flush_receives(tables.recv_queue, qpn, completions);
        self.leave_shared_queue(tables, completions);
    }

    /// Sends pending acknowledgements, so that the peer's work requests before the one that ends the connection complete with success and that one is
    /// the oldest.
    fn acknowledge_before_terminate(&mut self) {
        if self.is_amid() || self.stream.dgiwarp_ext().unacknowledged() == 0 {
            return;
        }
        // The peer takes an end whose first message is another for a plain one.
        let is_hello_due = self.stream.dgiwarp_ext().is_hello_due(self.is_initiator);
        let dgiwarp_ext = self.stream.dgiwarp_ext_mut();
        let hello = if is_hello_due {
            dgiwarp_ext.hello()
        } else {
            None
        };
        let ack = dgiwarp_ext.acknowledge(None);
        let nothing: &[u8] = &[];
        for ulpdu in hello.iter().chain([&ack]) {
            if self.llp.send_ulpdu(ulpdu, nothing).is_ok() {
                self.counters.count_sent(1, ulpdu.len() as u64);
            }
        }
    }

    /// Reports that no more receives are taken from a shared receive queue.
    pub(super) fn leave_shared_queue(
        &self,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) {
        if tables.recv_queue.is_shared() {
            let qpn = self.config.qpn;
            completions.event(AsyncEvent::LastWqeReached { qpn });
        }
    }

    /// The receive that a message has begun to fill, of an engine that is given up. An XRC target gives it back to its queue.
    pub fn abandon(&mut self) -> Option<RecvWqe> {
        let unfinished = self.stream.abandon()?;
        match self.xrc.selected() {
            None => Some(unfinished),
            Some(queue) => {
                queue.give_back(unfinished);
                None
            }
        }
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
        let limit = if !self.needs_no_peer() {
            RETRIES_TAKE
        } else if self.stream.dgiwarp_ext().peer_sent_bye() || self.rnr_exhausted {
            return;
        } else {
            RECEIVES_STAY
        };
        let until = self
            .dormant_until
            .map_or(now + limit, |until| until.min(now + limit));
        self.dormant_until = Some(until);
        if now >= until {
            self.end_dormancy(tables, completions);
        }
    }

    /// The program notices that the peer has left: all that is posted ends.
    pub(super) fn end_dormancy(
        &mut self,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) {
        self.dormant = false;
        self.dormant_until = None;
        let first = self.sends.oldest();
        self.flush_sends(Some((first, WcStatus::RetryExceeded)), completions);
        self.flush_receives(tables, completions);
    }

    pub(super) fn flush_sends(
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

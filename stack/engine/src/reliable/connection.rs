//! RC QPs: one peer, and errors that end the QP (§9.1).

use std::net::IpAddr;
use std::time::{Duration, Instant};

use dgiwarp_ddp::error::{TaggedError, UntaggedError};
use dgiwarp_llp_udp::Peer;
use dgiwarp_llp_udp::rd::frame::CloseReason;
use dgiwarp_llp_udp::rd::{Cause, Event, Lives, Verdict};
use dgiwarp_memory::Access;
use dgiwarp_rdmap::stream::StreamError;

use super::outbound::{Outcome, longest};
use super::responder::Broken;
use super::segment::{control_of, refuse};
use super::write_order::{WriteOrder, is_before};
use super::{RdEngine, inbound};
use crate::cq_ring::CompletionSink;
use crate::recv_queue::Tables;
use crate::types::{AsyncEvent, Route, WcStatus};

/// Time from the peer's orderly end, or from the post of what needs the peer, to its failure: retries take their time.
const RETRIES_TAKE: Duration = Duration::from_secs(1);
/// Time from the end of the peer's process, which sent no CLOSE, to the end of this QP: a program that only polls learns it.
const LOSS_TAKES: Duration = Duration::from_secs(3);

/// State of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Up,
    /// The peer ended it. Work requests that need the peer fail then, and all else does.
    PeerLeft(Option<Instant>),
    /// The program disconnected: it ends when all that was posted is placed, or then.
    Leaving(Instant),
    Over,
}

/// Least time that RNR retries take, if there are any: this end's program may have no core for a moment.
const LEAST_RETRIES_TAKE: Duration = Duration::from_millis(100);

/// RNR retries of the peer's messages (`rnr_retry_count` of `rdma_connect(3)`).
#[derive(Debug, Clone, Copy, Default)]
struct PeerRetries {
    limit: Option<u32>,
    refused: Option<Refused>,
}

/// RNRs of the message that is the first which is not delivered.
#[derive(Debug, Clone, Copy)]
struct Refused {
    message: u32,
    count: u32,
    /// When the first and the last were counted.
    since: Instant,
    last: Instant,
}

impl PeerRetries {
    /// Counts an RNR. Several segments of a message are refused at a time: these are one. Returns whether there were more than the limit.
    fn count(&mut self, now: Instant, message: u32, delay: Duration) -> bool {
        let Some(limit) = self.limit else {
            return false;
        };
        let first = Refused {
            message,
            count: 0,
            since: now,
            last: now,
        };
        let refused = self.refused.insert(
            self.refused
                .filter(|it| it.message == message)
                .unwrap_or(first),
        );
        if refused.count == 0 || refused.last + delay / 2 <= now {
            refused.count += 1;
            refused.last = now;
        }
        refused.count > limit && (limit == 0 || refused.since + LEAST_RETRIES_TAKE <= now)
    }
}

/// The one peer of an RC QP.
#[derive(Debug)]
pub(super) struct Connection {
    qpn: u32,
    peer: Option<Peer>,
    /// Host of the peer, whose port is not known before its first datagram.
    host: Option<IpAddr>,
    state: State,
    /// Message of the peer's that found no receive: nothing behind it is taken before it has one.
    unready: Option<u32>,
    /// RNR retries of the peer's messages that this end limits, and those of the message that is next.
    retries: PeerRetries,
    /// The next segment of the peer raises [`AsyncEvent::CommunicationEstablished`].
    awaits_first: bool,
    /// A datagram of the peer was taken.
    heard: bool,
    /// A response of ours failed at the peer.
    broken: bool,
    /// A message found no receive at the peer, whose program did nothing wrong.
    unreceived: bool,
    /// The error of the peer's message is raised.
    raised: bool,
    /// Order in which segments of Writes are placed.
    pub(super) order: WriteOrder,
}

impl Connection {
    pub(super) fn new(qpn: u16) -> Self {
        Self {
            qpn: qpn.into(),
            peer: None,
            host: None,
            state: State::Up,
            unready: None,
            retries: PeerRetries::default(),
            awaits_first: false,
            heard: false,
            broken: false,
            unreceived: false,
            raised: false,
            order: WriteOrder::default(),
        }
    }

    /// Whether datagrams of this address are taken.
    pub(super) fn hears(&self, from: Peer) -> bool {
        match (self.peer, self.host) {
            (Some(peer), _) => peer == from,
            (None, Some(host)) => from.ip_addr().map(|it| it.to_canonical()) == Some(host),
            (None, None) => false,
        }
    }

    /// Whether the peer's port is to be learnt.
    pub(super) const fn awaits_peer(&self) -> bool {
        self.peer.is_none() && self.host.is_some()
    }

    /// Whether work requests are carried out.
    pub(super) const fn is_up(&self) -> bool {
        matches!(self.state, State::Up | State::Leaving(_))
    }

    /// Whether a message of the peer is behind one that failed.
    pub(super) fn ignores(&self, message: u32) -> bool {
        self.order
            .refused
            .is_some_and(|refused| is_before(refused, message))
    }

    /// Whether a message of the peer is behind one that waits for a receive.
    pub(super) fn waits(&self, message: u32) -> bool {
        self.unready
            .is_some_and(|unready| is_before(unready, message))
    }

    /// A message of the peer failed here.
    pub(super) fn refuse(&mut self, message: u32) {
        self.order.refuse(message);
    }

    /// Raises the error of the first message that failed here, unless a completion reports it.
    pub(super) fn raise(&mut self, control: u32, completions: &mut impl CompletionSink) {
        if !std::mem::replace(&mut self.raised, true)
            && let Some(event) = event(control, self.qpn)
        {
            completions.event(event);
        }
    }

    /// The verdict on a segment of a message whose turn it is: with no more RNR retries the message fails.
    pub(super) fn limit(
        &mut self,
        now: Instant,
        message: u32,
        delay: Duration,
        verdict: Verdict,
    ) -> Verdict {
        if verdict == Verdict::NotReady && self.retries.count(now, message, delay) {
            return refuse(UntaggedError::NoBuffer.into());
        }
        verdict
    }

    /// Takes note of the verdict on a segment.
    #[inline]
    pub(super) fn note(
        &mut self,
        message: u32,
        verdict: Verdict,
        completions: &mut impl CompletionSink,
    ) {
        match verdict {
            Verdict::Failed(control) => {
                self.refuse(message);
                self.raise(control, completions);
            }
            Verdict::NotReady if self.unready.is_none_or(|it| is_before(message, it)) => {
                self.unready = Some(message);
            }
            Verdict::Placed | Verdict::NotReady | Verdict::NoRoom => {}
        }
        let refuses = matches!(verdict, Verdict::NotReady | Verdict::NoRoom);
        if !refuses && self.unready == Some(message) {
            self.unready = None;
        }
        if self.awaits_first && verdict == Verdict::Placed {
            self.awaits_first = false;
            completions.event(AsyncEvent::CommunicationEstablished { qpn: self.qpn });
        }
    }

    pub(super) const fn end(&mut self) {
        self.state = State::Over;
    }

    pub(super) const fn poll_timeout(&self) -> Option<Instant> {
        match self.state {
            State::PeerLeft(until) => until,
            State::Leaving(until) => Some(until),
            State::Up | State::Over => None,
        }
    }
}

/// The event of a message of the peer that failed, as InfiniBand's responders raise it, by Terminate Control (§9).
fn event(control: u32, qpn: u32) -> Option<AsyncEvent> {
    let [layer_and_type, code, _, _] = control.to_be_bytes();
    match (layer_and_type >> 4, layer_and_type & 0x0f, code) {
        // The buffer of a request or a tagged message; an atomic that is not aligned.
        (0 | 1, 1, _) | (0, 2, 0x07) => Some(AsyncEvent::QpAccessError { qpn }),
        // No receive, or one that is too short or not registered: completions report these.
        (1, 2, 0x02 | 0x05) | (0, 0, _) => None,
        (_, _, _) => Some(AsyncEvent::QpRequestError { qpn }),
    }
}

/// RC QPs; the others have any number of peers.
impl RdEngine {
    /// Gives the QP its peer, once, with the address of ours that datagrams leave from. Until then what arrives is dropped, and nothing may be accepted.
    /// Returns whether it had none.
    pub fn connect(&mut self, peer: Peer, from: Option<IpAddr>) -> bool {
        let Some(connection) = &mut self.connection else {
            return false;
        };
        if connection.peer.is_some() || connection.host.is_some() || !connection.is_up() {
            return false;
        }
        connection.peer = Some(peer);
        self.outbound.note_address(peer, from);
        true
    }

    /// Gives the QP the host of its peer, once: the peer is the first at this host that opens an association with the PSN that is
    /// [expected](Self::set_lives). Accepted work requests wait for it, and leave from the address that it sent to. Returns whether there was no peer.
    pub fn await_peer(&mut self, host: IpAddr) -> bool {
        let Some(connection) = &mut self.connection else {
            return false;
        };
        if connection.peer.is_some() || connection.host.is_some() || !connection.is_up() {
            return false;
        }
        connection.host = Some(host.to_canonical());
        true
    }

    /// A datagram of the peer was taken. Its port is known once it has an association.
    pub(super) fn learn_peer(&mut self, from: Peer) {
        let Some(connection) = &mut self.connection else {
            return;
        };
        connection.heard = true;
        if connection.awaits_peer() && self.endpoint.associations() > 0 {
            connection.peer = Some(from);
            self.outbound.redirect(from);
        }
    }

    /// Opens the association with the peer, which need not send before it is there.
    pub fn greet_peer(&mut self, now: Instant, route: &Route) {
        if let Some(peer) = self.connection.as_ref().and_then(|it| it.peer) {
            let datagram = longest(route, now, self.config.rd.datagram);
            self.endpoint.greet_peer(now, peer, datagram);
        }
    }

    /// Sets the PSNs, as far as they are known.
    pub const fn set_lives(&mut self, lives: Lives) {
        self.endpoint.set_lives(lives);
    }

    /// Sets the Reads and atomics outstanding at most.
    pub fn set_ord(&mut self, ord: u16) {
        self.outbound.set_ord(ord.into());
    }

    /// Sets the silence of the peer that ends the connection.
    pub const fn set_unreachable(&mut self, unreachable: Duration) {
        self.config.rd.unreachable = unreachable;
        self.endpoint.set_unreachable(unreachable);
    }

    /// Sets the delay after which a peer may send again what found no receive.
    pub const fn set_rnr_delay(&mut self, delay: Duration) {
        self.config.rd.rnr_delay = delay;
        self.endpoint.set_rnr_delay(delay);
    }

    /// Sets how often messages of the peer may find no receive before they fail; `None` for no limit.
    pub const fn limit_peer_retries(&mut self, retries: Option<u32>) {
        if let Some(connection) = &mut self.connection {
            connection.retries.limit = retries;
        }
    }

    /// Sets the rights that the peer has not, whatever its keys grant.
    pub const fn deny(&mut self, denied: Access) {
        self.config.denied = denied;
        self.inbound.deny(denied);
        self.responder.deny(denied);
    }

    /// Whether the next segment of the peer raises [`AsyncEvent::CommunicationEstablished`], once.
    pub const fn await_first_message(&mut self, awaits: bool) {
        if let Some(connection) = &mut self.connection {
            connection.awaits_first = awaits;
        }
    }

    /// Whether the QP is an RC QP.
    #[must_use]
    pub const fn is_connection(&self) -> bool {
        self.connection.is_some()
    }

    /// Whether the QP is in error: its connection is over.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.connection
            .as_ref()
            .is_some_and(|it| it.state == State::Over)
    }

    /// Gives the associations what was accepted. Behind the end of a connection it fails.
    pub(super) fn post(
        &mut self,
        now: Instant,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) {
        match &mut self.connection {
            Some(Connection {
                state: State::Over, ..
            }) => self.outbound.flush(completions),
            Some(Connection {
                state: State::PeerLeft(until),
                ..
            }) => {
                if self.outbound.has_any() {
                    let fails = now + RETRIES_TAKE;
                    *until = Some(until.map_or(fails, |it| it.min(fails)));
                }
            }
            Some(connection) if connection.awaits_peer() => {}
            Some(Connection {
                state: State::Up | State::Leaving(_),
                ..
            })
            | None => {
                self.outbound
                    .post(now, tables, &mut self.endpoint, completions);
                self.settle_connection(now, tables, completions);
            }
        }
    }

    /// A message failed at the peer, or for a reason that all messages have, which the end of the association reports.
    pub(super) fn message_failed(
        &mut self,
        peer: Peer,
        token: u64,
        cause: Cause,
        completions: &mut impl CompletionSink,
    ) {
        if matches!(cause, Cause::Remote(_) | Cause::RnrRetries) {
            if let Some(connection) = &mut self.connection {
                connection.unreceived |= cause == Cause::RnrRetries;
            }
            self.outbound
                .end(peer, token, Outcome::of(cause), completions);
        }
    }

    /// A response of ours failed at the peer: the work request there will not end otherwise.
    pub(super) const fn response_ended(&mut self, event: &Event) {
        if let Some(connection) = &mut self.connection
            && let Event::Failed {
                cause: Cause::Remote(_) | Cause::RnrRetries,
                ..
            } = event
        {
            connection.broken = true;
        }
    }

    /// A Write failed when a segment of it was placed behind those before: its sender learns it.
    pub(super) fn refuse_late(
        &mut self,
        now: Instant,
        peer: Peer,
        completions: &mut impl CompletionSink,
    ) {
        if let Some(connection) = &mut self.connection
            && let Some((message, control)) = connection.order.take_failed()
        {
            connection.raise(control, completions);
            self.endpoint.refuse(now, peer, message, control);
        }
    }

    /// The association ended.
    pub(super) fn connection_ended(
        &mut self,
        now: Instant,
        (peer, cause): (Peer, Cause),
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) {
        // A peer that is not ready yet is greeted in vain: it greets when it is.
        let early = cause == Cause::Unreachable && !self.outbound.has_begun();
        if early && self.connection.as_ref().is_some_and(|it| !it.heard) {
            return;
        }
        self.endpoint.stop_accepting();
        self.inbound.end_failed(peer, completions);
        self.inbound.forget(peer, tables.recv_queue);
        self.responder.forget(peer);
        let Some(connection) = &mut self.connection else {
            return;
        };
        connection.order.clear();
        if !connection.is_up() {
            return;
        }
        let leaves = connection.state != State::Up;
        let status = match cause {
            Cause::Closed(CloseReason::Done | CloseReason::Other(_)) if leaves => WcStatus::Flushed,
            Cause::Closed(CloseReason::Done | CloseReason::Other(_)) => {
                connection.state = State::PeerLeft(None);
                return;
            }
            Cause::Unreachable
            | Cause::Restarted
            | Cause::Closed(CloseReason::Unknown | CloseReason::Exited) => WcStatus::RetryExceeded,
            Cause::Violation => WcStatus::BadResponse,
            Cause::Closed(CloseReason::Failed | CloseReason::Violation)
            | Cause::Flushed
            | Cause::RnrRetries
            | Cause::Remote(_) => WcStatus::Flushed,
        };
        self.end_connection(now, status, tables, completions);
    }

    /// A response cannot be written: the requester learns that its request failed. Returns whether the QP is an RC QP.
    pub(super) fn refuse_response(
        &mut self,
        now: Instant,
        response: Broken,
        completions: &mut impl CompletionSink,
    ) -> bool {
        let Some(connection) = &mut self.connection else {
            return false;
        };
        if !response.again {
            let control = control_of(StreamError::Source(TaggedError::Access));
            connection.refuse(response.request);
            connection.raise(control, completions);
            self.endpoint
                .refuse(now, response.peer, response.request, control);
        }
        true
    }

    /// The peer ended the connection: in order, if its CLOSE has come.
    pub fn peer_left(
        &mut self,
        now: Instant,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) {
        let up = self.connection.as_mut().filter(|it| it.is_up());
        if let Some(peer) = up.and_then(|it| it.peer) {
            let cause = Cause::Closed(CloseReason::Done);
            self.connection_ended(now, (peer, cause), tables, completions);
            if let Some(connection) = &mut self.connection
                && connection.state == State::PeerLeft(None)
            {
                connection.state = State::PeerLeft(Some(now + LOSS_TAKES));
            }
            self.endpoint.close(now, peer);
            self.handle_events(now, tables, completions);
        }
    }

    /// Ends the connection for a work request that failed.
    pub(super) fn settle_connection(
        &mut self,
        now: Instant,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) {
        let Some(connection) = &self.connection else {
            return;
        };
        let fails = connection.broken || self.outbound.has_failed();
        if fails && connection.state != State::Over {
            self.end_connection(now, WcStatus::Flushed, tables, completions);
        } else if matches!(connection.state, State::Leaving(_)) && self.outbound.len() == 0 {
            self.flush(now, tables, completions);
        }
    }

    /// Ends the connection in order: when all that was accepted is placed at the peer, at `latest` otherwise. Whether the program posts more does not matter then.
    pub fn disconnect(
        &mut self,
        now: Instant,
        latest: Instant,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) {
        match &mut self.connection {
            Some(connection) if connection.state == State::Up => {
                connection.state = State::Leaving(latest);
                self.post(now, tables, completions);
                self.settle_connection(now, tables, completions);
            }
            Some(connection) if matches!(connection.state, State::Leaving(_)) => {}
            _ => self.flush(now, tables, completions),
        }
    }

    /// Work requests that need a peer that left fail, once it is time, and those of a QP that leaves.
    pub(super) fn give_up(
        &mut self,
        now: Instant,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) {
        match self.connection.as_ref().map(|it| it.state) {
            Some(State::PeerLeft(Some(due))) if due <= now => {
                self.end_connection(now, WcStatus::RetryExceeded, tables, completions);
            }
            Some(State::Leaving(due)) if due <= now => self.flush(now, tables, completions),
            _ => {}
        }
    }

    /// The QP is in error: the first work request that has no outcome ends with `status`, all else is flushed.
    fn end_connection(
        &mut self,
        now: Instant,
        status: WcStatus,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) {
        let Some(connection) = &mut self.connection else {
            return;
        };
        connection.state = State::Over;
        connection.order.clear();
        self.endpoint.stop_accepting();
        self.sq_drain.abandon();
        let unreceived = connection.unreceived;
        if let Some(peer) = connection.peer {
            // As on InfiniBand, a responder without a receive stays ready.
            if unreceived {
                self.endpoint.close(now, peer);
            } else {
                self.endpoint.fail(now, peer);
            }
            self.inbound.end_failed(peer, completions);
            self.inbound.forget(peer, tables.recv_queue);
            self.responder.forget(peer);
        }
        self.outbound.fail_all(status, completions);
        for wqe in tables.recv_queue.drain() {
            completions.received(inbound::flushed(&wqe, self.config.qpn));
        }
    }
}

//! RC QPs: one peer, and errors that end the QP (§9.1).

use std::net::IpAddr;
use std::time::{Duration, Instant};

use dgiwarp_llp_udp::Peer;
use dgiwarp_llp_udp::rd::frame::CloseReason;
use dgiwarp_llp_udp::rd::{Cause, Event, Lives, Verdict};
use dgiwarp_memory::Access;

use super::outbound::{Outcome, longest};
use super::write_order::{WriteOrder, is_before};
use super::{RdEngine, inbound};
use crate::cq_ring::CompletionSink;
use crate::recv_queue::Tables;
use crate::types::{AsyncEvent, Route, WcStatus};

/// Time from the peer's orderly end, or from the post of what needs the peer, to its failure: retries take their time.
const RETRIES_TAKE: Duration = Duration::from_secs(1);

/// State of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Up,
    /// The peer ended it in order. Work requests that need the peer fail then.
    PeerLeft(Option<Instant>),
    Over,
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
    /// The next segment of the peer raises [`AsyncEvent::CommunicationEstablished`].
    awaits_first: bool,
    /// A response of ours failed at the peer.
    broken: bool,
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
            awaits_first: false,
            broken: false,
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

    pub(super) fn is_up(&self) -> bool {
        self.state == State::Up
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

    /// Takes note of the verdict on a segment.
    #[inline]
    pub(super) fn note(
        &mut self,
        message: u32,
        verdict: Verdict,
        completions: &mut impl CompletionSink,
    ) {
        match verdict {
            Verdict::Failed(_) => self.refuse(message),
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
            State::Up | State::Over => None,
        }
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

    /// The peer's port is known once it has an association.
    pub(super) fn learn_peer(&mut self, from: Peer) {
        if let Some(connection) = &mut self.connection
            && connection.awaits_peer()
            && self.endpoint.associations() > 0
        {
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
                if until.is_none() && self.outbound.has_any() {
                    *until = Some(now + RETRIES_TAKE);
                }
            }
            Some(connection) if connection.awaits_peer() => {}
            Some(Connection {
                state: State::Up, ..
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
    pub(super) fn refuse_late(&mut self, now: Instant, peer: Peer) {
        let failed = self
            .connection
            .as_mut()
            .and_then(|it| it.order.take_failed());
        if let Some((message, control)) = failed {
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
        self.endpoint.stop_accepting();
        self.inbound.end_failed(peer, completions);
        self.inbound.forget(peer, tables.recv_queue);
        self.responder.forget(peer);
        let Some(connection) = &mut self.connection else {
            return;
        };
        connection.order.clear();
        if connection.state != State::Up {
            return;
        }
        let status = match cause {
            Cause::Closed(CloseReason::Done | CloseReason::Other(_)) => {
                connection.state = State::PeerLeft(None);
                return;
            }
            Cause::Unreachable | Cause::Restarted | Cause::Closed(CloseReason::Unknown) => {
                WcStatus::RetryExceeded
            }
            Cause::Violation => WcStatus::BadResponse,
            Cause::Closed(CloseReason::Failed | CloseReason::Violation)
            | Cause::Flushed
            | Cause::RnrRetries
            | Cause::Remote(_) => WcStatus::Flushed,
        };
        self.end_connection(now, status, tables, completions);
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
        }
    }

    /// Work requests that need a peer that left fail, once it is time.
    pub(super) fn give_up(
        &mut self,
        now: Instant,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) {
        let due = self.connection.as_ref().and_then(Connection::poll_timeout);
        if due.is_some_and(|due| due <= now) {
            self.end_connection(now, WcStatus::RetryExceeded, tables, completions);
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
        if let Some(peer) = connection.peer {
            self.endpoint.fail(now, peer);
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

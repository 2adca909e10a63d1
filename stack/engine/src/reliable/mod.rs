//! A reliable datagram QP, sans I/O (`rfc-notes/reliable-datagrams.md`): work requests to any number of peers, each carried out exactly once.
//!
//! Order of calls: [`accept`](RdEngine::accept) for each work request posted; [`handle_input`](RdEngine::handle_input) for what arrives;
//! [`handle_timeout`](RdEngine::handle_timeout) at or after [`poll_timeout`](RdEngine::poll_timeout). After each of these
//! [`transmit`](RdEngine::transmit).

mod config;
mod connection;
mod inbound;
mod invitation;
mod outbound;
mod output;
mod responder;
mod segment;
#[cfg(test)]
mod tests;
mod transmit;
mod turns;
mod wqe;
mod write_order;

use std::net::IpAddr;
use std::time::Instant;

use dgiwarp_codec::PayloadSlice;
use dgiwarp_llp_udp::rd::frame::SegmentHeader;
use dgiwarp_llp_udp::rd::{
    Cause, Dropped, Ecn, Endpoint, Event, Lives, Malformed, PathState, Verdict,
};
use dgiwarp_llp_udp::{Peer, Train};
use dgiwarp_memory::Placeable;
use dgiwarp_rdmap::datagram::DropReason;

use crate::cq_ring::CompletionSink;
use crate::datagram::errors::ErrorQueue;
use crate::datagram::{Arrival, ErrorEntry, ErrorReason, Invited, SendOutcome};
use crate::recv_queue::Tables;
use crate::sq_drain::SqDrain;
use crate::types::{AsyncEvent, QpCounters, Route, earliest};
use connection::Connection;
use inbound::Inbound;
use outbound::{Outbound, Outcome};
use output::Output;
use responder::Responder;
use segment::{Part, Segment};

/// Polls in a row without input after which acknowledgements leave alone. Programs poll a queue until it is empty, and respond then.
const EMPTY_POLLS: u32 = 4;

pub use config::RdQpConfig;
pub use wqe::RdSendWqe;

/// Takes datagrams.
pub trait DatagramSink {
    /// Sends the datagrams of a train to a peer, from an address of ours if one is named.
    fn send(
        &mut self,
        peer: Peer,
        from: Option<IpAddr>,
        octets: &[u8],
        train: &Train,
    ) -> SendOutcome;

    /// The path back to a peer that asked something of an address of ours. `None` where there is none.
    fn path(&mut self, peer: Peer, from: Option<IpAddr>) -> Option<Route>;
}

/// The engine of one reliable datagram QP.
#[derive(Debug)]
pub struct RdEngine {
    config: RdQpConfig,
    endpoint: Endpoint,
    outbound: Outbound,
    inbound: Inbound,
    responder: Responder,
    counters: QpCounters,
    errors: ErrorQueue,
    sq_drain: SqDrain,
    /// A peer that ended its association with messages under way.
    aborted: Option<Peer>,
    output: Output,
    /// Polls in a row that found no input.
    empty_polls: u32,
    /// An invitation that nobody took.
    invited: Option<Invited>,
    /// Of an RC QP.
    connection: Option<Connection>,
}

impl RdEngine {
    /// An engine without work requests and peers.
    #[must_use]
    pub fn new(config: RdQpConfig) -> Self {
        Self {
            endpoint: Endpoint::new(config.rd),
            outbound: Outbound::new(config),
            inbound: Inbound::new(config),
            responder: Responder::new(config),
            counters: QpCounters::default(),
            errors: ErrorQueue::default(),
            sq_drain: SqDrain::Off,
            aborted: None,
            output: Output::default(),
            empty_polls: 0,
            invited: None,
            connection: config.rd.connection.map(|_| Connection::new(config.qpn)),
            config,
        }
    }

    /// Makes the QP a new one that has counted what this one did: associations end, and all that was posted is forgotten, but for receives that QPs share.
    pub fn reset(&mut self, now: Instant, epoch: u32, key: [u64; 2], tables: Tables<'_>) {
        self.inbound.forget_all(tables.recv_queue);
        drop(tables.recv_queue.drain());
        self.config.rd.epoch = epoch;
        self.config.rd.key = key;
        if self.connection.is_some() {
            self.connection = Some(Connection::new(self.config.qpn));
            self.endpoint.set_lives(Lives::default());
        }
        self.endpoint.renew(now, epoch, key);
        self.outbound = Outbound::new(self.config);
        self.inbound = Inbound::new(self.config);
        self.responder = Responder::new(self.config);
        self.errors = ErrorQueue::default();
        self.sq_drain = SqDrain::Off;
        self.aborted = None;
        self.output = Output::default();
    }

    /// Changes the Q_Key that Sends have to carry from now on.
    pub const fn set_qkey(&mut self, qkey: u32) {
        self.config.qkey = qkey;
        self.inbound.set_qkey(qkey);
    }

    /// Sets how often messages may find no receive at their peers; `None` for no limit.
    pub const fn set_rnr_retries(&mut self, retries: Option<u32>) {
        self.config.rd.rnr_retries = retries;
        self.endpoint.set_rnr_retries(retries);
    }

    /// Puts the send queue into this state of a drain, or ends the drain with [`SqDrain::Off`]; [`transmit`](Self::transmit) comes next.
    pub fn set_sq_drain(&mut self, drain: SqDrain, completions: &mut impl CompletionSink) {
        self.sq_drain = drain;
        self.outbound.hold(drain.holds());
        self.note_drained(completions);
    }

    /// State of the drain.
    #[must_use]
    pub const fn sq_drain(&self) -> SqDrain {
        self.sq_drain
    }

    fn note_drained(&mut self, completions: &mut impl CompletionSink) {
        if self.sq_drain.is_draining() && !self.outbound.has_begun() {
            self.sq_drain.complete(self.config.qpn.into(), completions);
        }
    }

    /// The oldest entry of the error queue (§9): failures of peers and of messages to them.
    pub fn poll_error(&mut self) -> Option<ErrorEntry> {
        self.errors.pop()
    }

    fn report(
        &mut self,
        peer: Peer,
        message: Option<u32>,
        cause: Cause,
        completions: &mut impl CompletionSink,
    ) {
        let reason = match cause {
            Cause::Unreachable => ErrorReason::Unreachable,
            Cause::RnrRetries => ErrorReason::RnrRetries,
            Cause::Restarted => ErrorReason::Restarted,
            Cause::Violation => ErrorReason::Violation,
            Cause::Closed(_) => ErrorReason::Closed,
            Cause::Remote(control) => {
                let [layer_and_type, code, _, _] = control.to_be_bytes();
                ErrorReason::Terminate {
                    layer: layer_and_type >> 4,
                    error_type: layer_and_type & 0x0f,
                    code,
                }
            }
            // This end's doing.
            Cause::Flushed => return,
        };
        // Programs of RC QPs learn it by completions.
        let Some(peer) = peer.socket_addr().filter(|_| self.connection.is_none()) else {
            return;
        };
        let entry = ErrorEntry {
            peer,
            message,
            reason,
        };
        if self.errors.push(entry) {
            let qpn = self.config.qpn.into();
            completions.event(AsyncEvent::ErrorQueue { qpn });
        }
    }

    /// Takes over a posted work request. It leaves with the next [`transmit`](Self::transmit).
    pub fn accept(&mut self, wqe: RdSendWqe) {
        self.outbound.accept(wqe);
    }

    /// Notes a poll, before its input is handled: whether there is some, and whether the caller polls again soon. While it does, acknowledgements
    /// and credit wait for messages to go with, through a few polls without input. Returns whether some that waited may leave now.
    pub fn note_poll(&mut self, has_input: bool, again: bool) -> bool {
        self.empty_polls = if has_input {
            0
        } else {
            self.empty_polls.saturating_add(1)
        };
        self.endpoint
            .set_polls(again && self.empty_polls < EMPTY_POLLS)
    }

    /// Handles what one receive call brought: one datagram, or a train of equal ones. Returns why the last one that was dropped was.
    pub fn handle_input<P: Placeable + ?Sized>(
        &mut self,
        now: Instant,
        arrival: Arrival<'_, P>,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) -> Option<DropReason> {
        let mut last = None;
        let mut noted = None;
        for datagram in PayloadSlice::new(arrival.octets).chunks(arrival.stride) {
            let is_stranger = |it: &Connection| !it.hears(arrival.from);
            let handled = if arrival.to_group || self.connection.as_ref().is_some_and(is_stranger) {
                Err(DropReason::WrongPeer)
            } else {
                let Self {
                    endpoint,
                    inbound,
                    outbound,
                    responder,
                    connection,
                    config,
                    ..
                } = self;
                let handled = endpoint.handle_input(
                    now,
                    arrival.from,
                    Ecn::Unknown,
                    datagram,
                    &mut |peer, header: &SegmentHeader, before, segment| {
                        if noted != Some(peer) {
                            outbound.note_address(peer, arrival.to);
                            noted = Some(peer);
                        }
                        if connection
                            .as_ref()
                            .is_some_and(|it| it.ignores(header.message))
                        {
                            return Verdict::Placed;
                        }
                        let source = (peer, arrival.to);
                        let waits = connection
                            .as_ref()
                            .is_some_and(|it| it.waits(header.message));
                        let verdict = match segment::parse(header, segment) {
                            // Responses pass, as the program may await them before it posts receives.
                            Ok(Segment::Part(_) | Segment::Request(_)) if waits => {
                                Verdict::NotReady
                            }
                            Ok(Segment::Part(part)) => match connection {
                                Some(connection) => {
                                    let segment = (header, before);
                                    let verdict = connection.order.arrive(
                                        inbound,
                                        source,
                                        segment,
                                        part,
                                        tables,
                                        completions,
                                    );
                                    if before.delivered {
                                        let delay = config.rd.rnr_delay;
                                        connection.limit(now, header.message, delay, verdict)
                                    } else {
                                        verdict
                                    }
                                }
                                None => {
                                    let segment = (header, before.missing);
                                    inbound.place(source, segment, Ok(part), tables, completions)
                                }
                            },
                            Ok(Segment::Request(request)) => {
                                responder.take(peer, header, request, tables.mrs)
                            }
                            Ok(Segment::Answer(answer)) => {
                                outbound.place(peer, header, answer, tables.mrs)
                            }
                            Err(error) => {
                                let segment: (_, Result<Part<'_, P>, _>) =
                                    ((header, before.missing), Err(error));
                                inbound.place(source, segment.0, segment.1, tables, completions)
                            }
                        };
                        if let Some(connection) = connection {
                            connection.note(header.message, verdict, completions);
                        }
                        verdict
                    },
                );
                handled.map_err(drop_reason)
            };
            let handled = match handled {
                Err(DropReason::UnknownFormat) => self.handle_invitation(&arrival, datagram),
                handled => handled,
            };
            match handled {
                Ok(()) => {
                    self.refuse_late(now, arrival.from, completions);
                    self.learn_peer(arrival.from);
                    self.counters.count_received(datagram.len());
                }
                Err(reason) => {
                    self.counters.count_drop(reason);
                    last = Some(reason);
                }
            }
            self.handle_events(now, tables, completions);
            if self.end_broken(now, completions) {
                self.handle_events(now, tables, completions);
            }
        }
        last
    }

    /// Takes note of an ICMP error, port unreachable, about a datagram to an address, of which `quoted` is the beginning (§4.6); [`transmit`](Self::transmit) comes next.
    pub fn handle_port_unreachable(&mut self, now: Instant, to: Peer, quoted: &[u8]) {
        self.endpoint.handle_port_unreachable(now, to, quoted);
    }

    /// State of the path to a peer; `None` without an association.
    #[must_use]
    pub fn path_state(&self, peer: Peer) -> Option<PathState> {
        self.endpoint.path_state(peer)
    }

    /// Takes note of an invitation, which is no datagram of an association.
    #[cold]
    fn handle_invitation<P: Placeable + ?Sized>(
        &mut self,
        arrival: &Arrival<'_, P>,
        datagram: PayloadSlice<'_, P>,
    ) -> Result<(), DropReason> {
        let token = invitation::parse(datagram).ok_or(DropReason::UnknownFormat)?;
        self.invited = Some(Invited {
            from: arrival.from,
            to: arrival.to,
            token,
        });
        Ok(())
    }

    /// Ends the association of a message that failed at this end. Returns whether one did.
    fn end_broken(&mut self, now: Instant, completions: &mut impl CompletionSink) -> bool {
        let (of_response, of_request) = (self.responder.take_broken(), self.outbound.take_broken());
        let broken = of_response.is_some() || of_request.is_some();
        if let Some((peer, token, status)) = of_request {
            self.outbound.break_off(token, status);
            self.endpoint.fail(now, peer);
        }
        if let Some(response) = of_response
            && !self.refuse_response(now, response, completions)
        {
            self.endpoint.fail(now, response.peer);
        }
        broken
    }

    fn handle_events(
        &mut self,
        now: Instant,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) {
        while let Some(event) = self.endpoint.poll_event() {
            match event {
                Event::Completed { token, .. } | Event::Failed { token, .. }
                    if Responder::owns(token) =>
                {
                    self.responder.done(token);
                    self.response_ended(&event);
                }
                Event::Failed { peer, token, cause } if self.connection.is_some() => {
                    self.message_failed(peer, token, cause, completions);
                }
                Event::Ended { peer, cause } if self.connection.is_some() => {
                    self.connection_ended(now, (peer, cause), tables, completions);
                }
                Event::Completed { peer, token } => {
                    self.outbound.on_placed(peer, token, completions);
                }
                Event::Failed { peer, token, cause } => {
                    match cause {
                        Cause::Remote(_) | Cause::RnrRetries => {
                            let message = self.outbound.message(token);
                            self.report(peer, message, cause, completions);
                        }
                        Cause::Closed(_) => self.aborted = Some(peer),
                        // The end of the association reports them.
                        Cause::Unreachable
                        | Cause::Restarted
                        | Cause::Violation
                        | Cause::Flushed => {}
                    }
                    self.outbound
                        .end(peer, token, Outcome::of(cause), completions);
                }
                Event::Delivered { peer, message, .. } => {
                    self.deliver(now, (peer, message), tables, completions);
                }
                Event::Refused {
                    peer,
                    message,
                    control,
                } => {
                    if let Some(token) = self.outbound.refused(peer, message) {
                        let cause = Cause::Remote(control);
                        self.report(peer, Some(message), cause, completions);
                        if self.connection.is_some() {
                            let status = Outcome::of(cause).status();
                            self.outbound.break_off(token, status);
                            self.message_failed(peer, token, cause, completions);
                            continue;
                        }
                        let outcome = Outcome::of(cause);
                        self.outbound.break_off(token, outcome.status());
                        self.endpoint.fail(now, peer);
                    }
                }
                Event::Ended { peer, cause } => {
                    let aborted = self.aborted.take() == Some(peer);
                    let concerns = match cause {
                        // An association that neither end needs is no failure.
                        Cause::Closed(_) => aborted || self.outbound.has_work(peer),
                        Cause::Unreachable
                        | Cause::Restarted
                        | Cause::Violation
                        | Cause::RnrRetries
                        | Cause::Remote(_)
                        | Cause::Flushed => true,
                    };
                    if concerns {
                        self.report(peer, None, cause, completions);
                    }
                    self.inbound.forget(peer, tables.recv_queue);
                    self.responder.forget(peer);
                    self.outbound.forget(peer, cause, completions);
                }
                Event::Rests { peer } => {
                    self.inbound.shrink(peer);
                    self.outbound.shrink(peer);
                }
                // A program sees the peer under its first address.
                Event::Moved { .. } => {}
            }
        }
        self.settle_connection(now, tables, completions);
        self.note_drained(completions);
    }

    /// A message of a peer is there, and its turn has come. A Write without immediate concerns nobody.
    fn deliver(
        &mut self,
        now: Instant,
        (peer, message): (Peer, u32),
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) {
        if self
            .connection
            .as_ref()
            .is_some_and(|it| it.ignores(message))
        {
            return;
        }
        if let Some(connection) = &mut self.connection {
            let inbound = &mut self.inbound;
            let named = (peer, message);
            let placed = connection
                .order
                .release_delivered(inbound, named, tables, completions);
            self.refuse_late(now, peer, completions);
            if !placed {
                return;
            }
        }
        let taken = self.inbound.deliver(peer, message, tables.mrs, completions)
            || self
                .responder
                .deliver(now, (peer, message), tables.mrs, &mut self.endpoint);
        if let Some((refused, control)) = self.responder.take_refused()
            && let Some(connection) = &mut self.connection
        {
            connection.refuse(refused);
            connection.raise(control, completions);
        }
        if !taken && self.outbound.deliver(peer, message, completions) {
            let awaits = self.connection.is_some() || self.outbound.has_requests(peer);
            self.endpoint.await_responses(peer, awaits);
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let of_connection = self.connection.as_ref().and_then(Connection::poll_timeout);
        earliest([self.endpoint.poll_timeout(), of_connection])
    }

    /// Handles what is due.
    pub fn handle_timeout(
        &mut self,
        now: Instant,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) {
        self.endpoint.handle_timeout(now);
        self.give_up(now, tables, completions);
        self.handle_events(now, tables, completions);
    }

    /// Whether a peer waits for receives to be posted: then [`transmit`](Self::transmit) is due after a post. Credit that would leave with an acknowledgement
    /// that is held needs no output of its own.
    #[must_use]
    pub fn wants_receives(&self) -> bool {
        self.inbound.has_refused() || self.inbound.is_hungry() && !self.endpoint.holds()
    }

    /// Work requests that have not completed, but for those that wait in SQD.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        if self.connection.as_ref().is_some_and(|it| !it.is_up()) {
            return 0;
        }
        self.outbound.len()
    }

    /// Whether messages are on the way, or have not left, and not all of them wait for receives of their peers.
    #[must_use]
    pub fn is_sending(&self) -> bool {
        self.outstanding() > 0 && !self.endpoint.waits_for_receives()
    }

    /// Ends all associations: the next [`transmit`](Self::transmit) sends CLOSE to the peers, and messages that are not placed there end with `Flushed`.
    pub fn close(
        &mut self,
        now: Instant,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) {
        self.stop();
        self.endpoint.close_all(now);
        self.handle_events(now, tables, completions);
        self.outbound.flush(completions);
    }

    fn stop(&mut self) {
        if let Some(connection) = &mut self.connection {
            connection.end();
            self.endpoint.stop_accepting();
        }
    }

    /// As [`close`](Self::close), at the end of the process, whose program has not closed the QP (§4.6): peers of RC QPs keep no receives.
    pub fn leave_process(
        &mut self,
        now: Instant,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) {
        self.stop();
        self.endpoint.leave_all(now);
        self.handle_events(now, tables, completions);
    }

    /// Ends everything that was posted with `Flushed`, but for receives that QPs share.
    pub fn flush(
        &mut self,
        now: Instant,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) {
        self.sq_drain.abandon();
        self.close(now, tables, completions);
        for wqe in tables.recv_queue.drain() {
            completions.received(inbound::flushed(&wqe, self.config.qpn));
        }
    }

    /// Counters of the QP since it was created.
    #[must_use]
    pub fn counters(&self) -> QpCounters {
        let mut counters = self.counters.clone();
        counters.errors_lost += self.errors.lost();
        counters
    }

    /// Counts a datagram that never became one of an association.
    pub fn count_drop(&mut self, reason: DropReason) {
        self.counters.count_drop(reason);
    }

    /// Number of associations.
    #[must_use]
    pub fn associations(&self) -> usize {
        self.endpoint.associations()
    }
}

/// The counter of a datagram that was dropped.
const fn drop_reason(dropped: Dropped) -> DropReason {
    match dropped {
        Dropped::Malformed(Malformed::Crc { .. }) => DropReason::BadCrc,
        Dropped::Malformed(Malformed::FirstOctet(_)) => DropReason::UnknownFormat,
        Dropped::Malformed(Malformed::Version(_)) => DropReason::BadVersion,
        Dropped::Malformed(_) => DropReason::Malformed,
        Dropped::Late(_) | Dropped::Restarted | Dropped::OtherLife(_) => DropReason::Late,
        Dropped::NotValidated => DropReason::BadCookie,
        Dropped::UnknownAssociation(_) | Dropped::WrongEpoch(_) | Dropped::NoHello => {
            DropReason::WrongPeer
        }
    }
}

//! A connected QP, sans I/O: RDMAP over DDP over MPA, on the octets of one TCP connection.
//!
//! Order of calls: `accept` for each work request posted; `handle_input(now, …)` for what TCP brought and `handle_end(now, …)` for its
//! end; after each of these `make_fpdus(…)`, then `poll_transmit(now)` and `transmitted(…)` for the octets until there are none.
//! `end()` tells when and why the connection is over; everything posted has completed then.
//!
//! Posted sends wait until MPA lets them go: a Responder has to receive an FPDU first (RFC 5044 §7.1.2 rule 4).

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use dgiwarp_ddp::error::TaggedError;
use dgiwarp_ddp::placement::{TaggedBuffers, TaggedSpan};
use dgiwarp_ddp::{STag, TaggedOffset};
use dgiwarp_llp_tcp_mpa::{Connection, Event, Role, TcpEnd};
use dgiwarp_rdmap::datagram::PlaceFailed;
use dgiwarp_rdmap::stream::{Delivered, Inbound, Outbound, SendMessage, StreamError, Upper};

use super::cq::CompletionSink;
use super::mr::{LocalProtection, MrTable, PdId};
use super::queue::{RecvWqe, SgeList, Tables};
use super::sges::{Gathered, Part, scatter};
use crate::{QpCounters, Wc, WcOpcode, WcStatus};

/// Octets of FPDUs that wait for TCP before no more are made.
const WINDOW: usize = 64 << 10;
/// Octets of an FPDU beside its payload, with room to spare: headers, pad, CRC and a few Markers.
const OVERHEAD: usize = 256;

/// When an Initiator that has heard nothing nudges its peer, counted from its first FPDU and then from the last nudge.
///
/// A Responder may answer the Request before it watches the connection for FPDUs; the Linux kernel's siw does. An FPDU that reaches it
/// in between lies there until the next one comes, and a program that waits for the answer to its first message waits for ever. A
/// zero-length RDMA Write is something that any peer has to take and none may look at (RFC 5041 §5.2).
const NUDGES: [Duration; 3] = [
    Duration::from_millis(20),
    Duration::from_millis(100),
    Duration::from_millis(500),
];

/// Settings of a connected QP's engine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RcConfig {
    pub(crate) qpn: u32,
    pub(crate) pd: PdId,
    /// The other end, for completions.
    pub(crate) peer: SocketAddr,
}

/// A posted Send.
#[derive(Debug)]
pub(crate) struct RcSendWqe {
    pub(crate) wr_id: u64,
    pub(crate) sges: SgeList,
    pub(crate) length: u32,
    pub(crate) signaled: bool,
    pub(crate) solicited: bool,
}

impl RcSendWqe {
    /// Completes it.
    fn complete(&self, qpn: u32, status: WcStatus, completions: &mut impl CompletionSink) {
        if self.signaled || status != WcStatus::Success {
            completions.sent(Wc {
                status,
                byte_len: self.length,
                ..Wc::new(self.wr_id, WcOpcode::Send, qpn)
            });
        }
        completions.retired();
    }
}

/// Why a connection is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RcEnd {
    /// The peer closed between two messages.
    #[error("the peer closed the connection")]
    PeerClosed,
    /// This side closed.
    #[error("the connection was closed here")]
    Closed,
    /// MPA failed: a bad CRC, a lost connection.
    #[error(transparent)]
    Mpa(dgiwarp_llp_tcp_mpa::Error),
    /// The peer violated DDP or RDMAP, or terminated.
    #[error(transparent)]
    Stream(StreamError),
    /// A posted work request named memory that is not registered.
    #[error("a posted work request names memory that is not registered")]
    LocalProtection,
}

/// The engine of one connected QP.
#[derive(Debug)]
pub(crate) struct RcEngine {
    config: RcConfig,
    /// In full operation from the beginning: the startup comes before there is an engine.
    mpa: Connection,
    outbound: Outbound,
    inbound: Inbound<RecvWqe>,
    /// Sends that have not become FPDUs in full.
    posted: VecDeque<RcSendWqe>,
    /// The first of them, if some of its segments have left.
    sending: Option<SendMessage>,
    /// Sends that are FPDUs, with the number of octets that TCP has taken when it has taken theirs.
    framed: VecDeque<(u64, RcSendWqe)>,
    /// Octets of all FPDUs that were made.
    made: u64,
    /// Octets of them that TCP has taken.
    taken: u64,
    end: Option<RcEnd>,
    nudge: Nudge,
    counters: QpCounters,
}

/// Whether the peer shows that it receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Nudge {
    /// An Initiator that has sent nothing yet.
    Idle,
    /// Something was sent, nothing came back; so many nudges were made.
    Waiting { at: Instant, made: usize },
    /// The peer has sent something, or has been nudged enough; or we are the Responder, who has been sent something.
    Done,
}

impl RcEngine {
    /// An engine on a connection whose startup is over.
    pub(crate) fn new(config: RcConfig, mpa: Connection) -> Self {
        let is_initiator = mpa
            .negotiation()
            .is_some_and(|negotiation| negotiation.role == Role::Initiator);
        Self {
            config,
            nudge: if is_initiator {
                Nudge::Idle
            } else {
                Nudge::Done
            },
            mpa,
            outbound: Outbound::default(),
            inbound: Inbound::default(),
            posted: VecDeque::new(),
            sending: None,
            framed: VecDeque::new(),
            made: 0,
            taken: 0,
            end: None,
            counters: QpCounters::default(),
        }
    }

    /// Sends the RTR indication that this end does: a zero-length RDMA Write. It comes before everything else (RFC 6581 §5).
    pub(crate) fn send_rtr(&mut self, now: Instant) {
        self.send_empty_write(now);
    }

    fn send_empty_write(&mut self, now: Instant) {
        let nothing: &[u8] = &[];
        let before = self.mpa.poll_transmit(now).len();
        // Refused only where nothing can be sent any more.
        if self.mpa.send_ulpdu(&Outbound::rtr_write(), nothing).is_ok() {
            self.made += (self.mpa.poll_transmit(now).len() - before) as u64;
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        match self.nudge {
            Nudge::Waiting { at, .. } => Some(at),
            Nudge::Idle | Nudge::Done => None,
        }
    }

    /// Nudges a peer that was silent for too long.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        let Nudge::Waiting { at, made } = self.nudge else {
            return;
        };
        if at > now {
            return;
        }
        // While TCP does not take what there is, one octet more would not help.
        let nudges = self.end.is_none() && self.mpa.poll_transmit(now).is_empty();
        if nudges {
            self.send_empty_write(now);
        }
        let made = made + usize::from(nudges);
        self.nudge = match NUDGES.get(made) {
            Some(delay) if self.end.is_none() => Nudge::Waiting {
                at: now + *delay,
                made,
            },
            Some(_) | None => Nudge::Done,
        };
    }

    /// Takes over a posted work request. After the end it completes with the next `make_fpdus`.
    #[inline]
    pub(crate) fn accept(&mut self, wqe: RcSendWqe) {
        self.posted.push_back(wqe);
    }

    /// Handles octets that TCP brought.
    pub(crate) fn handle_input(
        &mut self,
        now: Instant,
        octets: &[u8],
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) {
        if !octets.is_empty() {
            self.nudge = Nudge::Done;
        }
        let mut rest = octets;
        while !rest.is_empty() && self.end.is_none() {
            let mut failed = None;
            if let Some(ulpdu) = self.mpa.handle_input(now, &mut rest) {
                self.counters.count_received(ulpdu.len());
                let mut upper = RcUpper {
                    config: self.config,
                    tables,
                    completions,
                };
                failed = self.inbound.handle_ulpdu(ulpdu, &mut upper).err();
            }
            if let Some(error) = failed {
                let end = match error {
                    StreamError::LocalProtection => RcEnd::LocalProtection,
                    error => RcEnd::Stream(error),
                };
                self.finish(end, tables, completions);
            }
            self.handle_events(tables, completions);
        }
    }

    /// TCP has ended.
    pub(crate) fn handle_end(
        &mut self,
        now: Instant,
        end: TcpEnd,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) {
        self.mpa.handle_end(now, end);
        self.handle_events(tables, completions);
    }

    fn handle_events(&mut self, tables: Tables<'_>, completions: &mut impl CompletionSink) {
        while let Some(event) = self.mpa.poll_event() {
            match event {
                Event::PeerClosed => self.finish(RcEnd::PeerClosed, tables, completions),
                Event::Failed(error) => self.finish(RcEnd::Mpa(error), tables, completions),
                // These belong to the startup, which is over.
                Event::Request(_) | Event::Established(_) | Event::Rejected(_) => {}
            }
        }
    }

    /// Makes FPDUs of posted sends, until none is left or enough of them wait for TCP.
    pub(crate) fn make_fpdus(
        &mut self,
        now: Instant,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) {
        if self.end.is_some() {
            self.flush_sends(completions);
            return;
        }
        while self.mpa.may_send()
            && self.mpa.poll_transmit(now).len() < WINDOW
            && let Some(wqe) = self.posted.front()
        {
            let message = self
                .sending
                .get_or_insert_with(|| self.outbound.send(wqe.length, wqe.solicited));
            // Room is made before memory is held: nothing may be allocated while it is.
            let mulpdu = self.mpa.mulpdu();
            let room = (wqe.length as usize).min(WINDOW) + usize::from(mulpdu);
            self.mpa
                .reserve(room + room / usize::from(mulpdu) * OVERHEAD + OVERHEAD);
            let before = self.mpa.poll_transmit(now).len();
            let framed = frame(
                message,
                wqe,
                &mut self.mpa,
                now,
                (tables.mrs, self.config.pd),
            );
            let after = self.mpa.poll_transmit(now).len();
            self.made += (after - before) as u64;
            match framed {
                Ok(segments) => self.counters.count_sent(segments, (after - before) as u64),
                Err(LocalProtection) => {
                    if let Some(wqe) = self.posted.pop_front() {
                        wqe.complete(self.config.qpn, WcStatus::LocalProtection, completions);
                    }
                    self.finish(RcEnd::LocalProtection, tables, completions);
                    return;
                }
            }
            if message.is_done() {
                self.sending = None;
                let made = self.made;
                self.framed
                    .extend(self.posted.pop_front().map(|wqe| (made, wqe)));
            }
        }
    }

    /// The octets to hand to TCP next; empty if there are none.
    #[inline]
    pub(crate) fn poll_transmit(&self, now: Instant) -> &[u8] {
        self.mpa.poll_transmit(now)
    }

    /// TCP took the first `len` of these. Sends that it has in full are complete: completion is local, as RFC 5040 §5.3 has
    /// it.
    pub(crate) fn transmitted(
        &mut self,
        now: Instant,
        len: usize,
        completions: &mut impl CompletionSink,
    ) {
        if self.nudge == Nudge::Idle {
            self.nudge = Nudge::Waiting {
                at: now + NUDGES[0],
                made: 0,
            };
        }
        self.mpa.transmitted(len);
        self.taken += len as u64;
        while let Some((_, wqe)) = self.framed.pop_front_if(|(end, _)| *end <= self.taken) {
            wqe.complete(self.config.qpn, WcStatus::Success, completions);
        }
    }

    /// Whether something is on its way that TCP could take: octets, or sends that may become some.
    pub(crate) fn has_unsent(&self, now: Instant) -> bool {
        let sendable = self.mpa.may_send() || self.end.is_some();
        !self.mpa.poll_transmit(now).is_empty() || (sendable && !self.posted.is_empty())
    }

    /// Ends the connection from our side. What TCP has not taken is lost: transmit first.
    pub(crate) fn close(&mut self, tables: Tables<'_>, completions: &mut impl CompletionSink) {
        self.finish(RcEnd::Closed, tables, completions);
    }

    /// Why the connection is over, if it is.
    pub(crate) fn end(&self) -> Option<RcEnd> {
        self.end
    }

    pub(crate) fn counters(&self) -> QpCounters {
        self.counters.clone()
    }

    /// The connection is over: all that was posted ends with `Flushed`, in order, as in the error state of a QP.
    fn finish(&mut self, end: RcEnd, tables: Tables<'_>, completions: &mut impl CompletionSink) {
        if self.end.is_some() {
            return;
        }
        self.end = Some(end);
        self.flush_sends(completions);
        for wqe in self
            .inbound
            .abandon()
            .into_iter()
            .chain(tables.recv_queue.drain())
        {
            completions.received(failed_receive(&wqe, self.config.qpn, WcStatus::Flushed));
        }
    }

    fn flush_sends(&mut self, completions: &mut impl CompletionSink) {
        self.sending = None;
        let framed = self.framed.drain(..).map(|(_, wqe)| wqe);
        for wqe in framed.chain(self.posted.drain(..)) {
            wqe.complete(self.config.qpn, WcStatus::Flushed, completions);
        }
    }
}

/// Makes FPDUs of segments of `message`, until it is done or enough octets wait. Returns how many.
fn frame(
    message: &mut SendMessage,
    wqe: &RcSendWqe,
    mpa: &mut Connection,
    now: Instant,
    (mrs, pd): (&MrTable, PdId),
) -> Result<usize, LocalProtection> {
    let gathered = Gathered::of(mrs, pd, &wqe.sges)?;
    let mut segments = 0;
    while mpa.poll_transmit(now).len() < WINDOW {
        let Some((header, segment)) = message.next_segment(mpa.mulpdu()) else {
            break;
        };
        let part = Part {
            of: &gathered,
            offset: segment.offset,
            length: segment.length,
        };
        mpa.send_ulpdu(&header, &part)
            .expect("MPA may send, and the segment is no longer than the MULPDU");
        segments += 1;
    }
    Ok(segments)
}

/// The completion of a receive that did not happen.
fn failed_receive(wqe: &RecvWqe, qpn: u32, status: WcStatus) -> Wc {
    Wc::new(wqe.wr_id, WcOpcode::Recv, qpn).with_status(status)
}

/// Gives the stream its memory, receive queue and completions.
struct RcUpper<'a, C> {
    config: RcConfig,
    tables: Tables<'a>,
    completions: &'a mut C,
}

impl<C: CompletionSink> TaggedBuffers for RcUpper<'_, C> {
    fn check(&self, span: TaggedSpan) -> Result<(), TaggedError> {
        self.tables
            .mrs
            .remote_write(self.config.pd, span)
            .map(|_| ())
    }

    fn place(
        &mut self,
        stag: STag,
        start: TaggedOffset,
        payload: &[u8],
    ) -> Result<(), TaggedError> {
        let length = u32::try_from(payload.len()).map_err(|_| TaggedError::BaseOrBounds)?;
        let span = TaggedSpan {
            stag,
            start,
            length,
        };
        let registration = self.tables.mrs.remote_write(self.config.pd, span)?;
        registration
            .slice(start.get(), length)
            .ok_or(TaggedError::BaseOrBounds)?
            .place(payload);
        Ok(())
    }
}

impl<C: CompletionSink> Upper for RcUpper<'_, C> {
    type Receive = RecvWqe;

    fn take_receive(&mut self) -> Option<RecvWqe> {
        // The length of a Send is known with its last segment only, so any receive will do here.
        self.tables.recv_queue.take(0, self.completions).ok()
    }

    fn capacity(&self, receive: &RecvWqe) -> u32 {
        receive.length
    }

    fn place_untagged(
        &mut self,
        receive: &RecvWqe,
        offset: u32,
        payload: &[u8],
    ) -> Result<(), PlaceFailed> {
        let pd = self.tables.recv_queue.pd(self.config.pd);
        scatter(self.tables.mrs, pd, receive, offset, payload)
    }

    fn deliver(&mut self, receive: RecvWqe, delivered: Delivered) {
        self.completions.received(Wc {
            byte_len: delivered.length,
            source: Some(self.config.peer),
            solicited: delivered.solicited,
            ..Wc::new(receive.wr_id, WcOpcode::Recv, self.config.qpn)
        });
    }

    fn fail(&mut self, receive: RecvWqe, error: StreamError) {
        let status = match error {
            StreamError::LocalProtection => WcStatus::LocalProtection,
            StreamError::Untagged(_) => WcStatus::LocalLength,
            StreamError::Truncated(_)
            | StreamError::Control(_)
            | StreamError::UnexpectedOpcode(_)
            | StreamError::Tagged(_)
            | StreamError::Terminated(_) => WcStatus::RemoteOperation,
        };
        self.completions
            .received(failed_receive(&receive, self.config.qpn, status));
    }
}

#[cfg(test)]
mod tests;

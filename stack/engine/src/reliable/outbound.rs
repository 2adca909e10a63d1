//! Posted work requests: their segments when these leave, the responses to Reads and atomics, and completions in the order of the
//! posts to each peer.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Instant;

use dgiwarp_ddp::error::TaggedError;
use dgiwarp_llp_udp::rd::frame::SegmentHeader;
use dgiwarp_llp_udp::rd::{Cause, Endpoint, Verdict};
use dgiwarp_llp_udp::{PathKind, Peer};
use dgiwarp_memory::Placeable;
use dgiwarp_rdmap::stream::StreamError;
use dgiwarp_rdmap::wire::Cause as Terminated;
use rustc_hash::FxHashMap;

use super::config::RdQpConfig;
use super::segment::{Answer, refuse};
use super::wqe::{RdSendWqe, check, cut, header_of};
use crate::connected::{MemoryWork, RcWork, terminated};
use crate::cq_ring::CompletionSink;
use crate::mr::{MrTable, StreamId};
use crate::recv_queue::Tables;
use crate::sges::scatter;
use crate::types::{Route, WcStatus};

/// Longest datagram within a host in octets: 16 KiB of a message, and headers.
const LOOPBACK_DATAGRAM: u16 = 16_512;
/// Reads and atomics outstanding to one peer (§7).
pub(super) const ORD: usize = 16;

/// Longest datagram of a route in octets. Between hosts it has no more than `network`, which every path of an Ethernet takes.
pub(super) fn longest(route: &Route, now: Instant, network: u16) -> u16 {
    let most = match route.path_kind() {
        PathKind::Loopback { .. } => LOOPBACK_DATAGRAM,
        PathKind::Network => network,
    };
    route.limit(now).get().min(most)
}

/// End of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It is placed at the peer; a response is placed here.
    Placed,
    /// It never left.
    Unsent(WcStatus),
    /// It failed, and with it the association.
    Failed(WcStatus),
}

impl Outcome {
    /// The outcome of a failure (§9).
    pub(super) fn of(cause: Cause) -> Self {
        Self::Failed(match cause {
            Cause::Unreachable => WcStatus::RetryExceeded,
            Cause::RnrRetries => WcStatus::RnrRetryExceeded,
            Cause::Flushed => WcStatus::Flushed,
            Cause::Restarted | Cause::Closed(_) => WcStatus::RemoteAborted,
            Cause::Violation => WcStatus::BadResponse,
            Cause::Remote(control) => {
                let [layer_and_type, code, _, _] = control.to_be_bytes();
                terminated(Terminated {
                    layer: layer_and_type >> 4,
                    error_type: layer_and_type & 0x0f,
                    code,
                })
            }
        })
    }

    pub(super) const fn status(self) -> WcStatus {
        match self {
            Self::Placed => WcStatus::Success,
            Self::Unsent(status) | Self::Failed(status) => status,
        }
    }
}

/// A response that arrives.
#[derive(Debug, Default)]
struct Arriving {
    /// Number of its message; `None` before its first segment.
    message: Option<u32>,
    octets: u32,
}

/// A work request that has not completed.
#[derive(Debug)]
struct Posted {
    wqe: RdSendWqe,
    /// Octets of the message in each segment but the last.
    payload: u32,
    /// Number of its message; `None` before its first segment left.
    message: Option<u32>,
    response: Arriving,
    outcome: Option<Outcome>,
}

impl Posted {
    const fn is_request(&self) -> bool {
        matches!(
            self.wqe.send.work,
            RcWork::Read { .. } | RcWork::Atomic { .. }
        )
    }

    /// A key that segments need which may leave again is invalidated behind them.
    const fn waits_for_all(&self) -> bool {
        matches!(
            self.wqe.send.work,
            RcWork::Memory(MemoryWork::LocalInvalidate { .. })
        )
    }
}

/// A peer with work requests, or whose datagrams came to a certain address.
#[derive(Debug, Default)]
struct Target {
    /// Work requests to it, in the order of their posts.
    tokens: VecDeque<u64>,
    /// The last ones of these, which have not begun.
    held: VecDeque<u64>,
    /// Reads and atomics that have begun, and have no response.
    requests: Vec<u64>,
    /// Address of ours that datagrams leave from; `None` for the kernel's choice.
    from: Option<IpAddr>,
}

/// The sending half.
#[derive(Debug)]
pub(super) struct Outbound {
    stream: StreamId,
    datagram: u16,
    fresh: VecDeque<RdSendWqe>,
    posted: FxHashMap<u64, Posted>,
    next: u64,
    peers: FxHashMap<Peer, Target>,
    /// Peers whose requests got responses: more may begin.
    answered: Vec<Peer>,
    /// A message that fails for a reason at this end, its peer, and the status.
    broken: Option<(Peer, u64, WcStatus)>,
    /// No work request begins (SQD).
    holds: bool,
    /// Requests outstanding at most.
    ord: usize,
    /// The failure of a message ends the QP, and work on local keys is possible.
    is_connected: bool,
    /// A work request failed, so that none begins any more.
    stops: bool,
    /// It completed, all before it without an error.
    failed: bool,
    /// The peer of all work requests, whatever peer they name.
    only: Option<Peer>,
}

impl Outbound {
    pub(super) fn new(config: RdQpConfig) -> Self {
        Self {
            stream: config.stream(),
            datagram: config.rd.datagram,
            fresh: VecDeque::new(),
            posted: FxHashMap::default(),
            next: 0,
            peers: FxHashMap::default(),
            answered: Vec::new(),
            broken: None,
            holds: false,
            ord: ORD,
            is_connected: config.rd.connection.is_some(),
            stops: false,
            failed: false,
            only: None,
        }
    }

    /// All work requests go to this peer, which they could not name when they were posted.
    pub(super) const fn redirect(&mut self, to: Peer) {
        self.only = Some(to);
    }

    pub(super) fn accept(&mut self, wqe: RdSendWqe) {
        self.fresh.push_back(wqe);
    }

    /// Limits the Reads and atomics outstanding.
    pub(super) fn set_ord(&mut self, ord: usize) {
        self.ord = ord.clamp(1, ORD);
    }

    /// Whether a work request of an RC QP completed with an error, all before it without.
    pub(super) const fn has_failed(&self) -> bool {
        self.failed
    }

    /// Whether something is posted that has not completed.
    pub(super) fn has_any(&self) -> bool {
        !(self.fresh.is_empty() && self.posted.is_empty())
    }

    /// Ends all that is posted: the first that has no outcome yet with `status`, the others are flushed.
    pub(super) fn fail_all(&mut self, status: WcStatus, completions: &mut impl CompletionSink) {
        let mut tokens: Vec<u64> = self.posted.keys().copied().collect();
        tokens.sort_unstable();
        let mut next = Some(Outcome::Failed(status)).filter(|_| !self.failed);
        for token in tokens {
            if let Some(posted) = self.posted.get_mut(&token) {
                let outcome = match (posted.outcome, next) {
                    (Some(Outcome::Unsent(of_its_own) | Outcome::Failed(of_its_own)), Some(_)) => {
                        Outcome::Failed(of_its_own)
                    }
                    (_, Some(outcome)) => outcome,
                    (_, None) => Outcome::Failed(WcStatus::Flushed),
                };
                posted.outcome = Some(outcome);
                next = None;
            }
        }
        if let Some(outcome) = next
            && let Some(wqe) = self.fresh.pop_front()
        {
            let qpn = self.stream.qpn;
            wqe.send.complete(qpn, outcome.status(), completions);
        }
        self.failed = true;
        self.flush(completions);
    }

    /// Lets no work request begin, or all again.
    pub(super) const fn hold(&mut self, holds: bool) {
        self.holds = holds;
    }

    /// Whether a work request that has begun is not complete.
    pub(super) fn has_begun(&self) -> bool {
        self.begun() > 0
    }

    fn begun(&self) -> usize {
        let held: usize = self.peers.values().map(|to| to.held.len()).sum();
        self.posted.len() - held
    }

    /// Whether work requests to a peer are not complete.
    pub(super) fn has_work(&self, peer: Peer) -> bool {
        self.peers
            .get(&peer)
            .is_some_and(|to| !to.tokens.is_empty())
    }

    /// Number of the message of a work request; `None` before its first segment left.
    pub(super) fn message(&self, token: u64) -> Option<u32> {
        self.posted.get(&token)?.message
    }

    /// Work requests that are not complete, but for those that wait in SQD.
    pub(super) fn len(&self) -> usize {
        if self.holds {
            self.begun()
        } else {
            self.fresh.len() + self.posted.len()
        }
    }

    /// The address of ours that datagrams to a peer leave from.
    pub(super) fn source(&self, peer: Peer) -> Option<IpAddr> {
        self.peers.get(&peer)?.from
    }

    /// A segment of the peer came to this address of ours.
    pub(super) fn note_address(&mut self, peer: Peer, to: Option<IpAddr>) {
        let known = self.peers.entry(peer).or_default();
        if known.from.is_none() {
            known.from = to;
        }
    }

    /// Gives the associations what was accepted, and what waited for responses.
    pub(super) fn post(
        &mut self,
        now: Instant,
        tables: Tables<'_>,
        endpoint: &mut Endpoint,
        completions: &mut impl CompletionSink,
    ) {
        if self.holds {
            return;
        }
        for peer in std::mem::take(&mut self.answered) {
            self.begin(now, peer, tables, endpoint, completions);
        }
        while let Some(wqe) = self.fresh.pop_front() {
            let (peer, token) = (self.only.unwrap_or(wqe.peer), self.next);
            self.next += 1;
            let to = self.peers.entry(peer).or_default();
            to.from = wqe.route.source().or(to.from);
            to.tokens.push_back(token);
            to.held.push_back(token);
            let posted = Posted {
                wqe,
                payload: 0,
                message: None,
                response: Arriving::default(),
                outcome: None,
            };
            self.posted.insert(token, posted);
            self.begin(now, peer, tables, endpoint, completions);
        }
    }

    /// Begins the work requests to a peer whose turn it is: Reads and atomics are bounded, and a fence waits for all of them
    /// (RFC 5040 §5.5 rule 12).
    fn begin(
        &mut self,
        now: Instant,
        peer: Peer,
        tables: Tables<'_>,
        endpoint: &mut Endpoint,
        completions: &mut impl CompletionSink,
    ) {
        while let Some(to) = self.peers.get_mut(&peer)
            && let Some(&token) = to.held.front()
            && let Some(posted) = self.posted.get_mut(&token)
        {
            let outstanding = to.requests.len();
            let waits = posted.wqe.send.fence && outstanding > 0
                || posted.is_request() && outstanding >= self.ord
                || posted.waits_for_all() && to.tokens.front() != Some(&token);
            if waits || self.stops {
                return;
            }
            to.held.pop_front();
            if let RcWork::Memory(work) = posted.wqe.send.work {
                let outcome = match work.carry_out(tables.mrs, self.stream) {
                    Ok(()) => Outcome::Placed,
                    Err(_) => Outcome::Failed(WcStatus::MwBind),
                };
                self.end(peer, token, outcome, completions);
                continue;
            }
            let write = posted.is_request();
            let protected = check(tables.mrs, self.stream.pd, &posted.wqe.send.data, write);
            if protected.is_err() {
                let outcome = if self.is_connected {
                    Outcome::Failed(WcStatus::LocalProtection)
                } else {
                    Outcome::Unsent(WcStatus::LocalProtection)
                };
                self.end(peer, token, outcome, completions);
                continue;
            }
            if write {
                to.requests.push(token);
            }
            let datagram = longest(&posted.wqe.route, now, self.datagram);
            let post = cut(token, &posted.wqe.send, datagram);
            posted.payload = u32::from(post.length) - header_of(posted.wqe.send.work);
            endpoint.post(now, peer, datagram, post);
            if write {
                endpoint.await_responses(peer, true);
            }
        }
    }

    /// Writes a segment: its header, and its octets as they are in memory now.
    pub(super) fn write(
        &mut self,
        mrs: &MrTable,
        peer: Peer,
        token: u64,
        header: &SegmentHeader,
        segment: &mut [u8],
    ) {
        let Some(posted) = self.posted.get_mut(&token) else {
            return;
        };
        posted.message = Some(header.message);
        let (number, pd) = (request_number(token), self.stream.pd);
        let written = posted
            .wqe
            .write((mrs, pd), (number, posted.payload), header, segment);
        if written.is_err() {
            self.broken = Some((peer, token, WcStatus::LocalProtection));
        }
    }

    /// The message that failed at this end: its memory is not registered any more, or its response is not that of its request.
    pub(super) fn take_broken(&mut self) -> Option<(Peer, u64, WcStatus)> {
        self.broken.take()
    }

    /// The message fails so, whatever its association reports.
    pub(super) fn break_off(&mut self, token: u64, status: WcStatus) {
        if let Some(posted) = self.posted.get_mut(&token) {
            posted.outcome = Some(Outcome::Failed(status));
        }
    }

    /// The request that a response of the peer names.
    fn request(&mut self, peer: Peer, number: u32) -> Option<(u64, &mut Posted)> {
        let requests = &self.peers.get(&peer)?.requests;
        let mut named = requests.iter().copied();
        let token = named.find(|token| request_number(*token) == number)?;
        Some((token, self.posted.get_mut(&token)?))
    }

    /// Places a segment of a response.
    pub(super) fn place<P: Placeable + ?Sized>(
        &mut self,
        peer: Peer,
        header: &SegmentHeader,
        answer: Answer<'_, P>,
        mrs: &MrTable,
    ) -> Verdict {
        let pd = self.stream.pd;
        let number = match &answer {
            Answer::Read { request, .. } => *request,
            Answer::Atomic(response) => response.identifier,
        };
        let unknown = StreamError::Tagged(TaggedError::InvalidStag);
        let Some((token, posted)) = self.request(peer, number) else {
            return refuse(unknown);
        };
        let send = &posted.wqe.send;
        let is_read = matches!(send.work, RcWork::Read { .. });
        let other = posted
            .response
            .message
            .is_some_and(|it| it != header.message);
        if other || is_read != matches!(answer, Answer::Read { .. }) {
            return refuse(unknown);
        }
        let placed = match answer {
            Answer::Read {
                offset, payload, ..
            } => {
                let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
                let inside = u32::try_from(offset).ok().filter(|offset| {
                    offset
                        .checked_add(length)
                        .is_some_and(|end| end <= send.length)
                });
                let Some(offset) = inside else {
                    return refuse(StreamError::Tagged(TaggedError::BaseOrBounds));
                };
                // No sum of segments inside a Read exceeds it, unless they overlap.
                posted.response.octets = posted.response.octets.saturating_add(length);
                scatter(mrs, pd, send.data.sink(), offset, payload)
            }
            Answer::Atomic(response) => {
                posted.response.octets = send.length;
                // The verbs give the value in the byte order of the machine.
                let value = response.original.to_ne_bytes();
                scatter(mrs, pd, send.data.sink(), 0, &value[..])
            }
        };
        posted.response.message = Some(header.message);
        if placed.is_err() {
            let status = WcStatus::LocalProtection;
            // The response may be whole.
            posted.outcome = Some(Outcome::Failed(status));
            self.broken = Some((peer, token, status));
        }
        Verdict::Placed
    }

    /// A response is there. Returns whether the message was one.
    pub(super) fn deliver(
        &mut self,
        peer: Peer,
        message: u32,
        completions: &mut impl CompletionSink,
    ) -> bool {
        let Self { peers, posted, .. } = self;
        let Some(to) = peers.get_mut(&peer) else {
            return false;
        };
        let is_its = |token: &u64| {
            posted
                .get(token)
                .is_some_and(|it| it.response.message == Some(message))
        };
        let Some(at) = to.requests.iter().position(is_its) else {
            return false;
        };
        let token = to.requests.swap_remove(at);
        self.answered.push(peer);
        let whole = posted
            .get(&token)
            .is_some_and(|it| it.response.octets == it.wqe.send.length);
        if whole {
            self.end(peer, token, Outcome::Placed, completions);
        } else {
            // Its segments overlap, or leave a gap.
            self.broken = Some((peer, token, WcStatus::RemoteOperation));
        }
        true
    }

    /// Whether responses of the peer are outstanding.
    pub(super) fn has_requests(&self, peer: Peer) -> bool {
        self.peers
            .get(&peer)
            .is_some_and(|to| !to.requests.is_empty())
    }

    /// The peer has placed a message, which ends with it; a request ends with its response.
    pub(super) fn on_placed(
        &mut self,
        peer: Peer,
        token: u64,
        completions: &mut impl CompletionSink,
    ) {
        if self.posted.get(&token).is_some_and(|it| !it.is_request()) {
            self.end(peer, token, Outcome::Placed, completions);
        }
    }

    /// The peer refuses a request, or a Write of an RC QP, behind its acknowledgement. Returns the work request's token.
    pub(super) fn refused(&self, peer: Peer, message: u32) -> Option<u64> {
        let to = self.peers.get(&peer)?;
        let is_it = |token: &u64| {
            let posted = self.posted.get(token);
            posted.is_some_and(|it| it.message == Some(message))
        };
        let request = to.requests.iter().copied().find(is_it);
        let others = self.is_connected.then(|| to.tokens.iter().copied());
        request.or_else(|| others?.find(is_it))
    }

    /// A message ended. It completes, and those behind it that ended before, when all before it completed.
    pub(super) fn end(
        &mut self,
        peer: Peer,
        token: u64,
        outcome: Outcome,
        completions: &mut impl CompletionSink,
    ) {
        if let Some(posted) = self.posted.get_mut(&token) {
            posted.outcome.get_or_insert(outcome);
        }
        self.stops |= self.is_connected && outcome != Outcome::Placed;
        let Some(to) = self.peers.get_mut(&peer) else {
            return;
        };
        let mut failed = self.failed;
        while let Some(first) = to.tokens.front() {
            let Some(outcome) = self.posted.get(first).and_then(|it| it.outcome) else {
                break;
            };
            let status = match outcome {
                // Placed, and its delivery is unknown: a message before it is missing.
                Outcome::Placed if failed => WcStatus::Flushed,
                outcome => outcome.status(),
            };
            failed |= matches!(outcome, Outcome::Failed(_));
            if let Some(posted) = self.posted.remove(first) {
                let send = &posted.wqe.send;
                send.complete(self.stream.qpn, status, completions);
            }
            to.tokens.pop_front();
        }
        self.failed |= failed && self.is_connected;
        // One that waits for those before it may begin.
        if self.is_connected && !to.held.is_empty() && !self.answered.contains(&peer) {
            self.answered.push(peer);
        }
    }

    /// Gives memory back that is kept for work requests to a peer.
    pub(super) fn shrink(&mut self, peer: Peer) {
        if let Some(to) = self.peers.get_mut(&peer) {
            to.tokens.shrink_to_fit();
            to.held.shrink_to_fit();
            to.requests.shrink_to_fit();
        }
    }

    /// Work requests to a peer that there is memory for.
    #[cfg(test)]
    pub(super) fn capacity(&self, peer: Peer) -> usize {
        let to = self.peers.get(&peer);
        to.map_or(0, |it| it.tokens.capacity() + it.held.capacity())
    }

    /// The association with a peer ended, and all work requests to the peer that were there with it.
    pub(super) fn forget(
        &mut self,
        peer: Peer,
        cause: Cause,
        completions: &mut impl CompletionSink,
    ) {
        let Some(to) = self.peers.get_mut(&peer) else {
            return;
        };
        to.held.clear();
        to.requests.clear();
        let Some(last) = to.tokens.back().copied() else {
            self.peers.remove(&peer);
            return;
        };
        let outcome = Outcome::of(cause);
        for token in &to.tokens {
            if let Some(posted) = self.posted.get_mut(token) {
                posted.outcome.get_or_insert(outcome);
            }
        }
        self.end(peer, last, outcome, completions);
    }

    /// Ends what never reached an association.
    pub(super) fn flush(&mut self, completions: &mut impl CompletionSink) {
        let qpn = self.stream.qpn;
        self.answered.clear();
        self.peers.values_mut().for_each(|to| {
            to.held.clear();
            to.tokens.clear();
        });
        let mut tokens: Vec<u64> = self.posted.keys().copied().collect();
        tokens.sort_unstable();
        for token in tokens {
            if let Some(posted) = self.posted.remove(&token) {
                let status = match posted.outcome {
                    // Carried out, and behind one that was not: RC has no success behind an error.
                    None => WcStatus::Flushed,
                    Some(Outcome::Placed) if self.is_connected => WcStatus::Flushed,
                    Some(outcome) => outcome.status(),
                };
                posted.wqe.send.complete(qpn, status, completions);
            }
        }
        for wqe in std::mem::take(&mut self.fresh) {
            wqe.send.complete(qpn, WcStatus::Flushed, completions);
        }
    }
}

/// Name of a request in its response.
fn request_number(token: u64) -> u32 {
    u32::try_from(token & u64::from(u32::MAX)).unwrap_or(0)
}

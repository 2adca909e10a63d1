//! Responding half of RDMA Read (§6, §7.1, §7.2): queues of requests, their schedule, and limits.
//!
//! The responder holds requests and schedules requesters; the caller reads memory and builds the response, because memory may
//! only be held for the length of one call.

mod reports;

use std::collections::VecDeque;
use std::hash::Hash;
use std::time::Instant;

use arrayvec::ArrayVec;
use dgiwarp_ddp::wire::tagged;
use rustc_hash::FxHashMap;
use slab::Slab;

use super::amplification::AMPLIFICATION;
use super::segment::{About, Outgoing, Short, TerminateReport, emit_terminate};
use crate::datagram::{Cookie, CookieExchange, DropReason, ExchangeKind, Secret};
use crate::wire::{Cause, ReadRequest};
use reports::Reports;

/// Most requests queued for one requester.
const MAX_REQUESTS: usize = 16;
/// Most requesters with queued requests.
const MAX_REQUESTERS: usize = 1024;
/// Most of them without a valid cookie: their addresses may be forged.
const MAX_UNVALIDATED: usize = MAX_REQUESTERS / 2;
/// Most short answers that wait to be sent.
const MAX_REPLIES: usize = 256;

/// Settings of a [`Responder`].
#[derive(Debug, Clone, Copy)]
pub struct ResponderConfig {
    /// The QP's number.
    pub qpn: u32,
    /// Our epoch.
    pub epoch: u32,
    /// Key of the cookies.
    pub secret: Secret,
    /// First MSN of queue 2, a random number.
    pub msn: u32,
    /// Octets that the lower layer adds to each segment.
    pub overhead: usize,
}

/// A request, or the rest of one, that waits for its response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pending<V> {
    /// Request for the octets not sent.
    pub request: ReadRequest,
    /// Local address of the request.
    pub via: V,
    /// The request has a valid cookie. Without one, the response is one segment within the limit of amplification.
    pub validated: bool,
}

#[derive(Debug)]
struct QueuedRequester<K, V> {
    peer: K,
    validated: bool,
    requests: ArrayVec<Pending<V>, MAX_REQUESTS>,
}

/// The responding half of a datagram QP's Reads. `K` is the address of a peer, `V` an address of ours.
#[derive(Debug)]
pub struct Responder<K, V> {
    config: ResponderConfig,
    requesters: Slab<QueuedRequester<K, V>>,
    index: FxHashMap<K, usize>,
    unvalidated: usize,
    /// Requesters in the order of their turns.
    turns: VecDeque<usize>,
    /// Short answers: cookies and Terminates.
    replies: VecDeque<Outgoing<K, V>>,
    reports: Reports<K>,
}

impl<K: Copy + Eq + Hash, V: Copy + Eq> Responder<K, V> {
    /// A responder without requests.
    #[must_use]
    pub fn new(config: ResponderConfig) -> Self {
        Self {
            requesters: Slab::new(),
            index: FxHashMap::default(),
            unvalidated: 0,
            turns: VecDeque::new(),
            replies: VecDeque::new(),
            reports: Reports::new(config.msn),
            config,
        }
    }

    /// Whether this is the cookie of a requester with this epoch.
    #[must_use]
    pub fn is_valid(&self, from: K, epoch: u32, cookie: Option<Cookie>) -> bool {
        cookie.is_some_and(|cookie| {
            self.config.secret.cookie(self.config.qpn, &from, epoch) == cookie
        })
    }

    /// Handles a Read Request that came in a datagram of `octets`. `check` returns whether its requester, with or
    /// without a valid cookie, may read its source.
    ///
    /// # Errors
    /// The drop reason. If `check` refused the request and its cookie is valid, a Terminate reports the error to the requester.
    pub fn handle_request(
        &mut self,
        now: Instant,
        (from, via): (K, V),
        (epoch, cookie): (u32, Option<Cookie>),
        request: ReadRequest,
        octets: usize,
        check: impl FnOnce(&ReadRequest, bool) -> Result<(), DropReason>,
    ) -> Result<(), DropReason> {
        let validated = self.is_valid(from, epoch, cookie);
        let response = tagged::LEN + request.size as usize + self.config.overhead;
        let long = response > AMPLIFICATION * octets;
        if !validated && long {
            return Err(DropReason::UnvalidatedRead);
        }
        // RFC 5040 §5.2.1: STag and TO of a Read of zero octets are not checked.
        if request.size > 0
            && let Err(reason) = check(&request, validated)
        {
            if validated && let Some(cause) = cause_of(reason) {
                self.report(now, (from, via), octets, cause, About::Request(request));
            }
            return Err(reason);
        }
        let pending = Pending {
            request,
            via,
            validated,
        };
        let slot = self.requester(from, validated)?;
        let requests = &mut self.requesters[slot].requests;
        if requests.iter().any(|it| it.request == request) {
            // A repetition of a request that is still queued.
            return Err(DropReason::Duplicate);
        }
        requests
            .try_push(pending)
            .map_err(|_| DropReason::ReadQueueFull)
    }

    /// The queue of a requester, made if it has none.
    fn requester(&mut self, peer: K, validated: bool) -> Result<usize, DropReason> {
        if let Some(slot) = self.index.get(&peer) {
            return Ok(*slot);
        }
        let is_full = self.requesters.len() >= MAX_REQUESTERS
            || (!validated && self.unvalidated >= MAX_UNVALIDATED);
        if is_full {
            return Err(DropReason::NoSourceSlot);
        }
        self.unvalidated += usize::from(!validated);
        let slot = self.requesters.insert(QueuedRequester {
            peer,
            validated,
            requests: ArrayVec::new(),
        });
        self.index.insert(peer, slot);
        self.turns.push_back(slot);
        Ok(slot)
    }

    /// Whether a request waits for its response.
    #[must_use]
    #[inline]
    pub fn has_turn(&self) -> bool {
        !self.turns.is_empty()
    }

    /// Whether [`turn`](Self::turn) or [`reply`](Self::reply) has something.
    #[must_use]
    #[inline]
    pub fn has_output(&self) -> bool {
        self.has_turn() || !self.replies.is_empty()
    }

    /// The next requester, and its requests in order.
    #[must_use]
    pub fn turn(&self) -> Option<(K, &[Pending<V>])> {
        let requester = &self.requesters[*self.turns.front()?];
        Some((requester.peer, &requester.requests))
    }

    /// Counts octets as sent to the next requester: its first `finished` requests whole, and `octets` of the request behind them. Another
    /// requester is the next one then.
    pub fn commit(&mut self, finished: usize, octets: u32) {
        let Some(&slot) = self.turns.front() else {
            return;
        };
        let requester = &mut self.requesters[slot];
        let finished = finished.min(requester.requests.len());
        requester.requests.drain(..finished);
        if octets > 0
            && let Some(next) = requester.requests.first_mut()
            && let Some(left) = next.request.after(octets)
        {
            next.request = left;
        }
        self.end_turn();
    }

    /// Ends the first request of the next requester, because its source may not be read any more.
    pub fn refuse(&mut self, now: Instant, reason: DropReason) {
        let Some(&slot) = self.turns.front() else {
            return;
        };
        let requester = &mut self.requesters[slot];
        let from = requester.peer;
        if let Some(pending) = requester.requests.pop_at(0)
            && pending.validated
            && let Some(cause) = cause_of(reason)
        {
            // The cause was a request with a cookie, which is longer than any Terminate.
            let (via, about) = (pending.via, About::Request(pending.request));
            self.report(now, (from, via), usize::MAX, cause, about);
        }
        self.end_turn();
    }

    fn end_turn(&mut self) {
        let Some(slot) = self.turns.pop_front() else {
            return;
        };
        if self.requesters[slot].requests.is_empty() {
            let gone = self.requesters.remove(slot);
            self.index.remove(&gone.peer);
            self.unvalidated -= usize::from(!gone.validated);
        } else {
            self.turns.push_back(slot);
        }
    }

    /// Handles a cookie request: an answer of its length is queued.
    ///
    /// # Errors
    /// [`DropReason::ReadQueueFull`] where too many answers wait already.
    pub fn handle_exchange(
        &mut self,
        (from, via): (K, V),
        request: &CookieExchange,
    ) -> Result<(), DropReason> {
        let answer = CookieExchange {
            kind: ExchangeKind::Answer,
            cookie: self
                .config
                .secret
                .cookie(self.config.qpn, &from, request.epoch),
            ..*request
        };
        self.queue(from, via, answer.emit())
    }

    fn queue(&mut self, peer: K, via: V, segment: Short) -> Result<(), DropReason> {
        if self.replies.len() >= MAX_REPLIES {
            return Err(DropReason::ReadQueueFull);
        }
        self.replies.push_back(Outgoing { peer, via, segment });
        Ok(())
    }

    /// Queues a Terminate to a peer (§7.2), within the rate limit, and if the Terminate is not longer than its cause, a datagram of
    /// `cause_octets`. The caller has checked that the address of the peer is validated, and that the cause was neither a Terminate nor sent to a
    /// group.
    pub fn report(
        &mut self,
        now: Instant,
        (to, via): (K, V),
        cause_octets: usize,
        cause: Cause,
        about: About,
    ) {
        let report = TerminateReport { cause, about };
        let segment = emit_terminate(&report, self.config.epoch, self.reports.msn());
        if segment.octets.len() + self.config.overhead > cause_octets
            || !self.reports.may_report(now, to)
        {
            return;
        }
        if self.queue(to, via, segment).is_ok() {
            self.reports.sent();
        }
    }

    /// The oldest short answer.
    #[must_use]
    pub fn reply(&self) -> Option<&Outgoing<K, V>> {
        self.replies.front()
    }

    /// Removes the oldest short answer, which was sent.
    pub fn replied(&mut self) {
        self.replies.pop_front();
    }

    /// Removes all requests and answers, for the destruction of the QP.
    pub fn clear(&mut self) {
        self.requesters.clear();
        self.index.clear();
        self.turns.clear();
        self.replies.clear();
        self.unvalidated = 0;
    }
}

/// Row of RFC 5040 §4.8 for a drop reason; `None` for reasons that are not reported to the peer.
#[must_use]
pub const fn cause_of(reason: DropReason) -> Option<Cause> {
    match reason {
        DropReason::BadStag => Some(Cause::INVALID_STAG),
        DropReason::BadPd => Some(Cause::NOT_ASSOCIATED),
        DropReason::NoAccess
        | DropReason::WrongPeer
        | DropReason::BadCookie
        | DropReason::NotWellKnown => Some(Cause::ACCESS),
        DropReason::OutOfBounds => Some(Cause::BASE_OR_BOUNDS),
        DropReason::Malformed
        | DropReason::BadCrc
        | DropReason::UnknownFormat
        | DropReason::BadVersion
        | DropReason::UnexpectedOpcode
        | DropReason::BadQkey
        | DropReason::NoReceive
        | DropReason::ReceiveTooShort
        | DropReason::ReassemblyFull
        | DropReason::ReassemblyTimeout
        | DropReason::ReassemblySuperseded
        | DropReason::WriteRecordOff
        | DropReason::Late
        | DropReason::Duplicate
        | DropReason::NoSourceSlot
        | DropReason::MapFull
        | DropReason::UnvalidatedRead
        | DropReason::ReadQueueFull
        | DropReason::Unsolicited
        | DropReason::IncompleteWrite
        | DropReason::RecordDropped
        | DropReason::SegmentUnreported
        | DropReason::BacklogFull => None,
    }
}

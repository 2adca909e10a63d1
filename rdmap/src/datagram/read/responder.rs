//! The responding half of RDMA Read (§6, §7.1, §7.2): who is answered, when, and how much.
//!
//! It holds requests and says whose turn it is; the caller reads memory and builds the response, because memory may only be
//! held for the length of one call.

mod reports;

use std::collections::VecDeque;
use std::hash::Hash;
use std::time::Instant;

use arrayvec::ArrayVec;
use dgiwarp_ddp::wire::tagged;
use rustc_hash::FxHashMap;
use slab::Slab;

use super::amplification::AMPLIFICATION;
use super::segment::{About, Short, TerminateReport, emit_terminate};
use crate::datagram::{Cookie, CookieExchange, DropReason, ExchangeKind, Secret};
use crate::wire::{Cause, ReadRequest};
use reports::Reports;

/// Requests queued for one requester.
const MAX_REQUESTS: usize = 16;
/// Requesters that have requests queued.
const MAX_REQUESTERS: usize = 1024;
/// How many of them may be without a valid cookie: their addresses may be made up.
const MAX_UNVALIDATED: usize = MAX_REQUESTERS / 2;
/// Short answers that wait to be sent.
const MAX_REPLIES: usize = 256;

/// Settings of a [`Responder`].
#[derive(Debug, Clone, Copy)]
pub struct ResponderConfig {
    /// The QP's number.
    pub qpn: u32,
    /// Our epoch.
    pub epoch: u32,
    /// What cookies are made with.
    pub secret: Secret,
    /// The first MSN of queue 2, a random number.
    pub msn: u32,
    /// Octets that the lower layer adds to each segment.
    pub overhead: usize,
}

/// A request that waits to be answered, or what is left of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pending<V> {
    /// What is still to be sent.
    pub request: ReadRequest,
    /// The address of ours that was asked.
    pub via: V,
    /// Whether the requester showed a valid cookie. If not, the response is one segment, which the check of its size made short.
    pub validated: bool,
}

/// A short answer: a cookie, or a Terminate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply<K, V> {
    /// To whom.
    pub peer: K,
    /// The address of ours that was asked.
    pub via: V,
    /// Its octets.
    pub segment: Short,
}

#[derive(Debug)]
struct Asker<K, V> {
    peer: K,
    validated: bool,
    requests: ArrayVec<Pending<V>, MAX_REQUESTS>,
}

/// The responding half of a datagram QP's Reads. `K` is the address of a peer, `V` an address of ours.
#[derive(Debug)]
pub struct Responder<K, V> {
    config: ResponderConfig,
    askers: Slab<Asker<K, V>>,
    index: FxHashMap<K, usize>,
    unvalidated: usize,
    /// Requesters in the order of their turns.
    turns: VecDeque<usize>,
    replies: VecDeque<Reply<K, V>>,
    reports: Reports<K>,
}

impl<K: Copy + Eq + Hash, V: Copy + Eq> Responder<K, V> {
    /// A responder without requests.
    #[must_use]
    pub fn new(config: ResponderConfig) -> Self {
        Self {
            askers: Slab::new(),
            index: FxHashMap::default(),
            unvalidated: 0,
            turns: VecDeque::new(),
            replies: VecDeque::new(),
            reports: Reports::new(config.msn),
            config,
        }
    }

    /// Whether this is the cookie that a requester with this epoch was given.
    #[must_use]
    pub fn is_valid(&self, from: K, epoch: u32, cookie: Option<Cookie>) -> bool {
        cookie.is_some_and(|cookie| {
            self.config.secret.cookie(self.config.qpn, &from, epoch) == cookie
        })
    }

    /// Handles a Read Request that came in a datagram of `octets`. `check` says whether its source may be read by
    /// the requester, whose cookie is valid or not.
    ///
    /// # Errors
    /// The reason for which it was dropped. If `check` refused it and its cookie is valid, a Terminate will tell the requester.
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
        // RFC 5040 §5.2.1: of an empty Read neither STag nor TO are looked at.
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
        let slot = self.asker(from, validated)?;
        let requests = &mut self.askers[slot].requests;
        if requests.iter().any(|it| it.request == request) {
            // Asked again while it stands in line.
            return Err(DropReason::Duplicate);
        }
        requests
            .try_push(pending)
            .map_err(|_| DropReason::ReadQueueFull)
    }

    /// The place of a requester's queue, made if it has none.
    fn asker(&mut self, peer: K, validated: bool) -> Result<usize, DropReason> {
        if let Some(slot) = self.index.get(&peer) {
            return Ok(*slot);
        }
        let is_full = self.askers.len() >= MAX_REQUESTERS
            || (!validated && self.unvalidated >= MAX_UNVALIDATED);
        if is_full {
            return Err(DropReason::NoSourceSlot);
        }
        self.unvalidated += usize::from(!validated);
        let slot = self.askers.insert(Asker {
            peer,
            validated,
            requests: ArrayVec::new(),
        });
        self.index.insert(peer, slot);
        self.turns.push_back(slot);
        Ok(slot)
    }

    /// Whether a request waits to be answered.
    #[must_use]
    #[inline]
    pub fn has_turn(&self) -> bool {
        !self.turns.is_empty()
    }

    /// Whose turn it is, and its requests in order.
    #[must_use]
    pub fn turn(&self) -> Option<(K, &[Pending<V>])> {
        let asker = &self.askers[*self.turns.front()?];
        Some((asker.peer, &asker.requests))
    }

    /// Takes note of what was sent to the requester whose turn it was: the first `finished` requests whole, and `octets` of the
    /// next one. It is the next one's turn then.
    pub fn commit(&mut self, finished: usize, octets: u32) {
        let Some(&slot) = self.turns.front() else {
            return;
        };
        let asker = &mut self.askers[slot];
        let finished = finished.min(asker.requests.len());
        asker.requests.drain(..finished);
        if octets > 0
            && let Some(next) = asker.requests.first_mut()
            && let Some(left) = next.request.after(octets)
        {
            next.request = left;
        }
        self.end_turn();
    }

    /// Ends the first request of the requester whose turn it was, because its source may not be read any more.
    pub fn refuse(&mut self, now: Instant, reason: DropReason) {
        let Some(&slot) = self.turns.front() else {
            return;
        };
        let asker = &mut self.askers[slot];
        let from = asker.peer;
        if let Some(pending) = asker.requests.pop_at(0)
            && pending.validated
            && let Some(cause) = cause_of(reason)
        {
            // The cause was a request with a cookie, which is longer than any report.
            let (via, about) = (pending.via, About::Request(pending.request));
            self.report(now, (from, via), usize::MAX, cause, about);
        }
        self.end_turn();
    }

    fn end_turn(&mut self) {
        let Some(slot) = self.turns.pop_front() else {
            return;
        };
        if self.askers[slot].requests.is_empty() {
            let gone = self.askers.remove(slot);
            self.index.remove(&gone.peer);
            self.unvalidated -= usize::from(!gone.validated);
        } else {
            self.turns.push_back(slot);
        }
    }

    /// Handles a cookie request: an answer of the same length will go out.
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
        self.replies.push_back(Reply { peer, via, segment });
        Ok(())
    }

    /// Tells a peer of an error by a Terminate (§7.2), unless it was told too often or the Terminate would be longer than
    /// its cause, a datagram of `cause_octets`. The caller saw to it that the peer proved its address, and that the cause was neither a
    /// Terminate nor sent to a group.
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
    pub fn reply(&self) -> Option<&Reply<K, V>> {
        self.replies.front()
    }

    /// Forgets the oldest short answer, which was sent.
    pub fn replied(&mut self) {
        self.replies.pop_front();
    }

    /// Forgets all requests and answers, for a QP that is torn down.
    pub fn clear(&mut self) {
        self.askers.clear();
        self.index.clear();
        self.turns.clear();
        self.replies.clear();
        self.unvalidated = 0;
    }
}

/// The row of RFC 5040 §4.8 with which a peer is told why its segment was dropped; `None` where that is none of its business.
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

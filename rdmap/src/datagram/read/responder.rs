//! Responding half of RDMA Read (§6, §7.1, §7.2): queues of requests, their schedule, and limits.
//!
//! The responder holds requests and schedules requesters; the caller reads memory and builds the response, because memory may
//! only be held for the length of one call.
//!
//! Requesters are of two [classes](Class) that share no queue: a source address that is not validated may be forged, and costs its sender
//! nothing.

mod reports;
mod round_robin;

use std::collections::VecDeque;
use std::hash::Hash;
use std::time::Instant;

use dgiwarp_ddp::wire::tagged;

use super::amplification::AMPLIFICATION;
use super::segment::{About, Outgoing, TerminateReport, emit_terminate};
use crate::datagram::{Cookie, CookieExchange, DropReason, ExchangeKind, Secret};
use crate::wire::{Cause, ReadRequest};
use reports::Reports;
use round_robin::RoundRobin;

/// Most requests queued for one requester.
const MAX_REQUESTS: usize = 16;
/// Most validated requesters with queued requests.
const MAX_VALIDATED: usize = 1024;
/// Most unvalidated requesters with queued requests, and most with queued cookie requests. Few, so that none waits until its requester repeats the
/// request.
const MAX_UNVALIDATED: usize = 128;
/// Most cookie requests queued for one requester.
const MAX_EXCHANGES: usize = 4;
/// Most Terminates that wait to be sent.
const MAX_TERMINATES: usize = 256;

/// Class of requesters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The request has a valid cookie: its source address is the requester's.
    Validated,
    /// Any other request, and every cookie request: its source address may be forged.
    Unvalidated,
}

impl Class {
    /// Both, in the order in which they are served.
    pub const ALL: [Self; 2] = [Self::Validated, Self::Unvalidated];
}

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
}

type Requests<K, V> = RoundRobin<K, Pending<V>, MAX_REQUESTS>;

/// The responding half of a datagram QP's Reads. `K` is the address of a peer, `V` an address of ours.
#[derive(Debug)]
pub struct Responder<K, V> {
    config: ResponderConfig,
    validated: Requests<K, V>,
    unvalidated: Requests<K, V>,
    /// Cookie requests, and the local addresses that they came to.
    exchanges: RoundRobin<K, (CookieExchange, V), MAX_EXCHANGES>,
    terminates: VecDeque<Outgoing<K, V>>,
    reports: Reports<K>,
}

impl<K: Copy + Eq + Hash, V: Copy + Eq> Responder<K, V> {
    /// A responder without requests.
    #[must_use]
    pub fn new(config: ResponderConfig) -> Self {
        Self {
            validated: RoundRobin::new(MAX_VALIDATED),
            unvalidated: RoundRobin::new(MAX_UNVALIDATED),
            exchanges: RoundRobin::new(MAX_UNVALIDATED),
            terminates: VecDeque::new(),
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

    fn requests(&mut self, class: Class) -> &mut Requests<K, V> {
        match class {
            Class::Validated => &mut self.validated,
            Class::Unvalidated => &mut self.unvalidated,
        }
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
        let class = if validated {
            Class::Validated
        } else {
            Class::Unvalidated
        };
        // First, because it costs least. A repetition of a request that is still queued is a duplicate.
        let admitted = self.requests(class).check(from, |it| it.request == request);
        if !validated {
            admitted?;
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
        admitted?;
        self.requests(class).push(from, Pending { request, via });
        Ok(())
    }

    /// Whether [`turn`](Self::turn) or [`reply`](Self::reply) has something for a class.
    #[must_use]
    #[inline]
    pub fn has_output(&self, class: Class) -> bool {
        match class {
            Class::Validated => !self.validated.is_empty() || !self.terminates.is_empty(),
            Class::Unvalidated => !self.unvalidated.is_empty() || !self.exchanges.is_empty(),
        }
    }

    /// The next requester of a class, and its requests in order. The response to an unvalidated request is one segment within the limit of
    /// amplification.
    #[must_use]
    pub fn turn(&self, class: Class) -> Option<(K, &[Pending<V>])> {
        match class {
            Class::Validated => self.validated.front(),
            Class::Unvalidated => self.unvalidated.front(),
        }
    }

    /// Counts octets as sent to the next requester: its first `finished` requests whole, and `octets` of the request behind them. Another
    /// requester is the next one then.
    pub fn commit(&mut self, class: Class, finished: usize, octets: u32) {
        self.requests(class).end_turn(|_, requests| {
            requests.drain(..finished.min(requests.len()));
            if octets > 0
                && let Some(next) = requests.first_mut()
                && let Some(left) = next.request.after(octets)
            {
                next.request = left;
            }
        });
    }

    /// Ends the first request of the next requester, because its source may not be read any more.
    pub fn refuse(&mut self, class: Class, now: Instant, reason: DropReason) {
        let ended = self
            .requests(class)
            .end_turn(|from, requests| (from, requests.pop_at(0)));
        if let Some((from, Some(pending))) = ended
            && class == Class::Validated
            && let Some(cause) = cause_of(reason)
        {
            // The cause was a request with a cookie, which is longer than any Terminate.
            let (via, about) = (pending.via, About::Request(pending.request));
            self.report(now, (from, via), usize::MAX, cause, about);
        }
    }

    /// Handles a cookie request: an answer of its length is due.
    ///
    /// # Errors
    /// [`DropReason::ReadQueueFull`] or [`DropReason::NoSourceSlot`] where too many requests wait already.
    pub fn handle_exchange(
        &mut self,
        (from, via): (K, V),
        request: &CookieExchange,
    ) -> Result<(), DropReason> {
        self.exchanges.check(from, |_| false)?;
        self.exchanges.push(from, (*request, via));
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
        if self.terminates.len() < MAX_TERMINATES {
            self.terminates.push_back(Outgoing {
                peer: to,
                via,
                segment,
            });
            self.reports.sent();
        }
    }

    /// The next short answer to a peer of a class: a Terminate to a validated one, a cookie to an unvalidated one.
    #[must_use]
    pub fn reply(&self, class: Class) -> Option<Outgoing<K, V>> {
        match class {
            Class::Validated => self.terminates.front().cloned(),
            Class::Unvalidated => {
                let (peer, exchanges) = self.exchanges.front()?;
                let (request, via) = exchanges.first()?;
                let secret = &self.config.secret;
                let answer = CookieExchange {
                    kind: ExchangeKind::Answer,
                    cookie: secret.cookie(self.config.qpn, &peer, request.epoch),
                    ..*request
                };
                Some(Outgoing {
                    peer,
                    via: *via,
                    segment: answer.emit(),
                })
            }
        }
    }

    /// Removes the next short answer, which was sent.
    pub fn replied(&mut self, class: Class) {
        match class {
            Class::Validated => {
                self.terminates.pop_front();
            }
            Class::Unvalidated => {
                self.exchanges.end_turn(|_, exchanges| exchanges.pop_at(0));
            }
        }
    }

    /// Removes all requests and answers, for the destruction of the QP.
    pub fn clear(&mut self) {
        self.validated.clear();
        self.unvalidated.clear();
        self.exchanges.clear();
        self.terminates.clear();
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

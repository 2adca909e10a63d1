//! Greetings and acknowledgements between ends of our own kind: when what is said (rfc-notes/rc-extensions.md).

use std::time::{Duration, Instant};

use dgiwarp_rdmap::stream::{AckRequest, Capabilities, Peer};

use super::{RcEngine, RcWork};
use crate::types::{Completion, RcOptions};

/// How long completions wait for the peer to say who it is, from the first message that leaves: then it is taken for a foreign one that has
/// nothing to say.
const ACQUAINTANCE: Duration = Duration::from_millis(100);
/// How long a Send with immediate waits for the peer to say who it is.
const GREETING: Duration = Duration::from_secs(2);
/// Messages, and octets of them, that are placed before their sender is told of it without having asked.
const TELL_MESSAGES: u64 = 64;
const TELL_OCTETS: usize = 256 << 10;
/// How long what was placed may wait for something to go with, if the sender waits for it and did not ask.
const PATIENCE: Duration = Duration::from_micros(20);
/// How long it may wait if the sender does not: then it is told so that it does not learn it from the connection's end.
pub const LATE: Duration = Duration::from_millis(250);
/// Work requests in the send queue that the program waits for, at most: then the room is asked for.
const UNASKED: usize = 32;

/// What this end tells of itself, if it tells anything.
pub(super) fn capabilities(options: RcOptions) -> Option<Capabilities> {
    let all = match options.completion {
        Completion::Placed => Capabilities::WANTS_ACKNOWLEDGEMENTS,
        Completion::Local => Capabilities::default(),
    };
    let all = all
        .with(Capabilities::TAKES_IMMEDIATES)
        .with(Capabilities::REQUESTS_ACKS);
    options.hello.then_some(all)
}

/// What is to be told of placement, beside what the stream knows.
#[derive(Debug)]
pub(super) struct Placement {
    acquaintance: Acquaintance,
    /// Until when a Send with immediate waits for the peer to say who it is.
    greeting: Option<Instant>,
    /// It has waited long enough.
    no_greeting: bool,
    /// A time is over, and what follows from that is not done.
    timed_out: bool,
    /// Octets received since the peer was told.
    octets: usize,
    /// When something was placed that the peer was not told of.
    since: Option<Instant>,
    /// The peer is to be told even if nothing else leaves.
    tell: bool,
    /// Sends and Writes that the peer has placed as its answers to later requests prove.
    pub(super) proven: u64,
    /// Sends and Writes that left up to and with the last one whose completion the program wants.
    wanted: u64,
    /// From so many posted work requests on their room is wanted too.
    crowd: usize,
    /// All are wanted, for the connection is about to end.
    all: bool,
}

impl Default for Placement {
    fn default() -> Self {
        Self {
            acquaintance: Acquaintance::Idle,
            greeting: None,
            no_greeting: false,
            timed_out: false,
            octets: 0,
            since: None,
            tell: false,
            proven: 0,
            wanted: 0,
            crowd: UNASKED,
            all: false,
        }
    }
}

/// How long an unknown peer is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Acquaintance {
    #[default]
    Idle,
    Until(Instant),
    Over,
}

impl RcEngine {
    /// Greets the peer if it is the time for that.
    pub(super) fn greet(&mut self, now: Instant) {
        if !self.llp.may_send() || self.is_amid() {
            return;
        }
        if self.stream.dgiwarp_ext().is_hello_due(self.is_initiator) {
            self.say_hello(now);
        }
    }

    /// Says who we are, or, where we keep quiet, nothing in the same form. To a foreign peer both are alike.
    pub(super) fn say_hello(&mut self, now: Instant) {
        let hello = self.stream.dgiwarp_ext_mut().hello();
        let ulpdu = hello.unwrap_or_else(super::RcStream::rtr_write);
        self.put(now, &ulpdu, &[]);
    }

    /// Whether a message has begun and not ended: nothing may come in between.
    pub(super) fn is_amid(&self) -> bool {
        self.sending.is_some() || self.stream.is_amid_response()
    }

    /// How many Sends and Writes are complete as far as the peer is concerned; `None` if all are.
    pub(super) fn placed_by_peer(&mut self) -> Option<u64> {
        if self.config.options.completion == Completion::Local {
            return None;
        }
        let dgiwarp_ext = self.stream.dgiwarp_ext_mut();
        dgiwarp_ext.set_acknowledged(self.placement.proven);
        match dgiwarp_ext.peer() {
            Peer::Dgiwarp(_) => Some(dgiwarp_ext.acknowledged()),
            Peer::Unknown => (self.placement.acquaintance != Acquaintance::Over)
                .then_some(dgiwarp_ext.acknowledged()),
            Peer::Plain => None,
        }
    }

    /// Whether all that was posted has left, and the peer has yet to say that it has placed it.
    pub fn awaits_placement(&self) -> bool {
        let left = self.sends.unstarted().is_none() && !self.is_amid();
        self.end.is_none()
            && left
            && self
                .sends
                .oldest_is_framed(|extent| extent.octets <= self.taken)
    }

    /// Something leaves: from now on an unknown peer has its time.
    #[inline]
    pub(super) fn expect_acquaintance(&mut self, now: Instant) {
        if self.placement.acquaintance == Acquaintance::Idle && self.stream.dgiwarp_ext().sent() > 0
        {
            self.placement.acquaintance = match self.stream.dgiwarp_ext().peer() {
                Peer::Unknown => Acquaintance::Until(now + ACQUAINTANCE),
                Peer::Dgiwarp(_) | Peer::Plain => Acquaintance::Over,
            };
        }
    }

    /// When waiting for an unknown peer ends.
    pub(super) fn acquaintance_deadline(&self) -> Option<Instant> {
        match self.placement.acquaintance {
            Acquaintance::Until(until) if self.stream.dgiwarp_ext().peer() == Peer::Unknown => {
                Some(until)
            }
            Acquaintance::Until(_) | Acquaintance::Idle | Acquaintance::Over => None,
        }
    }

    pub(super) fn end_acquaintance(&mut self, now: Instant) {
        if self.acquaintance_deadline().is_some_and(|it| it <= now) {
            self.placement.acquaintance = Acquaintance::Over;
            self.placement.timed_out = true;
        }
        if self.greeting_deadline().is_some_and(|it| it <= now) {
            self.placement.no_greeting = true;
        }
    }

    /// Whether a time is over and `make_fpdus` has to do what follows, or is to begin.
    #[inline]
    pub(super) fn has_timed_out(&self) -> bool {
        self.placement.timed_out || self.parked_too_long || self.awaits_greeting()
    }

    pub(super) fn end_timeouts(&mut self) {
        self.placement.timed_out = false;
    }

    /// Whether a Send with immediate has to wait for the peer to say who it is, and its time has not begun.
    fn awaits_greeting(&self) -> bool {
        !self.has_met_peer()
            && self.placement.greeting.is_none()
            && self
                .sends
                .unstarted()
                .is_some_and(|(_, wqe)| matches!(wqe.work, RcWork::SendImmediate { .. }))
    }

    /// Whether it is known who the peer is, or was waited for in vain.
    pub(super) fn has_met_peer(&self) -> bool {
        self.stream.dgiwarp_ext().peer() != Peer::Unknown || self.placement.no_greeting
    }

    /// Whether the peer is known to take no Sends with immediate.
    #[inline]
    pub fn peer_refuses_immediates(&self) -> bool {
        self.has_met_peer() && !self.peer_takes_immediates()
    }

    pub(super) fn peer_takes_immediates(&self) -> bool {
        match self.stream.dgiwarp_ext().peer() {
            Peer::Dgiwarp(capabilities) => capabilities.contain(Capabilities::TAKES_IMMEDIATES),
            Peer::Unknown | Peer::Plain => false,
        }
    }

    /// If a Send with immediate waits for the peer to say who it is, that has its time from now on.
    pub(super) fn expect_greeting(&mut self, now: Instant) {
        if self.awaits_greeting() {
            self.placement.greeting = Some(now + GREETING);
        }
    }

    pub(super) fn greeting_deadline(&self) -> Option<Instant> {
        self.placement.greeting.filter(|_| !self.has_met_peer())
    }

    /// So many octets were received and handled.
    #[inline]
    pub(super) fn note_placed(&mut self, now: Instant, octets: usize) {
        let owed = self.stream.dgiwarp_ext().pending_acks();
        if owed == 0 {
            return;
        }
        self.placement.octets += octets;
        self.placement.since.get_or_insert(now);
        if owed >= TELL_MESSAGES || self.placement.octets >= TELL_OCTETS {
            self.placement.tell = true;
        }
    }

    /// Whether the peer wants to know of something that was placed.
    #[inline]
    pub fn owes_acknowledgement(&self) -> bool {
        self.end.is_none() && self.stream.dgiwarp_ext().pending_acks() > 0
    }

    /// Whether it waits for that.
    #[inline]
    pub fn is_awaited(&self) -> bool {
        self.end.is_none() && self.stream.dgiwarp_ext().is_ack_awaited()
    }

    /// Whoever looks after the connection has found nothing to receive, or will not look again soon (`at_once`). Returns whether the peer is to be
    /// told now what was placed: what the program posted in the meantime took nothing along.
    #[inline]
    pub fn tell_placed(&mut self, now: Instant, at_once: bool) -> bool {
        if !self.owes_acknowledgement() {
            return false;
        }
        let dgiwarp_ext = self.stream.dgiwarp_ext();
        let waited = || {
            let since = self.placement.since;
            since.is_none_or(|since| since + PATIENCE <= now)
        };
        if dgiwarp_ext.is_ack_awaited() && (at_once || dgiwarp_ext.is_ack_requested() || waited()) {
            self.placement.tell = true;
        }
        self.placement.tell
    }

    /// The same where the peer has not been told for long: it does not wait, but should not learn it from the connection's end. Returns whether there
    /// is something to tell.
    pub fn tell_late(&mut self) -> bool {
        self.placement.tell |= self.owes_acknowledgement();
        self.placement.tell
    }

    /// So many work requests fit the send queue: the room of those that the program does not wait for is needed, too.
    pub fn limit_sends(&mut self, most: usize) {
        self.placement.crowd = most.div_ceil(2).min(UNASKED);
    }

    /// Asks what the peer has placed, whether the program waits for that or not.
    pub fn ask_for_all(&mut self) {
        self.placement.all = true;
    }

    /// A Send or Write has left, the `messages`th, of which the program wants to know.
    #[inline]
    pub(super) fn note_wanted(&mut self, messages: u64) {
        self.placement.wanted = messages;
    }

    /// Whether something is to be told even if nothing else leaves.
    #[inline]
    pub(super) fn has_to_tell(&self) -> bool {
        let dgiwarp_ext = self.stream.dgiwarp_ext();
        dgiwarp_ext.is_hello_due(self.is_initiator)
            || (self.placement.tell && dgiwarp_ext.pending_acks() > 0)
            || self.asks_of_all()
    }

    /// Tells the peer what was placed: in front of what leaves next (`with_others`), so that completions come in the order of what
    /// happened, or alone where it must be. No message may have begun.
    #[inline]
    pub(super) fn acknowledge(&mut self, now: Instant, with_others: bool) {
        let question = if self.asks_of_next() {
            Some(AckRequest::Next)
        } else if self.asks_of_all() {
            Some(AckRequest::All)
        } else {
            None
        };
        if !(with_others || self.placement.tell || question.is_some()) {
            return;
        }
        if self.stream.dgiwarp_ext().pending_acks() > 0 || question.is_some() {
            let ulpdu = self.stream.dgiwarp_ext_mut().acknowledge(question);
            self.put(now, &ulpdu, &[]);
        }
        self.placement.tell = false;
        self.placement.octets = 0;
        self.placement.since = None;
    }

    /// Whether a question may be asked at all.
    #[inline]
    fn may_request_ack(&self) -> bool {
        let dgiwarp_ext = self.stream.dgiwarp_ext();
        matches!(dgiwarp_ext.peer(), Peer::Dgiwarp(_))
            && self.config.options.completion == Completion::Placed
            && dgiwarp_ext.may_request_ack()
    }

    /// Whether an acknowledgement of something that has left is wanted.
    #[inline]
    fn wants_more(&self) -> bool {
        let dgiwarp_ext = self.stream.dgiwarp_ext();
        let acknowledged = dgiwarp_ext.acknowledged();
        let any = self.placement.all || self.sends.len() >= self.placement.crowd;
        acknowledged < self.placement.wanted || (any && acknowledged < dgiwarp_ext.sent())
    }

    /// Whether to ask for an acknowledgement of the work request that leaves next.
    fn asks_of_next(&self) -> bool {
        self.may_request_ack()
            && self.may_begin()
            && self.sends.unstarted().is_some_and(|(_, wqe)| {
                let is_message = matches!(
                    wqe.work,
                    RcWork::Send { .. } | RcWork::SendImmediate { .. } | RcWork::Write { .. }
                );
                let crowd = self.sends.len() >= self.placement.crowd;
                is_message && (wqe.signaled || crowd || self.wants_more())
            })
    }

    /// Whether to ask for an acknowledgement of what has left, since nothing follows that could take the question along.
    #[inline]
    fn asks_of_all(&self) -> bool {
        self.wants_more()
            && self.may_request_ack()
            && self.stream.dgiwarp_ext().peer_requests_acks()
            && self.sends.unstarted().is_none()
            && self.llp.may_send()
            && !self.is_amid()
    }
}

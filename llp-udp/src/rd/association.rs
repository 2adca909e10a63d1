//! One association (§4): both directions of the traffic with one peer.

mod arrival;
mod departure;
mod doubt;
mod rest;
#[cfg(test)]
mod tests;
mod timers;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::config::{Event, RdConfig};
use super::congestion::Congestion;
use super::flow::pacing::Pacing;
use super::flow::received::Received;
use super::flow::recovery::Recovery;
use super::flow::rtt::{MOST_ACK_DELAY, Rtt};
use super::flow::tuning::Tuning;
use super::frame::{Credit, EcnCounts, Hello, MessageError, NotReady};
use super::message::inbound::Inbound;
use super::message::outbound::Outbound;
use super::path_state::PathState;
use crate::Peer;

pub(super) use arrival::{Datagram, Ended};
pub(super) use departure::time;
pub(super) use rest::Resting;

/// Segments that one datagram carries at most.
const SEGMENTS: usize = 8;
/// RNR frames that wait to be sent.
const NOT_READY: usize = 16;
/// Errors that are not acknowledged: all fit the shortest datagram beside an acknowledgement.
const ERRORS: usize = 32;
/// Pongs that wait to be sent.
const PONGS: usize = 4;
/// Shortest delay of acknowledgements.
const LEAST_ACK_DELAY: Duration = Duration::from_micros(25);
/// Octets in flight up to which a probe timeout allows for the delay of acknowledgements that the peer shows, and no more.
const FEW: u64 = 2 * 1472;
/// Longest probe timeout.
const MOST_PTO: Duration = Duration::from_secs(1);
/// Numbers of which one is skipped.
const SKIP: u64 = 512;
/// Largest packet number.
const LARGEST: u64 = 1 << 62;

/// Contents of a datagram in flight that may have to go again.
#[derive(Debug, Clone, Copy, Default)]
struct Contents {
    segments: [u32; SEGMENTS],
    count: usize,
    /// Number of the message of the latest error that it carries; it has those of all before, too.
    error: Option<u32>,
    /// Largest number that it acknowledges, where it does so with all ranges.
    acknowledges: Option<u64>,
}

impl Contents {
    fn segments(&self) -> impl Iterator<Item = u32> + '_ {
        self.segments.iter().take(self.count).copied()
    }
}

/// An error that the peer did not acknowledge.
#[derive(Debug, Clone, Copy)]
struct OpenError {
    error: MessageError,
    /// It has to leave.
    due: bool,
}

/// Proof that an address receives, under way.
#[derive(Debug, Clone, Copy)]
struct Challenge {
    address: Peer,
    data: u64,
    /// Pings that may still be sent.
    tries: u32,
    due: Instant,
    /// Octets that may be sent there.
    budget: u64,
}

/// One association.
#[derive(Debug)]
pub(super) struct Association {
    /// First address, by which the program identifies the peer.
    pub(super) peer: Peer,
    pub(super) address: Peer,
    /// Identifier that this end drew.
    pub(super) id: u32,
    /// Identifier that the peer drew.
    pub(super) peer_id: Option<u32>,
    pub(super) peer_epoch: Option<u32>,
    /// A hello was sent.
    greeted: bool,
    /// The peer showed that it has our identifier.
    known: bool,
    /// The peer sent a datagram without a hello: it knows that we have its identifier.
    confirmed: bool,
    /// Octets received and sent while the address is not validated; `None` afterwards.
    unvalidated: Option<(u64, u64)>,
    /// Cookie that the peer gave.
    proof: u64,
    /// Cookie for the peer.
    cookie: u64,
    /// Longest datagram of the path in octets.
    datagram: u16,
    /// Longest datagram that the peer sent, in octets.
    longest: u16,
    rtt: Rtt,
    recovery: Recovery<Contents>,
    congestion: Congestion,
    pacing: Pacing,
    /// When the pacer lets the next datagram go.
    paced: Option<Instant>,
    /// The window or the pacer, not the program, was the limit.
    limited: bool,
    received: Received,
    inbound: Inbound,
    pub(super) outbound: Outbound,
    /// Window that the peer granted, and the number of the datagram that said so.
    window: (u32, u64),
    /// The peer owes responses.
    awaits: bool,
    /// Grant to the peer.
    grant: Credit,
    /// Grant that was sent last.
    granted: Credit,
    tuning: Tuning,
    /// Messages of the peer that took a receive.
    taken: u32,
    not_ready: VecDeque<NotReady>,
    errors: VecDeque<OpenError>,
    pongs: VecDeque<(Peer, u64)>,
    challenge: Option<Challenge>,
    /// Probes that have to leave.
    probes: u32,
    /// Probe timeouts since the last acknowledgement.
    backoff: u32,
    heard: Instant,
    /// When the peer is lost unless something is heard: ICMP reported that nobody has its port.
    doubted: Option<Instant>,
    /// First eliciting datagram since something was heard.
    unanswered: Option<Instant>,
    counts: EcnCounts,
    /// Latest arrival of a segment.
    pub(super) fed: Option<Instant>,
    /// The endpoint's latest period in which the peer was counted among those that share the receive window.
    pub(super) fed_period: u32,
    /// Datagrams until a number is skipped, and the state of the draw.
    skip: (u64, u64),
    /// The endpoint's registration of its next timeout.
    pub(super) timer: Option<Instant>,
    /// It is in the endpoint's queue of those with output.
    pub(super) queued: bool,
    /// It is in the endpoint's list of those that hold acknowledgements back.
    pub(super) listed: bool,
}

impl Association {
    /// Draws of `random` are for this association alone; `cookie` is for the peer to show later.
    pub(super) fn new(
        config: &RdConfig,
        now: Instant,
        peer: Peer,
        id: u32,
        random: u64,
        cookie: u64,
    ) -> Self {
        let grant = Credit {
            receives: config.receives,
            window: config.window,
        };
        Self {
            peer,
            address: peer,
            id,
            peer_id: None,
            peer_epoch: None,
            greeted: false,
            known: false,
            confirmed: false,
            unvalidated: None,
            proof: 0,
            cookie,
            datagram: config.datagram,
            longest: config.datagram,
            rtt: Rtt::new(config.initial_rtt),
            recovery: Recovery::new(),
            congestion: Congestion::new(config.algorithm, config.datagram.into()),
            pacing: Pacing::new(now),
            paced: None,
            limited: false,
            received: Received::default(),
            inbound: Inbound::default(),
            outbound: Outbound::new(config.connection.is_some()),
            window: (u32::MAX, 0),
            // The connection of an RC queue pair does not end for idleness, and its peer's end is noticed.
            awaits: config.connection.is_some(),
            grant,
            granted: grant,
            tuning: Tuning::default(),
            taken: 0,
            not_ready: VecDeque::new(),
            errors: VecDeque::new(),
            pongs: VecDeque::new(),
            challenge: None,
            probes: 0,
            backoff: 0,
            heard: now,
            doubted: None,
            unanswered: None,
            counts: EcnCounts::default(),
            fed: None,
            fed_period: 0,
            skip: (random % SKIP, random | 1),
            timer: None,
            queued: false,
            listed: false,
        }
    }

    /// The peer opened it, from an address that is not validated unless its proof was valid.
    pub(super) const fn accept(&mut self, validated: bool) {
        if !validated {
            self.unvalidated = Some((0, 0));
        }
    }

    /// Whether the peer's address is not validated.
    pub(super) const fn is_unvalidated(&self) -> bool {
        self.unvalidated.is_some()
    }

    /// Whether this end opened it and heard nothing yet.
    pub(super) const fn is_opening(&self) -> bool {
        self.peer_id.is_none()
    }

    /// Whether a datagram without identifier may be the peer's, which has not seen ours yet.
    pub(super) fn may_be_anonymous(&self, epoch: u32) -> bool {
        !self.known && self.peer_epoch == Some(epoch)
    }

    /// Whether a datagram with this number is in flight.
    pub(super) fn is_in_flight(&self, number: u64) -> bool {
        self.recovery.is_in_flight(number)
    }

    /// Takes the cookie of a retry; all that was sent goes again.
    pub(super) fn retry(&mut self, hello: &Hello) {
        self.proof = hello.cookie;
        let outbound = &mut self.outbound;
        self.recovery.withdraw_all(|contents: Contents| {
            contents
                .segments()
                .for_each(|number| outbound.on_lost(number));
        });
        self.greeted = false;
        self.backoff = 0;
        self.probes = 1;
    }

    /// Sets the longest datagram of the path. The first window follows it, as in RFC 9002.
    pub(super) fn set_datagram(&mut self, config: &RdConfig, octets: u16) {
        if self.datagram == octets {
            return;
        }
        self.datagram = octets;
        if self.greeted {
            self.congestion.set_datagram(octets.into());
        } else {
            self.congestion = Congestion::new(config.algorithm, octets.into());
        }
    }

    /// Least share of the receive window: two datagrams of the peer.
    fn least_window(&self) -> u32 {
        2 * u32::from(self.longest)
    }

    /// Longest datagram of the path in octets.
    pub(super) const fn datagram(&self) -> u16 {
        self.datagram
    }

    /// Has a hello leave without a message.
    pub(super) const fn probe(&mut self) {
        self.probes = 1;
    }

    /// Whether the peer owes responses.
    pub(super) const fn awaits(&mut self, awaits: bool) {
        self.awaits = awaits;
    }

    /// Reports an error about a message that was placed. `false` if the peer acknowledges none of too many.
    pub(super) fn refuse(&mut self, message: u32, control: u32) -> bool {
        if self.errors.len() == ERRORS {
            return false;
        }
        self.errors.push_back(OpenError {
            error: MessageError { message, control },
            due: true,
        });
        true
    }

    /// A message is posted. Where the peer was greeted in vain so far, its silence counts from now on.
    pub(super) fn expect_from(&mut self, now: Instant) {
        if self.peer_id.is_none() && self.outbound.is_empty() && self.unanswered.is_some() {
            self.unanswered = Some(now);
        }
    }

    /// Grants receives beyond those granted before.
    pub(super) const fn grant(&mut self, more: u32) {
        self.grant.receives = self.grant.receives.wrapping_add(more);
    }

    /// Sets the share of the receive window, and the most of a peer on a long path.
    pub(super) fn share(&mut self, window: u32, long: u32) {
        self.grant.window = window
            .max(self.least_window())
            .max(self.tuning.window().min(long));
    }

    /// State of the path to the peer.
    pub(super) fn path_state(&self) -> PathState {
        PathState {
            window: Some(self.congestion.window()).filter(|it| *it != u64::MAX),
            in_flight: self.recovery.in_flight(),
            smoothed_rtt: self.rtt.smoothed(),
            minimum_rtt: self.rtt.smallest_sample(),
            lost: self.recovery.last_lost(),
        }
    }

    /// Whether an acknowledgement waits for the caller to find no input.
    pub(super) const fn holds(&self) -> bool {
        self.received.is_held()
    }

    /// Whether something arrived that is not acknowledged.
    pub(super) const fn owes_acknowledgement(&self) -> bool {
        self.received.due().is_some()
    }

    /// Fails all messages.
    pub(super) fn fail(&mut self, cause: super::config::Cause, events: &mut VecDeque<Event>) {
        let peer = self.peer;
        self.outbound
            .drain(|token| events.push_back(Event::Failed { peer, token, cause }));
    }

    fn pto(&self, config: &RdConfig) -> Duration {
        // With more in flight a loss shows in acknowledgements; a probe would be for a peer that has no core for a while.
        let delay = if self.recovery.in_flight() <= FEW {
            self.rtt.delay().max(self.ack_delay()).min(MOST_ACK_DELAY)
        } else {
            MOST_ACK_DELAY
        };
        let base = self.rtt.timeout(config.granularity) + delay;
        if self.doubted.is_some() {
            return base.max(doubt::PROBE_INTERVAL);
        }
        base.saturating_mul(1 << self.backoff.min(16))
            .min(MOST_PTO.max(base))
    }

    fn ack_delay(&self) -> Duration {
        (self.rtt.smoothed() / 8).clamp(LEAST_ACK_DELAY, MOST_ACK_DELAY)
    }
}

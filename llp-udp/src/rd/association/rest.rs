//! An association while nothing is under way (§10): numbers, grants and what is known of the path, in few octets.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::{Association, Pacing, Tuning};
use crate::Peer;
use crate::rd::config::RdConfig;
use crate::rd::congestion::{Algorithm, Congestion};
use crate::rd::flow::received::{self, Received};
use crate::rd::flow::recovery::{self, Recovery};
use crate::rd::flow::rtt::{self, Rtt};
use crate::rd::frame::{Credit, EcnCounts};
use crate::rd::message::inbound::{self, Inbound};
use crate::rd::message::outbound::{self, Outbound};

/// An association that rests.
#[derive(Debug, Clone)]
pub(in crate::rd) struct Resting {
    pub(in crate::rd) peer: Peer,
    /// Address of the peer, where it is not its first.
    address: Option<Box<Peer>>,
    id: u32,
    peer_id: u32,
    peer_epoch: u32,
    datagram: u16,
    longest: u16,
    algorithm: Algorithm,
    rtt: rtt::Rested,
    recovery: recovery::Rested,
    received: received::Rested,
    inbound: inbound::Rested,
    outbound: outbound::Rested,
    window: (u32, u64),
    grant: Credit,
    granted: Credit,
    taken: u32,
    counts: EcnCounts,
    skip: (u64, u64),
    heard: Instant,
    pub(in crate::rd) timer: Option<Instant>,
}

impl Resting {
    /// When it is forgotten.
    pub(in crate::rd) fn poll_timeout(&self, config: &RdConfig) -> Instant {
        self.heard + config.idle
    }
}

impl Association {
    /// Silence after which an idle association rests, or is forgotten.
    pub(super) fn idle_time(&self, config: &RdConfig) -> Duration {
        if self.can_rest() {
            config.rest.min(config.idle)
        } else {
            config.idle
        }
    }

    /// Whether all of it is in what a resting one keeps: nothing is under way, and the peer has our identifier and knows that we have its.
    fn can_rest(&self) -> bool {
        let is_silent = self.not_ready.is_empty()
            && self.errors.is_empty()
            && self.pongs.is_empty()
            && self.received.due().is_none()
            && self.probes == 0
            && !self.queued
            && !self.listed;
        let is_sure = self.known
            && self.peer_id.is_some()
            && self.confirmed
            && self.unvalidated.is_none()
            && self.challenge.is_none()
            && self.doubted.is_none()
            && self.unanswered.is_none();
        self.is_idle() && is_silent && is_sure && self.inbound.is_empty()
    }

    /// State that stays, if it may rest now.
    pub(in crate::rd) fn rest(&self, config: &RdConfig, now: Instant) -> Option<Resting> {
        if self.heard + config.rest > now || !self.can_rest() {
            return None;
        }
        Some(Resting {
            peer: self.peer,
            address: (self.address != self.peer).then(|| Box::new(self.address)),
            id: self.id,
            peer_id: self.peer_id?,
            peer_epoch: self.peer_epoch?,
            datagram: self.datagram,
            longest: self.longest,
            algorithm: self.congestion.algorithm(),
            rtt: self.rtt.rest(),
            recovery: self.recovery.rest(),
            received: self.received.rest()?,
            inbound: self.inbound.rest(),
            outbound: self.outbound.rest(),
            window: self.window,
            grant: self.grant,
            granted: self.granted,
            taken: self.taken,
            counts: self.counts,
            skip: self.skip,
            heard: self.heard,
            timer: self.timer,
        })
    }
}

impl From<Resting> for Association {
    fn from(rested: Resting) -> Self {
        Self {
            peer: rested.peer,
            address: rested.address.map_or(rested.peer, |address| *address),
            id: rested.id,
            peer_id: Some(rested.peer_id),
            peer_epoch: Some(rested.peer_epoch),
            greeted: true,
            known: true,
            confirmed: true,
            unvalidated: None,
            proof: 0,
            cookie: 0,
            datagram: rested.datagram,
            longest: rested.longest,
            rtt: Rtt::from(rested.rtt),
            recovery: Recovery::from(rested.recovery),
            congestion: Congestion::new(rested.algorithm, rested.datagram.into()),
            pacing: Pacing::new(rested.heard),
            paced: None,
            limited: false,
            received: Received::from(rested.received),
            inbound: Inbound::from(rested.inbound),
            outbound: Outbound::from(rested.outbound),
            window: rested.window,
            awaits: false,
            grant: rested.grant,
            granted: rested.granted,
            tuning: Tuning::default(),
            taken: rested.taken,
            not_ready: VecDeque::new(),
            errors: VecDeque::new(),
            pongs: VecDeque::new(),
            challenge: None,
            probes: 0,
            backoff: 0,
            heard: rested.heard,
            doubted: None,
            unanswered: None,
            counts: rested.counts,
            fed: None,
            fed_period: 0,
            skip: rested.skip,
            timer: rested.timer,
            queued: false,
            listed: false,
        }
    }
}

//! Detection of a dgiwarp peer by its hello, and what waits for it (rfc-notes/rc-extensions.md).

use std::time::{Duration, Instant};

use dgiwarp_rdmap::stream::{Capabilities, DgiwarpExt, Peer};

use super::engine::RcEngine;
use super::state::{RcStream, Wait};
use super::wqe::RcWork;

/// Time for the peer's first message, from the first message that leaves. A peer that stays silent is taken for a plain one, and completions wait for
/// it no longer.
const COMPLETIONS_WAIT: Duration = Duration::from_millis(100);
/// Time for the peer's first message, from when a Send with immediate, or one of an XRC initiator, is the next work request.
const IMMEDIATE_WAITS: Duration = Duration::from_secs(2);

impl RcEngine {
    /// Sends our hello if it is due.
    pub(super) fn send_due_hello(&mut self, now: Instant) {
        if !self.llp.may_send() || self.is_amid() {
            return;
        }
        if self.stream.dgiwarp_ext().is_hello_due(self.is_initiator) {
            self.send_hello(now);
        }
    }

    /// Sends our hello, or, where this end sends none, an empty Write of the same form. To a plain peer both are alike.
    pub(super) fn send_hello(&mut self, now: Instant) {
        let hello = self.stream.dgiwarp_ext_mut().hello();
        let ulpdu = hello.unwrap_or_else(RcStream::rtr_write);
        self.put(now, &ulpdu, &[]);
    }

    /// The hello offers shared memory for the stream: this end found both ends on one host. Before the hello.
    pub fn share_host(&mut self) {
        self.stream
            .dgiwarp_ext_mut()
            .add_capabilities(Capabilities::SAME_HOST);
    }

    /// Whether the peer's hello offers it too.
    #[inline]
    pub fn may_meet(&self) -> bool {
        self.stream.dgiwarp_ext().may_meet()
    }

    /// Whether this end is the Initiator: it sends the token.
    pub fn is_initiator(&self) -> bool {
        self.is_initiator
    }

    /// Sends a token of 120 bits, at which the peer meets this end, with the next FPDUs.
    pub fn send_token(&mut self, token: u128) {
        self.token = Some(token);
        self.has_rare_notice = true;
    }

    /// The stream leaves by memory that both ends share from its next octet on: FPDUs that are made from now on have no CRC.
    #[inline]
    pub fn sends_by_memory(&mut self) {
        self.llp.omit_sent_checksum();
    }

    /// The next input comes from memory that both ends share: FPDUs that begin there have no CRC, and the driver reports there what is
    /// [placed](Self::placed).
    #[inline]
    pub fn receives_by_memory(&mut self) {
        self.llp.omit_received_checksum();
        self.stream.dgiwarp_ext_mut().report_in_memory();
    }

    /// Takes the peer's token.
    pub fn take_token(&mut self) -> Option<u128> {
        self.stream.dgiwarp_ext_mut().take_token()
    }

    /// Sends the RNR limit and the notices with the token, if no message has begun.
    #[cold]
    pub(super) fn send_rare_notices(&mut self, now: Instant) {
        if !self.llp.may_send() || self.is_amid() {
            return;
        }
        self.has_rare_notice = false;
        if self.stream.dgiwarp_ext().is_rnr_limit_due() {
            let ulpdu = self.stream.dgiwarp_ext_mut().rnr_limit();
            self.put(now, &ulpdu, &[]);
        }
        if let Some(token) = self.token.take() {
            for ulpdu in DgiwarpExt::token(token) {
                self.put(now, &ulpdu, &[]);
            }
        }
    }

    /// Whether completions wait for a peer that is not detected.
    #[inline]
    pub(super) fn completions_wait(&self) -> bool {
        self.detect_peer.completions != Wait::Over
    }

    /// A message leaves: the deadline of an undetected peer begins.
    #[inline]
    pub(super) fn expect_peer(&mut self, now: Instant) {
        if self.detect_peer.completions == Wait::Idle && self.stream.dgiwarp_ext().sent() > 0 {
            self.detect_peer.completions = match self.stream.dgiwarp_ext().peer() {
                Peer::Unknown => Wait::Until(now + COMPLETIONS_WAIT),
                Peer::Dgiwarp(_) | Peer::Plain => Wait::Over,
            };
        }
    }

    /// Deadlines that an undetected peer has.
    #[inline]
    pub(super) fn detection_deadlines(&self) -> [Option<Instant>; 2] {
        let unknown = self.stream.dgiwarp_ext().peer() == Peer::Unknown;
        let completions = match self.detect_peer.completions {
            Wait::Until(until) if unknown => Some(until),
            Wait::Until(_) | Wait::Idle | Wait::Over => None,
        };
        let immediate = self.detect_peer.immediate_until;
        [completions, immediate.filter(|_| !self.is_peer_detected())]
    }

    pub(super) fn time_out_detection(&mut self, now: Instant) {
        let [completions, immediate] = self.detection_deadlines();
        if completions.is_some_and(|until| until <= now) {
            self.detect_peer.completions = Wait::Over;
            self.detect_peer.timed_out = true;
        }
        if immediate.is_some_and(|until| until <= now) {
            self.detect_peer.immediate_timed_out = true;
        }
    }

    /// Whether a deadline has passed and `make_fpdus` has to act on it, or one is to begin.
    #[inline]
    pub(super) fn has_detection_work(&self) -> bool {
        self.detect_peer.timed_out || self.needs_immediate_deadline()
    }

    pub(super) fn end_detection_timeout(&mut self) {
        self.detect_peer.timed_out = false;
    }

    /// Whether a work request that only a dgiwarp peer takes waits for an undetected one, and its deadline has not begun.
    fn needs_immediate_deadline(&self) -> bool {
        !self.is_peer_detected()
            && self.detect_peer.immediate_until.is_none()
            && self.sends.unstarted().is_some_and(|(_, wqe)| {
                self.xrc.is_initiator() || matches!(wqe.work, RcWork::SendImmediate { .. })
            })
    }

    /// Begins the deadline of a Send with immediate, if one waits.
    pub(super) fn begin_immediate_deadline(&mut self, now: Instant) {
        if self.needs_immediate_deadline() {
            self.detect_peer.immediate_until = Some(now + IMMEDIATE_WAITS);
        }
    }

    /// Whether the peer is detected, or a Send with immediate has waited for it in vain.
    pub(super) fn is_peer_detected(&self) -> bool {
        self.stream.dgiwarp_ext().peer() != Peer::Unknown || self.detect_peer.immediate_timed_out
    }

    /// Whether the peer is detected and takes no Sends with immediate.
    #[inline]
    pub fn peer_refuses_immediates(&self) -> bool {
        self.is_peer_detected() && !self.peer_takes_immediates()
    }

    pub(super) fn peer_takes_immediates(&self) -> bool {
        match self.stream.dgiwarp_ext().peer() {
            Peer::Dgiwarp(capabilities) => capabilities.contain(Capabilities::TAKES_IMMEDIATES),
            Peer::Unknown | Peer::Plain => false,
        }
    }
}

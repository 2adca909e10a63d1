//! Reception: ULPDUs go to the stream, or wait for a posted receive.

mod direct;
mod grants;
mod short;

use std::time::{Duration, Instant};

use dgiwarp_ddp::error::UntaggedError;
use dgiwarp_rdmap::stream::{
    Handled, Peer, StreamError, UNLIMITED_RETRIES, begins_work, overtakes,
};

pub use self::direct::{DirectFront, DirectInput};
pub use self::short::ShortInput;
use super::end::RcEnd;
use super::engine::RcEngine;
use super::first_fpdu_probe::FirstFpduProbe;
use super::state::{RcConfig, RcStream};
use super::ulp::Ulp;
use crate::cq_ring::CompletionSink;
use crate::recv_queue::Tables;
use crate::types::{AsyncEvent, RnrLimits};
use crate::xrc::Xrc;

/// Least time that RNR retries give a message which has any: the timer is a minimum, and the responder shares its processors with its program.
const LEAST_RETRIES_TAKE: Duration = Duration::from_millis(100);

/// Error of the stream, and the Read or atomic of ours that is the reason, if one is.
type Failure = (StreamError, Option<u64>);

/// Carries out the selection of a shared receive queue, whose protection domain is that of all requests behind it. A number without a queue
/// ends the stream.
#[inline]
fn select_srq(
    handled: Handled,
    ulpdu: &[u8],
    xrc: &mut Xrc,
    config: &mut RcConfig,
    stream: &mut RcStream,
) -> Result<Handled, Failure> {
    if let Handled::SrqSelected(number) = handled {
        let Some(queue) = xrc.select(number) else {
            let error = StreamError::from(UntaggedError::InvalidQueue);
            stream.fail_at(error, ulpdu);
            return Err((error, None));
        };
        config.pd = queue.pd(config.pd);
    }
    Ok(handled)
}

impl RcEngine {
    /// Octets that [`handle_input`](Self::handle_input) takes now, beside those of an unfinished FPDU: none while the RNR queue is full.
    #[inline]
    pub fn rnr_room(&self) -> usize {
        self.rnr_queue.room()
    }

    /// Memory for the next octets of the stream, possibly none, and the octets of up to `most` that should be read behind them.
    #[inline]
    pub fn input_room(&mut self, most: usize) -> (&mut [u8], usize) {
        self.llp.input_room(most)
    }

    /// The first `len` octets of that memory have arrived; `handle_input` comes next.
    #[inline]
    pub fn input_placed(&mut self, len: usize) {
        self.llp.input_placed(len);
    }

    /// Gives memory for an unfinished FPDU, of [`LONGEST_FPDU`](dgiwarp_llp_tcp_mpa::framing::LONGEST_FPDU) octets. Returns it if it is not
    /// needed.
    #[inline]
    pub fn lend_input(&mut self, memory: Vec<u8>) -> Vec<u8> {
        self.llp.lend_input(memory)
    }

    /// Gives the memory back, if no FPDU is unfinished.
    #[inline]
    pub fn reclaim_input(&mut self) -> Option<Vec<u8>> {
        self.llp.reclaim_input()
    }

    /// Handles octets that TCP brought, behind those that were read to their place ([`input_room`](Self::input_room)).
    pub fn handle_input(
        &mut self,
        now: Instant,
        octets: &[u8],
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) {
        if !octets.is_empty() || self.llp.has_complete_input() {
            self.first_fpdu_probe = FirstFpduProbe::Done;
        }
        let mut rest = octets;
        let mut handled_octets = 0;
        while (!rest.is_empty() || self.llp.has_complete_input()) && self.end.is_none() {
            let mut failed = None;
            let is_detected = self.stream.dgiwarp_ext().peer() != Peer::Unknown;
            let known = self.stream.dgiwarp_ext().acknowledged();
            if let Some(ulpdu) = self.llp.handle_input(now, &mut rest) {
                self.counters.count_received(ulpdu.len());
                handled_octets += ulpdu.len();
                // Work requests that waited for the peer's detection complete before its message is handled.
                if !is_detected {
                    self.stream.detect_peer(ulpdu);
                    if self.stream.dgiwarp_ext().peer() == Peer::Plain {
                        let qpn = self.config.qpn;
                        self.sends.complete(self.taken, None, qpn, completions);
                    }
                }
                if self.awaits_first_message && begins_work(ulpdu) {
                    self.awaits_first_message = false;
                    let qpn = self.config.qpn;
                    completions.event(AsyncEvent::CommunicationEstablished { qpn });
                }
                let handled = if !self.rnr_queue.is_empty() && !overtakes(ulpdu) {
                    Ok(Handled::ReceiverNotReady)
                } else {
                    let selected = self.xrc.selected();
                    let mut ulp = Ulp {
                        config: &self.config,
                        tables: tables.with(selected.as_deref()),
                        completions,
                        sends: &mut self.sends,
                        proven: &mut self.acks.proven,
                        waiter: &self.waiter,
                        used: &mut self.used,
                        failed: None,
                    };
                    let handled = self.stream.handle_ulpdu(ulpdu, &mut ulp);
                    let handled = handled.map_err(|error| (error, ulp.failed));
                    let (xrc, config) = (&mut self.xrc, &mut self.config);
                    handled.and_then(|it| select_srq(it, ulpdu, xrc, config, &mut self.stream))
                };
                match handled {
                    Ok(Handled::Taken | Handled::SrqSelected(_)) => {}
                    Ok(Handled::ReceiverNotReady) => {
                        self.counters.count_parked();
                        self.rnr_queue.push(now, ulpdu);
                        let waiting = self.rnr_queue.messages();
                        self.stream.dgiwarp_ext_mut().set_in_rnr_queue(waiting);
                    }
                    Err(failure) => failed = Some(failure),
                }
            }
            if let Some(failure) = failed {
                self.fail(failure, tables, completions);
            }
            if !is_detected {
                self.note_rnr_limit();
            }
            self.answer_early(now, tables, completions);
            self.handle_events(tables, completions);
            // An acknowledgement comes before the answer that it came with.
            if self.stream.dgiwarp_ext().acknowledged() != known {
                self.complete_sends(completions);
            }
        }
        self.note_placed(now, handled_octets);
        self.complete_sends(completions);
    }

    /// A receive was posted: handles ULPDUs of the RNR queue.
    pub fn receive_posted(
        &mut self,
        now: Instant,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) {
        while self.end.is_none()
            && let Some(ulpdu) = self.rnr_queue.front()
        {
            let octets = ulpdu.len();
            let selected = self.xrc.selected();
            let mut ulp = Ulp {
                config: &self.config,
                tables: tables.with(selected.as_deref()),
                completions,
                sends: &mut self.sends,
                proven: &mut self.acks.proven,
                waiter: &self.waiter,
                used: &mut self.used,
                failed: None,
            };
            let handled = self.stream.handle_ulpdu(ulpdu, &mut ulp);
            let handled = handled.map_err(|error| (error, ulp.failed));
            let (xrc, config) = (&mut self.xrc, &mut self.config);
            let handled =
                handled.and_then(|it| select_srq(it, ulpdu, xrc, config, &mut self.stream));
            match handled {
                Ok(Handled::Taken | Handled::SrqSelected(_)) => {
                    self.rnr_queue.pop(now);
                    self.rnr_timed_out = false;
                    self.extend_deferred_end(now);
                    let waiting = self.rnr_queue.messages();
                    self.stream.dgiwarp_ext_mut().set_in_rnr_queue(waiting);
                }
                Ok(Handled::ReceiverNotReady) => break,
                Err(failure) => self.fail(failure, tables, completions),
            }
            self.note_placed(now, octets);
        }
        // The sender has waited for long enough.
        self.flush_acks(now, true);
        if self.rnr_queue.is_empty() {
            self.handle_deferred_end(now, tables, completions);
        }
    }

    /// Ends the connection as a message without a receive does where it may not wait (RFC 5041 §7.2).
    pub(super) fn refuse_rnr(&mut self, tables: Tables<'_>, completions: &mut impl CompletionSink) {
        let error = StreamError::from(UntaggedError::NoBuffer);
        if let Some(ulpdu) = self.rnr_queue.front() {
            self.stream.fail_at(error, ulpdu);
        }
        // On InfiniBand a responder stays ready to receive, and the requester alone is in error.
        let outlives = self.config.options.outlives_peer || self.config.paired;
        if outlives && self.rnr_is_limited_by_retries() {
            self.rnr_exhausted = true;
            self.finish(RcEnd::PeerLeft, None, tables, completions);
        } else {
            self.fail((error, None), tables, completions);
        }
    }

    fn fail(
        &mut self,
        (error, request): Failure,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) {
        match error {
            StreamError::LocalProtection => {
                self.finish(RcEnd::LocalProtection, request, tables, completions);
            }
            StreamError::Terminated(_) => {
                let blamed = self.blamed().or_else(|| self.sends.oldest_begun());
                self.finish(RcEnd::Stream(error), blamed, tables, completions);
            }
            error => self.end_behind_responses(error, tables, completions),
        }
    }
}

/// Limits of the wait for a receive (rfc-notes/rc-extensions.md, "RNR limits").
impl RcEngine {
    /// Sets the limits of messages that wait for a receive.
    pub fn limit_rnr(&mut self, limits: RnrLimits) {
        self.rnr_limits = limits;
        let dgiwarp_ext = self.stream.dgiwarp_ext_mut();
        dgiwarp_ext.set_rnr_retries(limits.retries.unwrap_or(UNLIMITED_RETRIES));
        self.note_rnr_limit();
    }

    /// The limit leaves with the next FPDUs, where the peer is detected and takes it.
    pub(super) fn note_rnr_limit(&mut self) {
        self.has_rare_notice |= self.stream.dgiwarp_ext().is_rnr_limit_due();
    }

    /// When the first ULPDU of the RNR queue has waited for too long.
    pub(super) fn rnr_deadline(&self) -> Option<Instant> {
        let since = self.rnr_queue.since()?;
        let limits = [self.config.options.receive_timeout, self.retries_take()];
        Some(since + limits.into_iter().flatten().min()?)
    }

    /// Whether the retries limit the wait, and not the receive timeout.
    pub(super) fn rnr_is_limited_by_retries(&self) -> bool {
        let timeout = self.config.options.receive_timeout;
        self.retries_take()
            .is_some_and(|it| timeout.is_none_or(|timeout| it <= timeout))
    }

    /// Time that the RNR retries of a dgiwarp peer's message take.
    fn retries_take(&self) -> Option<Duration> {
        let timer = self.rnr_limits.timer?;
        let dgiwarp_ext = self.stream.dgiwarp_ext();
        if !matches!(dgiwarp_ext.peer(), Peer::Dgiwarp(_)) {
            return None;
        }
        let retries = self.rnr_limits.peer_retries;
        match retries.unwrap_or_else(|| dgiwarp_ext.peer_rnr_retries()) {
            0 => Some(Duration::ZERO),
            UNLIMITED_RETRIES.. => None,
            retries => Some((timer * u32::from(retries)).max(LEAST_RETRIES_TAKE)),
        }
    }
}

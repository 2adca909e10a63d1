//! What arrives: ULPDUs go to the stream, or wait for a receive.

use std::time::Instant;

use dgiwarp_ddp::error::UntaggedError;
use dgiwarp_rdmap::stream::{Handled, Peer, StreamError, overtakes};

use super::ulp::Ulp;
use super::{RcEnd, RcEngine, wqe};
use crate::cq_ring::CompletionSink;
use crate::recv_queue::Tables;

/// Why the stream cannot go on, and which Read or atomic of ours is the reason, if one is.
type Failure = (StreamError, Option<u64>);

impl RcEngine {
    /// Octets that [`handle_input`](Self::handle_input) takes now, beside those of an unfinished FPDU: none while too many wait for a receive.
    #[inline]
    pub fn parking_room(&self) -> usize {
        self.parked.room()
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
            self.nudge = super::FirstFpduProbe::Done;
        }
        let mut rest = octets;
        let mut handled_octets = 0;
        while (!rest.is_empty() || self.llp.has_complete_input()) && self.end.is_none() {
            let mut failed = None;
            let known = self.stream.dgiwarp_ext().acknowledged();
            if let Some(ulpdu) = self.llp.handle_input(now, &mut rest) {
                self.counters.count_received(ulpdu.len());
                handled_octets += ulpdu.len();
                // What waited for a peer to say who it is completes before what it says.
                if self.stream.dgiwarp_ext().peer() == Peer::Unknown {
                    self.stream.detect_peer(ulpdu);
                    if self.stream.dgiwarp_ext().peer() == Peer::Plain {
                        let qpn = self.config.qpn;
                        wqe::complete(&mut self.sends, self.taken, None, qpn, completions);
                    }
                }
                let handled = if !self.parked.is_empty() && !overtakes(ulpdu) {
                    Ok(Handled::ReceiverNotReady)
                } else {
                    let mut ulp = Ulp {
                        config: self.config,
                        tables,
                        completions,
                        sends: &mut self.sends,
                        proven: &mut self.placement.proven,
                        waiter: &self.waiter,
                        failed: None,
                    };
                    let handled = self.stream.handle_ulpdu(ulpdu, &mut ulp);
                    handled.map_err(|error| (error, ulp.failed))
                };
                match handled {
                    Ok(Handled::Taken) => {}
                    Ok(Handled::ReceiverNotReady) => {
                        self.counters.count_parked();
                        self.parked.push(now, ulpdu);
                        let waiting = self.parked.messages();
                        self.stream.dgiwarp_ext_mut().set_in_rnr_queue(waiting);
                    }
                    Err(failure) => failed = Some(failure),
                }
            }
            if let Some(failure) = failed {
                self.fail(failure, tables, completions);
            }
            self.handle_events(tables, completions);
            // An acknowledgement comes before the answer that it came with.
            if self.stream.dgiwarp_ext().acknowledged() != known {
                self.complete_sends(completions);
            }
        }
        self.note_placed(now, handled_octets);
        self.complete_sends(completions);
    }

    /// Goes on with what waits for a receive, after one was posted.
    pub fn resume(
        &mut self,
        now: Instant,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) {
        while self.end.is_none()
            && let Some(ulpdu) = self.parked.front()
        {
            let octets = ulpdu.len();
            let mut ulp = Ulp {
                config: self.config,
                tables,
                completions,
                sends: &mut self.sends,
                proven: &mut self.placement.proven,
                waiter: &self.waiter,
                failed: None,
            };
            let handled = self.stream.handle_ulpdu(ulpdu, &mut ulp);
            match handled.map_err(|error| (error, ulp.failed)) {
                Ok(Handled::Taken) => {
                    self.parked.pop(now);
                    let waiting = self.parked.messages();
                    self.stream.dgiwarp_ext_mut().set_in_rnr_queue(waiting);
                }
                Ok(Handled::ReceiverNotReady) => break,
                Err(failure) => self.fail(failure, tables, completions),
            }
            self.note_placed(now, octets);
        }
        // Whoever waits so long for us need not wait for more.
        self.tell_placed(now, true);
    }

    /// When what waits for a receive has waited for too long.
    pub(super) fn parked_deadline(&self) -> Option<Instant> {
        Some(self.parked.since()? + self.config.options.receive_timeout?)
    }

    /// What waits has waited for too long: the connection ends as if it had not been let wait (RFC 5041 §7.2).
    pub(super) fn refuse_parked(
        &mut self,
        tables: Tables<'_>,
        completions: &mut impl CompletionSink,
    ) {
        let error = StreamError::from(UntaggedError::NoBuffer);
        if let Some(ulpdu) = self.parked.front() {
            self.stream.fail_at(error, ulpdu);
        }
        self.fail((error, None), tables, completions);
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
                let blamed = self.stream.blamed().or_else(|| self.sends.oldest_begun());
                self.finish(RcEnd::Stream(error), blamed, tables, completions);
            }
            error => self.finish(RcEnd::Stream(error), None, tables, completions),
        }
    }
}

//! Timers of an association (§10).

use std::time::Instant;

use super::Association;
use crate::rd::config::{Cause, RdConfig};

impl Association {
    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub(in crate::rd) fn poll_timeout(&self, config: &RdConfig) -> Option<Instant> {
        let loss = self.recovery.loss_time(&self.rtt, config.granularity);
        let challenge = self.challenge.map(|challenge| challenge.due);
        // Without room for an answer the peer's next datagram is waited for.
        let due = self.received.due().filter(|_| self.has_room());
        [
            due,
            loss,
            self.pto_time(config),
            self.silence_time(config),
            self.outbound.refused_until(),
            self.paced,
            self.doubted,
            self.unanswered.map(|since| since + config.unreachable),
            self.is_idle().then(|| self.heard + self.idle_time(config)),
            challenge,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.is_quiet() && !self.awaits
    }

    fn is_quiet(&self) -> bool {
        self.outbound.is_empty() && self.recovery.in_flight() == 0
    }

    /// When a peer that owes responses, and has nothing else to answer, is probed.
    fn silence_time(&self, config: &RdConfig) -> Option<Instant> {
        let waits = self.awaits && self.is_quiet() && self.probes == 0;
        let since = self
            .recovery
            .last_sent()
            .map_or(self.heard, |it| it.max(self.heard));
        waits.then(|| since + config.unreachable / 4)
    }

    fn pto_time(&self, config: &RdConfig) -> Option<Instant> {
        // An acceptor whose first answers were lost may have used up what it may send to an address that is not validated. It
        // waits for us then, and shows it by a hello in each datagram, as in QUIC.
        let unconfirmed = self.peer_id.is_some() && !self.confirmed;
        let waits = self.recovery.in_flight() > 0 || self.outbound.is_blocked() || unconfirmed;
        if !waits || self.probes > 0 {
            return None;
        }
        let since = self.recovery.last_sent().unwrap_or(self.heard);
        Some(since + self.pto(config))
    }

    /// Handles what is due. Returns the cause for which the association ends.
    pub(in crate::rd) fn handle_timeout(
        &mut self,
        config: &RdConfig,
        now: Instant,
    ) -> Option<Cause> {
        if let Some(since) = self.unanswered
            && since + config.unreachable <= now
        {
            return Some(Cause::Unreachable);
        }
        if self.doubted.is_some_and(|until| until <= now) {
            return Some(Cause::Unreachable);
        }
        if self.heard + config.idle <= now && self.is_idle() {
            return Some(Cause::Flushed);
        }
        self.detect_losses(config, now);
        if self.pto_time(config).is_some_and(|at| at <= now) {
            self.backoff += 1;
            self.probes = 1;
            if self.outbound.peek().is_none()
                && let Some(contents) = self.recovery.oldest().copied()
            {
                contents
                    .segments()
                    .for_each(|number| self.outbound.probe(number));
                self.resend_error(contents.error);
            }
        }
        if self.silence_time(config).is_some_and(|at| at <= now) {
            self.probes = 1;
        }
        self.outbound.handle_timeout(now);
        if self.paced.is_some_and(|at| at <= now) {
            self.paced = None;
        }
        let room = u64::try_from(super::departure::CHALLENGE).unwrap_or(u64::MAX);
        self.challenge
            .take_if(|it| it.due <= now && (it.tries == 0 || it.budget < room));
        None
    }

    pub(super) fn resend_error(&mut self, message: Option<u32>) {
        for open in &mut self.errors {
            open.due |= message == Some(open.error.message);
        }
    }

    /// Takes lost datagrams out of flight; their segments go again.
    pub(super) fn detect_losses(&mut self, config: &RdConfig, now: Instant) {
        let mut span: Option<(Instant, Instant)> = None;
        while let Some(lost) = self.recovery.next_lost(now, &self.rtt, config.granularity) {
            let contents = lost.contents;
            contents
                .segments()
                .for_each(|number| self.outbound.on_lost(number));
            self.resend_error(contents.error);
            let much = self.recovery.loses_much();
            self.congestion.on_loss(now, lost.at, much, &self.rtt);
            span = Some((span.map_or(lost.at, |it| it.0), lost.at));
        }
        let persistent = 3 * (self.rtt.timeout(config.granularity) + super::MOST_ACK_DELAY);
        if let Some((first, last)) = span
            && self.rtt.is_sampled()
            && last.saturating_duration_since(first) > persistent
        {
            self.congestion.collapse();
        }
    }
}

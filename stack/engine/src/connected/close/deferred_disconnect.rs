//! When a program learns that its peer ended the connection.
//!
//! A NIC acknowledges what it placed without its program, so that a Send is complete long before the peer's program can have seen the message and
//! closed. Here a program that had no core for a while finds the acknowledgement and the end together. One that polls its events before its
//! completions would destroy the queue pair, and with it completions that it never saw. The disconnect event is deferred until it has taken the
//! completions from before, for a bounded time.

use std::time::{Duration, Instant};

use crate::connected::RcEnd;

/// Delay of the second check whether the completions were taken. Each delay is twice the one before: the event is raised at most twice as late as
/// possible, and a program that takes no completions costs little.
const FIRST_DELAY: Duration = Duration::from_millis(1);
/// After this delay the event is raised in any case, 1,023 ms in all: longer than a busy machine keeps a program from its core.
const LAST_DELAY: Duration = Duration::from_millis(512);

/// A disconnect event that has not been raised.
#[derive(Debug, Clone, Copy, Default)]
pub struct DeferredDisconnect {
    /// Time of the next check, and its delay after the one before.
    next: Option<(Instant, Duration)>,
}

impl DeferredDisconnect {
    /// When [`is_due`](Self::is_due) is to be called again.
    #[must_use]
    pub fn deadline(self) -> Option<Instant> {
        self.next.map(|(at, _)| at)
    }

    /// Whether the event is to be raised now. Only the end that a peer makes is deferred, and not where this program has `disconnected` too.
    /// `untaken` checks whether completions from before the end lie in a completion queue.
    pub fn is_due(
        &mut self,
        now: Instant,
        end: RcEnd,
        disconnected: bool,
        untaken: impl FnOnce() -> bool,
    ) -> bool {
        let due = !end.comes_behind_completions() || disconnected || self.check(now, untaken);
        if due {
            self.next = None;
        }
        due
    }

    fn check(&mut self, now: Instant, untaken: impl FnOnce() -> bool) -> bool {
        let delay = match self.next {
            None => FIRST_DELAY,
            Some((at, _)) if now < at => return false,
            Some((_, delay)) => delay * 2,
        };
        if delay > LAST_DELAY || !untaken() {
            return true;
        }
        self.next = Some((now + delay, delay));
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connected::tests::now;

    fn is_due(
        disconnect: &mut DeferredDisconnect,
        now: Instant,
        untaken: impl FnOnce() -> bool,
    ) -> bool {
        disconnect.is_due(now, RcEnd::PeerClosed, false, untaken)
    }

    #[test]
    fn a_program_that_took_everything_gets_the_event_at_once() {
        let mut disconnect = DeferredDisconnect::default();
        assert!(is_due(&mut disconnect, now(), || false));
        assert_eq!(disconnect.deadline(), None);
    }

    #[test]
    fn an_end_of_our_own_or_an_error_is_not_deferred() {
        let (mut disconnect, now) = (DeferredDisconnect::default(), now());
        assert!(!is_due(&mut disconnect, now, || true));
        assert!(disconnect.is_due(now, RcEnd::PeerClosed, true, || true));
        assert_eq!(disconnect.deadline(), None);
        assert!(disconnect.is_due(now, RcEnd::LocalProtection, false, || true));
    }

    #[test]
    fn the_event_waits_for_completions_to_be_taken() {
        let (mut disconnect, now) = (DeferredDisconnect::default(), now());
        assert!(!is_due(&mut disconnect, now, || true));
        let next = disconnect.deadline().unwrap();
        assert_eq!(next, now + FIRST_DELAY);
        let early = next - Duration::from_nanos(1);
        assert!(!is_due(&mut disconnect, early, || panic!(
            "too early for a check"
        )));
        assert!(is_due(&mut disconnect, next, || false));
        assert_eq!(disconnect.deadline(), None);
    }

    #[test]
    fn it_does_not_wait_for_ever() {
        let (mut disconnect, began) = (DeferredDisconnect::default(), now());
        let mut now = began;
        let mut checks = 0;
        while !is_due(&mut disconnect, now, || {
            checks += 1;
            true
        }) {
            now = disconnect.deadline().unwrap();
        }
        assert_eq!(checks, 10);
        assert_eq!(now - began, Duration::from_millis(1023));
    }
}

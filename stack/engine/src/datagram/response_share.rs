//! Share of time for answering peers: Read Responses, cookies, Terminates.
//!
//! A requester that reads without end must not keep datagrams of others waiting, nor what the program itself posts. Requesters
//! are served in turn, a train each ([`Responder`](dgiwarp_rdmap::datagram::read::Responder)); while much arrives, all of them
//! together get a quarter of the time.

use std::time::Instant;

/// Trains of one turn where nothing else arrives.
const IDLE_BUDGET: usize = 2;
/// Trains of one turn while much arrives.
const BUSY_BUDGET: usize = 1;
/// Pause after a turn, in times of its duration.
const PAUSE: u32 = 3;

/// Decides when peers are answered, and how much at a time.
#[derive(Debug, Default)]
pub(super) struct ResponseShare {
    /// While much arrives, no response leaves before.
    next: Option<Instant>,
}

impl ResponseShare {
    /// Trains that may leave in a turn that begins now; `None` where responses have to wait. `is_busy` says whether much arrives.
    pub(super) fn grant(&self, now: Instant, is_busy: bool) -> Option<usize> {
        match (is_busy, self.next) {
            (false, _) => Some(IDLE_BUDGET),
            (true, Some(next)) if now < next => None,
            (true, Some(_) | None) => Some(BUSY_BUDGET),
        }
    }

    /// A turn that was granted is over.
    pub(super) fn spent(&mut self, began: Instant, ended: Instant) {
        self.next = Some(ended + ended.saturating_duration_since(began) * PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[expect(
        clippy::disallowed_methods,
        reason = "any instant serves as the origin"
    )]
    fn origin() -> Instant {
        Instant::now()
    }

    #[test]
    fn responses_get_a_quarter_of_a_busy_time() {
        let mut share = ResponseShare::default();
        let start = origin();
        let (mut now, mut spent) = (start, Duration::ZERO);
        for turn in 0..10_000u64 {
            let took = Duration::from_micros(1 + turn % 40);
            let ended = now + took;
            if share.grant(now, true) == Some(1) {
                share.spent(now, ended);
                spent += took;
            }
            now = ended;
        }
        let all = now - start;
        assert!(
            spent * 4 <= all + Duration::from_micros(40),
            "{spent:?} of {all:?}"
        );
        assert!(spent * 6 >= all, "{spent:?} of {all:?}");
    }

    #[test]
    fn nothing_waits_where_little_arrives() {
        let mut share = ResponseShare::default();
        let now = origin();
        assert_eq!(share.grant(now, false), Some(2));
        share.spent(now, now + Duration::from_secs(1));
        let soon = now + Duration::from_secs(4);
        assert_eq!(share.grant(soon - Duration::from_nanos(1), true), None);
        assert_eq!(share.grant(now, false), Some(2));
        assert_eq!(share.grant(soon, true), Some(1));
    }
}

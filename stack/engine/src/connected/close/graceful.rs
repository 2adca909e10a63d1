//! Graceful close by this end's program (RFC 5040 §6.2): what was posted leaves and is placed before our half of the connection is closed, each
//! within a bounded time.

use std::time::{Duration, Instant};

use super::FLUSH_FOR;

/// Time for a dgiwarp peer to acknowledge what has left.
const PLACED_FOR: Duration = Duration::from_millis(200);

/// A connection that its program disconnected.
#[derive(Debug, Clone, Copy)]
pub struct GracefulClose {
    /// Deadline for what was posted to leave.
    flush_until: Instant,
    /// Deadline for the peer to place it; set once everything has left.
    placed_until: Option<Instant>,
}

/// State of the connection that a graceful close depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outstanding {
    /// The connection has not ended, and TCP may take octets.
    pub is_up: bool,
    /// Octets, or work requests that may become some, have not left.
    pub unsent: bool,
    /// The peer has not acknowledged everything that has left, and its acknowledgement would be received.
    pub unplaced: bool,
}

/// The next action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GracefulStep {
    /// Nothing before the deadline, or before more has left.
    Wait,
    /// Request acknowledgements of all that has left.
    RequestAcks,
    /// End the connection.
    Close,
}

impl GracefulClose {
    /// A close that begins now.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            flush_until: now + FLUSH_FOR,
            placed_until: None,
        }
    }

    /// When [`poll`](Self::poll) is due at the latest.
    #[must_use]
    pub fn deadline(self) -> Instant {
        self.placed_until.unwrap_or(self.flush_until)
    }

    /// The next step.
    pub fn poll(&mut self, now: Instant, outstanding: Outstanding) -> GracefulStep {
        let Outstanding {
            is_up,
            unsent,
            unplaced,
        } = outstanding;
        if is_up && unsent && now < self.flush_until {
            return GracefulStep::Wait;
        }
        let placed_until = *self.placed_until.get_or_insert(now + PLACED_FOR);
        if is_up && unplaced && now < placed_until {
            GracefulStep::RequestAcks
        } else {
            GracefulStep::Close
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connected::tests::now;

    const ALL: Outstanding = Outstanding {
        is_up: true,
        unsent: true,
        unplaced: true,
    };
    const UNPLACED: Outstanding = Outstanding {
        unsent: false,
        ..ALL
    };

    #[test]
    fn what_was_posted_leaves_then_is_placed_then_the_connection_ends() {
        let now = now();
        let mut close = GracefulClose::new(now);
        assert_eq!(close.poll(now, ALL), GracefulStep::Wait);
        assert_eq!(close.deadline(), now + FLUSH_FOR);
        assert_eq!(close.poll(now, UNPLACED), GracefulStep::RequestAcks);
        assert_eq!(close.deadline(), now + PLACED_FOR);
        let placed = Outstanding {
            unplaced: false,
            ..UNPLACED
        };
        assert_eq!(close.poll(now, placed), GracefulStep::Close);
    }

    #[test]
    fn neither_is_waited_for_longer_than_its_time() {
        let now = now();
        let mut close = GracefulClose::new(now);
        let early = close.deadline() - Duration::from_nanos(1);
        assert_eq!(close.poll(early, ALL), GracefulStep::Wait);
        let flushed = close.deadline();
        assert_eq!(close.poll(flushed, ALL), GracefulStep::RequestAcks);
        assert_eq!(close.deadline(), flushed + PLACED_FOR);
        let early = close.deadline() - Duration::from_nanos(1);
        assert_eq!(close.poll(early, UNPLACED), GracefulStep::RequestAcks);
        assert_eq!(close.poll(close.deadline(), UNPLACED), GracefulStep::Close);
    }

    #[test]
    fn a_connection_that_has_ended_is_not_waited_for() {
        let now = now();
        let ended = Outstanding {
            is_up: false,
            ..ALL
        };
        assert_eq!(
            GracefulClose::new(now).poll(now, ended),
            GracefulStep::Close
        );
    }
}

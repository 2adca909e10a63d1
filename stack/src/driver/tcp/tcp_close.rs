//! How a TCP connection is closed after its engine has ended: what is left for the peer, a Terminate at most, is sent, our half is closed, and
//! the peer's is read to its end. Each step has its time; nobody waits.

use std::time::{Duration, Instant};

use dgiwarp_llp_tcp_mpa::TcpEnd;

/// How long the network has to take what is left to send.
pub(crate) const FLUSH_FOR: Duration = Duration::from_secs(1);
/// How long the peer has for its end of the stream afterwards: closing with unread octets resets the connection, and what the peer
/// has not read yet is lost.
pub(crate) const LINGER_FOR: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    #[default]
    Open,
    /// What is left is sent, until then at most.
    Flushing(Instant),
    /// Our half is closed; the peer has until then.
    Draining(Instant),
    Closed,
}

/// How far closing is.
#[derive(Debug, Default)]
pub(crate) struct WayDown {
    phase: Phase,
    /// Nothing comes from the peer any more.
    peer_done: bool,
    /// Nothing reaches it either.
    lost: bool,
    unwatched: bool,
}

/// What is to be done with the socket now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Step {
    /// Close our half.
    pub(crate) shut_down: bool,
    /// Do not look for input any more: an ended stream would be readable for ever.
    pub(crate) unwatch: bool,
}

impl WayDown {
    pub(crate) fn has_begun(&self) -> bool {
        self.phase != Phase::Open
    }

    /// Whether octets may still go to TCP.
    pub(crate) fn may_send(&self) -> bool {
        !self.lost && matches!(self.phase, Phase::Open | Phase::Flushing(_))
    }

    /// The peer closed its half.
    pub(crate) fn peer_closed(&mut self) {
        self.peer_done = true;
    }

    /// The peer cannot be reached; what it sent before may lie there.
    pub(crate) fn unreachable(&mut self) {
        self.lost = true;
    }

    /// What the end of the stream means: TCP reports a loss once, to whoever is first, and then says that the stream has ended.
    pub(crate) fn end_of_stream(&self) -> TcpEnd {
        if self.lost { TcpEnd::Lost } else { TcpEnd::Fin }
    }

    /// The connection is lost.
    pub(crate) fn lost(&mut self) {
        self.peer_done = true;
        self.lost = true;
    }

    /// Whether there is nothing to receive any more.
    pub(crate) fn peer_is_done(&self) -> bool {
        self.peer_done || self.phase == Phase::Closed
    }

    /// Whether somebody looks for input.
    pub(crate) fn is_watched(&self) -> bool {
        !self.unwatched
    }

    /// When [`advance`](Self::advance) is due at the latest.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Flushing(until) | Phase::Draining(until) => Some(until),
            Phase::Open | Phase::Closed => None,
        }
    }

    /// The engine is over; `flushed` tells whether it has nothing left to send.
    pub(crate) fn advance(&mut self, now: Instant, flushed: bool) -> Step {
        let mut step = Step::default();
        if self.phase == Phase::Open {
            self.phase = Phase::Flushing(now + FLUSH_FOR);
        }
        if let Phase::Flushing(until) = self.phase
            && (flushed || self.lost || until <= now)
        {
            step.shut_down = true;
            self.phase = Phase::Draining(now + LINGER_FOR);
        }
        if let Phase::Draining(until) = self.phase
            && (self.peer_done || until <= now)
        {
            self.phase = Phase::Closed;
        }
        if self.peer_is_done() && !self.unwatched {
            self.unwatched = true;
            step.unwatch = true;
        }
        step
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::device::clock;

    const SHUT_DOWN: Step = Step {
        shut_down: true,
        unwatch: false,
    };
    const UNWATCH: Step = Step {
        shut_down: false,
        unwatch: true,
    };
    const BOTH: Step = Step {
        shut_down: true,
        unwatch: true,
    };

    #[test]
    fn our_half_goes_first_and_then_the_peers() {
        let now = clock::now();
        let mut way = WayDown::default();
        assert!(way.may_send() && !way.has_begun());
        assert_eq!(way.advance(now, false), Step::default());
        assert!(way.may_send() && way.has_begun());
        assert_eq!(way.deadline(), Some(now + FLUSH_FOR));
        assert_eq!(way.advance(now, true), SHUT_DOWN);
        assert!(!way.may_send() && !way.peer_is_done());
        assert_eq!(way.advance(now, true), Step::default());
        way.peer_closed();
        assert_eq!(way.advance(now, true), UNWATCH);
        assert_eq!(way.deadline(), None);
        assert_eq!(way.advance(now, true), Step::default());
    }

    #[test]
    fn each_step_has_its_time() {
        let now = clock::now();
        let mut way = WayDown::default();
        assert_eq!(way.advance(now, false), Step::default());
        let flushed = now + FLUSH_FOR;
        assert_eq!(way.advance(flushed, false), SHUT_DOWN);
        assert_eq!(way.deadline(), Some(flushed + LINGER_FOR));
        assert_eq!(way.advance(flushed + LINGER_FOR, false), UNWATCH);
        assert!(way.peer_is_done());
    }

    #[test]
    fn an_ended_or_lost_stream_is_not_looked_at() {
        let now = clock::now();
        let mut way = WayDown::default();
        way.peer_closed();
        assert!(way.may_send(), "our half still works");
        assert_eq!(way.advance(now, false), UNWATCH);
        assert_eq!(way.advance(now, true), SHUT_DOWN);
        let mut way = WayDown::default();
        way.lost();
        assert!(!way.may_send());
        assert_eq!(way.advance(now, false), BOTH);
    }
}

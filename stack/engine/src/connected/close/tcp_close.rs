//! Close of a TCP connection whose engine has ended: octets that are left, at most a Terminate, are sent, our half is closed (RFC 5044 §7.2), and
//! the peer's half is read to its end. Each step has its deadline.

use std::time::{Duration, Instant};

use dgiwarp_llp_tcp_mpa::TcpEnd;

/// Time for TCP to take octets that are left, and for a plain peer's to acknowledge them.
pub(super) const FLUSH_FOR: Duration = Duration::from_secs(1);
/// Time for the peer to close its half afterwards: closing a socket with unread octets resets the connection, and octets that the peer has not
/// read yet are lost.
pub const LINGER_FOR: Duration = Duration::from_secs(2);
/// Interval of looks at TCP's acknowledgements, of which no event tells.
const LOOK_EVERY: Duration = Duration::from_millis(2);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    #[default]
    Open,
    /// Octets that are left are sent, until this time at most.
    Flushing(Instant),
    /// Our half is closed, and the peer's is read until this time at most.
    Draining(Instant),
    Closed,
}

/// Progress of a close.
#[derive(Debug, Default)]
pub struct TcpClose {
    phase: Phase,
    /// Nothing more can be received.
    peer_done: bool,
    /// Nothing more can be sent.
    lost: bool,
    /// The socket is not polled for input any more.
    unpolled: bool,
    /// Our half is closed behind TCP's acknowledgement of all octets.
    behind_acks: bool,
    /// Next look at these acknowledgements.
    look: Option<Instant>,
}

/// An action on the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CloseStep {
    /// Close our half.
    pub shut_down: bool,
    /// Poll the socket for input no more: an ended stream would be readable for ever.
    pub unpoll: bool,
}

impl TcpClose {
    /// Whether [`advance`](Self::advance) was called.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.phase != Phase::Open
    }

    /// Whether octets may still go to TCP.
    #[must_use]
    pub fn may_send(&self) -> bool {
        !self.lost && matches!(self.phase, Phase::Open | Phase::Flushing(_))
    }

    /// Our half is closed once TCP has acknowledgements of all octets: Linux's siw drops what comes together with a FIN.
    pub fn close_behind_acks(&mut self) {
        self.behind_acks = true;
    }

    /// The peer has closed its half.
    pub fn peer_closed(&mut self) {
        self.peer_done = true;
    }

    /// Nothing reaches the peer any more; octets that it sent before may lie in the socket.
    pub fn unreachable(&mut self) {
        self.lost = true;
    }

    /// Meaning of the end of the stream: TCP reports a loss once, to the first call, and an end of the stream to the next ones.
    #[must_use]
    pub fn end_of_stream(&self) -> TcpEnd {
        if self.lost { TcpEnd::Lost } else { TcpEnd::Fin }
    }

    /// The connection is lost.
    pub fn lost(&mut self) {
        self.peer_done = true;
        self.lost = true;
    }

    /// Whether nothing more is to be received.
    #[must_use]
    pub fn peer_is_done(&self) -> bool {
        self.peer_done || self.phase == Phase::Closed
    }

    /// Whether the socket is polled for input.
    #[must_use]
    pub fn is_polled(&self) -> bool {
        !self.unpolled
    }

    /// The socket is not polled until [`resume_polling`](Self::resume_polling): its end has come, and is deferred.
    pub fn stop_polling(&mut self) {
        self.unpolled = true;
    }

    /// The socket is polled again.
    pub fn resume_polling(&mut self) {
        self.unpolled = self.peer_done;
    }

    /// When [`advance`](Self::advance) is due at the latest.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Flushing(until) => Some(self.look.map_or(until, |look| look.min(until))),
            Phase::Draining(until) => Some(until),
            Phase::Open | Phase::Closed => None,
        }
    }

    /// Begins or continues the close of a connection whose engine has ended. `flushed`: TCP has taken all octets; `acknowledged`: it
    /// has acknowledgements of all that it took.
    pub fn advance(
        &mut self,
        now: Instant,
        flushed: bool,
        acknowledged: impl FnOnce() -> bool,
    ) -> CloseStep {
        let mut step = CloseStep::default();
        if self.phase == Phase::Open {
            self.phase = Phase::Flushing(now + FLUSH_FOR);
        }
        if let Phase::Flushing(until) = self.phase {
            let over = self.lost || until <= now;
            let waits = flushed && !over && self.behind_acks && !acknowledged();
            self.look = waits.then(|| now + LOOK_EVERY);
            if over || flushed && !waits {
                step.shut_down = true;
                self.phase = Phase::Draining(now + LINGER_FOR);
            }
        }
        if let Phase::Draining(until) = self.phase
            && (self.peer_done || until <= now)
        {
            self.phase = Phase::Closed;
        }
        if self.peer_is_done() && !self.unpolled {
            self.unpolled = true;
            step.unpoll = true;
        }
        step
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connected::tests::now;

    const SHUT_DOWN: CloseStep = CloseStep {
        shut_down: true,
        unpoll: false,
    };
    const UNPOLL: CloseStep = CloseStep {
        shut_down: false,
        unpoll: true,
    };
    const BOTH: CloseStep = CloseStep {
        shut_down: true,
        unpoll: true,
    };

    #[test]
    fn our_half_goes_first_and_then_the_peers() {
        let now = now();
        let mut close = TcpClose::default();
        assert!(close.may_send() && !close.has_begun());
        assert_eq!(close.advance(now, false, || true), CloseStep::default());
        assert!(close.may_send() && close.has_begun());
        assert_eq!(close.deadline(), Some(now + FLUSH_FOR));
        assert_eq!(close.advance(now, true, || true), SHUT_DOWN);
        assert!(!close.may_send() && !close.peer_is_done());
        assert_eq!(close.advance(now, true, || true), CloseStep::default());
        close.peer_closed();
        assert_eq!(close.advance(now, true, || true), UNPOLL);
        assert_eq!(close.deadline(), None);
        assert_eq!(close.advance(now, true, || true), CloseStep::default());
    }

    #[test]
    fn each_step_has_its_time() {
        let now = now();
        let mut close = TcpClose::default();
        assert_eq!(close.advance(now, false, || true), CloseStep::default());
        let flushed = now + FLUSH_FOR;
        assert_eq!(close.advance(flushed, false, || true), SHUT_DOWN);
        assert_eq!(close.deadline(), Some(flushed + LINGER_FOR));
        assert_eq!(close.advance(flushed + LINGER_FOR, false, || true), UNPOLL);
        assert!(close.peer_is_done());
    }

    #[test]
    fn an_ended_or_lost_stream_is_not_polled() {
        let now = now();
        let mut close = TcpClose::default();
        close.peer_closed();
        assert!(close.may_send(), "our half still works");
        assert_eq!(close.advance(now, false, || true), UNPOLL);
        assert_eq!(close.advance(now, true, || true), SHUT_DOWN);
        let mut close = TcpClose::default();
        close.lost();
        assert!(!close.may_send());
        assert_eq!(close.advance(now, false, || true), BOTH);
    }

    #[test]
    fn our_half_goes_behind_acknowledgements_of_a_plain_peer() {
        let now = now();
        let mut close = TcpClose::default();
        close.close_behind_acks();
        assert_eq!(close.advance(now, false, || true), CloseStep::default());
        assert_eq!(close.deadline(), Some(now + FLUSH_FOR));
        assert_eq!(close.advance(now, true, || false), CloseStep::default());
        assert_eq!(close.deadline(), Some(now + LOOK_EVERY));
        assert!(close.may_send());
        let later = now + LOOK_EVERY;
        assert_eq!(close.advance(later, true, || true), SHUT_DOWN);
        assert_eq!(close.deadline(), Some(later + LINGER_FOR));

        let mut close = TcpClose::default();
        close.close_behind_acks();
        assert_eq!(close.advance(now, true, || false), CloseStep::default());
        let over = now + FLUSH_FOR;
        assert_eq!(close.advance(over, true, || false), SHUT_DOWN);

        let mut close = TcpClose::default();
        assert_eq!(close.advance(now, true, || false), SHUT_DOWN);
    }
}

//! Nudging a peer that does not look at what it was sent.

use std::time::{Duration, Instant};

/// When an Initiator that has heard nothing nudges its peer, counted from its first FPDU and then from the last nudge.
///
/// A Responder may answer the Request before it watches the connection for FPDUs; the Linux kernel's siw does. An FPDU that reaches it
/// in between lies there until the next one comes, and a program that waits for the answer to its first message waits for ever. A
/// zero-length RDMA Write is something that any peer has to take and none may look at (RFC 5041 §5.2).
const NUDGES: [Duration; 3] = [
    Duration::from_millis(20),
    Duration::from_millis(100),
    Duration::from_millis(500),
];

/// Whether the peer shows that it receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FirstFpduProbe {
    /// An Initiator that has sent nothing yet.
    Idle,
    /// Something was sent, nothing came back; so many nudges were made.
    Waiting { at: Instant, made: usize },
    /// The peer has sent something, or has been nudged enough; or we are the Responder, who has been sent something.
    Done,
}

impl FirstFpduProbe {
    /// Something leaves.
    #[inline]
    pub(super) fn sent(&mut self, now: Instant) {
        if *self == Self::Idle {
            *self = Self::Waiting {
                at: now + NUDGES[0],
                made: 0,
            };
        }
    }

    pub(super) const fn deadline(self) -> Option<Instant> {
        match self {
            Self::Waiting { at, .. } => Some(at),
            Self::Idle | Self::Done => None,
        }
    }

    /// Whether a nudge is due.
    pub(super) fn is_due(self, now: Instant) -> bool {
        self.deadline().is_some_and(|at| at <= now)
    }

    /// It was due, and `made` now or left for the next time.
    pub(super) fn advance(&mut self, now: Instant, nudged: bool) {
        let Self::Waiting { made, .. } = *self else {
            return;
        };
        let made = made + usize::from(nudged);
        *self = match NUDGES.get(made) {
            Some(delay) => Self::Waiting {
                at: now + *delay,
                made,
            },
            None => Self::Done,
        };
    }
}

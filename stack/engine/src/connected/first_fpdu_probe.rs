//! First-FPDU probe: an empty Write to a peer that is silent after the first FPDU.

use std::time::{Duration, Instant};

/// Delays of the probes of an Initiator whose peer is silent, from its first FPDU and then from the last probe.
///
/// A Responder may send the Reply before it receives FPDUs; the Linux kernel's siw does. An FPDU that arrives in between is handled when the
/// next one comes, and a program that waits for the answer to its first message waits for ever. Every peer has to accept a zero-length RDMA Write,
/// and ignores it (RFC 5041 §5.2).
const DELAYS: [Duration; 3] = [
    Duration::from_millis(20),
    Duration::from_millis(100),
    Duration::from_millis(500),
];

/// Progress of the probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FirstFpduProbe {
    /// The Initiator has sent no FPDU.
    Idle,
    /// An FPDU was sent and none received; `made` probes were sent.
    Waiting { at: Instant, made: usize },
    /// An FPDU was received, or all probes were sent; or this end is the Responder.
    Done,
}

impl FirstFpduProbe {
    /// An FPDU leaves.
    #[inline]
    pub(super) fn sent(&mut self, now: Instant) {
        if *self == Self::Idle {
            *self = Self::Waiting {
                at: now + DELAYS[0],
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

    /// Whether a probe is due.
    pub(super) fn is_due(self, now: Instant) -> bool {
        self.deadline().is_some_and(|at| at <= now)
    }

    /// A probe was due, and was `sent` or left for the next time.
    pub(super) fn advance(&mut self, now: Instant, sent: bool) {
        let Self::Waiting { made, .. } = *self else {
            return;
        };
        let made = made + usize::from(sent);
        *self = match DELAYS.get(made) {
            Some(delay) => Self::Waiting {
                at: now + *delay,
                made,
            },
            None => Self::Done,
        };
    }
}

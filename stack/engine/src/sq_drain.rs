//! Drain of a send queue: the state SQD (send queue drained) of a queue pair.

use crate::cq_ring::CompletionSink;
use crate::types::AsyncEvent;

/// Progress of a send queue in the state SQD (InfiniBand specification volume 1, §10.3.1.5): work requests that have begun end, no other begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SqDrain {
    /// The queue pair is in another state.
    #[default]
    Off,
    /// A work request that has begun is not complete.
    Draining {
        /// Whether the end of the drain raises [`AsyncEvent::SqDrained`].
        notify: bool,
    },
    /// All that had begun is complete.
    Drained,
}

impl SqDrain {
    /// The queue pair enters SQD. Where it is there already, nothing changes.
    pub fn begin(&mut self, notify: bool) {
        if *self == Self::Off {
            *self = Self::Draining { notify };
        }
    }

    /// Whether no work request begins.
    #[inline]
    pub const fn holds(self) -> bool {
        !matches!(self, Self::Off)
    }

    /// Whether work requests that have begun may be outstanding (`sq_draining` of `ibv_query_qp(3)`).
    #[inline]
    pub const fn is_draining(self) -> bool {
        matches!(self, Self::Draining { .. })
    }

    /// Nothing that had begun is outstanding: raises the event, once, if it was asked for.
    pub fn complete(&mut self, qpn: u32, completions: &mut impl CompletionSink) {
        if let Self::Draining { notify } = *self {
            *self = Self::Drained;
            if notify {
                completions.event(AsyncEvent::SqDrained { qpn });
            }
        }
    }

    /// The queue pair is in error: nothing drains any more, and no event comes.
    pub fn abandon(&mut self) {
        if self.is_draining() {
            *self = Self::Drained;
        }
    }
}

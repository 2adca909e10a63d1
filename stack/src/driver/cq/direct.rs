//! A completion that goes straight to the thread that polls, past the ring.

use crate::Wc;

/// Place for the first completion that a poll of an empty completion queue brings about.
#[derive(Debug, Default)]
pub(crate) struct DirectCompletion {
    /// Number of the completion queue that is polled.
    cq: Option<u64>,
    wc: Option<Wc>,
}

impl DirectCompletion {
    /// The place of a thread that polls this completion queue.
    #[inline]
    pub(super) const fn of(cq: u64) -> Self {
        Self {
            cq: Some(cq),
            wc: None,
        }
    }

    /// Whether a completion of this queue finds the place free.
    #[inline]
    pub(super) fn is_free_for(&self, cq: u64) -> bool {
        self.cq == Some(cq) && self.wc.is_none()
    }

    #[inline]
    pub(super) const fn put(&mut self, wc: Wc) {
        self.wc = Some(wc);
    }

    /// Whether there is a completion.
    #[inline]
    pub(crate) const fn is_taken(&self) -> bool {
        self.wc.is_some()
    }

    /// The completion, if there is one.
    #[inline]
    pub(super) const fn get(&self) -> Option<&Wc> {
        self.wc.as_ref()
    }
}

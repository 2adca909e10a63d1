//! Completions that go straight to the thread that polls, past the ring.

use arrayvec::ArrayVec;

use crate::Wc;

/// Completions that one poll takes past the ring, at most.
const MOST: usize = 16;

/// Places for the first completions that a poll of an empty completion queue brings about.
#[derive(Debug, Default)]
pub(crate) struct DirectCompletions {
    /// Number of the completion queue that is polled.
    cq: Option<u64>,
    /// Places in use at most.
    places: usize,
    taken: ArrayVec<Wc, MOST>,
}

impl DirectCompletions {
    /// The places of a thread that polls this completion queue, for `wanted` completions at most.
    #[inline]
    pub(super) fn of(cq: u64, wanted: usize) -> Self {
        Self {
            cq: Some(cq),
            places: wanted.min(MOST),
            taken: ArrayVec::new(),
        }
    }

    /// Whether a completion of this queue finds a free place.
    #[inline]
    pub(super) fn are_free_for(&self, cq: u64) -> bool {
        self.cq == Some(cq) && self.taken.len() < self.places
    }

    /// Takes a place that is [free](Self::are_free_for).
    #[inline]
    pub(super) fn put(&mut self, wc: Wc) {
        self.taken.push(wc);
    }

    /// Whether no place is free, for completions of any queue.
    #[inline]
    pub(crate) fn are_full(&self) -> bool {
        self.taken.len() >= self.places
    }

    /// Whether there is a completion.
    #[inline]
    pub(crate) fn are_taken(&self) -> bool {
        !self.taken.is_empty()
    }

    /// The completions, in order.
    #[inline]
    pub(super) fn taken(&self) -> &[Wc] {
        &self.taken
    }
}

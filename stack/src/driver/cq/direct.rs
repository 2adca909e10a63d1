//! Completions that go straight to the thread that polls, past the ring.

use arrayvec::ArrayVec;

use crate::Wc;

/// Completions that one poll takes past the ring, at most.
const MOST: usize = 16;

/// Places for the first completions that a poll of an empty completion queue brings about.
#[derive(Debug, Default)]
pub(crate) struct DirectCompletions<'a> {
    /// Number of the completion queue that is polled.
    cq: Option<u64>,
    /// Places in use at most.
    places: usize,
    taken: usize,
    /// Places of the caller, or none.
    slots: &'a mut [Wc],
    /// Completions of a caller without places.
    kept: ArrayVec<Wc, MOST>,
}

impl<'a> DirectCompletions<'a> {
    /// The places of a thread that polls this completion queue, for `wanted` completions at most.
    #[inline]
    pub(super) fn of(cq: u64, wanted: usize) -> Self {
        Self {
            cq: Some(cq),
            places: wanted.min(MOST),
            taken: 0,
            slots: &mut [],
            kept: ArrayVec::new(),
        }
    }

    /// As [`of`](Self::of); the completions go to the front of `slots`.
    #[inline]
    pub(super) fn in_slots(cq: u64, slots: &'a mut [Wc]) -> Self {
        Self {
            places: slots.len().min(MOST),
            slots,
            ..Self::of(cq, 0)
        }
    }

    /// Whether a completion of this queue finds a free place.
    #[inline]
    pub(super) fn are_free_for(&self, cq: u64) -> bool {
        self.cq == Some(cq) && !self.are_full()
    }

    /// Takes a place that is [free](Self::are_free_for).
    #[inline(always)]
    pub(crate) fn put(&mut self, make: impl FnOnce() -> Wc) {
        match self.slots.get_mut(self.taken) {
            Some(slot) => *slot = make(),
            None => self.kept.push(make()),
        }
        self.taken += 1;
    }

    /// Whether no place is free, for completions of any queue.
    #[inline]
    pub(crate) fn are_full(&self) -> bool {
        self.taken >= self.places
    }

    /// Whether there is a completion.
    #[inline]
    pub(crate) fn are_taken(&self) -> bool {
        self.taken > 0
    }

    /// How many completions there are.
    #[inline]
    pub(super) fn count(&self) -> usize {
        self.taken
    }

    /// The completions, in order.
    #[inline]
    pub(super) fn taken(&self) -> &[Wc] {
        if self.slots.is_empty() {
            &self.kept
        } else {
            &self.slots[..self.taken]
        }
    }
}

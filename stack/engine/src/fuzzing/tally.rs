//! Tally of posted and completed work requests: each once, and in order.

use std::collections::VecDeque;

use crate::types::{Wc, WcStatus};

/// A posted work request.
#[derive(Debug)]
pub(super) struct Posted<T> {
    pub(super) wr_id: u64,
    /// Whether success makes a completion.
    pub(super) signaled: bool,
    pub(super) about: T,
}

/// Work requests of one queue that have not completed, oldest first.
#[derive(Debug)]
pub(super) struct Tally<T> {
    posted: VecDeque<Posted<T>>,
    next: u64,
}

impl<T> Default for Tally<T> {
    fn default() -> Self {
        Self {
            posted: VecDeque::new(),
            next: 0,
        }
    }
}

impl<T> Tally<T> {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.posted.len()
    }

    /// The number that the next one gets.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    pub(super) fn post(&mut self, signaled: bool, about: T) {
        self.posted.push_back(Posted {
            wr_id: self.next,
            signaled,
            about,
        });
        self.next += 1;
    }

    /// The one that completes in order. Panics if it is not the oldest of those that have to.
    pub(super) fn complete(&mut self, wc: &Wc) -> Posted<T> {
        loop {
            let oldest = self.posted.pop_front();
            let oldest = oldest.unwrap_or_else(|| panic!("nobody posted what completes: {wc:?}"));
            if oldest.wr_id == wc.wr_id {
                assert!(
                    oldest.signaled || wc.status != WcStatus::Success,
                    "nobody asked for {wc:?}"
                );
                return oldest;
            }
            assert!(!oldest.signaled, "{} is passed by {wc:?}", oldest.wr_id);
        }
    }

    /// Whether this one has not completed.
    pub(super) fn has(&self, wr_id: u64) -> bool {
        self.posted.iter().any(|posted| posted.wr_id == wr_id)
    }

    /// The one that completes, in whatever order. Panics if it is not one that has to.
    pub(super) fn complete_any(&mut self, wc: &Wc) -> Posted<T> {
        let at = self
            .posted
            .iter()
            .position(|posted| posted.wr_id == wc.wr_id);
        let posted = at.and_then(|at| self.posted.remove(at));
        let posted = posted.unwrap_or_else(|| panic!("nobody posted what completes: {wc:?}"));
        assert!(
            posted.signaled || wc.status != WcStatus::Success,
            "nobody asked for {wc:?}"
        );
        posted
    }

    /// Panics unless everything has completed that had to.
    pub(super) fn check_over(&self) {
        let left = self.posted.iter().find(|posted| posted.signaled);
        assert!(
            left.is_none(),
            "work request {:?} did not complete",
            left.map(|posted| posted.wr_id)
        );
    }
}

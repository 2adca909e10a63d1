//! Completions taken in batches.

use dgiwarp::{Cq, Wc};

use crate::endpoint::ours::stack;
use crate::error::Result;
use crate::measure::BLOCK_SLICE;

/// Completions taken in one call.
const BATCH: usize = 32;

/// A completion queue, and a batch of its completions that are not yet handled.
#[derive(Debug)]
pub(super) struct Completions {
    cq: Cq,
    blocking: bool,
    batch: Vec<Wc>,
    /// How many of the batch are valid, and how many of these were handled.
    ready: usize,
    taken: usize,
}

impl Completions {
    /// Takes from this queue; only with `blocking` does it ever wait.
    pub(super) fn new(cq: Cq, blocking: bool) -> Self {
        Self {
            cq,
            blocking,
            batch: vec![Wc::default(); BATCH],
            ready: 0,
            taken: 0,
        }
    }

    /// The next completion, if there is one; with `wait`, within [`BLOCK_SLICE`].
    pub(super) fn next(&mut self, wait: bool) -> Result<Option<Wc>> {
        if self.taken == self.ready {
            self.taken = 0;
            self.ready = self
                .cq
                .poll(&mut self.batch)
                .map_err(stack("poll the completion queue"))?;
        }
        if self.taken < self.ready {
            self.taken += 1;
            return Ok(self.batch.get(self.taken - 1).copied());
        }
        if wait && self.blocking {
            return self
                .cq
                .wait(BLOCK_SLICE)
                .map_err(stack("wait for a completion"));
        }
        Ok(None)
    }
}

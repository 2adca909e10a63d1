//! An end of an arena's lanes.

use dgiwarp_memory::lane::{LaneInput, LaneOutput};

use crate::driver::same_host::budget::Share;

/// The ends of an arena's lanes, and a share of the budget.
#[derive(Debug)]
pub(crate) struct LaneEnds {
    pub(crate) output: LaneOutput,
    pub(crate) input: LaneInput,
    /// Of the memory of the arena, without the ring that the peer sends in.
    pub(crate) share: Share,
}

impl LaneEnds {
    pub(crate) fn new((output, input): (LaneOutput, LaneInput), share: Share) -> Self {
        Self {
            output,
            input,
            share,
        }
    }
}

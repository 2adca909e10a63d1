//! Ready Reads of one target over one local address, and the requests that are out there.

use std::collections::VecDeque;

/// Most requests that one target queues for one requester (§7.1).
pub(super) const MAX_OPEN: u32 = 16;

/// Names a Read; goes stale when it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReadKey {
    pub(super) slot: usize,
    pub(super) sink_stag: u32,
}

/// Peer that is or was read from, over one local address; what is left of an earlier one at the place of its handshake is stale and
/// does no harm.
#[derive(Debug, Default)]
pub(super) struct Target {
    /// Requests whose responses are incomplete.
    pub(super) open: u32,
    /// [`MAX_OPEN`] requests were open; the next ones are sent when half of them are complete.
    pub(super) is_full: bool,
    /// Ready queue: Reads with octets to request, each once.
    pub(super) ready: VecDeque<ReadKey>,
    /// The target is in the round robin of the requester.
    pub(super) in_round: bool,
}

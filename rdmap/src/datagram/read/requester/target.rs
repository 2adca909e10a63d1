//! Ready Reads of one target over one local address, and the requests that are out there.

use std::collections::VecDeque;
use std::time::Instant;

use super::ask::{Ask, Reordering};

/// Most requests that one target queues for one requester (§7.1).
pub(super) const MAX_OPEN: usize = 16;

/// Names a Read; goes stale when it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReadKey {
    pub(super) slot: usize,
    pub(super) sink_stag: u32,
}

/// Range of a message whose missing octets are to be requested again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lost {
    pub(super) key: ReadKey,
    pub(super) start: u32,
    pub(super) end: u32,
}

/// Peer that is or was read from, over one local address; what is left of an earlier one at the place of its handshake is stale and
/// does no harm.
#[derive(Debug, Default)]
pub(super) struct Target {
    /// Requests that are not answered whole, in their order, at most [`MAX_OPEN`]. An octet that was requested and is missing is in the rest of one of
    /// them, or lost.
    pub(super) asks: Vec<Ask>,
    /// Ranges to be requested again.
    pub(super) lost: VecDeque<Lost>,
    /// [`MAX_OPEN`] requests were open; the next ones are sent when half of them are complete.
    pub(super) is_full: bool,
    /// Ready queue: Reads with octets to request, each once.
    pub(super) ready: VecDeque<ReadKey>,
    /// The target is in the round robin of the requester.
    pub(super) in_round: bool,
    /// The target is in the round robin of those with lost ranges.
    pub(super) in_repeats: bool,
    pub(super) reordering: Reordering,
    /// Time of the latest response.
    pub(super) last_arrival: Option<Instant>,
    /// Time of the probe since the latest response.
    pub(super) probed: Option<Instant>,
    /// Timeouts since the latest response.
    pub(super) fruitless: u32,
}

impl Target {
    /// Marks what is missing of a request as lost from its front up to `end`.
    pub(super) fn lose(&mut self, index: usize, end: u32) {
        let ask = &mut self.asks[index];
        let (key, start) = (ask.key, ask.front);
        // The octets of a probe are also those of the request that it is about.
        if !ask.is_probe {
            self.lost.push_back(Lost { key, start, end });
        }
        ask.front = end;
        ask.evidence = 0;
        ask.is_over = end == ask.end;
    }

    /// Whether the requests at this target may be more.
    pub(super) fn has_place(&self) -> bool {
        self.asks.len() < MAX_OPEN
    }

    /// Time since which the target owes a response.
    pub(super) fn owes_since(&self) -> Option<Instant> {
        let oldest = self.asks.first()?.at;
        let heard = self.last_arrival.map_or(oldest, |at| at.max(oldest));
        Some(self.probed.map_or(heard, |at| at.max(heard)))
    }
}

//! The part of a source's pipeline for which the others wait.

use super::SourceEngine;
use crate::engine::Limit;

impl SourceEngine {
    /// The limit now, when all that may leave has left. `flying`: blocks of which the peer has not taken the frames.
    #[must_use]
    pub fn limit(&self, flying: usize) -> Limit {
        if !self.filled.is_empty() {
            // Without a slot: those on their way are the path's, the others are full at the peer.
            return if self.granted.is_empty() && 2 * flying < self.is_granted.len() {
                Limit::Peer
            } else {
                Limit::Network
            };
        }
        if self.leaving > self.working {
            Limit::Network
        } else if self.working > 0 {
            Limit::Files
        } else {
            Limit::Peer
        }
    }
}

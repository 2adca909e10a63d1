//! The part of a sink's pipeline for which the others wait.

use super::{SinkEngine, Slot};
use crate::engine::Limit;

impl SinkEngine {
    /// The limit now, when all that may leave has left.
    #[must_use]
    pub fn limit(&self) -> Limit {
        let granted = self.slots.iter().filter(|it| **it == Slot::Granted).count();
        let full = self.slots.len() - granted;
        // While most slots are free, blocks are written as they come; behind the last one, files are finished.
        if self.working > 0 && (full == 0 || full >= granted) {
            Limit::Files
        } else {
            Limit::Peer
        }
    }
}

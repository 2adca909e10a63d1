//! Completions as tests take them: kept in the order in which they came.

use crate::cq_ring::CompletionSink;
use crate::types::{AsyncEvent, Wc};

/// Keeps completions and events.
#[derive(Debug, Default)]
pub(crate) struct RecordingSink {
    pub(crate) sent: Vec<Wc>,
    /// Completions of receives and records, and reports of segments.
    pub(crate) received: Vec<Wc>,
    /// Work requests that left the send queue.
    pub(crate) retired: usize,
    pub(crate) events: Vec<AsyncEvent>,
}

impl CompletionSink for RecordingSink {
    fn sent(&mut self, wc: Wc) {
        self.sent.push(wc);
    }

    fn received(&mut self, wc: Wc) {
        self.received.push(wc);
    }

    fn segment(&mut self, wc: Wc) -> bool {
        self.received.push(wc);
        true
    }

    fn retired(&mut self) {
        self.retired += 1;
    }

    fn event(&mut self, event: AsyncEvent) {
        self.events.push(event);
    }
}

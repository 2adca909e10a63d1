//! RC QPs on reliable datagrams: the error state.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{RdInner, RdShared};
use crate::driver::cm::event_connections::{EndSignal, Messages};
use dgiwarp_engine::reliable::RdEngine;

impl RdShared {
    /// Whether the QP is one with a single peer, and its connection is over.
    pub(crate) fn is_over(&self) -> bool {
        let over = self.unlocked.over.as_ref();
        over.is_some_and(|over| over.load(Ordering::Acquire))
    }

    /// Takes note of the end of the connection, which need not have had a completion.
    #[inline]
    pub(super) fn note_end(&self, engine: &RdEngine, ended: &mut bool) {
        if *ended || !engine.is_over() {
            return;
        }
        *ended = true;
        if let Some(over) = &self.unlocked.over {
            over.store(true, Ordering::Release);
        }
        self.raise_last_wqe();
        if let Some(signal) = self.unlocked.end_signal.get() {
            signal.raise();
        }
    }

    /// The QP begins anew.
    pub(super) fn forget_end(&self, inner: &mut RdInner) {
        inner.ended = false;
        if let Some(over) = &self.unlocked.over {
            over.store(false, Ordering::Release);
        }
    }
}

impl Messages for RdShared {
    fn signal_end(&self, signal: &Arc<EndSignal>) {
        let _ = self.unlocked.end_signal.set(Arc::clone(signal));
    }

    fn is_over(&self) -> bool {
        Self::is_over(self)
    }

    fn end_behind_arrived(&self, orderly: bool) {
        Self::end_behind_arrived(self, orderly);
    }

    fn has_success(&self) -> bool {
        Self::has_success(self)
    }
}

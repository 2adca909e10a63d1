//! Unacknowledged events of an object: destroying the object waits for the program's acknowledgements.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Events of one object that the program fetched and has not acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Unacked {
    counts: Mutex<Counts>,
    none: Condvar,
}

#[derive(Debug, Default)]
struct Counts {
    /// Events fetched and not acknowledged.
    fetched: u64,
    /// Threads in [`Unacked::wait`]. Mostly zero: then an acknowledgement notifies nobody.
    waiting: u32,
}

impl Unacked {
    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an event that the program fetches.
    pub(crate) fn fetched(&self) {
        self.lock().fetched += 1;
    }

    /// Counts events that the program acknowledges.
    pub(crate) fn acknowledged(&self, events: u32) {
        let mut counts = self.lock();
        counts.fetched = counts.fetched.saturating_sub(events.into());
        if counts.fetched == 0 && counts.waiting > 0 {
            self.none.notify_all();
        }
    }

    /// Waits until every fetched event is acknowledged.
    pub(crate) fn wait(&self) {
        let mut counts = self.lock();
        counts.waiting += 1;
        while counts.fetched > 0 {
            counts = self
                .none
                .wait(counts)
                .unwrap_or_else(PoisonError::into_inner);
        }
        counts.waiting -= 1;
    }
}

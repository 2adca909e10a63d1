//! Counting what a program fetched and has not acknowledged: destroying an object waits for that.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Events of one object that were fetched and not acknowledged yet.
#[derive(Debug, Default)]
pub(crate) struct Acks {
    counts: Mutex<Counts>,
    none: Condvar,
}

#[derive(Debug, Default)]
struct Counts {
    fetched: u64,
    /// Threads that wait until there are none. Programs acknowledge each event, and nearly always nobody waits.
    waiting: u32,
}

impl Acks {
    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An event is handed to the program.
    pub(crate) fn fetched(&self) {
        self.lock().fetched += 1;
    }

    /// The program is done with events.
    pub(crate) fn acknowledged(&self, events: u32) {
        let mut counts = self.lock();
        counts.fetched = counts.fetched.saturating_sub(events.into());
        if counts.fetched == 0 && counts.waiting > 0 {
            self.none.notify_all();
        }
    }

    /// Waits until the program is done with all.
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

//! Counting what a program fetched and has not acknowledged: destroying an object waits for that.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Events of one object that were fetched and not acknowledged yet.
#[derive(Debug, Default)]
pub(crate) struct Acks {
    fetched: Mutex<u64>,
    none: Condvar,
}

impl Acks {
    fn lock(&self) -> MutexGuard<'_, u64> {
        self.fetched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An event is handed to the program.
    pub(crate) fn fetched(&self) {
        *self.lock() += 1;
    }

    /// The program is done with events.
    pub(crate) fn acknowledged(&self, events: u32) {
        let mut fetched = self.lock();
        *fetched = fetched.saturating_sub(events.into());
        if *fetched == 0 {
            self.none.notify_all();
        }
    }

    /// Waits until the program is done with all.
    pub(crate) fn wait(&self) {
        let mut fetched = self.lock();
        while *fetched > 0 {
            fetched = self
                .none
                .wait(fetched)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

//! Gate of a listening identifier, which hands out one connection request at a time.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Closed from the fetch of a connection request until the first call on its identifier, or for [`Self::LONGEST`].
///
/// Programs pass a request from the thread that fetches events to another in a variable that holds one: `rping -P` does.
#[derive(Debug, Default)]
pub(crate) struct RequestGate {
    /// Time at which the gate was closed; `None` while it is open.
    closed_at: Mutex<Option<Instant>>,
    opened: Condvar,
}

impl RequestGate {
    /// Enough for the first call on a busy machine.
    const LONGEST: Duration = Duration::from_millis(50);

    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.closed_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the time that a thread of the program takes is real time"
    )]
    pub(crate) fn close(&self) {
        *self.lock() = Some(Instant::now());
    }

    pub(crate) fn open(&self) {
        *self.lock() = None;
        self.opened.notify_all();
    }

    /// Waits for an open gate, as long as `may_wait` holds: a program that does not wait for events does everything in
    /// one thread.
    pub(crate) fn wait(&self, may_wait: impl Fn() -> bool) {
        let mut closed_at = self.lock();
        while let Some(left) = closed_at.and_then(|at| Self::LONGEST.checked_sub(at.elapsed()))
            && may_wait()
        {
            (closed_at, _) = self
                .opened
                .wait_timeout(closed_at, left)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

//! State that the threads of a device share, and waits for its changes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use xtask::clock;

/// All that the threads of a device share: its faults, what never changes, and state that does.
pub(super) struct World<C, S> {
    /// Settings that never change.
    pub(super) with: C,
    fault: &'static str,
    state: Mutex<S>,
    changed: Condvar,
    over: AtomicBool,
}

impl<C, S> World<C, S> {
    /// A device with these faults, with commas between.
    pub(super) fn new(fault: &'static str, with: C, state: S) -> Self {
        Self {
            with,
            fault,
            state: Mutex::new(state),
            changed: Condvar::new(),
            over: AtomicBool::new(false),
        }
    }

    /// Whether it has this fault.
    pub(super) fn does(&self, fault: &str) -> bool {
        self.fault.split(", ").any(|one| one == fault)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, S> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes all that wait.
    pub(super) fn tell(&self) {
        self.changed.notify_all();
    }

    /// Whether the device has ended.
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Ends it: nothing waits any more.
    pub(super) fn end(&self) {
        let state = self.state();
        self.over.store(true, Ordering::Relaxed);
        drop(state);
        self.tell();
    }

    /// Waits until there is something, or the time is over.
    pub(super) fn wait<T>(
        &self,
        time: Duration,
        mut look: impl FnMut(&mut S) -> Option<T>,
    ) -> Option<T> {
        let until = clock::now() + time;
        let mut state = self.state();
        loop {
            if let Some(found) = look(&mut state) {
                return Some(found);
            }
            let left = until.saturating_duration_since(clock::now());
            if left.is_zero() || self.is_over() {
                return None;
            }
            let waited = self.changed.wait_timeout(state, left);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

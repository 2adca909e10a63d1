//! Exclusive access to one engine, without hand-off between threads.
//!
//! A thread queues its work where the engine finds it and sets `pending`. If it gets the lock it does all queued work,
//! its own and that of others; if not, the holder of the lock does, because holders check `pending` again after they unlock.
//! Without that second check, work marked between the holder's last check and its unlock would be lost.

// The model check replaces these primitives.
use super::sync::{AtomicU32, Mutex, MutexGuard, Ordering};

/// Lock of one value whose holder also does the work that others mark as `pending`.
#[derive(Debug)]
pub(crate) struct Exclusive<T> {
    value: Mutex<T>,
    /// 1 while work is queued that no holder has begun, else 0.
    pending: AtomicU32,
}

impl<T> Exclusive<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            value: Mutex::new(value),
            pending: AtomicU32::new(0),
        }
    }

    /// Has `work` run after the caller's earlier stores: here, or in the thread that holds the lock.
    #[inline]
    pub(crate) fn run_or_mark(&self, mut work: impl FnMut(&mut T)) {
        self.pending.fetch_or(1, Ordering::SeqCst);
        barrier();
        self.run_pending(&mut work);
    }

    /// Runs `first` now if nobody holds the lock, and then pending work. Returns the result of `first`.
    #[inline]
    pub(crate) fn try_run<R>(
        &self,
        first: impl FnOnce(&mut T) -> R,
        mut work: impl FnMut(&mut T),
    ) -> Option<R> {
        let mut guard = self.value.try_lock()?;
        let result = first(&mut guard);
        self.release(guard, &mut work);
        Some(result)
    }

    /// Waits for the lock, runs `first`, and then pending work. For control calls, not for data.
    pub(crate) fn run<R>(
        &self,
        first: impl FnOnce(&mut T) -> R,
        mut work: impl FnMut(&mut T),
    ) -> R {
        let mut guard = self.value.lock();
        let result = first(&mut guard);
        self.release(guard, &mut work);
        result
    }

    fn release(&self, guard: MutexGuard<'_, T>, work: &mut impl FnMut(&mut T)) {
        drop(guard);
        barrier();
        if self.pending.load(Ordering::SeqCst) != 0 {
            self.run_pending(work);
        }
    }

    fn run_pending(&self, work: &mut impl FnMut(&mut T)) {
        loop {
            let Some(mut guard) = self.value.try_lock() else {
                return;
            };
            while self.pending.swap(0, Ordering::SeqCst) != 0 {
                work(&mut guard);
            }
            drop(guard);
            barrier();
            if self.pending.load(Ordering::SeqCst) == 0 {
                return;
            }
        }
    }
}

/// Orders the store of `pending` before `try_lock`, and the unlock before the check of `pending`: a lock orders only the data
/// that it guards. On x86-64 the read-modify-write instructions of `pending` and lock do this by themselves.
#[inline]
fn barrier() {
    #[cfg(not(target_arch = "x86_64"))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

//! One engine, worked by whoever comes along, without hand-off between threads.
//!
//! A thread that wants something done leaves it where the engine finds it and *rings*. If it gets the lock it does the work,
//! its own and everybody's; if not, the holder of the lock does, because holders look at the bell again after they let go.
//! Without that second look a ring between the holder's last look and its unlock would be lost.

// A test puts a model checker's in their place.
use super::sync::{AtomicU32, Mutex, MutexGuard, Ordering};

/// A value that one thread at a time works on.
#[derive(Debug)]
pub(crate) struct Exclusive<T> {
    value: Mutex<T>,
    pending: AtomicU32,
}

impl<T> Exclusive<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            value: Mutex::new(value),
            pending: AtomicU32::new(0),
        }
    }

    /// Sees to it that `work` runs after what the caller did before: here, or by the thread that holds the lock.
    #[inline]
    pub(crate) fn run_or_mark(&self, mut work: impl FnMut(&mut T)) {
        self.pending.fetch_or(1, Ordering::SeqCst);
        barrier();
        self.run_pending(&mut work);
    }

    /// Runs `first` now if nobody holds the lock, and then whatever was rung for. Returns what `first` gave.
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

    /// Waits for the lock, runs `first`, and then whatever was rung for. For control calls, not for data.
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

/// Keeps a ring before the try at the lock, and an unlock before the look at the bell: a lock orders what it guards, and
/// no more. On x86-64 the read-modify-write instructions of bell and lock do this by themselves.
#[inline]
fn barrier() {
    #[cfg(not(target_arch = "x86_64"))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

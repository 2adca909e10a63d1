//! Lock that one call of the program takes and a later call releases: `ibv_wr_start` to `ibv_wr_complete`, `ibv_start_poll` to
//! `ibv_end_poll`. The calls in between come from one thread.

use parking_lot::{Condvar, Mutex};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};

/// A value that belongs to one thread between two calls of the program.
#[derive(Debug)]
pub(crate) struct WrLock<T> {
    /// A thread holds the lock; changed under `holder`.
    held: AtomicBool,
    holder: Mutex<()>,
    released: Condvar,
    value: UnsafeCell<T>,
}

// SAFETY: only the thread that set `held` touches `value`, until it clears `held`; `holder` orders the threads.
unsafe impl<T: Send> Sync for WrLock<T> {}

impl<T> WrLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            held: AtomicBool::new(false),
            holder: Mutex::new(()),
            released: Condvar::new(),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits until no other thread holds the lock, and takes it.
    pub(crate) fn acquire(&self) {
        let mut holder = self.holder.lock();
        while self.held.load(Ordering::Relaxed) {
            self.released.wait(&mut holder);
        }
        self.held.store(true, Ordering::Relaxed);
    }

    /// The value, if the lock is held.
    ///
    /// # Safety
    /// A held lock is held by the calling thread, and no earlier result of this function is in use.
    #[expect(clippy::mut_from_ref, reason = "the lock is the calling thread's")]
    pub(crate) unsafe fn value(&self) -> Option<&mut T> {
        if !self.held.load(Ordering::Relaxed) {
            return None;
        }
        // SAFETY: this thread's alone, by the caller's contract.
        Some(unsafe { &mut *self.value.get() })
    }

    /// Releases the lock, if it is held.
    ///
    /// # Safety
    /// A held lock is held by the calling thread, and nothing refers to the value.
    pub(crate) unsafe fn release(&self) {
        let holder = self.holder.lock();
        let was_held = self.held.swap(false, Ordering::Relaxed);
        drop(holder);
        if was_held {
            self.released.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn one_thread_at_a_time_has_the_value() {
        let lock = WrLock::new((0_u32, 0_u32));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        lock.acquire();
                        // SAFETY: this thread holds the lock.
                        let value = unsafe { lock.value() }.unwrap();
                        assert_eq!(value.0, value.1);
                        value.0 += 1;
                        thread::yield_now();
                        value.1 += 1;
                        // SAFETY: this thread holds the lock, and `value` is not used any more.
                        unsafe { lock.release() };
                    }
                });
            }
        });
        // SAFETY: no thread holds the lock.
        assert!(unsafe { lock.value() }.is_none());
        lock.acquire();
        // SAFETY: this thread holds the lock.
        assert_eq!(unsafe { lock.value() }, Some(&mut (800, 800)));
    }
}

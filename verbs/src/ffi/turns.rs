//! A value that one thread at a time has to itself from one call of the program to a later one.
//!
//! That is how `ibv_wr_start` and `ibv_start_poll` lock: the lock outlives the call that took it, and the calls in
//! between come from the same thread.

use parking_lot::{Condvar, Mutex};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};

/// A value and whose turn it is.
#[derive(Debug)]
pub(crate) struct Turns<T> {
    /// A thread has it; changed under `turn`.
    taken: AtomicBool,
    turn: Mutex<()>,
    freed: Condvar,
    value: UnsafeCell<T>,
}

// SAFETY: `value` is touched by the thread alone that made `taken` true, until it makes it false again; `turn` orders
// the threads.
unsafe impl<T: Send> Sync for Turns<T> {}

impl<T> Turns<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            taken: AtomicBool::new(false),
            turn: Mutex::new(()),
            freed: Condvar::new(),
            value: UnsafeCell::new(value),
        }
    }

    /// Takes the turn; waits until no other thread has it.
    pub(crate) fn take(&self) {
        let mut turn = self.turn.lock();
        while self.taken.load(Ordering::Relaxed) {
            self.freed.wait(&mut turn);
        }
        self.taken.store(true, Ordering::Relaxed);
    }

    /// The value, if the turn was taken.
    ///
    /// # Safety
    /// If it was, then by the calling thread, and what this returned before is not in use.
    #[expect(clippy::mut_from_ref, reason = "the thread has it to itself")]
    pub(crate) unsafe fn value(&self) -> Option<&mut T> {
        if !self.taken.load(Ordering::Relaxed) {
            return None;
        }
        // SAFETY: this thread's alone, by the caller's contract.
        Some(unsafe { &mut *self.value.get() })
    }

    /// Ends the turn, if it was taken.
    ///
    /// # Safety
    /// If it was, then by the calling thread, and nothing refers to the value.
    pub(crate) unsafe fn give_back(&self) {
        let turn = self.turn.lock();
        let was_taken = self.taken.swap(false, Ordering::Relaxed);
        drop(turn);
        if was_taken {
            self.freed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn one_thread_at_a_time_has_the_value() {
        let turns = Turns::new((0_u32, 0_u32));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        turns.take();
                        // SAFETY: this thread took the turn.
                        let value = unsafe { turns.value() }.unwrap();
                        assert_eq!(value.0, value.1);
                        value.0 += 1;
                        thread::yield_now();
                        value.1 += 1;
                        // SAFETY: and `value` is not used any more.
                        unsafe { turns.give_back() };
                    }
                });
            }
        });
        // SAFETY: no turn is taken.
        assert!(unsafe { turns.value() }.is_none());
        turns.take();
        // SAFETY: this thread took the turn.
        assert_eq!(unsafe { turns.value() }, Some(&mut (800, 800)));
    }
}

//! One engine, worked by whoever comes along, without hand-off between threads.
//!
//! A thread that wants something done leaves it where the engine finds it and *rings*. If it gets the lock it does the work,
//! its own and everybody's; if not, the holder of the lock does, because holders look at the bell again after they let go.
//! Without that second look a ring between the holder's last look and its unlock would be lost.

#[cfg(loom)]
use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU32, Ordering},
};
#[cfg(not(loom))]
use parking_lot::{Mutex, MutexGuard};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, Ordering};

/// A value that one thread at a time works on.
#[derive(Debug)]
pub(crate) struct Serialized<T> {
    value: Mutex<T>,
    rung: AtomicU32,
}

impl<T> Serialized<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            value: Mutex::new(value),
            rung: AtomicU32::new(0),
        }
    }

    /// Sees to it that `work` runs after what the caller did before: here, or by the thread that holds the lock.
    #[inline]
    pub(crate) fn ring(&self, mut work: impl FnMut(&mut T)) {
        self.rung.fetch_or(1, Ordering::SeqCst);
        self.answer(&mut work);
    }

    /// Runs `first` now if nobody holds the lock, and then whatever was rung for. Returns what `first` gave.
    #[inline]
    pub(crate) fn try_run<R>(
        &self,
        first: impl FnOnce(&mut T) -> R,
        mut work: impl FnMut(&mut T),
    ) -> Option<R> {
        let mut guard = self.try_lock()?;
        let result = first(&mut guard);
        self.let_go(guard, &mut work);
        Some(result)
    }

    /// Waits for the lock, runs `first`, and then whatever was rung for. For control calls, not for data.
    pub(crate) fn run<R>(
        &self,
        first: impl FnOnce(&mut T) -> R,
        mut work: impl FnMut(&mut T),
    ) -> R {
        let mut guard = self.lock();
        let result = first(&mut guard);
        self.let_go(guard, &mut work);
        result
    }

    fn let_go(&self, guard: MutexGuard<'_, T>, work: &mut impl FnMut(&mut T)) {
        drop(guard);
        if self.rung.load(Ordering::SeqCst) != 0 {
            self.answer(work);
        }
    }

    fn answer(&self, work: &mut impl FnMut(&mut T)) {
        loop {
            let Some(mut guard) = self.try_lock() else {
                return;
            };
            while self.rung.swap(0, Ordering::SeqCst) != 0 {
                work(&mut guard);
            }
            drop(guard);
            if self.rung.load(Ordering::SeqCst) == 0 {
                return;
            }
        }
    }

    #[cfg(not(loom))]
    fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.value.try_lock()
    }

    #[cfg(not(loom))]
    fn lock(&self) -> MutexGuard<'_, T> {
        self.value.lock()
    }

    #[cfg(loom)]
    fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.value.try_lock().ok()
    }

    #[cfg(loom)]
    fn lock(&self) -> MutexGuard<'_, T> {
        self.value.lock().expect("no thread panics holding it")
    }
}

/// `RUSTFLAGS="--cfg loom" cargo test -p dgiwarp --lib --release serialized`
#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// Whatever the interleaving, everything that was rung for was worked on when all threads are done.
    #[test]
    fn no_ring_is_lost() {
        loom::model(|| {
            let queue = Arc::new(AtomicU32::new(0));
            let shared = Arc::new(Serialized::new(0u32));
            let work = |queue: &AtomicU32, done: &mut u32| *done += queue.swap(0, Ordering::SeqCst);
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let (queue, shared) = (Arc::clone(&queue), Arc::clone(&shared));
                    thread::spawn(move || {
                        queue.fetch_add(1, Ordering::SeqCst);
                        shared.ring(|done| work(&queue, done));
                    })
                })
                .collect();
            shared.try_run(|_| (), |done| work(&queue, done));
            for thread in threads {
                thread.join().expect("no thread panics");
            }
            assert_eq!(*shared.lock(), 2);
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn threads_lose_nothing() {
        let queue = AtomicU64::new(0);
        let shared = Serialized::new(0u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        queue.fetch_add(1, Ordering::SeqCst);
                        shared.ring(|done| *done += queue.swap(0, Ordering::SeqCst));
                    }
                });
            }
        });
        assert_eq!(shared.run(|done| *done, |_| ()), 40_000);
    }
}

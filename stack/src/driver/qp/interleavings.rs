//! `Exclusive` under a model checker: every interleaving of its threads with up to four preemptions.

#[path = "exclusive.rs"]
mod exclusive;

/// The driver's primitives, made of the model checker's atomics. The checker's own mutex will not do: it does not take an
/// unlock for something that another thread's `try_lock` could come before or after, which is the very thing to check.
mod sync {
    use std::ops::{Deref, DerefMut};

    pub(super) use loom::sync::atomic::Ordering;

    /// The model checker takes a sequentially consistent load for one that acquires, and lets it miss the newest value.
    /// Its read-modify-write operations never do.
    #[derive(Debug)]
    pub(super) struct AtomicU32(loom::sync::atomic::AtomicU32);

    impl AtomicU32 {
        pub(super) fn new(value: u32) -> Self {
            Self(loom::sync::atomic::AtomicU32::new(value))
        }

        pub(super) fn load(&self, order: Ordering) -> u32 {
            self.0.fetch_or(0, order)
        }

        pub(super) fn fetch_or(&self, value: u32, order: Ordering) -> u32 {
            self.0.fetch_or(value, order)
        }

        pub(super) fn swap(&self, value: u32, order: Ordering) -> u32 {
            self.0.swap(value, order)
        }

        pub(super) fn compare_exchange(
            &self,
            from: u32,
            to: u32,
            order: Ordering,
        ) -> Result<u32, u32> {
            self.0.compare_exchange(from, to, order, order)
        }
    }

    const FREE: u32 = 0;
    const LOCKED: u32 = 1;

    /// A lock word, and the value where the model checker sees who touches it.
    #[derive(Debug)]
    pub(super) struct Mutex<T> {
        word: AtomicU32,
        value: loom::sync::Mutex<T>,
    }

    pub(super) struct MutexGuard<'a, T> {
        word: &'a AtomicU32,
        /// `None` only while it is dropped.
        value: Option<loom::sync::MutexGuard<'a, T>>,
    }

    impl<T> Mutex<T> {
        pub(super) fn new(value: T) -> Self {
            Self {
                word: AtomicU32::new(FREE),
                value: loom::sync::Mutex::new(value),
            }
        }

        pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            // Sequentially consistent, as the locked instructions of the processors are that this runs on.
            let order = Ordering::SeqCst;
            self.word.compare_exchange(FREE, LOCKED, order).ok()?;
            let value = self.value.try_lock().expect("the word guards it");
            Some(MutexGuard {
                word: &self.word,
                value: Some(value),
            })
        }

        pub(super) fn lock(&self) -> MutexGuard<'_, T> {
            loop {
                if let Some(guard) = self.try_lock() {
                    return guard;
                }
                loom::thread::yield_now();
            }
        }
    }

    impl<T> Drop for MutexGuard<'_, T> {
        fn drop(&mut self) {
            drop(self.value.take());
            self.word.swap(FREE, Ordering::SeqCst);
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.value.as_ref().expect("not dropped")
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.value.as_mut().expect("not dropped")
        }
    }
}

use exclusive::Exclusive;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32 as Queue, Ordering};
use loom::thread;

/// Preemptions of one execution; more take minutes.
const PREEMPTIONS: usize = 4;

/// Whatever the interleaving, all pending work is done when all threads are.
#[test]
fn no_pending_work_is_lost() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(PREEMPTIONS);
    model.check(|| {
        let queue = Arc::new(Queue::new(0));
        let shared = Arc::new(Exclusive::new(0u32));
        let work = |queue: &Queue, done: &mut u32| *done += queue.swap(0, Ordering::SeqCst);
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (queue, shared) = (Arc::clone(&queue), Arc::clone(&shared));
                thread::spawn(move || {
                    queue.fetch_add(1, Ordering::SeqCst);
                    shared.run_or_mark(|done| work(&queue, done));
                })
            })
            .collect();
        shared.try_run(|_| (), |done| work(&queue, done));
        for thread in threads {
            thread.join().expect("no thread panics");
        }
        assert_eq!(shared.run(|done| *done, |_| ()), 2);
    });
}

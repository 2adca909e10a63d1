//! QPs with work left, in the order in which they were added.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// A queue that costs one atomic load while it is empty, as it mostly is. Several threads may take elements from it.
#[derive(Debug)]
pub(crate) struct RunQueue<T> {
    queue: Mutex<VecDeque<T>>,
    any: AtomicBool,
}

impl<T> RunQueue<T> {
    pub(crate) fn new() -> Self {
        Self {
            queue: Mutex::new(VecDeque::new()),
            any: AtomicBool::new(false),
        }
    }

    /// Whether somebody waits.
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// How many wait now: so many turns are one for each.
    pub(crate) fn len(&self) -> usize {
        self.queue.lock().len()
    }

    pub(crate) fn add(&self, one: T) {
        let mut queue = self.queue.lock();
        queue.push_back(one);
        self.any.store(true, Ordering::Release);
    }

    pub(crate) fn next(&self) -> Option<T> {
        self.next_if(|_| true)
    }

    /// Removes the next element if `its_time` returns true for it.
    pub(crate) fn next_if(&self, its_time: impl FnOnce(&mut T) -> bool) -> Option<T> {
        let mut queue = self.queue.lock();
        let next = queue.pop_front_if(its_time);
        self.any.store(!queue.is_empty(), Ordering::Release);
        next
    }
}

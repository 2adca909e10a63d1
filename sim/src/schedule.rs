//! Things to happen, in order of time.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::time::Duration;

/// Items by time; those of one time in the order in which they were added.
#[derive(Debug)]
pub(crate) struct Schedule<T> {
    entries: BinaryHeap<Entry<T>>,
    next_order: u64,
}

impl<T> Default for Schedule<T> {
    fn default() -> Self {
        Self {
            entries: BinaryHeap::new(),
            next_order: 0,
        }
    }
}

#[derive(Debug)]
struct Entry<T> {
    at: Duration,
    order: u64,
    item: T,
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for Entry<T> {}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Entry<T> {
    /// The earliest is the greatest, for the heap.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

impl<T> Schedule<T> {
    pub(crate) fn push(&mut self, at: Duration, item: T) {
        let order = self.next_order;
        self.next_order += 1;
        self.entries.push(Entry { at, order, item });
    }

    /// Time of the earliest item.
    pub(crate) fn next_time(&self) -> Option<Duration> {
        self.entries.peek().map(|entry| entry.at)
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Takes the earliest item, with its time.
    pub(crate) fn pop(&mut self) -> Option<(Duration, T)> {
        self.entries.pop().map(|entry| (entry.at, entry.item))
    }
}

//! Timers of the members of a poll set, and of the poll sets of a device.
//!
//! A timer is handled no later than it was set to, and in vain if it was set later since: most timers never expire, and
//! putting one off costs nothing.

use std::collections::BTreeSet;
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// Timers by the name of what they belong to, in nanoseconds of the driver's clock.
#[derive(Debug)]
pub(crate) struct Timers<K> {
    /// Earliest timer, or before it; `u64::MAX` without any.
    next: AtomicU64,
    table: Mutex<Table<K>>,
}

#[derive(Debug)]
struct Table<K> {
    times: BTreeSet<(u64, K)>,
    /// The time of each one that is in there.
    of: FxHashMap<K, u64>,
}

impl<K: Copy + Ord + Hash> Table<K> {
    fn first(&self) -> u64 {
        self.times.first().map_or(u64::MAX, |(time, _)| *time)
    }
}

impl<K: Copy + Ord + Hash> Timers<K> {
    pub(crate) fn new() -> Self {
        Self {
            next: AtomicU64::new(u64::MAX),
            table: Mutex::new(Table {
                times: BTreeSet::new(),
                of: FxHashMap::default(),
            }),
        }
    }

    /// When the first of them is due.
    pub(crate) fn next(&self) -> u64 {
        self.next.load(Ordering::Acquire)
    }

    /// The earliest of the times that `put_off` makes of them, none earlier than it was, and to what it belongs.
    pub(crate) fn first_of(&self, put_off: impl Fn(K, u64) -> Option<u64>) -> Option<(u64, K)> {
        let table = self.table.lock();
        let mut first: Option<(u64, K)> = None;
        for &(time, owner) in &table.times {
            if first.is_some_and(|(earliest, _)| earliest <= time) {
                break;
            }
            if let Some(later) = put_off(owner, time)
                && first.is_none_or(|(earliest, _)| later < earliest)
            {
                first = Some((later, owner));
            }
        }
        first
    }

    /// Sets a timer, unless an earlier one is set. Returns whether it is the first of all.
    pub(crate) fn note(&self, owner: K, time: u64) -> bool {
        if time == u64::MAX {
            return false;
        }
        let mut table = self.table.lock();
        let before = table.first();
        if let Some(noted) = table.of.get(&owner).copied() {
            if noted <= time {
                return false;
            }
            table.times.remove(&(noted, owner));
        }
        table.of.insert(owner, time);
        table.times.insert((time, owner));
        self.next.store(table.first(), Ordering::Release);
        time < before
    }

    /// Removes the timers that have expired, and returns their owners, which may set others.
    pub(crate) fn take_due(&self, now: u64) -> Vec<K> {
        let mut table = self.table.lock();
        let mut due = Vec::new();
        while let Some((time, owner)) = table.times.first().copied()
            && time <= now
        {
            table.times.pop_first();
            table.of.remove(&owner);
            due.push(owner);
        }
        self.next.store(table.first(), Ordering::Release);
        due
    }

    /// Clears a timer.
    pub(crate) fn forget(&self, owner: K) {
        let mut table = self.table.lock();
        if let Some(time) = table.of.remove(&owner) {
            table.times.remove(&(time, owner));
            self.next.store(table.first(), Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_due_at_the_earliest_time_that_it_asked_for() {
        let timers = Timers::new();
        let [one, two] = ["one", "two"];
        assert!(timers.note(one, 50));
        assert!(!timers.note(one, 70), "it is looked at before");
        assert!(!timers.note(two, 60));
        assert!(timers.note(two, 40));
        assert_eq!((timers.next(), timers.take_due(39)), (40, vec![]));
        assert_eq!((timers.take_due(45), timers.next()), (vec![two], 50));
        assert!(!timers.note(two, 55));
        assert_eq!(timers.take_due(60), [one, two]);
        assert_eq!(
            (timers.take_due(u64::MAX), timers.next()),
            (vec![], u64::MAX)
        );
    }

    #[test]
    fn the_first_is_told_with_some_put_off() {
        let timers = Timers::new();
        assert_eq!(timers.first_of(|_, time| Some(time)), None);
        for (owner, time) in [("a", 10), ("b", 15), ("c", 30), ("d", 40)] {
            timers.note(owner, time);
        }
        let first = |late: &[&str]| {
            timers.first_of(|owner, time| {
                let is_late = late.contains(&owner);
                Some(if is_late { time + 10 } else { time })
            })
        };
        assert_eq!(first(&[]), Some((10, "a")));
        assert_eq!(first(&["a"]), Some((15, "b")));
        assert_eq!(first(&["a", "b"]), Some((20, "a")));
        let gone = timers.first_of(|owner, time| (owner > "b").then_some(time));
        assert_eq!(gone, Some((30, "c")));
    }

    #[test]
    fn who_is_gone_or_wants_nothing_is_never_due() {
        let timers = Timers::new();
        assert!(!timers.note(7, u64::MAX));
        assert!(timers.note(7, 5));
        timers.forget(7);
        assert_eq!((timers.next(), timers.take_due(9)), (u64::MAX, vec![]));
    }
}

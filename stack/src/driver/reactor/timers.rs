//! Timers of the members of a completion queue.
//!
//! A member's timer is handled no later than it was set to, and in vain if it was set later since: most timers never expire, and
//! putting one off costs nothing.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::driver::reactor::member::MemberId;

/// The timers of a queue, in nanoseconds of the driver's clock.
#[derive(Debug)]
pub(crate) struct Timers {
    /// Earliest timer, or before it; `u64::MAX` without any.
    next: AtomicU64,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    times: BTreeSet<(u64, MemberId)>,
    /// The time of each member that is in there.
    of: FxHashMap<MemberId, u64>,
}

impl Table {
    fn first(&self) -> u64 {
        self.times.first().map_or(u64::MAX, |(time, _)| *time)
    }
}

impl Timers {
    pub(crate) fn new() -> Self {
        Self {
            next: AtomicU64::new(u64::MAX),
            table: Mutex::default(),
        }
    }

    /// When the first of them is due.
    pub(crate) fn next(&self) -> u64 {
        self.next.load(Ordering::Acquire)
    }

    /// Sets a member's timer, unless an earlier one is set. Returns whether it is the first of all.
    pub(crate) fn note(&self, member: MemberId, time: u64) -> bool {
        if time == u64::MAX {
            return false;
        }
        let mut table = self.table.lock();
        let before = table.first();
        if let Some(noted) = table.of.get(&member).copied() {
            if noted <= time {
                return false;
            }
            table.times.remove(&(noted, member));
        }
        table.of.insert(member, time);
        table.times.insert((time, member));
        self.next.store(table.first(), Ordering::Release);
        time < before
    }

    /// Removes the members whose timers have expired; they may set others.
    pub(crate) fn take_due(&self, now: u64) -> Vec<MemberId> {
        let mut table = self.table.lock();
        let mut due = Vec::new();
        while let Some((time, member)) = table.times.first().copied()
            && time <= now
        {
            table.times.pop_first();
            table.of.remove(&member);
            due.push(member);
        }
        self.next.store(table.first(), Ordering::Release);
        due
    }

    /// Forgets a member.
    pub(crate) fn forget(&self, member: MemberId) {
        let mut table = self.table.lock();
        if let Some(time) = table.of.remove(&member) {
            table.times.remove(&(time, member));
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
        let [one, two] = [1, 2].map(|token| MemberId::from_token(token << 8).0);
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
    fn who_is_gone_or_wants_nothing_is_never_due() {
        let timers = Timers::new();
        let member = MemberId::from_token(7 << 8).0;
        assert!(!timers.note(member, u64::MAX));
        assert!(timers.note(member, 5));
        timers.forget(member);
        assert_eq!((timers.next(), timers.take_due(9)), (u64::MAX, vec![]));
    }
}

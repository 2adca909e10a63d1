//! Calls that peers made of this endpoint, each executed at most once (`rfc-notes/ripc.md`, "Calls").

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::ranges::Ranges;

/// Octets of all replies that are kept.
const CACHE: usize = 16 << 20;
/// Longest reply that is kept.
const LONGEST_KEPT: usize = 64 << 10;
/// Calls of an instance that are being executed.
const RUNNING: usize = 4096;
/// Ranges of numbers that are kept of an instance.
const RANGES: usize = 1024;
/// Entries of the queue of kept replies that may be out of date, beside as many as are not.
const STALE: usize = 1024;
/// Instances that are known.
const INSTANCES: usize = 65_536;
/// Time for which an instance without a connection is known.
const REMEMBERED: Duration = Duration::from_secs(120);
/// Least time between two searches for instances that are to be forgotten.
const SEARCH: Duration = Duration::from_secs(1);

/// Executions of all callers. `R` is a reply.
#[derive(Debug)]
pub(crate) struct Executions<R> {
    callers: BTreeMap<u64, Caller<R>>,
    /// Kept replies, the oldest first: caller, number. Entries may be out of date.
    kept: VecDeque<(u64, u64)>,
    /// Octets of kept replies, at most [`CACHE`].
    octets: usize,
    /// Replies that are kept: entries of `kept` that are not out of date.
    replies: usize,
    /// Ranges of numbers that are kept of an instance.
    ranges: usize,
    /// Time of the next search for instances to forget.
    search: Duration,
}

#[derive(Debug)]
struct Caller<R> {
    floor: u64,
    /// Numbers at or above the floor that came, and those between them that are executed no more: at most [`Executions::ranges`].
    seen: Ranges,
    /// Calls that are being executed, and those at or above the floor whose reply is kept.
    calls: BTreeMap<u64, Execution<R>>,
    /// Calls that are being executed, at most [`RUNNING`].
    running: usize,
    connections: usize,
    left: Duration,
}

#[derive(Debug)]
enum Execution<R> {
    Running,
    Kept(R, usize),
}

/// Fate of a CALL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begin<R> {
    /// To be executed now.
    Execute,
    /// Being executed: its reply will come.
    Running,
    /// Was executed; this is the reply.
    Replay(R),
    /// Was executed, and the reply is not kept; or its number lies where numbers are not told apart any more.
    ReplyLost,
    /// Below the floor: to be dropped.
    Over,
    /// Too many calls of this caller are being executed.
    Full,
}

impl<R: Clone> Executions<R> {
    pub(crate) fn new() -> Self {
        Self::with_ranges(RANGES)
    }

    /// With so many ranges of numbers for each instance, at least one.
    pub(crate) fn with_ranges(ranges: usize) -> Self {
        Self {
            callers: BTreeMap::new(),
            kept: VecDeque::new(),
            octets: 0,
            replies: 0,
            ranges,
            search: Duration::ZERO,
        }
    }

    /// Takes a connection of a caller. Returns false where too many callers with connections are known.
    pub(crate) fn connected(&mut self, caller: u64, now: Duration) -> bool {
        self.forget_old(now);
        if !self.callers.contains_key(&caller) && self.callers.len() >= INSTANCES {
            let idle = self.callers.iter().filter(|(_, it)| it.connections == 0);
            let oldest = idle
                .min_by_key(|(_, it)| it.left)
                .map(|(caller, _)| *caller);
            let Some(oldest) = oldest else {
                return false;
            };
            self.forget(oldest);
        }
        let caller = self.callers.entry(caller).or_insert_with(|| Caller {
            floor: 0,
            seen: Ranges::default(),
            calls: BTreeMap::new(),
            running: 0,
            connections: 0,
            left: now,
        });
        caller.connections += 1;
        true
    }

    /// Takes the end of a connection.
    pub(crate) fn disconnected(&mut self, caller: u64, now: Duration) {
        if let Some(caller) = self.callers.get_mut(&caller) {
            caller.connections = caller.connections.saturating_sub(1);
            caller.left = now;
        }
    }

    fn forget_old(&mut self, now: Duration) {
        if now < self.search {
            return;
        }
        self.search = now + SEARCH;
        let is_old =
            |it: &Caller<R>| it.connections == 0 && now.saturating_sub(it.left) >= REMEMBERED;
        let old = self.callers.iter().filter(|(_, it)| is_old(it));
        let old: Vec<_> = old.map(|(caller, _)| *caller).collect();
        for caller in old {
            self.forget(caller);
        }
    }

    fn forget(&mut self, caller: u64) {
        if let Some(caller) = self.callers.remove(&caller) {
            for execution in caller.calls.values() {
                self.octets -= execution.octets();
                self.replies -= execution.replies();
            }
        }
    }

    /// Takes a CALL. Where it is `Execute`, [`finish`](Self::finish) follows.
    pub(crate) fn begin(&mut self, caller: u64, number: u64, floor: u64) -> Begin<R> {
        let Some(known) = self.callers.get_mut(&caller) else {
            return Begin::Over;
        };
        if floor > known.floor {
            known.floor = floor;
            known.seen.forget_below(floor);
            let above = known.calls.split_off(&floor);
            for (number, execution) in std::mem::replace(&mut known.calls, above) {
                self.octets -= execution.octets();
                self.replies -= execution.replies();
                // Its caller has ended it; the handler has not.
                if let Execution::Running = execution {
                    known.calls.insert(number, execution);
                }
            }
        }
        if number < known.floor {
            return Begin::Over;
        }
        match known.calls.get(&number) {
            Some(Execution::Running) => Begin::Running,
            Some(Execution::Kept(reply, _)) => Begin::Replay(reply.clone()),
            None if known.seen.contains(number) => Begin::ReplyLost,
            None if known.running >= RUNNING => Begin::Full,
            None => {
                known.calls.insert(number, Execution::Running);
                known.running += 1;
                known.seen.insert(number);
                known.seen.shrink(self.ranges);
                Begin::Execute
            }
        }
    }

    /// Takes the reply of a call that was begun. `octets` is `None` for one that cannot be kept.
    pub(crate) fn finish(&mut self, caller: u64, number: u64, reply: &R, octets: Option<usize>) {
        let Some(known) = self.callers.get_mut(&caller) else {
            return;
        };
        let Some(execution) = known.calls.get_mut(&number) else {
            return;
        };
        if let Execution::Kept(..) = execution {
            return;
        }
        known.running -= 1;
        match octets.filter(|it| *it <= LONGEST_KEPT && number >= known.floor) {
            Some(octets) => {
                *execution = Execution::Kept(reply.clone(), octets);
                self.octets += octets;
                self.replies += 1;
                self.kept.push_back((caller, number));
                self.shrink();
            }
            None => drop(known.calls.remove(&number)),
        }
    }

    /// Takes back a call that was begun and cannot be executed, since its items are lost: it may come again.
    pub(crate) fn abort(&mut self, caller: u64, number: u64) {
        if let Some(known) = self.callers.get_mut(&caller)
            && let Some(Execution::Running) = known.calls.get(&number)
        {
            known.calls.remove(&number);
            known.running -= 1;
            known.seen.remove(number);
            known.seen.shrink(self.ranges);
        }
    }

    /// Gives up the oldest replies, and what the queue has of calls that are over.
    fn shrink(&mut self) {
        while self.octets > CACHE
            && let Some((caller, number)) = self.kept.pop_front()
        {
            if let Some(known) = self.callers.get_mut(&caller)
                && let Some(execution @ Execution::Kept(..)) = known.calls.get(&number)
            {
                self.octets -= execution.octets();
                self.replies -= 1;
                known.calls.remove(&number);
            }
        }
        // The search costs as much as the entries that it removes, at least.
        if self.kept.len() > 2 * self.replies + STALE {
            let callers = &self.callers;
            self.kept.retain(|(caller, number)| {
                let execution = callers.get(caller).and_then(|it| it.calls.get(number));
                matches!(execution, Some(Execution::Kept(..)))
            });
        }
    }

    #[cfg(test)]
    pub(crate) fn kept(&self) -> (usize, usize) {
        (self.octets, self.kept.len())
    }
}

impl<R> Execution<R> {
    fn octets(&self) -> usize {
        match self {
            Self::Kept(_, octets) => *octets,
            Self::Running => 0,
        }
    }

    fn replies(&self) -> usize {
        match self {
            Self::Kept(..) => 1,
            Self::Running => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1);

    fn executions() -> Executions<u32> {
        let mut executions = Executions::new();
        assert!(executions.connected(1, NOW));
        executions
    }

    #[test]
    fn a_call_is_executed_once() {
        let mut executions = executions();
        assert_eq!(executions.begin(1, 5, 1), Begin::Execute);
        assert_eq!(executions.begin(1, 5, 1), Begin::Running);
        executions.finish(1, 5, &50, Some(100));
        assert_eq!(executions.begin(1, 5, 1), Begin::Replay(50));
        assert_eq!(executions.begin(1, 3, 1), Begin::Execute);
        executions.finish(1, 3, &30, None);
        assert_eq!(executions.begin(1, 3, 1), Begin::ReplyLost);
        // The caller has the replies up to 6.
        assert_eq!(executions.begin(1, 6, 6), Begin::Execute);
        assert_eq!(executions.begin(1, 5, 1), Begin::Over);
        assert_eq!(executions.kept().0, 0);
        // Another one's number is another call; one without a connection has none.
        assert_eq!(executions.begin(2, 6, 1), Begin::Over);
    }

    #[test]
    fn a_call_whose_items_are_lost_may_come_again() {
        let mut executions = executions();
        assert_eq!(executions.begin(1, 5, 5), Begin::Execute);
        executions.abort(1, 5);
        assert_eq!(executions.begin(1, 5, 5), Begin::Execute);
        executions.finish(1, 5, &50, Some(100));
        executions.abort(1, 5);
        assert_eq!(executions.begin(1, 5, 5), Begin::Replay(50));
    }

    #[test]
    fn a_call_that_its_caller_gave_up_is_forgotten_when_it_ends() {
        let mut executions = executions();
        assert_eq!(executions.begin(1, 5, 5), Begin::Execute);
        assert_eq!(executions.begin(1, 6, 6), Begin::Execute);
        assert_eq!(executions.begin(1, 5, 5), Begin::Over);
        executions.finish(1, 5, &50, Some(100));
        assert_eq!(executions.kept(), (0, 0));
    }

    #[test]
    fn memory_is_bounded_and_numbers_stay() {
        let mut executions = executions();
        for number in 0..4096 {
            assert_eq!(executions.begin(1, number, 0), Begin::Execute);
            executions.finish(1, number, &7, Some(LONGEST_KEPT));
            assert!(executions.kept().0 <= CACHE);
        }
        assert_eq!(executions.begin(1, 0, 0), Begin::ReplyLost);
        assert_eq!(executions.begin(1, 4095, 0), Begin::Replay(7));
        assert_eq!(executions.begin(1, 4096, 4096), Begin::Execute);
        executions.finish(1, 4096, &7, Some(LONGEST_KEPT + 1));
        assert_eq!(executions.begin(1, 4096, 0), Begin::ReplyLost);
    }

    #[test]
    fn a_call_that_stays_open_holds_up_no_later_ones() {
        let mut executions = executions();
        assert_eq!(executions.begin(1, 1, 1), Begin::Execute);
        // The numbers between them are calls of other servers.
        for number in (3..300_000).step_by(2) {
            assert_eq!(executions.begin(1, number, 1), Begin::Execute, "{number}");
            executions.finish(1, number, &7, Some(300));
        }
        assert!(executions.callers[&1].seen.len() <= RANGES);
        assert!(executions.callers[&1].calls.len() <= 1 + CACHE / 300);
        assert!(executions.kept().1 <= 2 * CACHE / 300 + STALE);
        assert_eq!(executions.begin(1, 1, 1), Begin::Running);
        assert_eq!(executions.begin(1, 3, 1), Begin::ReplyLost);
        assert_eq!(executions.begin(1, 299_999, 1), Begin::Replay(7));
        // One that comes so late is not executed, though it did not come before.
        assert_eq!(executions.begin(1, 4, 1), Begin::ReplyLost);
        assert_eq!(executions.begin(1, 299_998, 1), Begin::Execute);
        executions.finish(1, 1, &8, None);
        assert_eq!(executions.begin(1, 1, 1), Begin::ReplyLost);
    }

    #[test]
    fn calls_that_are_executed_at_a_time_are_bounded() {
        let mut executions = executions();
        for number in 0..RUNNING as u64 {
            assert_eq!(executions.begin(1, number, 0), Begin::Execute);
        }
        let next = RUNNING as u64;
        assert_eq!(executions.begin(1, next, 0), Begin::Full);
        executions.finish(1, 5, &7, Some(100));
        assert_eq!(executions.begin(1, next, 0), Begin::Execute);
        assert_eq!(executions.begin(1, next + 1, 0), Begin::Full);
        executions.abort(1, 6);
        assert_eq!(executions.begin(1, 6, 0), Begin::Execute);
    }

    #[test]
    fn the_queue_of_replies_does_not_grow_behind_one_that_stays() {
        let mut executions = executions();
        assert_eq!(executions.begin(1, 1, 1), Begin::Execute);
        executions.finish(1, 1, &7, Some(100));
        assert!(executions.connected(2, NOW));
        for number in 1..100_000 {
            assert_eq!(executions.begin(2, number, number), Begin::Execute);
            executions.finish(2, number, &7, Some(100));
        }
        assert_eq!(executions.kept().0, 200);
        assert!(executions.kept().1 <= 2 * STALE, "{:?}", executions.kept());
        assert_eq!(executions.begin(1, 1, 1), Begin::Replay(7));
    }

    #[test]
    fn callers_are_forgotten_when_they_are_gone() {
        let mut executions = executions();
        assert_eq!(executions.begin(1, 1, 1), Begin::Execute);
        executions.finish(1, 1, &7, Some(10));
        executions.disconnected(1, NOW);
        assert!(executions.connected(2, REMEMBERED));
        assert_eq!(executions.begin(1, 1, 1), Begin::Replay(7));
        assert!(executions.connected(3, NOW + REMEMBERED));
        assert_eq!(executions.begin(1, 1, 1), Begin::Over);
        assert_eq!(executions.kept().0, 0);
    }

    #[test]
    fn callers_are_bounded() {
        let mut executions = Executions::<u32>::new();
        for caller in 1..=INSTANCES as u64 {
            assert!(executions.connected(caller, NOW));
        }
        assert!(!executions.connected(1 << 40, NOW));
        executions.disconnected(5, NOW);
        assert!(executions.connected(1 << 40, NOW));
        assert_eq!(executions.begin(5, 1, 1), Begin::Over);
    }
}

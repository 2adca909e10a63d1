//! Calls that peers made of this endpoint, each executed at most once (`rfc-notes/ripc.md`, "Calls").

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Octets of all replies that are kept.
const CACHE: usize = 16 << 20;
/// Longest reply that is kept.
const LONGEST_KEPT: usize = 64 << 10;
/// Numbers that are kept of an instance.
const NUMBERS: usize = 4096;
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
    /// Time of the next search for instances to forget.
    search: Duration,
}

#[derive(Debug)]
struct Caller<R> {
    floor: u64,
    calls: BTreeMap<u64, Execution<R>>,
    connections: usize,
    left: Duration,
}

#[derive(Debug)]
enum Execution<R> {
    Running,
    Kept(R, usize),
    NotKept,
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
    /// Was executed, and the reply is not kept.
    ReplyLost,
    /// Below the floor: to be dropped.
    Over,
    /// Too many numbers of this caller.
    Full,
}

impl<R: Clone> Executions<R> {
    pub(crate) fn new() -> Self {
        Self {
            callers: BTreeMap::new(),
            kept: VecDeque::new(),
            octets: 0,
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
            calls: BTreeMap::new(),
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
            let above = known.calls.split_off(&floor);
            for (number, execution) in std::mem::replace(&mut known.calls, above) {
                self.octets -= execution.octets();
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
            Some(Execution::NotKept) => Begin::ReplyLost,
            None if known.calls.len() >= NUMBERS => Begin::Full,
            None => {
                known.calls.insert(number, Execution::Running);
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
        if number < known.floor {
            known.calls.remove(&number);
            return;
        }
        match octets {
            Some(octets) if octets <= LONGEST_KEPT => {
                *execution = Execution::Kept(reply.clone(), octets);
                self.octets += octets;
                self.kept.push_back((caller, number));
                self.shrink();
            }
            Some(_) | None => *execution = Execution::NotKept,
        }
    }

    /// Takes back a call that was begun and cannot be executed, since its items are lost: it may come again.
    pub(crate) fn abort(&mut self, caller: u64, number: u64) {
        if let Some(known) = self.callers.get_mut(&caller)
            && let Some(Execution::Running) = known.calls.get(&number)
        {
            known.calls.remove(&number);
        }
    }

    /// Gives up the oldest replies, and what the queue has of calls that are over.
    fn shrink(&mut self) {
        while let Some((caller, number)) = self.kept.front().copied() {
            let known = self.callers.get_mut(&caller);
            let execution = known.and_then(|it| it.calls.get_mut(&number));
            match execution {
                Some(execution @ Execution::Kept(..)) => {
                    if self.octets <= CACHE {
                        return;
                    }
                    self.octets -= execution.octets();
                    *execution = Execution::NotKept;
                }
                Some(Execution::Running | Execution::NotKept) | None => {}
            }
            self.kept.pop_front();
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
            Self::Running | Self::NotKept => 0,
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
        assert_eq!(executions.begin(1, 4096, 0), Begin::Full);
        assert_eq!(executions.begin(1, 0, 0), Begin::ReplyLost);
        assert_eq!(executions.begin(1, 4095, 0), Begin::Replay(7));
        assert_eq!(executions.begin(1, 4096, 4096), Begin::Execute);
        executions.finish(1, 4096, &7, Some(LONGEST_KEPT + 1));
        assert_eq!(executions.begin(1, 4096, 0), Begin::ReplyLost);
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

//! Poll sets that the background thread does not watch: ticks find out whether their programs stopped polling.

use std::collections::VecDeque;
use std::time::Duration;

use rustc_hash::FxHashMap;

use crate::driver::device::agenda::PollSets;
use crate::driver::reactor::poll_set::{By, PollSet, SLOW_TICK};

/// Interval of ticks, at first; [`SLOW_TICK`] after so many in a row.
const TICK: Duration = Duration::from_millis(1);
const TICKS: u32 = 32;
/// Interval after so many ticks in a row that found the thread of each set asleep: input wakes it.
pub(super) const CALM_TICK: Duration = Duration::from_millis(16);
pub(super) const CALM_TICKS: u32 = 32;
/// Ticks without a poll and without data until a set is watched again: as long as few are not watched, and where they are many, each of which costs a system
/// call at each tick.
pub(super) const IDLE_TICKS: u32 = 64;
pub(super) const IDLE_TICKS_OF_MANY: u32 = 2;
/// Most sets that are few.
pub(super) const FEW: usize = 16;
/// Ticks from one look at one of many to the next, once it has been idle for [`IDLE_TICKS_OF_MANY`]: a program sleeps on it.
pub(super) const LOOK_EVERY: usize = 16;

/// The sets that are not watched, or were not at the last look.
#[derive(Debug, Default)]
pub(super) struct Unwatched {
    seen: FxHashMap<u64, Seen>,
    /// Sets that each tick looks at.
    active: Vec<u64>,
    /// Sets, of many, on which programs sleep, in the order in which they are looked at.
    resting: VecDeque<u64>,
    /// Ticks in a row, and those at which the thread of each set that was looked at was asleep.
    ticks: u32,
    calm_ticks: u32,
    /// Time of the next tick, in nanoseconds of the driver's clock, where a set is not watched.
    next_tick: u64,
}

/// State of a set at the last look.
#[derive(Debug, Default, Clone, Copy)]
struct Seen {
    /// Its polls; `None` before the first look.
    polls: Option<u64>,
    idle_ticks: u32,
    lying: bool,
}

impl Unwatched {
    /// Adds a set, unless it is there. The first tick comes an interval after `now`.
    pub(super) fn add(&mut self, id: u64, now: u64) {
        if self.seen.is_empty() {
            self.ticks = 0;
            self.next_tick = now + nanos(TICK);
        }
        self.seen.entry(id).or_insert_with(|| {
            self.active.push(id);
            self.calm_ticks = 0;
            self.next_tick = self.next_tick.min(now + nanos(SLOW_TICK));
            Seen::default()
        });
    }

    /// Time of the next tick; `u64::MAX` where all sets are watched.
    pub(super) fn next_tick(&self) -> u64 {
        if self.seen.is_empty() {
            u64::MAX
        } else {
            self.next_tick
        }
    }

    /// Looks at the sets whose turn it is, if a tick is due.
    pub(super) fn tick(&mut self, sets: &PollSets, now: u64) {
        if self.next_tick() > now {
            return;
        }
        let are_many = self.seen.len() > FEW;
        let patience = if are_many {
            IDLE_TICKS_OF_MANY
        } else {
            IDLE_TICKS
        };
        let turns = if are_many {
            self.resting.len().div_ceil(LOOK_EVERY)
        } else {
            self.resting.len()
        };
        let mut due = std::mem::take(&mut self.active);
        due.extend(self.resting.drain(..turns));
        let mut is_calm = true;
        for id in due {
            let set = sets.get(id).filter(|set| !set.arming().is_on());
            let (Some(set), Some(seen)) = (set, self.seen.get_mut(&id)) else {
                // Gone, or watched meanwhile.
                self.seen.remove(&id);
                continue;
            };
            is_calm &= set.is_asleep();
            let polls = set.arming().polls();
            if seen.polls == Some(polls) {
                seen.idle_ticks = seen.idle_ticks.saturating_add(1);
                look(&set, seen, patience);
                if set.arming().is_on() {
                    self.seen.remove(&id);
                    continue;
                }
            } else {
                *seen = Seen {
                    polls: Some(polls),
                    ..Seen::default()
                };
            }
            if are_many && seen.idle_ticks > patience {
                self.resting.push_back(id);
            } else {
                self.active.push(id);
            }
        }
        self.ticks = self.ticks.saturating_add(1);
        self.calm_ticks = if is_calm {
            self.calm_ticks.saturating_add(1)
        } else {
            0
        };
        let interval = if self.calm_ticks >= CALM_TICKS {
            CALM_TICK
        } else if self.ticks < TICKS {
            TICK
        } else {
            SLOW_TICK
        };
        self.next_tick = now + nanos(interval);
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Looks whether input lies at a set that nobody has polled since the last look, and watches it from now on if so, or if it has been idle for long.
fn look(set: &PollSet, seen: &mut Seen, patience: u32) {
    set.try_unpark();
    let data = set.has_data();
    // A sleeping program is given the time to wake up by itself.
    let lying = data && (seen.lying || !set.is_slept_on());
    seen.lying = data;
    if lying {
        set.data_lay_there();
        set.arm();
        set.progress(By::Background);
    } else if seen.idle_ticks >= patience && !set.has_sleepers() {
        set.arm();
    }
}

//! Work of the background thread for the poll sets of its device.
//!
//! A device may have thousands of sets, nearly all of them idle. A wakeup looks at those alone that noted themselves since the last one, that have something left to
//! send, whose timers are due, and, at a tick, at some of those that the thread does not watch.

mod unwatched;

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::driver::device::agenda::unwatched::Unwatched;
use crate::driver::reactor::poll_set::PollSet;
use crate::driver::reactor::timers::Timers;
use crate::driver::reactor::waker::Waker;

/// The poll sets of a device, by their ids.
#[derive(Debug, Default)]
pub(super) struct PollSets(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    of: FxHashMap<u64, Weak<PollSet>>,
    /// Sets at which those that are gone are removed.
    full: usize,
}

impl PollSets {
    /// Adds a set. Returns whether it is new.
    pub(super) fn add(&self, set: &Arc<PollSet>) -> bool {
        let mut table = self.0.lock();
        if table.of.contains_key(&set.id()) {
            return false;
        }
        if table.of.len() >= table.full {
            table.of.retain(|_, it| it.strong_count() > 0);
            table.full = 2 * table.of.len() + 16;
        }
        table.of.insert(set.id(), Arc::downgrade(set));
        true
    }

    pub(super) fn get(&self, id: u64) -> Option<Arc<PollSet>> {
        self.0.lock().of.get(&id).and_then(Weak::upgrade)
    }

    /// All live sets.
    pub(super) fn live(&self) -> Vec<Arc<PollSet>> {
        let table = self.0.lock();
        table.of.values().filter_map(Weak::upgrade).collect()
    }
}

/// Work of the background thread for poll sets.
#[derive(Debug)]
pub(super) struct Agenda {
    /// Sets with messages or acknowledgements to be sent; one may be there more than once.
    sending: Vec<u64>,
    timers: Timers<u64>,
    unwatched: Unwatched,
    /// Sets that noted themselves; empty between two calls.
    noted: Vec<u64>,
}

impl Agenda {
    pub(super) fn new() -> Self {
        Self {
            sending: Vec::new(),
            timers: Timers::new(),
            unwatched: Unwatched::default(),
            noted: Vec::new(),
        }
    }

    /// Takes in the sets that noted themselves. `now` is in nanoseconds of the driver's clock.
    pub(super) fn take_notes(&mut self, sets: &PollSets, waker: &Waker, now: u64) {
        waker.take_noted(&mut self.noted);
        for id in self.noted.drain(..) {
            let Some(set) = sets.get(id) else {
                continue;
            };
            // First: what comes to the set from here on is noted again.
            set.take_note();
            self.timers.note(id, set.deadline());
            if !set.arming().is_on() {
                self.unwatched.add(id, now);
            }
            if set.has_unsent() || set.has_pending_acks() {
                self.sending.push(id);
            }
        }
    }

    /// Time of the next tick; `u64::MAX` where all sets are watched.
    pub(super) fn next_tick(&self) -> u64 {
        self.unwatched.next_tick()
    }

    /// When the first timer has to be run in the background, and whether no program polls its set.
    pub(super) fn first_timer(&self, sets: &PollSets) -> Option<(u64, bool)> {
        let put_off = |id, time| sets.get(id).map(|set| set.in_background(time));
        let (time, id) = self.timers.first_of(put_off)?;
        let is_polled = sets.get(id).is_some_and(|set| set.is_polled());
        Some((time, !is_polled))
    }

    /// Looks at sets that are not watched, if a tick is due, and goes on with timers, sending and acknowledgements. Returns whether to go on at once, and not
    /// at the next event or tick. `now` is in nanoseconds of the driver's clock.
    pub(super) fn serve(&mut self, sets: &PollSets, waker: &Waker, now: u64) -> bool {
        // First: a set that is watched from now on gets no ticks, and what its members could not send in one turn goes on at once.
        self.unwatched.tick(sets, now);
        self.take_notes(sets, waker, now);
        self.run_timers(sets, now);
        self.take_notes(sets, waker, now);
        let mut at_once = false;
        for id in self.sending.drain(..) {
            let Some(set) = sets.get(id) else {
                continue;
            };
            // Members with more to send note the set again.
            if set.has_unsent() {
                // A queue that is polled needs help only now and then, and this thread would take a core from its poller.
                at_once |= set.flush_unsent() && set.arming().is_on();
            }
            set.flush_acks(true);
        }
        at_once
    }

    fn run_timers(&mut self, sets: &PollSets, now: u64) {
        for id in self.timers.take_due(now) {
            if let Some(set) = sets.get(id) {
                set.run_timers_in_background();
                self.timers.note(id, set.deadline());
            }
        }
    }
}

#[cfg(test)]
mod tests;

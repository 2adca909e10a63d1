//! Whether the background thread watches a completion queue's sockets, and how it learns that it need not.
//!
//! A thread that sleeps on sockets costs every datagram that arrives a wake-up, many times what the datagram costs.
//! Where a program polls, it finds its data by itself.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Batches in a row that pollers find before the background thread stops watching.
const LEARN: u32 = 8;
/// Such batches after an earlier decision to stop watching turned out wrong.
const RELEARN: u32 = 64;
/// Polls between two wake-ups of the background thread that make their caller a poller.
const POLLING: u64 = 16;
/// Times in a row that the background thread, woken by data, makes way for a thread that polls and comes back at once.
const WAYS: u32 = 64;

/// Evidence of polling threads on one queue.
#[derive(Debug)]
pub(crate) struct AdaptiveArming {
    on: AtomicBool,
    /// Batches in a row that a poller found, or would have found.
    streak: AtomicU32,
    to_learn: AtomicU32,
    polls: AtomicU64,
    polls_at_wake: AtomicU64,
    /// Times in a row that the background thread made way for a poller.
    ways: AtomicU32,
}

impl AdaptiveArming {
    pub(crate) fn new() -> Self {
        Self {
            on: AtomicBool::new(false),
            streak: AtomicU32::new(0),
            to_learn: AtomicU32::new(LEARN),
            polls: AtomicU64::new(0),
            polls_at_wake: AtomicU64::new(0),
            ways: AtomicU32::new(0),
        }
    }

    /// Whether the background thread watches.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::SeqCst)
    }

    pub(crate) fn turn(&self, on: bool) {
        self.on.store(on, Ordering::SeqCst);
    }

    /// Turns it off. Returns whether it was on.
    pub(crate) fn turn_off(&self) -> bool {
        let was_on = self.on.swap(false, Ordering::SeqCst);
        if was_on {
            self.streak.store(0, Ordering::Relaxed);
            self.ways.store(0, Ordering::Relaxed);
        }
        was_on
    }

    /// Takes note of a poll. Pollers take turns, so this needs no read-modify-write.
    #[inline]
    pub(crate) fn polled(&self) {
        let polls = self.polls.load(Ordering::Relaxed);
        self.polls.store(polls.wrapping_add(1), Ordering::Relaxed);
    }

    /// How often was polled.
    pub(crate) fn polls(&self) -> u64 {
        self.polls.load(Ordering::Relaxed)
    }

    /// Takes note of a batch that a poller found. Returns whether that was enough to stop watching.
    #[inline]
    pub(crate) fn found_by_poller(&self) -> bool {
        if !self.is_on() {
            return false;
        }
        let streak = self.streak.fetch_add(1, Ordering::Relaxed) + 1;
        streak >= self.to_learn.load(Ordering::Relaxed)
    }

    /// The background thread was woken by data, and `found` it still there. Where a thread polled again and again since
    /// it was last woken, that one would have found the data itself. Returns whether that was enough to stop watching.
    pub(crate) fn woken(&self, found: bool) -> bool {
        if found {
            self.ways.store(0, Ordering::Relaxed);
        }
        let polls = self.polls();
        let before = self.polls_at_wake.swap(polls, Ordering::Relaxed);
        if polls.wrapping_sub(before) >= POLLING {
            return self.found_by_poller();
        }
        if found {
            self.streak.store(0, Ordering::Relaxed);
        }
        false
    }

    /// The background thread makes way for a poller. Returns whether it comes back at once, and does not leave the queue to the poller.
    pub(crate) fn makes_way(&self) -> bool {
        self.ways.fetch_add(1, Ordering::Relaxed) < WAYS
    }

    /// Evidence so far does not count any more.
    pub(crate) fn restart(&self) {
        self.streak.store(0, Ordering::Relaxed);
    }

    /// Data lay there that no poller took: harder to convince from now on.
    pub(crate) fn data_lay_there(&self) {
        self.to_learn.store(RELEARN, Ordering::Relaxed);
        self.streak.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on() -> AdaptiveArming {
        let watch = AdaptiveArming::new();
        watch.turn(true);
        watch
    }

    /// Calls until `learn` returns true.
    fn calls_until(mut learn: impl FnMut() -> bool) -> u32 {
        (1..).find(|_| learn()).unwrap()
    }

    #[test]
    fn eight_batches_of_a_poller_are_enough_and_64_after_a_mistake() {
        let watch = on();
        assert_eq!(calls_until(|| watch.found_by_poller()), 8);
        assert!(watch.turn_off());
        assert!(!watch.turn_off());
        watch.data_lay_there();
        watch.turn(true);
        assert_eq!(calls_until(|| watch.found_by_poller()), 64);
    }

    #[test]
    fn polling_without_finding_anything_teaches_nothing() {
        let watch = on();
        for _ in 0..1_000_000 {
            watch.polled();
        }
        assert!(watch.is_on());
        assert!(!watch.woken(true), "one wake-up is not a habit");
    }

    /// A program that is woken for polls now and then, but mostly polls memory.
    #[test]
    fn few_polls_between_wake_ups_start_over() {
        let watch = on();
        for round in 0..1000 {
            for _ in 0..if round % 7 == 6 { 2 } else { 100 } {
                watch.polled();
            }
            assert!(!watch.woken(true));
        }
    }

    /// The background thread comes back for as long as a program may poll for its own message.
    #[test]
    fn way_is_made_for_a_while() {
        let watch = on();
        assert_eq!(calls_until(|| !watch.makes_way()), 65);
        assert!(!watch.woken(false));
        assert!(!watch.makes_way());
        assert!(!watch.woken(true));
        assert!(watch.makes_way(), "it found data that nobody took");
    }

    /// On one core the background thread is always faster: the polls between its wake-ups are the evidence.
    #[test]
    fn a_busy_poller_that_always_loses_the_race_is_found_out() {
        let watch = on();
        let wakes = calls_until(|| {
            for _ in 0..50 {
                watch.polled();
            }
            watch.woken(true)
        });
        assert_eq!(wakes, 8);
    }

    /// In a stream each poll finds a completion; the background thread is woken for each datagram, and always late.
    #[test]
    fn waking_up_late_does_not_count_against_the_poller() {
        let watch = on();
        let batches = calls_until(|| {
            watch.polled();
            assert!(!watch.woken(false));
            watch.found_by_poller()
        });
        assert_eq!(batches, 8);
    }
}

//! Whether a driver of an endpoint polls or sleeps.

use std::time::{Duration, Instant};

/// Time for which a driver polls where it would sleep: a sleep that is shorter costs more than it saves.
const POLLING: Duration = Duration::from_micros(50);
/// Time between two polls that shows that other tasks or processes want the processor.
const BUSY: Duration = Duration::from_micros(200);
/// Short sleeps in a row after which a driver polls, at first and at most.
const SHORT_SLEEPS: (u32, u32) = (4, 4096);

/// Decides whether a driver polls or sleeps: it polls while calls follow each other closely, and sleeps where they do not or the processors are busy.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Polling goes on until then.
    until: Option<Instant>,
    /// Time of the last poll.
    last: Instant,
    /// Short sleeps in a row.
    short: u32,
    /// Short sleeps in a row that have it poll.
    needed: u32,
    /// A turn since the last decision found something.
    found: bool,
}

impl Pace {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            until: None,
            last: now,
            short: 0,
            needed: SHORT_SLEEPS.0,
            found: false,
        }
    }

    /// Whether the next turn is one of several.
    pub(crate) fn polls(&mut self, now: Instant) -> bool {
        let Some(until) = self.until else {
            return false;
        };
        let is_busy = now.saturating_duration_since(self.last) > BUSY;
        self.last = now;
        if std::mem::take(&mut self.found) {
            self.until = Some(now + POLLING);
            self.needed = SHORT_SLEEPS.0;
        } else if now >= until {
            self.until = None;
            self.needed = self.needed.saturating_mul(2).min(SHORT_SLEEPS.1);
        }
        if is_busy {
            self.until = None;
        }
        self.until.is_some()
    }

    /// A turn found something.
    pub(crate) fn found(&mut self) {
        self.found = true;
    }

    /// A sleep is over.
    pub(crate) fn woken(&mut self, asleep: Instant, now: Instant) {
        self.found = false;
        let is_short = now.saturating_duration_since(asleep) < POLLING;
        self.short = if is_short { self.short + 1 } else { 0 };
        if self.short >= self.needed {
            self.short = 0;
            self.until = Some(now + POLLING);
            self.last = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_micros(10);

    /// A pace, and the time when it has begun to poll.
    fn polling() -> (Pace, Instant) {
        let mut now = crate::system::now();
        let mut pace = Pace::new(now);
        for _ in 0..SHORT_SLEEPS.0 {
            assert!(!pace.polls(now));
            pace.woken(now, now + STEP);
            now += STEP;
        }
        assert!(pace.polls(now));
        (pace, now)
    }

    /// Sleeps of this length until it polls.
    fn sleeps(pace: &mut Pace, now: &mut Instant, length: Duration) -> Option<u32> {
        (0..10_000).find(|_| {
            pace.woken(*now, *now + length);
            *now += length;
            pace.polls(*now)
        })
    }

    #[test]
    fn it_polls_behind_short_sleeps_alone() {
        let mut now = crate::system::now();
        let mut pace = Pace::new(now);
        assert_eq!(sleeps(&mut pace, &mut now, POLLING), None);
        for _ in 0..100 {
            for _ in 1..SHORT_SLEEPS.0 {
                pace.woken(now, now + STEP);
            }
            pace.woken(now, now + POLLING);
            assert!(!pace.polls(now));
        }
    }

    #[test]
    fn it_goes_on_while_it_finds_something() {
        let (mut pace, mut now) = polling();
        for _ in 0..1000 {
            now += POLLING - STEP;
            pace.found();
            assert!(pace.polls(now));
        }
        now += POLLING - STEP;
        assert!(pace.polls(now));
        now += STEP;
        assert!(!pace.polls(now));
    }

    #[test]
    fn polls_in_vain_need_more_short_sleeps_the_next_time() {
        let (mut pace, mut now) = polling();
        let mut before = SHORT_SLEEPS.0;
        for _ in 0..20 {
            now += POLLING;
            assert!(!pace.polls(now));
            let needed = sleeps(&mut pace, &mut now, STEP).unwrap() + 1;
            assert_eq!(needed, (before * 2).min(SHORT_SLEEPS.1));
            before = needed;
        }
        pace.found();
        assert!(pace.polls(now));
        now += POLLING;
        assert!(!pace.polls(now));
        let needed = sleeps(&mut pace, &mut now, STEP).unwrap() + 1;
        assert_eq!(needed, SHORT_SLEEPS.0 * 2);
    }

    #[test]
    fn it_sleeps_where_the_processors_are_busy() {
        let (mut pace, mut now) = polling();
        now += BUSY + STEP;
        pace.found();
        assert!(!pace.polls(now));
    }
}

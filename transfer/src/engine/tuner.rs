//! How many streams a session uses: more as long as they bring more, fewer where fewer bring as much. The idea is Balman's: streams change gradually while it runs.

use std::time::Duration;

use super::MAX_STREAMS;

/// Time that a change has before goodput is measured: a stream comes up and finds its rate.
const SETTLE: Duration = Duration::from_millis(400);
/// Time in which streams that are wanted have to come.
const COME: Duration = Duration::from_secs(2);
/// Time of one measurement.
const MEASURE: Duration = Duration::from_millis(600);
/// First pause after a trial that brought nothing; it doubles with each.
const PAUSE: Duration = Duration::from_secs(5);
/// Longest pause.
const LONG_PAUSE: Duration = Duration::from_secs(60);
/// Goodput that more streams have to bring, in hundredths of that of before.
const MORE: u64 = 108;
/// Goodput that fewer streams have to bring.
const FEWER: u64 = 102;
/// A path that brings less than this, in hundredths of before, is another path.
const ANOTHER: u64 = 80;

/// Direction of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trial {
    /// As it is.
    None,
    More,
    Fewer,
}

/// State of the search. Call [`handle_progress`](Self::handle_progress) as octets arrive, and when [`poll_timeout`](Self::poll_timeout) is reached.
#[derive(Debug)]
pub struct Tuner {
    wanted: usize,
    trial: Trial,
    /// Goodput in octets a second of the number that was kept, once it is known.
    kept: Option<u64>,
    /// Fewer streams brought less on this path, or came before.
    fewer_known: bool,
    /// Streams are there or overdue: time at which they were.
    came: Option<Duration>,
    /// Time of the last change.
    changed: Duration,
    /// Time and octets at which a measurement began.
    measuring: Option<(Duration, u64)>,
    /// Time of the next trial.
    next: Duration,
    pause: Duration,
}

impl Tuner {
    /// A search that begins with so many streams.
    #[must_use]
    pub fn new(now: Duration, streams: usize) -> Self {
        Self {
            wanted: streams.clamp(1, MAX_STREAMS),
            trial: Trial::None,
            kept: None,
            fewer_known: streams < 2,
            came: None,
            changed: now,
            measuring: None,
            next: now,
            pause: PAUSE,
        }
    }

    /// How many streams there are to be.
    #[must_use]
    pub fn wanted(&self) -> usize {
        self.wanted
    }

    /// Takes note of all octets that arrived so far, the streams that are there, and how many there may be.
    pub fn handle_progress(&mut self, now: Duration, octets: u64, there: usize, most: usize) {
        let most = most.clamp(1, MAX_STREAMS);
        if self.wanted > most {
            self.change(now, most);
        }
        if there < self.wanted && now < self.changed + COME {
            return;
        }
        let came = *self.came.get_or_insert(now);
        let Some((began, before)) = self.measuring else {
            if now >= came + SETTLE {
                self.measuring = Some((now, octets));
            }
            return;
        };
        let passed = now.saturating_sub(began);
        if passed < MEASURE {
            return;
        }
        self.measuring = Some((now, octets));
        let moved = u128::from(octets.saturating_sub(before));
        let goodput = moved * 1000 / passed.as_millis().max(1);
        // Nothing arrives: a disk is synchronized, or there is nothing to send.
        if goodput > 0 {
            self.judge(now, u64::try_from(goodput).unwrap_or(u64::MAX), most);
        }
    }

    /// Judges a measurement, and begins the next trial if one is due.
    fn judge(&mut self, now: Duration, goodput: u64, most: usize) {
        let kept = self.kept.unwrap_or(goodput);
        let is_over = |hundredths| goodput.saturating_mul(100) >= kept.saturating_mul(hundredths);
        match self.trial {
            Trial::None => {
                // Between trials goodput is a mean of the last ones.
                self.kept = Some(kept.midpoint(goodput));
                if !is_over(ANOTHER) {
                    self.kept = Some(goodput);
                    self.fewer_known = self.wanted < 2;
                    self.pause = PAUSE;
                }
                if now < self.next {
                    return;
                }
                if self.wanted < most {
                    self.attempt(now, Trial::More, most);
                } else {
                    self.attempt_fewer(now, most);
                }
            }
            Trial::More if is_over(MORE) => {
                self.keep(goodput);
                self.fewer_known = true;
                self.attempt(now, Trial::More, most);
            }
            Trial::More => {
                self.change(now, self.wanted / 2);
                self.attempt_fewer(now, most);
            }
            Trial::Fewer if is_over(FEWER) => {
                self.keep(goodput);
                self.attempt_fewer(now, most);
            }
            Trial::Fewer => {
                self.fewer_known = true;
                self.change(now, (self.wanted * 2).min(most));
                self.rest(now);
            }
        }
    }

    fn keep(&mut self, goodput: u64) {
        self.kept = Some(goodput);
        self.pause = PAUSE;
    }

    fn attempt_fewer(&mut self, now: Duration, most: usize) {
        if self.fewer_known || self.wanted < 2 {
            self.rest(now);
        } else {
            self.attempt(now, Trial::Fewer, most);
        }
    }

    fn attempt(&mut self, now: Duration, trial: Trial, most: usize) {
        let wanted = match trial {
            Trial::More => (self.wanted * 2).min(most),
            Trial::Fewer => self.wanted / 2,
            Trial::None => self.wanted,
        };
        if wanted == self.wanted || wanted == 0 {
            self.rest(now);
            return;
        }
        self.change(now, wanted);
        self.trial = trial;
    }

    fn change(&mut self, now: Duration, wanted: usize) {
        self.wanted = wanted.max(1);
        self.trial = Trial::None;
        self.came = None;
        self.changed = now;
        self.measuring = None;
    }

    fn rest(&mut self, now: Duration) {
        self.trial = Trial::None;
        self.next = now + self.pause;
        self.pause = (self.pause * 2).min(LONG_PAUSE);
    }

    /// Time at which something is due though nothing arrives.
    #[must_use]
    pub fn poll_timeout(&self) -> Duration {
        match (self.came, self.measuring) {
            (None, _) => self.changed + COME,
            (Some(came), None) => came + SETTLE,
            (Some(_), Some((began, _))) => began + MEASURE,
        }
    }
}

#[cfg(test)]
mod tests;

//! Limits of a session: the part of the pipeline for which the others wait.

use std::time::Duration;

/// A part of the pipeline for which the others wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Files of this end: blocks are read, hashed, written, or made durable.
    Files,
    /// The path: blocks are ready, and neither credit nor the carrier lets them leave, or the peer has not taken those that left. A sink never finds it: for it
    /// the path is a part of the peer.
    Network,
    /// The peer: its slots are full, or an answer is awaited. At a sink: no blocks come.
    Peer,
}

/// Time that a session was limited, by the part that limited it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Waits {
    /// Disks of this end: threads of its files waited for the system.
    pub disk: Duration,
    /// Processors of this end: these threads copied and hashed, or waited for a processor.
    pub processor: Duration,
    /// The path to the peer.
    pub network: Duration,
    /// The peer.
    pub peer: Duration,
}

impl Waits {
    /// All of it.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.disk + self.processor + self.network + self.peer
    }

    /// Time between two counts of a session.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            disk: self.disk.saturating_sub(earlier.disk),
            processor: self.processor.saturating_sub(earlier.processor),
            network: self.network.saturating_sub(earlier.network),
            peer: self.peer.saturating_sub(earlier.peer),
        }
    }
}

/// Adds up time by limits.
#[derive(Debug)]
pub struct LimitMeter {
    limit: Limit,
    since: Duration,
    files: Duration,
    network: Duration,
    peer: Duration,
}

impl LimitMeter {
    /// Begins; the peer has not answered yet.
    #[must_use]
    pub fn new(now: Duration) -> Self {
        let zero = Duration::ZERO;
        Self {
            limit: Limit::Peer,
            since: now,
            files: zero,
            network: zero,
            peer: zero,
        }
    }

    /// The session is limited by this from now on.
    pub fn note(&mut self, now: Duration, limit: Limit) {
        let passed = now.saturating_sub(self.since);
        let sum = match self.limit {
            Limit::Files => &mut self.files,
            Limit::Network => &mut self.network,
            Limit::Peer => &mut self.peer,
        };
        *sum += passed;
        self.since = self.since.max(now);
        self.limit = limit;
    }

    /// Time until the last note. Of all the time that threads of files were `busy`, they had or wanted a processor for that `running`.
    #[must_use]
    pub fn waits(&self, busy: Duration, running: Duration) -> Waits {
        let share = if busy.is_zero() {
            1.0
        } else {
            (running.as_secs_f64() / busy.as_secs_f64()).min(1.0)
        };
        let processor = self.files.mul_f64(share).min(self.files);
        Waits {
            disk: self.files - processor,
            processor,
            network: self.network,
            peer: self.peer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn time_counts_for_the_limit_that_held_meanwhile() {
        let mut meter = LimitMeter::new(at(1));
        meter.note(at(3), Limit::Files);
        meter.note(at(7), Limit::Network);
        meter.note(at(8), Limit::Network);
        // A clock that goes back counts nothing.
        meter.note(at(5), Limit::Peer);
        meter.note(at(13), Limit::Files);
        let waits = meter.waits(at(8), at(2));
        let expected = Waits {
            disk: at(3),
            processor: at(1),
            network: at(1),
            peer: at(7),
        };
        assert_eq!(waits, expected);
        assert_eq!(waits.total(), at(12));
        let before = Waits {
            peer: at(4),
            ..Waits::default()
        };
        assert_eq!(waits.since(&before).peer, at(3));
    }

    #[test]
    fn more_time_on_processors_than_threads_had_is_all_of_it() {
        let mut meter = LimitMeter::new(at(0));
        meter.note(at(0), Limit::Files);
        meter.note(at(4), Limit::Peer);
        assert_eq!(meter.waits(at(1), at(5)).processor, at(4));
        assert_eq!(meter.waits(at(0), at(0)).processor, at(4));
    }
}

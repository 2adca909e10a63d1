//! Round-trip time (§6.2), as RFC 9002 has it.

use std::time::Duration;

/// Longest delay of acknowledgements, of both ends.
pub(in crate::rd) const MOST_ACK_DELAY: Duration = Duration::from_millis(1);

/// Estimates of one path.
#[derive(Debug, Clone, Copy)]
pub(in crate::rd) struct Rtt {
    smoothed: Duration,
    variation: Duration,
    /// Smallest sample; `None` before the first.
    minimum: Option<Duration>,
    latest: Duration,
    /// Smallest samples of the present round trip and of the one before.
    rounds: [Option<Duration>; 2],
    /// Largest delay of acknowledgements of late, as the peer reports it.
    delay: Duration,
}

/// Estimates that an association keeps while it rests, in nanoseconds, none above 4 s.
#[derive(Debug, Clone, Copy)]
pub(in crate::rd) struct Rested {
    smoothed: u32,
    variation: u32,
    minimum: Option<u32>,
    delay: u32,
}

impl From<Rested> for Rtt {
    fn from(rested: Rested) -> Self {
        let time = |nanos: u32| Duration::from_nanos(nanos.into());
        Self {
            smoothed: time(rested.smoothed),
            variation: time(rested.variation),
            minimum: rested.minimum.map(time),
            latest: time(rested.smoothed),
            rounds: [None; 2],
            delay: time(rested.delay),
        }
    }
}

impl Rtt {
    pub(in crate::rd) fn rest(&self) -> Rested {
        let nanos = |time: Duration| u32::try_from(time.as_nanos()).unwrap_or(u32::MAX);
        Rested {
            smoothed: nanos(self.smoothed),
            variation: nanos(self.variation),
            minimum: self.minimum.map(nanos),
            delay: nanos(self.delay),
        }
    }

    pub(in crate::rd) fn new(initial: Duration) -> Self {
        Self {
            smoothed: initial,
            variation: initial / 2,
            minimum: None,
            latest: initial,
            rounds: [None; 2],
            delay: MOST_ACK_DELAY,
        }
    }

    /// Takes a sample; `delay` is the delay that the peer reported.
    pub(in crate::rd) fn sample(&mut self, latest: Duration, delay: Duration) {
        self.delay = delay.min(MOST_ACK_DELAY).max(self.delay - self.delay / 8);
        let Some(minimum) = self.minimum else {
            // An acknowledgement that was repeated, or that a host made late, is no measure of the path.
            let late = delay.saturating_sub(MOST_ACK_DELAY);
            let latest = latest.checked_sub(late).unwrap_or(latest);
            self.minimum = Some(latest);
            self.smoothed = latest;
            self.variation = latest / 2;
            self.latest = latest;
            self.rounds[0] = Some(latest);
            return;
        };
        let minimum = minimum.min(latest);
        self.minimum = Some(minimum);
        // A delay that would take the sample below the minimum is not believed.
        let adjusted = match latest.checked_sub(delay) {
            Some(adjusted) if adjusted >= minimum => adjusted,
            Some(_) | None => latest,
        };
        self.latest = adjusted;
        self.rounds[0] = Some(self.rounds[0].map_or(adjusted, |it| it.min(adjusted)));
        self.variation = (self.variation * 3 + self.smoothed.abs_diff(adjusted)) / 4;
        self.smoothed = (self.smoothed * 7 + adjusted) / 8;
    }

    /// A round trip ended.
    pub(in crate::rd) const fn end_round(&mut self) {
        self.rounds = [None, self.rounds[0]];
    }

    pub(in crate::rd) const fn smoothed(&self) -> Duration {
        self.smoothed
    }

    /// The smallest sample, or the initial estimate.
    pub(in crate::rd) fn minimum(&self) -> Duration {
        self.minimum.unwrap_or(self.smoothed)
    }

    /// The smallest sample.
    pub(in crate::rd) const fn smallest_sample(&self) -> Option<Duration> {
        self.minimum
    }

    pub(in crate::rd) const fn is_sampled(&self) -> bool {
        self.minimum.is_some()
    }

    /// The larger of the smoothed and the latest.
    pub(in crate::rd) fn largest(&self) -> Duration {
        self.smoothed.max(self.latest)
    }

    /// Smoothed time and four times its variation.
    pub(in crate::rd) fn timeout(&self, granularity: Duration) -> Duration {
        self.smoothed + (self.variation * 4).max(granularity)
    }

    /// Delay of the peer's acknowledgements: the largest of late, less 1/8 for each sample since.
    pub(in crate::rd) const fn delay(&self) -> Duration {
        self.delay
    }

    /// Whether a queue of the path does not drain: all samples of this and the last round trip are above the minimum by more than its
    /// `share`, and at least `floor`. A host that was not scheduled for a while delays some, as a queue would, and not all.
    pub(in crate::rd) fn is_queue_standing(&self, share: u32, floor: Duration) -> bool {
        let minimum = self.minimum();
        let smallest = self.rounds.iter().flatten().min();
        *smallest.unwrap_or(&self.smoothed) > minimum + (minimum / share).max(floor)
    }

    /// Whether datagrams wait in queues of the path: more than `share` of the minimum, and at least `floor`.
    pub(in crate::rd) fn is_queueing(&self, share: u32, floor: Duration) -> bool {
        let minimum = self.minimum();
        self.smoothed > minimum + (minimum / share).max(floor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn estimates_follow_rfc_9002() {
        let mut rtt = Rtt::new(333 * MS);
        assert!(!rtt.is_sampled());
        assert_eq!((rtt.smoothed(), rtt.minimum()), (333 * MS, 333 * MS));
        assert_eq!(rtt.timeout(MS), 999 * MS);
        rtt.sample(8 * MS, MS);
        assert!(rtt.is_sampled());
        assert_eq!((rtt.smoothed(), rtt.minimum()), (8 * MS, 8 * MS));
        assert_eq!(rtt.timeout(MS), 24 * MS);
        rtt.sample(24 * MS, 8 * MS);
        assert_eq!((rtt.smoothed(), rtt.minimum()), (9 * MS, 8 * MS));
        assert_eq!(rtt.largest(), 16 * MS);
        // Variation: (3 × 4 + 8) / 4.
        assert_eq!(rtt.timeout(MS), 29 * MS);
        assert_eq!(rtt.timeout(21 * MS), 30 * MS);
        rtt.sample(9 * MS, 2 * MS);
        assert_eq!(rtt.largest(), 9 * MS, "the delay is not believed");
        rtt.sample(9 * MS, MS);
        assert_eq!(rtt.latest, 8 * MS);
        rtt.sample(4 * MS, 8 * MS);
        assert_eq!(rtt.minimum(), 4 * MS);
    }

    #[test]
    fn the_delay_is_the_largest_of_late() {
        let mut rtt = Rtt::new(MS);
        assert_eq!(rtt.delay(), MS);
        rtt.sample(4 * MS, MS / 2);
        assert_eq!(rtt.delay(), MS * 7 / 8);
        rtt.sample(4 * MS, 16 * MS);
        assert_eq!(rtt.delay(), MS);
        rtt.sample(4 * MS, Duration::ZERO);
        assert_eq!(rtt.delay(), MS * 7 / 8);
    }

    #[test]
    fn an_acknowledgement_made_late_is_no_measure_of_the_path() {
        let mut rtt = Rtt::new(MS);
        rtt.sample(30 * MS, 29 * MS);
        assert_eq!(rtt.timeout(MS), 6 * MS, "of 2 ms");
        rtt.sample(60 * MS, 58 * MS);
        assert_eq!(rtt.largest(), 2 * MS);
        let mut rtt = Rtt::new(MS);
        rtt.sample(30 * MS, 40 * MS);
        assert_eq!(rtt.largest(), 30 * MS, "the delay is not believed");
    }

    #[test]
    fn a_queue_stands_where_each_sample_of_two_round_trips_shows_it() {
        // The minimum is 8 ms, and a queue shows above 9 ms.
        let standing = |rounds: [&[u32]; 2]| {
            let mut rtt = Rtt::new(MS);
            rtt.sample(8 * MS, Duration::ZERO);
            rtt.end_round();
            rtt.end_round();
            for round in rounds {
                rtt.end_round();
                for sample in round {
                    rtt.sample(*sample * MS / 10, Duration::ZERO);
                }
            }
            rtt.is_queue_standing(8, MS / 2)
        };
        assert!(standing([&[91, 200], &[200, 91]]));
        assert!(!standing([&[90, 200], &[200, 91]]), "at the bound");
        assert!(!standing([&[91, 200], &[200, 90]]));
        assert!(standing([&[], &[91]]), "one round trip without a sample");
        let mut rtt = Rtt::new(MS);
        rtt.sample(8 * MS, Duration::ZERO);
        assert_eq!(rtt.smallest_sample(), Some(8 * MS));
        rtt.sample(100 * MS, Duration::ZERO);
        rtt.end_round();
        rtt.end_round();
        assert!(rtt.is_queue_standing(8, MS / 2), "by the smoothed time");
    }

    #[test]
    fn a_queue_shows_above_the_minimum() {
        let mut rtt = Rtt::new(MS);
        rtt.sample(8 * MS, Duration::ZERO);
        assert!(!rtt.is_queueing(8, MS));
        rtt.sample(16 * MS, Duration::ZERO);
        assert_eq!(rtt.smoothed(), 9 * MS);
        assert!(!rtt.is_queueing(8, MS));
        rtt.sample(10 * MS, Duration::ZERO);
        assert!(rtt.is_queueing(8, MS));
        assert!(!rtt.is_queueing(8, 2 * MS));
        assert!(!rtt.is_queueing(4, MS));
    }
}

//! Round-trip time of the way to a peer.

use std::time::Duration;

/// Time to wait for a response while there are few samples.
const FIRST_TIMEOUT: Duration = Duration::from_millis(20);
/// Shortest time to wait for a response.
const MIN_TIMEOUT: Duration = Duration::from_millis(1);
/// Shortest time before a probe.
const MIN_PROBE: Duration = Duration::from_micros(200);
/// Samples after which the shortest time holds.
const ENOUGH: u32 = 8;

/// Estimate of the round-trip time (RFC 6298 §2), from requests whose answers are unambiguous.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Rtt {
    smoothed: Duration,
    variation: Duration,
    least: Duration,
    samples: u32,
}

impl Rtt {
    pub(crate) fn sample(&mut self, took: Duration) {
        if self.samples == 0 {
            (self.smoothed, self.variation, self.least) = (took, took / 2, took);
        } else {
            let off = self.smoothed.abs_diff(took);
            self.variation = (self.variation * 3 + off) / 4;
            self.smoothed = (self.smoothed * 7 + took) / 8;
            self.least = self.least.min(took);
        }
        self.samples = self.samples.saturating_add(1);
    }

    /// The smoothed round-trip time; zero without samples.
    pub(crate) fn smoothed(&self) -> Duration {
        self.smoothed
    }

    /// The shortest sample; zero without samples.
    pub(crate) fn least(&self) -> Duration {
        self.least
    }

    /// Time to wait for a response before requests count as lost.
    pub(crate) fn timeout(&self) -> Duration {
        let least = if self.samples < ENOUGH {
            FIRST_TIMEOUT
        } else {
            MIN_TIMEOUT
        };
        (self.smoothed * 3 / 2 + self.variation * 4).max(least)
    }

    /// Time to wait for a response before a probe (as RFC 8985 §7.2); `None` without samples.
    pub(crate) fn probe_timeout(&self) -> Option<Duration> {
        (self.samples > 0).then(|| (self.smoothed * 2).max(MIN_PROBE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(count: u64) -> Duration {
        Duration::from_micros(count)
    }

    #[test]
    fn the_timeout_follows_the_samples() {
        let mut rtt = Rtt::default();
        assert_eq!(rtt.probe_timeout(), None);
        assert_eq!((rtt.timeout(), rtt.least()), (FIRST_TIMEOUT, micros(0)));
        rtt.sample(micros(300));
        assert_eq!((rtt.smoothed(), rtt.least()), (micros(300), micros(300)));
        assert_eq!(rtt.probe_timeout(), Some(micros(600)));
        for _ in 0..6 {
            rtt.sample(micros(100));
            assert_eq!(rtt.timeout(), FIRST_TIMEOUT);
        }
        rtt.sample(micros(100));
        assert_eq!((rtt.timeout(), rtt.least()), (MIN_TIMEOUT, micros(100)));
        for _ in 0..60 {
            rtt.sample(micros(20));
        }
        assert_eq!(rtt.probe_timeout(), Some(MIN_PROBE));
        for _ in 0..60 {
            rtt.sample(micros(50_000));
        }
        assert_eq!(rtt.least(), micros(20));
        let timeout = rtt.timeout();
        assert!(
            (micros(74_000)..micros(77_000)).contains(&timeout),
            "{timeout:?}"
        );
    }

    #[test]
    fn variation_lengthens_the_timeout() {
        let mut rtt = Rtt::default();
        for turn in 0..100 {
            rtt.sample(micros(if turn % 2 == 0 { 1000 } else { 3000 }));
        }
        let timeout = rtt.timeout();
        assert!(
            (micros(6000)..micros(8000)).contains(&timeout),
            "{timeout:?}"
        );
    }
}

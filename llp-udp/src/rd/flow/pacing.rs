//! Pacing (§6.3): datagrams leave in bursts no longer than a shallow queue takes.

use std::time::{Duration, Instant};

/// Longest burst in time at the rate.
const BURST: Duration = Duration::from_micros(250);
/// A second in nanoseconds.
const SECOND: u64 = 1_000_000_000;
/// Fewest datagrams of a burst.
const DATAGRAMS: u64 = 2;

/// Token bucket.
#[derive(Debug, Clone, Copy)]
pub(in crate::rd) struct Pacing {
    /// Octets that may leave now, from which `since` counts on.
    tokens: u64,
    since: Instant,
}

impl Pacing {
    pub(in crate::rd) const fn new(now: Instant) -> Self {
        Self {
            tokens: 0,
            since: now,
        }
    }

    /// When a datagram of at most `datagram` octets may leave at `rate` octets per second, if not now.
    pub(in crate::rd) fn may_send(
        &mut self,
        now: Instant,
        rate: u64,
        datagram: u64,
    ) -> Option<Instant> {
        let burst = octets(rate, BURST).max(DATAGRAMS * datagram);
        let elapsed = now.saturating_duration_since(self.since);
        let earned = octets(rate, elapsed);
        if earned > 0 {
            self.tokens = (self.tokens + earned).min(burst);
            self.since = now;
        }
        if self.tokens >= datagram {
            return None;
        }
        Some(self.since + time(rate, datagram - self.tokens))
    }

    pub(in crate::rd) const fn on_sent(&mut self, octets: u64) {
        self.tokens = self.tokens.saturating_sub(octets);
    }
}

/// Octets of a time at a rate.
pub(in crate::rd) fn octets(rate: u64, time: Duration) -> u64 {
    scale(rate, nanos(time), SECOND)
}

/// Time of these octets at a rate, at least a nanosecond and at most a second.
fn time(rate: u64, octets: u64) -> Duration {
    let nanos = scale(octets, SECOND, rate.max(1));
    Duration::from_nanos(nanos.saturating_add(1)).min(Duration::from_secs(1))
}

/// The rate at which `octets` leave in `time`.
pub(in crate::rd) fn rate(octets: u64, time: Duration) -> u64 {
    scale(octets, SECOND, nanos(time).max(1)).max(1)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// `number * by / of`. The product rarely needs more than 64 bits, and the division of longer ones is a call.
fn scale(number: u64, by: u64, of: u64) -> u64 {
    match number.checked_mul(by) {
        Some(product) => product / of,
        None => {
            let scaled = u128::from(number) * u128::from(by) / u128::from(of);
            u64::try_from(scaled).unwrap_or(u64::MAX)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(
        clippy::disallowed_methods,
        reason = "any instant serves as the origin"
    )]
    fn origin() -> Instant {
        Instant::now()
    }

    #[test]
    fn a_burst_is_two_datagrams_or_a_quarter_of_a_millisecond() {
        for (per_second, burst) in [(1_000_000, 2000), (100_000_000, 25_000)] {
            let start = origin();
            let mut pacing = Pacing::new(start);
            let later = start + Duration::from_secs(1);
            let mut sent = 0;
            while pacing.may_send(later, per_second, 1000).is_none() {
                pacing.on_sent(1000);
                sent += 1000;
            }
            assert_eq!(sent, burst);
            let next = pacing.may_send(later, per_second, 1000).unwrap();
            let wait = next - later;
            let expected = Duration::from_nanos(1_000_000_000_000 / per_second + 1);
            assert_eq!(wait, expected);
            assert!(pacing.may_send(next - wait / 2, per_second, 1000).is_some());
            assert_eq!(pacing.may_send(next + wait, per_second, 1000), None);
        }
    }

    /// Polls at intervals in which less than an octet is earned take nothing away.
    #[test]
    fn octets_are_earned_however_often_they_are_looked_for() {
        let start = origin();
        let mut pacing = Pacing::new(start);
        let millisecond = Duration::from_millis(1);
        let mut sent = None;
        for at in 1..=2000 {
            let now = start + at * millisecond / 10;
            if pacing.may_send(now, 1000, 100).is_none() {
                sent = Some(at);
                break;
            }
        }
        assert_eq!(sent, Some(1000), "100 octets at 1,000 a second");
    }

    #[test]
    fn products_beyond_64_bits_are_scaled_too() {
        for (number, by, of, scaled) in [
            (1 << 40, 1 << 23, 3, (1 << 63) / 3),
            (1 << 40, 1 << 24, 3, (1u128 << 64) / 3),
            (u64::MAX, u64::MAX, u64::MAX, u64::MAX.into()),
            (u64::MAX, 2, 1, u64::MAX.into()),
        ] {
            let found = scale(number, by, of);
            assert_eq!(u128::from(found), scaled, "{number} * {by} / {of}");
        }
    }

    #[test]
    fn rates_and_times_are_inverse() {
        assert_eq!(octets(1_000_000, Duration::from_millis(5)), 5000);
        assert_eq!(rate(5000, Duration::from_millis(5)), 1_000_000);
        assert_eq!(rate(0, Duration::ZERO), 1);
        assert_eq!(time(1_000_000, 5000), Duration::from_nanos(5_000_001));
        assert_eq!(time(0, 5000), Duration::from_secs(1));
    }
}

//! How fast a QP sends, where it is told to keep to a rate.
//!
//! Send and Write-Record have no feedback, so a long message outruns its receiver's buffer unless the sender holds back.

use std::time::{Duration, Instant};

/// What may leave at once after a pause, in time at the rate: as much as the timers that let a QP go on may be late.
const BURST: Duration = Duration::from_millis(4);

/// Lets octets leave at a rate.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pacer {
    /// 0 is no limit.
    octets_per_second: u64,
    /// When all that left would have left at exactly the rate.
    even: Option<Instant>,
}

impl Pacer {
    pub(super) fn new(octets_per_second: u64) -> Self {
        Self {
            octets_per_second,
            even: None,
        }
    }

    #[inline]
    pub(super) fn is_limited(&self) -> bool {
        self.octets_per_second != 0
    }

    /// When the next train may leave, if not now.
    #[inline]
    pub(super) fn ready_at(&self, now: Instant) -> Option<Instant> {
        let ready = self.even?.checked_sub(BURST)?;
        (ready > now).then_some(ready)
    }

    /// Takes note of octets that left.
    #[inline]
    pub(super) fn spend(&mut self, now: Instant, octets: usize) {
        if self.octets_per_second == 0 {
            return;
        }
        let nanos = octets as u128 * 1_000_000_000 / u128::from(self.octets_per_second);
        let takes = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let even = self.even.map_or(now, |even| even.max(now));
        self.even = even.checked_add(takes).or(self.even);
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
        Instant::now() + Duration::from_secs(1)
    }

    /// What leaves within `span` when somebody looks every `grain`.
    fn sent(pace: &mut Pacer, start: Instant, span: Duration, grain: Duration) -> u64 {
        let mut octets = 0;
        let mut now = start;
        while now < start + span {
            while pace.ready_at(now).is_none() {
                pace.spend(now, 65_000);
                octets += 65_000;
            }
            now += grain;
        }
        octets
    }

    #[test]
    fn the_rate_is_kept_however_seldom_somebody_looks() {
        for millis in [1, 3, 4] {
            let mut pace = Pacer::new(100_000_000);
            let grain = Duration::from_millis(millis);
            let octets = sent(&mut pace, origin(), Duration::from_secs(1), grain);
            let expected = 100_000_000..=100_000_000 + 400_000 + 65_000;
            assert!(expected.contains(&octets), "{octets} at {grain:?}");
        }
    }

    #[test]
    fn a_pause_is_not_saved_up() {
        let mut pace = Pacer::new(100_000_000);
        let start = origin();
        let millisecond = Duration::from_millis(1);
        sent(&mut pace, start, millisecond, millisecond);
        let later = start + Duration::from_secs(100);
        let burst = sent(&mut pace, later, millisecond, millisecond);
        assert!((400_000..=465_000).contains(&burst), "{burst}");
        let ready = pace.ready_at(later).expect("enough for now");
        assert!(ready > later && ready < later + millisecond);
    }

    #[test]
    fn without_a_rate_everything_leaves() {
        let mut pace = Pacer::new(0);
        let now = origin();
        pace.spend(now, usize::MAX);
        assert_eq!((pace.ready_at(now), pace.is_limited()), (None, false));
    }

    #[test]
    fn a_rate_next_to_nothing_waits_and_does_not_overflow() {
        let mut pace = Pacer::new(1);
        let now = origin();
        for _ in 0..1000 {
            pace.spend(now, 65_000);
            pace.spend(now, usize::MAX);
        }
        assert!(pace.ready_at(now).is_some());
    }
}

//! Pacing: limit of the octets per second that a datagram QP sends. Congestion control goes behind the same calls.
//!
//! Send and Write-Record have no feedback, so a long message outruns its receiver's buffer unless the sender paces itself.

use std::time::{Duration, Instant};

/// Burst after a pause, in time at the rate: as much as the timers that let a QP go on may be late.
const BURST: Duration = Duration::from_millis(4);

/// Token bucket: `may_send` before each train, `on_sent` after.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pacer {
    /// The rate; 0 is no limit.
    octets_per_second: u64,
    /// When all octets sent so far would have left at exactly the rate; `None` before the first.
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

    /// When a train of about `octets` octets may leave, if not now. A rate alone does not depend on them.
    #[inline]
    pub(super) fn may_send(&self, now: Instant, octets: u32) -> Option<Instant> {
        let _ = octets;
        let ready = self.even?.checked_sub(BURST)?;
        (ready > now).then_some(ready)
    }

    /// A train of `octets` octets has left.
    #[inline]
    pub(super) fn on_sent(&mut self, now: Instant, octets: usize) {
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

    /// Octets that leave within `span` when `may_send` is called every `grain`.
    fn sent(pacer: &mut Pacer, start: Instant, span: Duration, grain: Duration) -> u64 {
        let mut octets = 0;
        let mut now = start;
        while now < start + span {
            while pacer.may_send(now, 65_000).is_none() {
                pacer.on_sent(now, 65_000);
                octets += 65_000;
            }
            now += grain;
        }
        octets
    }

    #[test]
    fn the_rate_is_kept_however_seldom_it_is_checked() {
        for millis in [1, 3, 4] {
            let mut pacer = Pacer::new(100_000_000);
            let grain = Duration::from_millis(millis);
            let octets = sent(&mut pacer, origin(), Duration::from_secs(1), grain);
            let expected = 100_000_000..=100_000_000 + 400_000 + 65_000;
            assert!(expected.contains(&octets), "{octets} at {grain:?}");
        }
    }

    #[test]
    fn a_pause_is_not_saved_up() {
        let mut pacer = Pacer::new(100_000_000);
        let start = origin();
        let millisecond = Duration::from_millis(1);
        sent(&mut pacer, start, millisecond, millisecond);
        let later = start + Duration::from_secs(100);
        let burst = sent(&mut pacer, later, millisecond, millisecond);
        assert!((400_000..=465_000).contains(&burst), "{burst}");
        let ready = pacer.may_send(later, 65_000).expect("enough for now");
        assert!(ready > later && ready < later + millisecond);
    }

    #[test]
    fn without_a_rate_everything_leaves() {
        let mut pacer = Pacer::new(0);
        let now = origin();
        pacer.on_sent(now, usize::MAX);
        assert_eq!(
            (pacer.may_send(now, 65_000), pacer.is_limited()),
            (None, false)
        );
    }

    #[test]
    fn a_rate_next_to_nothing_waits_and_does_not_overflow() {
        let mut pacer = Pacer::new(1);
        let now = origin();
        for _ in 0..1000 {
            pacer.on_sent(now, 65_000);
            pacer.on_sent(now, usize::MAX);
        }
        assert!(pacer.may_send(now, 65_000).is_some());
    }
}

//! Congestion control by delay, for local networks: the window aims at a little queueing above the smallest round-trip time.

use std::time::{Duration, Instant};

use super::{Delivered, QUEUEING};
use crate::rd::flow::rtt::Rtt;

#[derive(Debug)]
pub(in crate::rd) struct Delay {
    datagram: u64,
    minimum: u64,
    window: u64,
    /// Until queueing was seen for the first time the window doubles.
    slow_start: bool,
    /// Smallest sample of this round trip.
    sample: Option<Duration>,
    limited: bool,
    reduced: Option<Instant>,
}

impl Delay {
    pub(super) const fn new(datagram: u64, initial: u64, minimum: u64) -> Self {
        Self {
            datagram,
            minimum,
            window: initial,
            slow_start: true,
            sample: None,
            limited: false,
            reduced: None,
        }
    }

    pub(super) fn set_datagram(&mut self, datagram: u64, minimum: u64) {
        self.datagram = datagram;
        self.minimum = minimum;
        self.window = self.window.max(minimum);
    }

    pub(super) const fn window(&self) -> u64 {
        self.window
    }

    pub(super) const fn in_slow_start(&self) -> bool {
        self.slow_start
    }

    pub(super) fn on_ack(&mut self, delivered: &Delivered, rtt: &Rtt) {
        if let Some(sample) = delivered.sample {
            self.sample = Some(self.sample.map_or(sample, |it| it.min(sample)));
        }
        self.limited |= delivered.limited;
        if self.slow_start && delivered.limited {
            self.window += delivered.octets;
        }
        if !delivered.round {
            return;
        }
        let (Some(sample), limited) = (self.sample.take(), std::mem::take(&mut self.limited))
        else {
            return;
        };
        let (share, floor) = QUEUEING;
        let target = (rtt.minimum() / share).max(floor);
        let queueing = sample.saturating_sub(rtt.minimum());
        if queueing > target {
            self.slow_start = false;
            // By half of the excess's share: less than a half.
            let over = u128::from(self.window) * (queueing - target).as_nanos()
                / (sample.as_nanos() * 2).max(1);
            let over = u64::try_from(over).unwrap_or(u64::MAX);
            self.window = self.window.saturating_sub(over).max(self.minimum);
        } else if limited && !self.slow_start {
            // One datagram for each tenth below the target.
            let tenths = (target - queueing).as_nanos() * 10 / target.as_nanos().max(1);
            self.window += self.datagram * u64::try_from(tenths).unwrap_or(1).max(1);
        }
    }

    pub(super) fn on_congestion(&mut self, now: Instant, sent: Instant) {
        if self.reduced.is_some_and(|reduced| sent <= reduced) {
            return;
        }
        self.reduced = Some(now);
        self.slow_start = false;
        self.window = (self.window * 7 / 10).max(self.minimum);
    }

    pub(super) fn collapse(&mut self) {
        self.window = self.minimum;
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::origin;
    use super::*;

    const US: Duration = Duration::from_micros(1);

    fn round(delay: &mut Delay, rtt: &Rtt, micros: u32) {
        let delivered = Delivered {
            octets: 1000,
            sent: origin(),
            limited: true,
            round: true,
            sample: Some(micros * US),
        };
        delay.on_ack(&delivered, rtt);
    }

    #[test]
    fn the_window_follows_the_delay() {
        let mut rtt = Rtt::new(US);
        rtt.sample(200 * US, Duration::ZERO);
        let mut delay = Delay::new(1000, 10_000, 2000);
        round(&mut delay, &rtt, 250);
        assert_eq!((delay.window(), delay.in_slow_start()), (11_000, true));
        round(&mut delay, &rtt, 400);
        // 150 of 400 µs too much: half of that share.
        assert!(!delay.in_slow_start());
        assert_eq!(delay.window(), 12_000 - 2250);
        round(&mut delay, &rtt, 200);
        assert_eq!(delay.window(), 19_750, "ten datagrams");
        round(&mut delay, &rtt, 225);
        assert_eq!(delay.window(), 24_750, "five");
        round(&mut delay, &rtt, 250);
        assert_eq!(delay.window(), 25_750, "one at least");
        for _ in 0..100 {
            round(&mut delay, &rtt, 10_000);
        }
        assert_eq!(delay.window(), 2000);
        let unused = Delivered {
            octets: 1000,
            sent: origin(),
            limited: false,
            round: true,
            sample: Some(200 * US),
        };
        delay.on_ack(&unused, &rtt);
        assert_eq!(delay.window(), 2000, "the program was the limit");
        let none = Delivered {
            sample: None,
            limited: true,
            ..unused
        };
        delay.on_ack(&none, &rtt);
        assert_eq!(delay.window(), 2000);
    }

    #[test]
    fn a_collapse_and_longer_datagrams_keep_the_minimum() {
        let mut delay = Delay::new(1000, 10_000, 2000);
        delay.set_datagram(6000, 12_000);
        assert_eq!(delay.window(), 12_000);
        let now = origin();
        delay.on_congestion(now, now);
        assert_eq!(delay.window(), 12_000, "seven tenths are less");
        delay.set_datagram(1000, 2000);
        assert_eq!(delay.window(), 12_000);
        delay.collapse();
        assert_eq!(delay.window(), 2000);
    }

    #[test]
    fn congestion_counts_once_a_window() {
        let now = origin();
        let mut delay = Delay::new(1000, 10_000, 2000);
        delay.on_congestion(now, now);
        delay.on_congestion(now + US, now);
        assert_eq!((delay.window(), delay.in_slow_start()), (7000, false));
        delay.on_congestion(now + US, now + US);
        assert_eq!(delay.window(), 4900);
    }
}

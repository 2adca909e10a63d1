//! Congestion control (§6.3): the window of octets that may be in flight.

mod cubic;
mod delay;

use std::time::{Duration, Instant};

use super::flow::pacing;
use super::flow::rtt::Rtt;

use cubic::Cubic;
use delay::Delay;

/// Datagrams of the first window.
const INITIAL_DATAGRAMS: u64 = 10;
/// Octets of the first window, if that is more.
const INITIAL_OCTETS: u64 = 14_720;
/// Datagrams of the smallest window.
const MINIMUM_DATAGRAMS: u64 = 2;
/// Share of the minimum round-trip time that counts as queueing, and its least, for the bypass and the delay algorithm.
const QUEUEING: (u32, Duration) = (4, Duration::from_micros(50));
/// Share and least of queueing for a loss to be taken for congestion.
const LOSS_QUEUEING: (u32, Duration) = (8, Duration::from_micros(500));

/// Algorithm of an association.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Algorithm {
    /// CUBIC with HyStart++: for all networks.
    #[default]
    Cubic,
    /// By delay: for local networks.
    Delay,
    /// Octets per second: for reserved paths.
    FixedRate(u64),
}

/// Octets that were acknowledged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Delivered {
    pub(super) octets: u64,
    /// When the latest of their datagrams left.
    pub(super) sent: Instant,
    /// The window, not the program, was the limit.
    pub(super) limited: bool,
    /// A round trip ended.
    pub(super) round: bool,
    /// Sample of the round-trip time.
    pub(super) sample: Option<Duration>,
}

/// State of the algorithm.
#[derive(Debug)]
pub(super) enum Congestion {
    Cubic(Cubic),
    Delay(Delay),
    FixedRate(u64),
}

impl Congestion {
    /// For datagrams of this many octets.
    pub(super) fn new(algorithm: Algorithm, datagram: u64) -> Self {
        let initial = (INITIAL_DATAGRAMS * datagram).max(INITIAL_OCTETS);
        let minimum = MINIMUM_DATAGRAMS * datagram;
        match algorithm {
            Algorithm::Cubic => Self::Cubic(Cubic::new(datagram, initial, minimum)),
            Algorithm::Delay => Self::Delay(Delay::new(datagram, initial, minimum)),
            Algorithm::FixedRate(rate) => Self::FixedRate(rate),
        }
    }

    pub(super) const fn algorithm(&self) -> Algorithm {
        match self {
            Self::Cubic(_) => Algorithm::Cubic,
            Self::Delay(_) => Algorithm::Delay,
            Self::FixedRate(rate) => Algorithm::FixedRate(*rate),
        }
    }

    /// Datagrams have this many octets from now on; the window takes those of the smallest at least.
    pub(super) fn set_datagram(&mut self, datagram: u64) {
        let minimum = MINIMUM_DATAGRAMS * datagram;
        match self {
            Self::Cubic(cubic) => cubic.set_datagram(datagram, minimum),
            Self::Delay(delay) => delay.set_datagram(datagram, minimum),
            Self::FixedRate(_) => {}
        }
    }

    /// Octets that may be in flight.
    pub(super) const fn window(&self) -> u64 {
        match self {
            Self::Cubic(cubic) => cubic.window(),
            Self::Delay(delay) => delay.window(),
            Self::FixedRate(_) => u64::MAX,
        }
    }

    /// The rate of leaving in octets per second; `None` where nothing is in the way, so that a datagram leaves at once.
    pub(super) fn pace(&self, rtt: &Rtt, in_flight: u64) -> Option<u64> {
        let (window, eager) = match self {
            Self::Cubic(cubic) => (cubic.window(), cubic.in_slow_start()),
            Self::Delay(delay) => (delay.window(), delay.in_slow_start()),
            Self::FixedRate(rate) => return Some(*rate),
        };
        let (share, floor) = QUEUEING;
        if in_flight < window / 2 && rtt.is_sampled() && !rtt.is_queueing(share, floor) && !eager {
            return None;
        }
        if !rtt.is_sampled() {
            return None;
        }
        let spread = if eager {
            rtt.smoothed() / 2
        } else {
            rtt.smoothed() * 4 / 5
        };
        Some(pacing::rate(window, spread))
    }

    pub(super) fn on_ack(&mut self, now: Instant, delivered: &Delivered, rtt: &Rtt) {
        match self {
            Self::Cubic(cubic) => cubic.on_ack(now, delivered, rtt),
            Self::Delay(delay) => delay.on_ack(delivered, rtt),
            Self::FixedRate(_) => {}
        }
    }

    /// A datagram that left at `sent` was lost; `much` if a tenth of a round trip's were.
    pub(super) fn on_loss(&mut self, now: Instant, sent: Instant, much: bool, rtt: &Rtt) {
        let (share, floor) = LOSS_QUEUEING;
        let congested = much || rtt.is_queue_standing(share, floor);
        match self {
            Self::Cubic(cubic) if congested => cubic.on_congestion(now, sent),
            Self::Cubic(cubic) => cubic.end_slow_start_after(sent, rtt),
            Self::Delay(delay) if much => delay.on_congestion(now, sent),
            Self::Delay(_) | Self::FixedRate(_) => {}
        }
    }

    /// A CE mark was reported for a datagram that left at `sent`.
    pub(super) fn on_mark(&mut self, now: Instant, sent: Instant) {
        match self {
            Self::Cubic(cubic) => cubic.on_congestion(now, sent),
            Self::Delay(delay) => delay.on_congestion(now, sent),
            Self::FixedRate(_) => {}
        }
    }

    /// Persistent congestion.
    pub(super) fn collapse(&mut self) {
        match self {
            Self::Cubic(cubic) => cubic.collapse(),
            Self::Delay(delay) => delay.collapse(),
            Self::FixedRate(_) => {}
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[expect(
        clippy::disallowed_methods,
        reason = "any instant serves as the origin"
    )]
    pub(in crate::rd) fn origin() -> Instant {
        Instant::now()
    }

    #[test]
    fn first_windows_are_those_of_the_specification() {
        for (algorithm, datagram, window) in [
            (Algorithm::Cubic, 1472, 14_720),
            (Algorithm::Cubic, 512, 14_720),
            (Algorithm::Delay, 9000, 90_000),
            (Algorithm::FixedRate(5), 9000, u64::MAX),
        ] {
            assert_eq!(Congestion::new(algorithm, datagram).window(), window);
        }
        for algorithm in [Algorithm::Cubic, Algorithm::Delay] {
            let mut congestion = Congestion::new(algorithm, 1000);
            congestion.collapse();
            assert_eq!(congestion.window(), 2000);
        }
    }

    #[test]
    fn the_smallest_window_follows_the_datagrams() {
        for algorithm in [Algorithm::Cubic, Algorithm::Delay] {
            let mut congestion = Congestion::new(algorithm, 1000);
            congestion.set_datagram(9000);
            assert_eq!(congestion.window(), 18_000, "{algorithm:?}");
            congestion.set_datagram(600);
            congestion.collapse();
            assert_eq!(congestion.window(), 1200, "{algorithm:?}");
        }
    }

    #[test]
    fn loss_without_a_queue_is_no_congestion() {
        let now = origin();
        let mut rtt = Rtt::new(MS);
        rtt.sample(8 * MS, Duration::ZERO);
        for algorithm in [Algorithm::Cubic, Algorithm::Delay] {
            let mut congestion = Congestion::new(algorithm, 1000);
            congestion.on_loss(now, now, false, &rtt);
            assert_eq!(congestion.window(), 14_720, "{algorithm:?}");
            congestion.on_loss(now, now, true, &rtt);
            assert_eq!(congestion.window(), 10_304, "{algorithm:?}");
        }
        let mut congestion = Congestion::new(Algorithm::Cubic, 1000);
        rtt.sample(80 * MS, Duration::ZERO);
        rtt.end_round();
        congestion.on_loss(now, now, false, &rtt);
        assert_eq!(congestion.window(), 14_720, "some waited, not all");
        rtt.sample(80 * MS, Duration::ZERO);
        rtt.end_round();
        congestion.on_loss(now, now, false, &rtt);
        assert_eq!(congestion.window(), 10_304);
        for algorithm in [Algorithm::Cubic, Algorithm::Delay] {
            let mut congestion = Congestion::new(algorithm, 1000);
            congestion.on_mark(now, now);
            assert_eq!(congestion.window(), 10_304);
        }
    }

    #[test]
    fn pacing_follows_the_window_and_is_bypassed_where_nothing_waits() {
        let now = origin();
        let mut rtt = Rtt::new(10 * MS);
        let mut congestion = Congestion::new(Algorithm::Cubic, 1000);
        assert_eq!(congestion.pace(&rtt, 10_000), None, "nothing is measured");
        rtt.sample(8 * MS, Duration::ZERO);
        assert_eq!(congestion.pace(&rtt, 0), Some(3_680_000), "slow start");
        congestion.on_mark(now, now);
        assert_eq!(congestion.pace(&rtt, 5152), Some(1_610_000));
        assert_eq!(congestion.pace(&rtt, 5151), None);
        rtt.sample(80 * MS, Duration::ZERO);
        assert!(congestion.pace(&rtt, 0).is_some(), "a queue");
        let fixed = Congestion::new(Algorithm::FixedRate(7), 1000);
        assert_eq!(fixed.pace(&rtt, 0), Some(7));
    }
}

//! One-way links and their faults.

use std::time::Duration;

use rand::RngExt as _;

use crate::loss::{Channel, Loss};
use crate::{Fate, Rng};

/// A datagram is longer than the link takes; nothing was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the link takes datagrams of at most {mtu} octets")]
pub struct TooBig {
    /// The longest datagram that it takes now, in octets.
    pub mtu: usize,
}

/// Datagrams that overtake others: some take longer than the rest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reordering {
    /// Probability with which a datagram is held up, 0 to 1.
    pub probability: f64,
    /// It is held up for at most this long, uniformly.
    pub by: Duration,
}

/// Properties of a link. The default is a perfect link with 10 µs of delay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkConfig {
    /// Octets per second; `None` is infinitely fast.
    pub rate: Option<u64>,
    /// Octets that wait for a link with a rate; a datagram that finds them all waiting overflows.
    pub queue: usize,
    /// From the end of a datagram's transmission to its arrival.
    pub delay: Duration,
    /// The delay of each datagram differs from `delay` by at most this much, uniformly, and is not below zero. Order is kept: a
    /// datagram arrives no earlier than those that were sent before it and are not held up by `reordering`.
    pub jitter: Duration,
    /// Loss of datagrams.
    pub loss: Loss,
    /// Probability with which a datagram arrives twice, 0 to 1.
    pub duplication: f64,
    /// Reordering of datagrams.
    pub reordering: Reordering,
    /// Probability with which one to three bits of a copy are flipped, 0 to 1.
    pub corruption: f64,
    /// Octets that wait for a link with a rate, above which a datagram is marked: congestion experienced (RFC 3168).
    pub mark: usize,
    /// Longest datagram in octets.
    pub mtu: usize,
}

impl Default for LinkConfig {
    fn default() -> Self {
        Self {
            rate: None,
            queue: usize::MAX,
            delay: Duration::from_micros(10),
            jitter: Duration::ZERO,
            loss: Loss::None,
            duplication: 0.0,
            reordering: Reordering {
                probability: 0.0,
                by: Duration::ZERO,
            },
            corruption: 0.0,
            mark: usize::MAX,
            mtu: 65_507,
        }
    }
}

/// A one-way link between two nodes.
#[derive(Debug)]
pub struct Link {
    config: LinkConfig,
    channel: Channel,
    /// When the datagrams sent so far have left the queue.
    idle_from: Duration,
    /// When the latest copy arrives that is not held up.
    in_order_until: Duration,
}

/// A copy of a datagram on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Copy {
    pub(crate) arrives: Duration,
    pub(crate) corrupted: bool,
    pub(crate) marked: bool,
}

impl Link {
    pub(crate) fn new(config: LinkConfig) -> Self {
        Self {
            channel: Channel::new(config.loss),
            config,
            idle_from: Duration::ZERO,
            in_order_until: Duration::ZERO,
        }
    }

    /// The present properties.
    #[must_use]
    pub const fn config(&self) -> &LinkConfig {
        &self.config
    }

    /// Changes the properties for datagrams sent from now on; those on their way stay as they are.
    pub fn set_config(&mut self, config: LinkConfig) {
        self.channel.loss = config.loss;
        self.config = config;
    }

    /// Whether a datagram of `length` octets may be sent.
    ///
    /// # Errors
    /// [`TooBig`] above the MTU.
    pub const fn check(&self, length: usize) -> Result<(), TooBig> {
        if length > self.config.mtu {
            return Err(TooBig {
                mtu: self.config.mtu,
            });
        }
        Ok(())
    }

    /// Decides about a datagram of `length` octets: its fate, and the copies that will arrive. The channel sees datagrams that
    /// overflow too, so that its losses depend on `rng` alone and not on the queue.
    pub(crate) fn carry(
        &mut self,
        now: Duration,
        length: usize,
        rng: &mut Rng,
    ) -> (Fate, [Option<Copy>; 2]) {
        let lost = self.channel.loses(rng);
        let marked = self.is_above(now, self.config.mark);
        let Some(leaves) = self.transmit(now, length) else {
            return (Fate::Overflowed, [None, None]);
        };
        if lost {
            return (Fate::Lost, [None, None]);
        }
        let duplication = self.config.duplication;
        let mut copy = |rng: &mut Rng| Copy {
            marked,
            ..self.copy(leaves, length, rng)
        };
        let first = copy(rng);
        let second = chance(duplication, rng).then(|| copy(rng));
        (Fate::Passed, [Some(first), second])
    }

    /// Whether more than these octets wait.
    fn is_above(&self, now: Duration, octets: usize) -> bool {
        let Some(rate) = self.config.rate else {
            return false;
        };
        let waiting = self.idle_from.saturating_sub(now).as_nanos();
        waiting * u128::from(rate) / 1_000_000_000 > octets as u128
    }

    /// When the last octet leaves the queue. `None` where the queue is full.
    fn transmit(&mut self, now: Duration, length: usize) -> Option<Duration> {
        let Some(rate) = self.config.rate else {
            return Some(now);
        };
        let time_of = |octets: usize| {
            Duration::from_nanos((octets as u64).saturating_mul(1_000_000_000) / rate.max(1))
        };
        let waiting = self.idle_from.saturating_sub(now);
        if self.config.queue < usize::MAX && waiting > time_of(self.config.queue) {
            return None;
        }
        self.idle_from = now + waiting + time_of(length);
        Some(self.idle_from)
    }

    fn copy(&mut self, leaves: Duration, length: usize, rng: &mut Rng) -> Copy {
        let LinkConfig { reordering, .. } = self.config;
        let held_up = chance(reordering.probability, rng)
            .then(|| rng.random_range(Duration::ZERO..=reordering.by));
        let mut arrives = leaves + self.delay(rng);
        if self.config.jitter > Duration::ZERO {
            arrives = arrives.max(self.in_order_until);
        }
        match held_up {
            Some(by) => arrives += by,
            None => self.in_order_until = arrives,
        }
        Copy {
            arrives,
            corrupted: length > 0 && chance(self.config.corruption, rng),
            marked: false,
        }
    }

    fn delay(&self, rng: &mut Rng) -> Duration {
        let LinkConfig { delay, jitter, .. } = self.config;
        if jitter == Duration::ZERO {
            return delay;
        }
        (delay + rng.random_range(Duration::ZERO..=jitter * 2)).saturating_sub(jitter)
    }
}

/// Draws nothing where the answer is known: the generator is a good part of a simulation's time.
fn chance(probability: f64, rng: &mut Rng) -> bool {
    probability > 0.0 && rng.random_bool(probability)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng as _;

    const SLOW: LinkConfig = LinkConfig {
        rate: Some(1_000_000),
        queue: 2_500,
        delay: Duration::from_millis(5),
        jitter: Duration::ZERO,
        loss: Loss::None,
        duplication: 0.0,
        reordering: Reordering {
            probability: 0.0,
            by: Duration::ZERO,
        },
        corruption: 0.0,
        mark: usize::MAX,
        mtu: 1000,
    };

    fn arrival(carried: (Fate, [Option<Copy>; 2])) -> Option<Duration> {
        assert_eq!(carried.1[1], None);
        carried.1[0].map(|copy| copy.arrives)
    }

    #[test]
    fn datagrams_queue_and_overflow() {
        let mut rng = Rng::seed_from_u64(1);
        let mut link = Link::new(SLOW);
        let mut send = |at| arrival(link.carry(Duration::from_millis(at), 1000, &mut rng));
        for arrives in [6, 7, 8] {
            assert_eq!(send(0), Some(Duration::from_millis(arrives)));
        }
        assert_eq!(send(0), None, "more than 2,500 octets wait");
        assert_eq!(send(1), Some(Duration::from_millis(9)));
        assert_eq!(send(100), Some(Duration::from_millis(106)));
    }

    #[test]
    fn a_long_queue_marks() {
        let mut rng = Rng::seed_from_u64(1);
        let mut link = Link::new(LinkConfig { mark: 1999, ..SLOW });
        let mut marked = || {
            let (_, copies) = link.carry(Duration::ZERO, 1000, &mut rng);
            copies[0].map(|copy| copy.marked)
        };
        assert_eq!(
            [marked(), marked(), marked()],
            [Some(false), Some(false), Some(true)]
        );
    }

    #[test]
    fn the_mtu_may_change() {
        let mut link = Link::new(SLOW);
        assert_eq!(link.check(1000), Ok(()));
        assert_eq!(link.check(1001), Err(TooBig { mtu: 1000 }));
        link.set_config(LinkConfig { mtu: 500, ..SLOW });
        assert_eq!(link.check(501), Err(TooBig { mtu: 500 }));
    }

    #[test]
    fn every_fault_happens_as_often_as_asked() {
        let mut rng = Rng::seed_from_u64(1);
        let mut link = Link::new(LinkConfig {
            loss: Loss::Independent(0.1),
            duplication: 0.2,
            reordering: Reordering {
                probability: 0.3,
                by: Duration::from_secs(1),
            },
            corruption: 0.4,
            ..LinkConfig::default()
        });
        let (mut lost, mut copies, mut late, mut corrupted) = (0, 0, 0, 0);
        for _ in 0..10_000 {
            let (fate, arriving) = link.carry(Duration::ZERO, 100, &mut rng);
            lost += u32::from(fate == Fate::Lost);
            for copy in arriving.into_iter().flatten() {
                copies += 1;
                late += u32::from(copy.arrives > Duration::from_millis(1));
                corrupted += u32::from(copy.corrupted);
            }
        }
        for (seen, expected) in [
            (lost, 1000),
            (copies, 10_800),
            (late, 3240),
            (corrupted, 4320),
        ] {
            assert!(u32::abs_diff(seen, expected) < 200, "{seen} for {expected}");
        }
    }

    #[test]
    fn jitter_spreads_delays_and_keeps_the_order() {
        let mut rng = Rng::seed_from_u64(1);
        let mut link = Link::new(LinkConfig {
            delay: Duration::from_millis(5),
            jitter: Duration::from_millis(2),
            ..LinkConfig::default()
        });
        let mut previous = Duration::ZERO;
        let (mut early, mut late) = (0, 0);
        for number in 0..10_000 {
            let now = Duration::from_millis(2) * number;
            let arrives = arrival(link.carry(now, 100, &mut rng)).expect("nothing is lost");
            assert!(arrives >= previous, "{number} overtakes");
            previous = arrives;
            let delay = arrives - now;
            assert!(delay >= Duration::from_millis(3) && delay <= Duration::from_millis(7));
            early += u32::from(delay < Duration::from_millis(5));
            late += u32::from(delay > Duration::from_millis(6));
        }
        assert!(early > 100 && late > 1000, "{early} {late}");
    }

    #[test]
    fn a_full_queue_does_not_change_what_the_channel_loses() {
        let config = LinkConfig {
            loss: Loss::Independent(0.5),
            ..SLOW
        };
        let lost = |every: Duration| {
            let mut rng = Rng::seed_from_u64(9);
            let mut link = Link::new(config);
            let fates = (0..100).map(|n| link.carry(every * n, 1000, &mut rng).0);
            fates.collect::<Vec<_>>()
        };
        let (idle, full) = (lost(Duration::from_millis(10)), lost(Duration::ZERO));
        assert!(full.contains(&Fate::Overflowed) && !idle.contains(&Fate::Overflowed));
        for (idle, full) in idle.into_iter().zip(full) {
            assert!(full == Fate::Overflowed || idle == full);
        }
    }
}

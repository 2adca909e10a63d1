//! Faults made on purpose in what a queue pair receives, between its sockets and its engine.
//!
//! A datagram goes by four stations: loss, a flipped bit, a second copy, the delay line; and then past those that were
//! [set aside](Faults::arrive), or to them. Later arrivals or the QP's timer release a datagram that waits.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rand::distr::{Bernoulli, Distribution};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::{Fault, QpCounters};
use dgiwarp_engine::datagram::Arrival;
use dgiwarp_engine::types::earliest;

/// Datagrams in the delay line.
const MAX_DELAYED: usize = 16_384;
/// Octets in the delay line.
const MAX_DELAYED_OCTETS: usize = 16 << 20;
/// Datagrams set aside to be overtaken.
const MAX_ASIDE: usize = 64;
/// How long one of them waits for others at most.
const ASIDE_FOR: Duration = Duration::from_millis(10);
/// Buffers kept for the next datagram that must wait.
const MAX_SPARE: usize = 64;

/// Counts of faults made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct FaultCounts {
    pub(crate) dropped: u64,
    pub(crate) duplicated: u64,
    pub(crate) reordered: u64,
    pub(crate) corrupted: u64,
    pub(crate) delayed: u64,
    /// Lost because too much was waiting.
    pub(crate) overflowed: u64,
}

impl FaultCounts {
    /// Puts the counts into those of a queue pair.
    pub(crate) fn add_to(self, counters: &mut QpCounters) {
        counters.fault_dropped = self.dropped;
        counters.fault_duplicated = self.duplicated;
        counters.fault_reordered = self.reordered;
        counters.fault_corrupted = self.corrupted;
        counters.fault_delayed = self.delayed;
        counters.fault_overflowed = self.overflowed;
    }
}

/// Fate of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Decision {
    drop: bool,
    duplicate: bool,
    reorder: bool,
    corrupt: bool,
    /// How many overtake it.
    behind: u8,
    /// Which bit is flipped, modulo their number.
    bit: u32,
}

/// A datagram that waits.
#[derive(Debug)]
struct Held {
    arrival: Arrival<'static>,
    octets: Vec<u8>,
    duplicate: bool,
    /// How many are still to overtake it; 0 if none shall.
    behind: u8,
    until: Instant,
}

/// Something that hears of every datagram once it is decided on.
pub(crate) trait Deliver {
    /// A datagram arrives.
    fn deliver(&mut self, arrival: Arrival<'_>);

    /// A datagram is lost.
    fn lose(&mut self, arrival: Arrival<'_>, loss: Loss);
}

/// Why a datagram is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// As asked for.
    Drop,
    /// Too much is waiting.
    Overflow,
}

/// The faults of one queue pair.
#[derive(Debug)]
pub(crate) struct Faults {
    drop: Bernoulli,
    duplicate: Bernoulli,
    reorder: Bernoulli,
    corrupt: Bernoulli,
    delay: Duration,
    random: ChaCha8Rng,
    /// In the order of their times, because all wait equally long.
    delayed: VecDeque<Held>,
    delayed_octets: usize,
    aside: Vec<Held>,
    spare: Vec<Vec<u8>>,
    counts: FaultCounts,
}

impl Faults {
    /// The faults of the queue pair that was made after `order` others.
    pub(crate) fn new(fault: &Fault, order: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(fault.seed);
        random.set_stream(order);
        Self {
            drop: chance(fault.drop),
            duplicate: chance(fault.dup),
            reorder: chance(fault.reorder),
            corrupt: chance(fault.corrupt),
            delay: fault.delay(),
            random,
            delayed: VecDeque::new(),
            delayed_octets: 0,
            aside: Vec::new(),
            spare: Vec::new(),
            counts: FaultCounts::default(),
        }
    }

    pub(crate) fn counts(&self) -> FaultCounts {
        self.counts
    }

    /// Takes what one receive call brought, a datagram or a train, and delivers what arrives because of it.
    pub(crate) fn take(&mut self, now: Instant, arrival: Arrival<'_>, to: &mut impl Deliver) {
        // Datagrams that are due go before this one.
        self.handle_timeout(now, to);
        for one in arrival.each() {
            self.take_one(now, one, to);
        }
    }

    fn take_one(&mut self, now: Instant, arrival: Arrival<'_>, to: &mut impl Deliver) {
        let decision = self.decide();
        if decision.drop {
            self.counts.dropped += 1;
            to.lose(arrival, Loss::Drop);
            return;
        }
        let copy = decision.corrupt.then(|| {
            self.counts.corrupted += 1;
            let mut copy = self.copy(arrival.octets);
            flip(&mut copy, decision.bit);
            copy
        });
        let arrival = Arrival {
            octets: copy.as_deref().unwrap_or(arrival.octets),
            ..arrival
        };
        let behind = if decision.reorder { decision.behind } else { 0 };
        if self.delay.is_zero() {
            self.arrive(now, arrival, decision.duplicate, behind, to);
        } else if self.delayed.len() >= MAX_DELAYED
            || self.delayed_octets + arrival.octets.len() > MAX_DELAYED_OCTETS
        {
            self.counts.overflowed += 1;
            to.lose(arrival, Loss::Overflow);
        } else {
            self.counts.delayed += 1;
            self.delayed_octets += arrival.octets.len();
            let held = self.hold(arrival, decision.duplicate, behind, now + self.delay);
            self.delayed.push_back(held);
        }
        if let Some(copy) = copy {
            self.keep(copy);
        }
    }

    /// Draws equally often for each datagram, so that one decision does not shift the others.
    fn decide(&mut self) -> Decision {
        let random = &mut self.random;
        let [behind, .., b0, b1, b2, b3] = random.next_u64().to_le_bytes();
        Decision {
            drop: self.drop.sample(random),
            duplicate: self.duplicate.sample(random),
            reorder: self.reorder.sample(random),
            corrupt: self.corrupt.sample(random),
            behind: 1 + behind % 8,
            bit: u32::from_le_bytes([b0, b1, b2, b3]),
        }
    }

    /// A datagram comes out of the delay line. It overtakes those that were set aside, and is set aside itself if `behind`
    /// others shall overtake it.
    fn arrive(
        &mut self,
        now: Instant,
        arrival: Arrival<'_>,
        duplicate: bool,
        behind: u8,
        to: &mut impl Deliver,
    ) {
        for held in &mut self.aside {
            held.behind = held.behind.saturating_sub(1);
        }
        if behind > 0 && self.aside.len() < MAX_ASIDE {
            self.counts.reordered += 1;
            let held = self.hold(arrival, duplicate, behind, now + ASIDE_FOR);
            self.aside.push(held);
        } else {
            self.deliver(arrival, duplicate, to);
        }
        self.let_go(now, to);
    }

    /// Delivers those set aside that were overtaken by enough others, or waited long enough.
    fn let_go(&mut self, now: Instant, to: &mut impl Deliver) {
        while let Some(position) = self
            .aside
            .iter()
            .position(|held| held.behind == 0 || held.until <= now)
        {
            let held = self.aside.remove(position);
            self.deliver_held(held, to);
        }
    }

    fn deliver(&mut self, arrival: Arrival<'_>, duplicate: bool, to: &mut impl Deliver) {
        to.deliver(arrival);
        if duplicate {
            self.counts.duplicated += 1;
            to.deliver(arrival);
        }
    }

    fn deliver_held(&mut self, held: Held, to: &mut impl Deliver) {
        let arrival = held.arrival();
        self.deliver(arrival, held.duplicate, to);
        self.keep(held.octets);
    }

    /// Forgets what waits.
    pub(crate) fn forget(&mut self) {
        self.delayed.clear();
        self.delayed_octets = 0;
        self.aside.clear();
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let aside = self.aside.iter().map(|held| held.until).min();
        let delayed = self.delayed.front().map(|held| held.until);
        earliest([aside, delayed])
    }

    /// Delivers what waited long enough.
    pub(crate) fn handle_timeout(&mut self, now: Instant, to: &mut impl Deliver) {
        while let Some(held) = self.delayed.pop_front_if(|held| held.until <= now) {
            self.delayed_octets -= held.octets.len();
            self.arrive(now, held.arrival(), held.duplicate, held.behind, to);
            self.keep(held.octets);
        }
        self.let_go(now, to);
    }

    fn hold(&mut self, arrival: Arrival<'_>, duplicate: bool, behind: u8, until: Instant) -> Held {
        Held {
            arrival: Arrival {
                octets: &[],
                ..arrival
            },
            octets: self.copy(arrival.octets),
            duplicate,
            behind,
            until,
        }
    }

    fn copy(&mut self, octets: &[u8]) -> Vec<u8> {
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(octets);
        copy
    }

    /// Keeps a buffer for the next that must wait.
    fn keep(&mut self, buffer: Vec<u8>) {
        if self.spare.len() < MAX_SPARE {
            self.spare.push(buffer);
        }
    }
}

impl Held {
    fn arrival(&self) -> Arrival<'_> {
        Arrival {
            octets: &self.octets,
            ..self.arrival
        }
    }
}

/// A probability, the nearer end where it is none.
fn chance(probability: f64) -> Bernoulli {
    let within = if probability.is_nan() {
        0.0
    } else {
        probability.clamp(0.0, 1.0)
    };
    Bernoulli::new(within).expect("0 to 1 is a probability")
}

fn flip(octets: &mut [u8], bit: u32) {
    let bits = octets.len() * 8;
    if bits > 0 {
        let bit = usize::try_from(bit).unwrap_or(0) % bits;
        octets[bit / 8] ^= 1 << (bit % 8);
    }
}

#[cfg(test)]
mod tests;

//! A link alone, for packets that are real.

use std::time::Duration;

use rand::SeedableRng as _;

use crate::link::Link;
use crate::schedule::Schedule;
use crate::{Fate, LinkConfig, Rng, packet};

/// Octets that may be on their way in one [`Wire`], with what keeping them costs. A packet that finds more overflows, as one that finds
/// the queue full.
pub const MOST_IN_FLIGHT: usize = 256 << 20;

/// Memory for one packet besides its octets, in octets: at least as much.
const OVERHEAD: usize = 128;
/// Words of the generator for one packet, more than it can draw.
const WORDS: u128 = 64;

/// Packets of a [`Wire`] since its start.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct WireCounts {
    /// Packets that came.
    pub packets: u64,
    /// Packets that the channel lost.
    pub lost: u64,
    /// Packets that found the queue full.
    pub overflowed: u64,
    /// Packets that travel twice.
    pub duplicated: u64,
    /// Copies of which a bit was flipped.
    pub corrupted: u64,
    /// Copies that were marked: congestion experienced.
    pub marked: u64,
    /// Copies that were delivered.
    pub delivered: u64,
    /// Copies among these behind a packet that came later.
    pub reordered: u64,
}

/// A one-way link for IP packets. The caller has the clock; times are since any start.
///
/// Each packet has its own place in the generator's sequence: loss, duplication, corruption and how long the nth packet is held up depend on the
/// seed and n alone, whatever the times and the queue are.
///
/// Order of calls: [`accept`](Self::accept) for each packet that came; at the time of [`next_arrival`](Self::next_arrival) or later
/// [`deliver`](Self::deliver) until it yields nothing.
#[derive(Debug)]
pub struct Wire {
    link: Link,
    rng: Rng,
    flights: Schedule<Flight>,
    /// Octets in `flights` with their overhead.
    octets: usize,
    counts: WireCounts,
    /// The largest number that was delivered.
    latest: u64,
    /// Memory of packets that were handed back.
    spare: Vec<Vec<u8>>,
}

#[derive(Debug)]
struct Flight {
    number: u64,
    octets: Vec<u8>,
}

impl Wire {
    /// An empty wire. `direction` tells apart the wires of one seed. The MTU of `config` does not count.
    #[must_use]
    pub fn new(config: LinkConfig, seed: u64, direction: u64) -> Self {
        let mut rng = Rng::seed_from_u64(seed);
        rng.set_stream(direction);
        Self {
            link: Link::new(config),
            rng,
            flights: Schedule::default(),
            octets: 0,
            counts: WireCounts::default(),
            latest: 0,
            spare: Vec::new(),
        }
    }

    /// Takes a packet that came, and decides about it. `now` is not before that of an earlier call.
    pub fn accept(&mut self, now: Duration, packet: &[u8]) {
        self.counts.packets += 1;
        let number = self.counts.packets;
        self.rng.set_word_pos(u128::from(number) * WORDS);
        let (fate, copies) = self.link.carry(now, packet.len(), &mut self.rng);
        match fate {
            Fate::Passed => {}
            Fate::Lost => self.counts.lost += 1,
            Fate::Overflowed => self.counts.overflowed += 1,
        }
        for (copy, nth) in copies.into_iter().flatten().zip(0..) {
            if self.octets + packet.len() + OVERHEAD > MOST_IN_FLIGHT {
                self.counts.overflowed += u64::from(nth == 0);
                return;
            }
            self.counts.duplicated += nth;
            let mut octets = self.spare.pop().unwrap_or_default();
            octets.clear();
            octets.extend_from_slice(packet);
            // The mark first: its checksum is that of an intact header.
            self.counts.marked += u64::from(copy.marked && packet::mark(&mut octets));
            if copy.corrupted {
                packet::corrupt(&mut octets, &mut self.rng);
                self.counts.corrupted += 1;
            }
            self.octets += octets.len() + OVERHEAD;
            self.flights.push(copy.arrives, Flight { number, octets });
        }
    }

    /// When the next packet arrives.
    #[must_use]
    pub fn next_arrival(&self) -> Option<Duration> {
        self.flights.next_time()
    }

    /// Packets on their way.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// Takes the next packet, if it has arrived by now.
    pub fn deliver(&mut self, now: Duration) -> Option<Vec<u8>> {
        if self.flights.next_time()? > now {
            return None;
        }
        let (_, flight) = self.flights.pop()?;
        self.octets -= flight.octets.len() + OVERHEAD;
        self.counts.delivered += 1;
        self.counts.reordered += u64::from(flight.number < self.latest);
        self.latest = self.latest.max(flight.number);
        Some(flight.octets)
    }

    /// Takes a packet's memory back, to be used for another. Not doing so costs only time.
    pub fn recycle(&mut self, packet: Vec<u8>) {
        // As much as is on its way is not kept besides: rates sink, and the memory of a burst is given back.
        if self.spare.len() * 64 < MOST_IN_FLIGHT / OVERHEAD && packet.capacity() <= 1 << 16 {
            self.spare.push(packet);
        }
    }

    /// Counts until now.
    #[must_use]
    pub const fn counts(&self) -> WireCounts {
        self.counts
    }
}

#[cfg(test)]
mod tests;

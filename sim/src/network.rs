//! The links between all nodes, and what is on its way.

use std::time::Duration;

use rand::RngExt as _;

use crate::link::{Link, TooBig};
use crate::log::{Arrival, ArrivalId, DatagramId, Log, Sent};
use crate::schedule::Schedule;
use crate::{LinkConfig, Rng};

/// Names a node: its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub usize);

/// Where datagrams come from and go to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// The node.
    pub node: NodeId,
    /// Tells the sockets of a node apart.
    pub port: u16,
}

/// A datagram that arrived.
#[derive(Debug)]
pub struct Datagram {
    /// Its arrival in the log.
    pub arrival: ArrivalId,
    /// Address of the sender.
    pub from: Address,
    /// To whom.
    pub to: Address,
    /// A queue on its way was long (RFC 3168).
    pub marked: bool,
    /// Its octets after any corruption.
    pub octets: Vec<u8>,
}

/// A copy on its way.
#[derive(Debug)]
struct Flight {
    datagram: DatagramId,
    corrupted: bool,
    marked: bool,
    octets: Vec<u8>,
}

/// All links, what is on its way, and the log.
#[derive(Debug)]
pub struct Network {
    rng: Rng,
    nodes: usize,
    /// Row by row, from and to.
    links: Vec<Link>,
    flights: Schedule<Flight>,
    log: Log,
    /// Vectors of datagrams that were handed back.
    spare: Vec<Vec<u8>>,
}

impl Network {
    pub(crate) fn new(
        rng: Rng,
        nodes: usize,
        mut config: impl FnMut(NodeId, NodeId) -> LinkConfig,
    ) -> Self {
        let pairs = (0..nodes).flat_map(|from| (0..nodes).map(move |to| (from, to)));
        Self {
            rng,
            nodes,
            links: pairs
                .map(|(from, to)| Link::new(config(NodeId(from), NodeId(to))))
                .collect(),
            flights: Schedule::default(),
            log: Log::default(),
            spare: Vec::new(),
        }
    }

    /// The link from one node to another, or to itself.
    ///
    /// # Panics
    /// If there is no such node.
    #[must_use]
    pub fn link(&self, from: NodeId, to: NodeId) -> &Link {
        &self.links[self.position(from, to)]
    }

    /// A node, to change it.
    ///
    /// # Panics
    /// If there is no such node.
    #[must_use]
    pub fn link_mut(&mut self, from: NodeId, to: NodeId) -> &mut Link {
        let position = self.position(from, to);
        &mut self.links[position]
    }

    fn position(&self, from: NodeId, to: NodeId) -> usize {
        assert!(
            from.0 < self.nodes && to.0 < self.nodes,
            "{from:?} and {to:?} are nodes"
        );
        from.0 * self.nodes + to.0
    }

    /// Sends a datagram.
    ///
    /// # Errors
    /// [`TooBig`] above the link's MTU.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn send(
        &mut self,
        now: Duration,
        from: Address,
        to: Address,
        octets: &[u8],
    ) -> Result<DatagramId, TooBig> {
        let position = self.position(from.node, to.node);
        let link = &mut self.links[position];
        if let Err(error) = link.check(octets.len()) {
            self.log.refused += 1;
            return Err(error);
        }
        let (fate, copies) = link.carry(now, octets.len(), &mut self.rng);
        let datagram = self.log.add_sent(Sent {
            at: now,
            from,
            to,
            length: octets.len(),
            fate,
        });
        for copy in copies.into_iter().flatten() {
            let mut arriving = self.spare.pop().unwrap_or_default();
            arriving.clear();
            arriving.extend_from_slice(octets);
            if copy.corrupted {
                corrupt(&mut arriving, &mut self.rng);
            }
            let flight = Flight {
                datagram,
                corrupted: copy.corrupted,
                marked: copy.marked,
                octets: arriving,
            };
            self.flights.push(copy.arrives, flight);
        }
        Ok(datagram)
    }

    /// Takes a datagram's memory back, to be used for another. Not doing so costs only time.
    pub fn recycle(&mut self, datagram: Datagram) {
        self.spare.push(datagram.octets);
    }

    /// Log of the datagrams so far.
    #[must_use]
    pub const fn log(&self) -> &Log {
        &self.log
    }

    /// Randomness of the simulation, for nodes that want some.
    pub const fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }

    pub(crate) fn next_arrival(&self) -> Option<Duration> {
        self.flights.next_time()
    }

    /// Takes the next copy to arrive.
    pub(crate) fn deliver(&mut self) -> Option<Datagram> {
        let (at, flight) = self.flights.pop()?;
        let arrival = self.log.add_arrival(Arrival {
            at,
            datagram: flight.datagram,
            corrupted: flight.corrupted,
        });
        let sent = self.log.sent[flight.datagram.0];
        Some(Datagram {
            arrival,
            from: sent.from,
            to: sent.to,
            marked: flight.marked,
            octets: flight.octets,
        })
    }
}

/// Flips one to three different bits: a CRC finds so few in datagrams of any length.
fn corrupt(octets: &mut [u8], rng: &mut Rng) {
    let bits = octets.len() * 8;
    let mut flipped = [None; 3];
    for slot in 0..rng.random_range(1..=flipped.len()) {
        let bit = rng.random_range(0..bits);
        if !flipped.contains(&Some(bit)) {
            octets[bit / 8] ^= 1 << (bit % 8);
            flipped[slot] = Some(bit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fate, Loss, Reordering, Rng};
    use proptest::prelude::*;
    use rand::SeedableRng as _;

    const A: Address = Address {
        node: NodeId(0),
        port: 1,
    };
    const B: Address = Address {
        node: NodeId(1),
        port: 2,
    };

    fn network(seed: u64, config: LinkConfig) -> Network {
        Network::new(Rng::seed_from_u64(seed), 2, |_, _| config)
    }

    #[test]
    fn corruption_changes_one_to_three_bits() {
        let config = LinkConfig {
            corruption: 1.0,
            ..LinkConfig::default()
        };
        let mut network = network(1, config);
        for length in (1..200).chain([0]) {
            network
                .send(Duration::ZERO, A, B, &vec![0; length])
                .unwrap();
            let datagram = network.deliver().unwrap();
            let ones: u32 = datagram.octets.iter().map(|octet| octet.count_ones()).sum();
            let expected = if length == 0 { 0..=0 } else { 1..=3 };
            assert!(expected.contains(&ones), "{ones} of {length} octets");
            let arrival = network.log().arrivals()[datagram.arrival.0];
            assert_eq!(arrival.corrupted, length > 0);
        }
    }

    #[test]
    fn what_is_too_big_is_refused_and_counted() {
        let config = LinkConfig {
            mtu: 10,
            ..LinkConfig::default()
        };
        let mut network = network(1, config);
        let refused = network.send(Duration::ZERO, A, B, &[0; 11]);
        assert_eq!(refused, Err(TooBig { mtu: 10 }));
        assert_eq!(
            (network.log().refused(), network.log().sent().len()),
            (1, 0)
        );
        assert!(network.deliver().is_none());
    }

    proptest! {
        /// Arrivals agree with the log: each copy of a datagram that passed, unchanged unless marked, in order of time; and the
        /// same seed gives the same run.
        #[test]
        fn arrivals_and_log_agree(seed: u64, lengths in proptest::collection::vec(0usize..300, 1..50)) {
            let config = LinkConfig {
                rate: Some(10_000_000),
                queue: 3000,
                loss: Loss::Independent(0.2),
                duplication: 0.2,
                reordering: Reordering { probability: 0.3, by: Duration::from_millis(1) },
                corruption: 0.2,
                ..LinkConfig::default()
            };
            let mut runs = Vec::new();
            for _ in 0..2 {
                let mut network = network(seed, config);
                for (&length, fill) in lengths.iter().zip(0u8..) {
                    network.send(Duration::ZERO, A, B, &vec![fill; length]).unwrap();
                }
                let mut last = Duration::ZERO;
                let mut times = vec![0usize; lengths.len()];
                while let Some(datagram) = network.deliver() {
                    let arrival = network.log().arrivals()[datagram.arrival.0];
                    prop_assert!(arrival.at >= last);
                    last = arrival.at;
                    let id = arrival.datagram.0;
                    times[id] += 1;
                    let sent = vec![u8::try_from(id).unwrap(); lengths[id]];
                    prop_assert_eq!(datagram.octets != sent, arrival.corrupted);
                    prop_assert_eq!((datagram.from, datagram.to), (A, B));
                }
                for (sent, &times) in network.log().sent().iter().zip(&times) {
                    prop_assert_eq!(sent.fate == Fate::Passed, times > 0);
                    prop_assert!(times <= 2);
                }
                runs.push(format!("{:?}", network.log()));
            }
            prop_assert_eq!(&runs[0], &runs[1]);
        }
    }
}

//! The virtual clock: what happens next, and to whom.

use std::time::Duration;

use rand::SeedableRng as _;

use crate::{Datagram, LinkConfig, Network, NodeId, Rng};

/// Something that sends and receives datagrams.
pub trait Node {
    /// A datagram arrived.
    fn handle_datagram(&mut self, now: Duration, datagram: Datagram, network: &mut Network);

    /// The time that [`poll_wake`](Self::poll_wake) named has come. Afterwards it must name a later one, or none.
    fn handle_wake(&mut self, now: Duration, network: &mut Network);

    /// When the node wants to be called although nothing arrives. A time in the past is now.
    fn poll_wake(&self) -> Option<Duration>;
}

/// Something is still on its way, or wants to be woken, at the time by which all should be at rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("something is still to happen, next at {next:?}")]
pub struct StillBusy {
    /// When it will happen.
    pub next: Duration,
}

/// Wakes without the clock moving, after which a node is taken to be in a loop.
const MOST_WAKES_AT_ONCE: u32 = 100_000;

/// Nodes, the network between them, and the virtual clock.
#[derive(Debug)]
pub struct Simulation<N> {
    now: Duration,
    nodes: Vec<N>,
    network: Network,
    wakes_at_once: u32,
}

impl<N: Node> Simulation<N> {
    /// A simulation at time zero. `link` gives the properties of the link from one node to another.
    #[must_use]
    pub fn new(seed: u64, nodes: Vec<N>, link: impl FnMut(NodeId, NodeId) -> LinkConfig) -> Self {
        let network = Network::new(Rng::seed_from_u64(seed), nodes.len(), link);
        Self {
            now: Duration::ZERO,
            nodes,
            network,
            wakes_at_once: 0,
        }
    }

    /// The time.
    #[must_use]
    pub const fn now(&self) -> Duration {
        self.now
    }

    /// The nodes.
    #[must_use]
    pub fn nodes(&self) -> &[N] {
        &self.nodes
    }

    /// The network and its log.
    #[must_use]
    pub const fn network(&self) -> &Network {
        &self.network
    }

    /// The nodes and the network, to change them between steps.
    pub fn parts(&mut self) -> (&mut [N], &mut Network) {
        (&mut self.nodes, &mut self.network)
    }

    /// When the next thing will happen, if anything will.
    #[must_use]
    pub fn next_time(&self) -> Option<Duration> {
        let wake = self.next_wake().map(|(at, _)| at);
        let next = [self.network.next_arrival(), wake];
        next.into_iter().flatten().min().map(|at| at.max(self.now))
    }

    fn next_wake(&self) -> Option<(Duration, usize)> {
        let wakes = self.nodes.iter().map(Node::poll_wake);
        wakes
            .zip(0..)
            .filter_map(|(at, node)| Some((at?, node)))
            .min()
    }

    /// Moves the clock to the next thing to happen and lets it happen. Wakes come before arrivals of the same time.
    /// Returns whether there was any.
    ///
    /// # Panics
    /// If a node wants to be woken again and again at the same time.
    pub fn step(&mut self) -> bool {
        let arrival = self.network.next_arrival();
        if let Some((at, node)) = self.next_wake()
            && arrival.is_none_or(|arrival| at <= arrival)
        {
            self.wakes_at_once = if at > self.now {
                0
            } else {
                self.wakes_at_once + 1
            };
            assert!(
                self.wakes_at_once < MOST_WAKES_AT_ONCE,
                "node {node} does not let the clock move on from {:?}",
                self.now
            );
            self.now = self.now.max(at);
            self.nodes[node].handle_wake(self.now, &mut self.network);
            return true;
        }
        let (Some(at), Some(datagram)) = (arrival, self.network.deliver()) else {
            return false;
        };
        self.now = self.now.max(at);
        self.nodes[datagram.to.node.0].handle_datagram(self.now, datagram, &mut self.network);
        true
    }

    /// Runs until nothing is left to happen, and returns the time at which the last thing did.
    ///
    /// # Errors
    /// [`StillBusy`] if that is not so at time `limit`. The clock then has not passed it.
    pub fn run(&mut self, limit: Duration) -> Result<Duration, StillBusy> {
        while let Some(next) = self.next_time() {
            if next > limit {
                return Err(StillBusy { next });
            }
            self.step();
        }
        Ok(self.now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Address;

    /// Answers each datagram with one that is an octet shorter, and remembers when what happened.
    #[derive(Default)]
    struct Echo {
        wakes: Vec<u64>,
        seen: Vec<(u64, usize)>,
    }

    fn at(node: usize) -> Address {
        Address {
            node: NodeId(node),
            port: 0,
        }
    }

    fn micros(time: Duration) -> u64 {
        u64::try_from(time.as_micros()).unwrap()
    }

    impl Node for Echo {
        fn handle_datagram(&mut self, now: Duration, datagram: Datagram, network: &mut Network) {
            self.seen.push((micros(now), datagram.octets.len()));
            if let Some((_, rest)) = datagram.octets.split_first() {
                network.send(now, datagram.to, datagram.from, rest).unwrap();
            }
            network.recycle(datagram);
        }

        fn handle_wake(&mut self, now: Duration, network: &mut Network) {
            self.wakes.remove(0);
            network.send(now, at(0), at(1), &[0; 2]).unwrap();
        }

        fn poll_wake(&self) -> Option<Duration> {
            self.wakes.first().map(|&at| Duration::from_micros(at))
        }
    }

    fn simulation(wakes: Vec<u64>) -> Simulation<Echo> {
        let first = Echo {
            wakes,
            ..Echo::default()
        };
        Simulation::new(1, vec![first, Echo::default()], |_, _| {
            LinkConfig::default()
        })
    }

    #[test]
    fn time_goes_from_one_thing_to_the_next() {
        let mut simulation = simulation(vec![100, 105]);
        assert_eq!(simulation.next_time(), Some(Duration::from_micros(100)));
        assert_eq!(
            simulation.run(Duration::from_secs(1)),
            Ok(Duration::from_micros(135))
        );
        assert_eq!(simulation.nodes()[0].seen, [(120, 1), (125, 1)]);
        assert_eq!(
            simulation.nodes()[1].seen,
            [(110, 2), (115, 2), (130, 0), (135, 0)]
        );
        assert!(!simulation.step());
    }

    #[test]
    fn what_does_not_come_to_rest_is_told() {
        let mut simulation = simulation(vec![100]);
        let next = Duration::from_micros(120);
        assert_eq!(
            simulation.run(Duration::from_micros(115)),
            Err(StillBusy { next })
        );
        assert_eq!(simulation.now(), Duration::from_micros(110));
    }

    #[test]
    #[should_panic(expected = "does not let the clock move on")]
    fn a_node_that_never_sleeps_is_found() {
        struct Restless;
        impl Node for Restless {
            fn handle_datagram(&mut self, _: Duration, _: Datagram, _: &mut Network) {}
            fn handle_wake(&mut self, _: Duration, _: &mut Network) {}
            fn poll_wake(&self) -> Option<Duration> {
                Some(Duration::ZERO)
            }
        }
        let mut simulation = Simulation::new(1, vec![Restless], |_, _| LinkConfig::default());
        while simulation.step() {}
    }
}

//! Ends on a virtual clock and faulty links, beside an oracle that shares no code with them.

mod host;
mod ledger;
mod tests;

use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use dgiwarp_sim::{Address, LinkConfig, NodeId, Simulation};

use super::config::RdConfig;
use crate::Peer;
use host::Host;
use ledger::Ledger;

/// A message that a program posts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Order {
    pub(super) at: Duration,
    /// End that posts it: node and port.
    pub(super) from: (usize, u16),
    pub(super) to: (usize, u16),
    pub(super) segments: u32,
    pub(super) length: u16,
    pub(super) last_length: u16,
    pub(super) stream: Option<u16>,
    pub(super) receive: bool,
}

/// Peer of an address of the simulation.
pub(super) fn peer_of(address: Address) -> Peer {
    let node = u8::try_from(address.node.0).unwrap();
    Peer::ip(SocketAddr::from((
        Ipv4Addr::new(10, 0, 0, node),
        address.port,
    )))
}

/// Address of a peer.
pub(super) fn address_of(peer: Peer) -> Address {
    let SocketAddr::V4(address) = peer.socket_addr().unwrap() else {
        panic!("the simulation has IPv4");
    };
    Address {
        node: NodeId(address.ip().octets()[3].into()),
        port: address.port(),
    }
}

pub(super) fn address(node: usize, port: u16) -> Address {
    Address {
        node: NodeId(node),
        port,
    }
}

/// Two hosts, their ends and the ledger.
pub(super) struct World {
    simulation: Simulation<Host>,
    ledger: Rc<RefCell<Ledger>>,
}

impl World {
    /// Two nodes with these ports each; `config` gives the attributes of an end.
    pub(super) fn new(
        seed: u64,
        ports: [u16; 2],
        pool: u32,
        link: impl Fn(usize) -> LinkConfig,
        config: impl Fn(usize, u16, RdConfig) -> RdConfig,
        orders: &[Order],
    ) -> Self {
        let ledger = Rc::new(RefCell::new(Ledger::new(orders)));
        let origin = tests::origin();
        let hosts = (0..2)
            .map(|node| {
                let mut host = Host::new(origin, Rc::clone(&ledger));
                for port in 0..ports[node] {
                    let epoch = u32::try_from(node).unwrap() * 1000 + u32::from(port) + 7;
                    let key = [seed, u64::from(epoch)];
                    let config = config(node, port, RdConfig::new(origin, epoch, key));
                    host.add(address(node, port), config, pool, orders);
                }
                host
            })
            .collect();
        let simulation = Simulation::new(seed, hosts, |from, _| link(from.0));
        Self { simulation, ledger }
    }

    /// Runs until all messages of the orders are delivered and completed, and returns when.
    pub(super) fn run(&mut self, limit: Duration) -> Duration {
        while !self.ledger.borrow().is_done() {
            assert!(
                self.simulation.now() < limit && self.simulation.step(),
                "stalled at {:?}: {}",
                self.simulation.now(),
                self.debug()
            );
        }
        self.simulation.now()
    }

    fn debug(&self) -> String {
        let ends = self
            .simulation
            .nodes()
            .iter()
            .map(|host| format!("{:#?}", host.ends[0].endpoint));
        ends.collect::<String>() + &self.ledger.borrow().missing()
    }

    /// Runs up to this time.
    pub(super) fn run_until(&mut self, time: Duration) {
        while self.simulation.next_time().is_some_and(|at| at <= time) {
            self.simulation.step();
        }
    }
}

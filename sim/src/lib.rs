//! Deterministic simulation of nodes that exchange datagrams over faulty links, for tests of sans-I/O protocol code.
//!
//! There is a virtual clock and one seeded random number generator; no socket, thread or real time. Equal seeds and equal
//! nodes give equal runs, octet by octet. Time is a [`Duration`](std::time::Duration) since the start.
//!
//! - A [`Node`] is whatever a test puts there: usually several engines, their memory and their completions.
//! - A [`Link`] leads from one node to another, one way. Its [`LinkConfig`] has rate, queue, delay, jitter, [`Loss`] (independent or in bursts),
//!   duplication, reordering, corruption and an MTU. A datagram above the MTU is refused at the sender, and the MTU may change at any time.
//! - The [`Log`] has every datagram that was sent, what became of it, and every arrival. It is the oracle: a test computes from it alone
//!   what a receiver must have, and compares.
//! - A [`Wire`] is a link alone, for IP packets of a real network and a clock of the caller: the link of `cargo xtask lab --delay`.
//!
//! Order of calls: the [`Simulation`] calls a node's `handle_datagram` for each arrival and its `handle_wake` at the time that
//! `poll_wake` names; in both the node may send through the [`Network`]. Between steps a test may look at nodes and log, and change links.
//!
//! ```
//! use std::time::Duration;
//! use dgiwarp_sim::{Address, Datagram, LinkConfig, Loss, Network, Node, NodeId, Simulation};
//!
//! /// Sends a datagram every millisecond, a hundred in all, and counts what arrives.
//! struct Ticker { peer: Address, sent: u32, received: usize }
//!
//! impl Node for Ticker {
//!     fn handle_datagram(&mut self, _now: Duration, datagram: Datagram, network: &mut Network) {
//!         self.received += 1;
//!         network.recycle(datagram);
//!     }
//!
//!     fn handle_wake(&mut self, now: Duration, network: &mut Network) {
//!         let from = Address { node: NodeId(1 - self.peer.node.0), port: 7 };
//!         network.send(now, from, self.peer, b"tick").expect("four octets fit");
//!         self.sent += 1;
//!     }
//!
//!     fn poll_wake(&self) -> Option<Duration> {
//!         (self.sent < 100).then(|| Duration::from_millis(self.sent.into()))
//!     }
//! }
//!
//! let node = |peer| Ticker { peer: Address { node: NodeId(peer), port: 7 }, sent: 0, received: 0 };
//! let config = LinkConfig { loss: Loss::Independent(0.1), ..LinkConfig::default() };
//! let mut simulation = Simulation::new(42, vec![node(1), node(0)], |_from, _to| config);
//! simulation.run(Duration::from_secs(1)).expect("it comes to rest");
//!
//! let arrived = simulation.nodes().iter().map(|node| node.received).sum::<usize>();
//! assert_eq!(arrived, simulation.network().log().arrivals().len());
//! assert!(arrived < 200);
//! ```

#![forbid(unsafe_code)]

mod link;
mod log;
mod loss;
mod network;
mod packet;
mod schedule;
mod simulation;
mod wire;

pub use link::{Link, LinkConfig, Reordering, TooBig};
pub use log::{Arrival, ArrivalId, DatagramId, Fate, Log, Sent};
pub use loss::{GilbertElliott, Loss};
pub use network::{Address, Datagram, Network, NodeId};
pub use simulation::{Node, Simulation, StillBusy};
pub use wire::{MOST_IN_FLIGHT, Wire, WireCounts};

/// The generator of all randomness in a simulation: fast, and the same on every machine.
pub type Rng = rand_chacha::ChaCha8Rng;

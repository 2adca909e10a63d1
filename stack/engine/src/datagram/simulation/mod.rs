//! The engine in a simulation: several QPs on several hosts, faulty links between them, and an oracle.
//!
//! Everything of a run follows from one seed. A [`scenario`] lists hosts, links and messages; each [`host`] drives real
//! engines with real memory tables and receive queues. Three things are checked against the engine, none of which uses its code:
//!
//! - [`outgoing`]: every datagram that leaves has the headers of the specification and the octets of the message whose turn it is;
//! - [`model`]: which octets are placed, which completions come, and what is counted, computed from the arrivals that the link's log has and
//!   the application's own calls, by the rules of `rfc-notes/datagram-mapping.md`, after every call;
//! - [`verdict`]: at the end, from the log alone: nothing is valid that did not arrive intact, and on links that keep order everything is
//!   that did.

mod host;
mod ledger;
mod memory;
mod model;
mod outgoing;
mod qp;
mod reads;
mod scenario;
mod statistics;
mod tests;
mod verdict;

//! Reliable datagrams, format 4 (`rfc-notes/reliable-datagrams.md`): an envelope below DDP that carries unchanged segments, and
//! delivers each message exactly once.
//!
//! [`Envelope`] and [`frame`] are the octets on the wire. [`Endpoint`] is a queue pair's end of its associations with any number of
//! peers: messages are posted to it, datagrams go in and out, and it raises events.

mod association;
mod config;
mod congestion;
mod endpoint;
pub mod envelope;
mod flow;
pub mod frame;
mod malformed;
mod message;
mod octets;
mod path_state;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod specification_tests;

pub use config::{Before, Cause, Event, Lives, RdConfig, Scope, Verdict};
pub use congestion::Algorithm;
pub use endpoint::{Dropped, Endpoint};
pub use envelope::Envelope;
pub use flow::received::Ecn;
pub use malformed::Malformed;
pub use message::outbound::Post;
pub use path_state::PathState;

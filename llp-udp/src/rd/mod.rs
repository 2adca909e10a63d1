//! Reliable datagrams, format 4 (`rfc-notes/reliable-datagrams.md`): an envelope below DDP that carries unchanged segments, and
//! delivers each message exactly once.
//!
//! [`Envelope`] and [`frame`] are the octets on the wire.

pub mod envelope;
pub mod frame;
mod malformed;
mod octets;
#[cfg(test)]
mod specification_tests;

pub use envelope::Envelope;
pub use malformed::Malformed;

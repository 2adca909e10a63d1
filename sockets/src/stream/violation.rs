//! Faults of the peer.

use crate::wire::{MalformedConnection, UnknownMessage};

/// Private data of a peer that no stream is made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// They cannot be read.
    #[error(transparent)]
    Malformed(#[from] MalformedConnection),
    /// A list of targets with no elements, or with more than it can have addresses for.
    #[error("list of {0} targets")]
    Targets(u32),
}

/// A message that the peer may not send: the connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A message without meaning.
    #[error(transparent)]
    Unknown(#[from] UnknownMessage),
    /// A message is not four octets long.
    #[error("message of {0} octets")]
    Length(u32),
    /// Data of no octets, or of more than were advertised.
    #[error("data of {octets} octets with a target of {granted}")]
    Data {
        /// Octets in the message.
        octets: u32,
        /// Octets that the peer may still write.
        granted: u32,
    },
    /// More messages of data than credits.
    #[error("message of data without a credit")]
    Credit,
    /// Data after the peer's shutdown.
    #[error("data after the shutdown")]
    Shutdown,
    /// An I/O map outside of the list.
    #[error("I/O map {0}")]
    IoMap(u32),
}

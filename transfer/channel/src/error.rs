//! Errors of channels.

use std::io;

use dgiwarp::{ConnectError, CqError, PostFailure, WcStatus};

use crate::wire::Malformed;

/// Failure of a call.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device refused something.
    #[error(transparent)]
    Device(#[from] dgiwarp::Error),
    /// No connection came up.
    #[error("no connection: {0}")]
    Connect(#[from] ConnectError),
    /// There is no memory for a ring.
    #[error("no memory for a ring of {octets} octets: {source}")]
    Memory {
        /// Octets of the ring.
        octets: u64,
        /// Reason of the system.
        source: io::Error,
    },
    /// A field of the configuration is out of its range.
    #[error("{0} is out of its range")]
    Config(&'static str),
    /// The peer's ring is longer than [`Config::largest_ring`](crate::Config::largest_ring).
    #[error("the peer's ring has {octets} octets, and at most {most} are permitted")]
    LargeRing {
        /// Octets of the ring.
        octets: u64,
        /// Limit of this end.
        most: u64,
    },
    /// The time is over.
    #[error("not in time")]
    TimedOut,
    /// The block is longer than its slot.
    #[error("{octets} octets do not fit a slot of {slot}")]
    TooLong {
        /// Octets of the block.
        octets: usize,
        /// Octets of the slot.
        slot: usize,
    },
    /// The slot is another channel's.
    #[error("the slot is another channel's")]
    OtherChannel,
    /// The peer closed the channel.
    #[error("the peer closed the channel")]
    Closed,
    /// The connection was lost before the peer closed the channel.
    #[error("the connection to the peer was lost: {0}")]
    Lost(WcStatus),
    /// The completion queue failed.
    #[error(transparent)]
    Cq(#[from] CqError),
    /// The queue pair refused work: the connection is over.
    #[error(transparent)]
    Post(#[from] PostFailure),
    /// The peer broke the protocol.
    #[error("the peer broke the protocol: {0}")]
    Violation(&'static str),
}

impl From<Malformed> for Error {
    fn from(malformed: Malformed) -> Self {
        Self::Violation(malformed.0)
    }
}

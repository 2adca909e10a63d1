//! Attributes of an end, and the events that it raises.

use std::time::{Duration, Instant};

use super::congestion::Algorithm;
use super::frame::CloseReason;
use crate::Peer;

/// Attributes of an end.
#[derive(Debug, Clone, Copy)]
pub struct RdConfig {
    /// Time 0 of the time fields.
    pub origin: Instant,
    /// Random bits of the queue pair's life.
    pub epoch: u32,
    /// Random bits that nobody else has: identifiers and cookies are made with them.
    pub key: [u64; 2],
    /// Congestion control of all associations.
    pub algorithm: Algorithm,
    /// Round-trip time before the first sample.
    pub initial_rtt: Duration,
    /// Granularity of the caller's timers.
    pub granularity: Duration,
    /// Octets that all peers together may have in flight towards this end.
    pub window: u32,
    /// Octets that all peers on long paths together may have in flight, beyond `window`, where they use up what they have.
    pub long_window: u32,
    /// Receives that each new association is granted at once.
    pub receives: u32,
    /// Delay that a peer is asked for with RNR.
    pub rnr_delay: Duration,
    /// Refusals after which a message fails; `None` for no limit.
    pub rnr_retries: Option<u32>,
    /// Longest datagram in octets of a path of which nothing is known.
    pub datagram: u16,
    /// Silence after which a peer with datagrams in flight to it is lost.
    pub unreachable: Duration,
    /// Silence after which an idle association rests: it takes less memory, and its congestion window is the first one afterwards.
    pub rest: Duration,
    /// Silence after which an idle association is forgotten.
    pub idle: Duration,
    /// Associations whose peer is not validated.
    pub unvalidated: usize,
    /// The caller asks for input again soon: acknowledgements of whole messages that are due at once wait for a message to go with, until it finds none.
    pub polls: bool,
    /// Whether the failure of a message ends its association (§9).
    pub scope: Scope,
    /// The end is that of an RC queue pair, with one peer (§9.1); `None` for any number of peers.
    pub connection: Option<Lives>,
}

impl RdConfig {
    /// The specification's values, for timers of 100 µs and paths of an Ethernet.
    #[must_use]
    pub const fn new(origin: Instant, epoch: u32, key: [u64; 2]) -> Self {
        Self {
            origin,
            epoch,
            key,
            algorithm: Algorithm::Cubic,
            initial_rtt: Duration::from_millis(10),
            granularity: Duration::from_micros(100),
            window: 256 << 10,
            long_window: 16 << 20,
            receives: 16,
            rnr_delay: Duration::from_millis(1),
            rnr_retries: None,
            datagram: 1472,
            unreachable: Duration::from_secs(4),
            rest: Duration::from_secs(1),
            idle: Duration::from_secs(60),
            unvalidated: 1024,
            polls: false,
            scope: Scope::Peer,
            connection: None,
        }
    }
}

/// Numbers that distinguish the lives of an RC queue pair and of its peer (§9.1): PSNs, 24 bits. 0 while the program has not named them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lives {
    /// The SQ PSN, which this end opens its association with.
    pub own: u32,
    /// The RQ PSN, which the peer has to open with.
    pub peer: u32,
}

/// Effect of a failed message on others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scope {
    /// All messages to its peer are flushed.
    #[default]
    Peer,
    /// None.
    Message,
}

/// Messages of a peer before the one of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Before {
    /// Of a message that takes a receive: those that may need receives yet. As many more have to be posted (§5.3).
    pub missing: u32,
    /// The one that it comes after is delivered.
    pub delivered: bool,
}

/// Decision of the layer above about a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is placed.
    Placed,
    /// No receive is posted for its message. Nothing is placed.
    NotReady,
    /// It cannot be kept until its turn comes; it is to come again.
    NoRoom,
    /// Its message fails; Terminate Control as RFC 5040 has it. Nothing is placed.
    Failed(u32),
}

/// Cause of the failure of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The peer was silent for too long.
    Unreachable,
    /// The peer had no receive, too often.
    RnrRetries,
    /// The peer restarted or forgot the association: the message may have been executed.
    Restarted,
    /// The peer violated the protocol.
    Violation,
    /// The peer ended the association.
    Closed(CloseReason),
    /// The message failed at the peer, with this Terminate Control.
    Remote(u32),
    /// Another message failed, or this end closed the association.
    Flushed,
}

/// Report to the layer above.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A message is placed at its peer.
    Completed {
        /// The peer.
        peer: Peer,
        /// The caller's name of the message.
        token: u64,
    },
    /// A message failed.
    Failed {
        /// The peer.
        peer: Peer,
        /// The caller's name of the message.
        token: u64,
        /// The cause.
        cause: Cause,
    },
    /// All segments of a message are placed here, and its turn has come.
    Delivered {
        /// The peer.
        peer: Peer,
        /// Number of the message.
        message: u32,
        /// Its stream.
        stream: u16,
    },
    /// The peer refuses a message that it placed before: a request that it cannot carry out.
    Refused {
        /// The peer.
        peer: Peer,
        /// Number of the message, in the caller's direction.
        message: u32,
        /// Terminate Control as RFC 5040 has it.
        control: u32,
    },
    /// The association with a peer ended.
    Ended {
        /// The peer.
        peer: Peer,
        /// The cause, which its messages failed for.
        cause: Cause,
    },
    /// Nothing has been under way with the peer for [`RdConfig::rest`]. Memory that is kept for its messages may be given back.
    Rests {
        /// The peer.
        peer: Peer,
    },
    /// The peer's address changed. It keeps the identity that it had.
    Moved {
        /// The peer.
        peer: Peer,
        /// Its address now.
        to: Peer,
    },
}

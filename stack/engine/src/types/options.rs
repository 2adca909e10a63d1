//! How connected queue pairs behave where the RFCs leave it open, and towards their own kind.

use std::fmt;
use std::time::Duration;

/// When a Send or Write is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Completion {
    /// When the peer has placed it, which a peer of our own kind tells. With any other peer as [`Local`](Self::Local).
    #[default]
    Placed,
    /// When TCP has taken it, as RFC 5040 §5.5 has it.
    Local,
}

/// What becomes of a message that finds no posted receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum NoReceive {
    /// It waits, with what comes behind it, until one is posted: what programs for InfiniBand expect.
    #[default]
    Wait,
    /// The connection ends, with a Terminate for the peer: what RFC 5041 §7.2 has.
    Terminate,
}

/// How a connected queue pair behaves where the RFCs leave it open, and towards its own kind (`rfc-notes/rc-extensions.md`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RcOptions {
    /// Greets the peer with a zero-length RDMA Write that says that we are dgiwarp: no other implementation may look at it. Without it the peer is
    /// taken for a foreign one. Default yes.
    pub hello: bool,
    /// When Sends and Writes are complete. Default [`Completion::Placed`].
    pub completion: Completion,
    /// What becomes of a message that finds no posted receive. Default [`NoReceive::Wait`].
    pub no_receive: NoReceive,
    /// How long it waits. Then the connection ends, and the sender's work request with
    /// [`WcStatus::RnrRetryExceeded`](crate::types::WcStatus::RnrRetryExceeded). `None`, the default, is no limit.
    pub receive_timeout: Option<Duration>,
    /// What is posted stays when the peer closes the connection and nothing sent is outstanding: who only receives does not notice, and who sends
    /// afterwards finds out, as on InfiniBand. Otherwise it is flushed. Default no.
    pub outlives_peer: bool,
}

impl Default for RcOptions {
    fn default() -> Self {
        Self {
            hello: true,
            completion: Completion::default(),
            no_receive: NoReceive::default(),
            receive_timeout: None,
            outlives_peer: false,
        }
    }
}

/// `placed` or `local`.
impl fmt::Display for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Placed => "placed",
            Self::Local => "local",
        })
    }
}

/// `wait` or `terminate`.
impl fmt::Display for NoReceive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Wait => "wait",
            Self::Terminate => "terminate",
        })
    }
}

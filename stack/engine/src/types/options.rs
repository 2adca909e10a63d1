//! Behaviour of connected queue pairs where the RFCs leave it open, and towards dgiwarp peers.

use std::fmt;
use std::time::Duration;

/// Completion mode of Sends and Writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Completion {
    /// Complete when the peer has placed it, which a dgiwarp peer acknowledges. With a plain peer as [`Local`](Self::Local).
    #[default]
    Placed,
    /// Complete when TCP has taken it (RFC 5040 §5.5 rule 14).
    Local,
}

/// Handling of a message that finds no posted receive (RNR).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum NoReceive {
    /// The message waits, with those behind it, until a receive is posted: programs for InfiniBand expect this.
    #[default]
    Wait,
    /// The connection ends with a Terminate (RFC 5041 §7.2).
    Terminate,
}

/// Behaviour of a connected queue pair where the RFCs leave it open, and towards dgiwarp peers (`rfc-notes/rc-extensions.md`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RcOptions {
    /// Sends a hello, a zero-length RDMA Write that other implementations ignore. Without it the peer is taken for a plain one. Default yes.
    pub hello: bool,
    /// Completion mode of Sends and Writes. Default [`Completion::Placed`].
    pub completion: Completion,
    /// Handling of a message that finds no posted receive. Default [`NoReceive::Wait`].
    pub no_receive: NoReceive,
    /// Time that such a message waits. Then the connection ends, and the sender's work request with
    /// [`WcStatus::RnrRetryExceeded`](crate::types::WcStatus::RnrRetryExceeded). `None`, the default, is no limit.
    pub receive_timeout: Option<Duration>,
    /// Posted work requests stay when the peer closes the connection while nothing sent is outstanding: a program that only receives does not notice,
    /// and one that sends afterwards finds out, as on InfiniBand. Otherwise they are flushed. Default no.
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

/// Limits of messages that find no posted receive on a connection of two dgiwarp peers (`rnr_retry` and `min_rnr_timer` of `ibv_modify_qp(3)`). At first there
/// are none: messages wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RnrLimits {
    /// RNR retries of own messages, 0 to 6: as often the peer's timer passes before the connection ends, and the work request with
    /// [`WcStatus::RnrRetryExceeded`](crate::types::WcStatus::RnrRetryExceeded). `None` is no limit.
    pub retries: Option<u8>,
    /// Time that one RNR retry of the peer's messages takes. `None`: they wait without a limit.
    pub timer: Option<Duration>,
    /// RNR retries of the peer's messages, 0 to 7, whatever the peer sent. `None`: the peer's.
    pub peer_retries: Option<u8>,
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

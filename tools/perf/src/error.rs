//! Causes that end a run early, and the exit status of each.

use std::io;
use std::time::Duration;

/// Exit status of a run that measured everything it was asked for.
pub(crate) const EXIT_OK: u8 = 0;
/// Exit status when a measurement or the peer failed.
pub(crate) const EXIT_FAILED: u8 = 1;
/// Exit status of a usage error; clap uses the same.
pub(crate) const EXIT_USAGE: u8 = 2;
/// Exit status after SIGINT, as shells expect it.
pub(crate) const EXIT_INTERRUPTED: u8 = 130;

/// A cause that ends the run. Each displays as one line.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PerfError {
    /// The command line asks for something that does not exist.
    #[error("{0}")]
    Usage(String),
    /// The user pressed Ctrl-C.
    #[error("interrupted")]
    Interrupted,
    /// The name of the server did not resolve in time.
    #[error("cannot resolve {host}: {reason}")]
    Resolve {
        /// The name as given.
        host: String,
        /// The resolver's own words.
        reason: String,
    },
    /// No address of the server accepted the control connection.
    #[error("cannot connect to {host} port {port}: {source}")]
    Connect {
        /// The name as given.
        host: String,
        /// The control port.
        port: u16,
        /// The last error.
        source: io::Error,
    },
    /// The peer closed the control connection.
    #[error("the peer closed the connection")]
    PeerGone,
    /// The peer stopped answering on the control connection.
    #[error("no answer from the peer within {0:?} (is it serving another client?)")]
    PeerSilent(Duration),
    /// Nothing arrived on the data path although the peer is alive.
    #[error(
        "no data arrived on the {transport} data path for {waited:?} (is a firewall in the way?)"
    )]
    NoData {
        /// The transport in question.
        transport: &'static str,
        /// How long it was quiet.
        waited: Duration,
    },
    /// The connection of a row of shared memory goes by TCP.
    #[error("the connection did not move to shared memory (are both sides on one host?): {0}")]
    Apart(
        /// Counters of the queue pair.
        String,
    ),
    /// Operations of a row of one-sided copies go through shared memory or by TCP.
    #[error(
        "the initiator does not copy by itself (are both sides on one host, and may they trace each other?): {0}"
    )]
    TwoSided(
        /// Counters of the queue pair.
        String,
    ),
    /// The peer reported an error of its own.
    #[error("the peer failed: {0}")]
    PeerFailed(String),
    /// The peer speaks something else, or another version.
    #[error("the peer's control message is not understood: {0}")]
    Protocol(String),
    /// Contents differ from those sent (`--check`).
    #[error(
        "wrong contents: byte {offset} of the message at stream position {position} is {got:#04x}, sent was {want:#04x}"
    )]
    Contents {
        /// Position of the message or segment in the stream, in bytes.
        position: u64,
        /// Offset of the wrong byte in it.
        offset: usize,
        /// The byte found.
        got: u8,
        /// The byte expected.
        want: u8,
    },
    /// An operating system call failed.
    #[error("{what}: {source}")]
    Io {
        /// The action.
        what: &'static str,
        /// The error of the call.
        source: io::Error,
    },
    /// The software RNIC refused or failed an operation.
    #[error("dgiwarp: {what}: {reason}")]
    Stack {
        /// The verb.
        what: &'static str,
        /// The stack's own words.
        reason: String,
    },
}

/// Short form used by every module.
pub(crate) type Result<T> = std::result::Result<T, PerfError>;

impl PerfError {
    /// The exit status this error ends the process with.
    pub(crate) fn exit_status(&self) -> u8 {
        match self {
            Self::Usage(_) => EXIT_USAGE,
            Self::Interrupted => EXIT_INTERRUPTED,
            Self::Resolve { .. }
            | Self::Connect { .. }
            | Self::PeerGone
            | Self::PeerSilent(_)
            | Self::NoData { .. }
            | Self::PeerFailed(_)
            | Self::Protocol(_)
            | Self::Contents { .. }
            | Self::Io { .. }
            | Self::Apart(_)
            | Self::TwoSided(_)
            | Self::Stack { .. } => EXIT_FAILED,
        }
    }
}

/// Names what was being done when an I/O error happened.
pub(crate) trait IoContext<T> {
    /// Turns the error into [`PerfError::Io`] with `what`.
    fn during(self, what: &'static str) -> Result<T>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn during(self, what: &'static str) -> Result<T> {
        self.map_err(|source| PerfError::Io { what, source })
    }
}

impl<T> IoContext<T> for nix::Result<T> {
    fn during(self, what: &'static str) -> Result<T> {
        self.map_err(|errno| PerfError::Io {
            what,
            source: errno.into(),
        })
    }
}

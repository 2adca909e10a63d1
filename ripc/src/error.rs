//! Errors of an endpoint itself; those of a call are a `Status`.

use std::io;

use crate::names::{NameError, ServiceName};
use crate::security::keys::KeyError;

/// Why an endpoint cannot do what the program asks.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device.
    #[error(transparent)]
    Device(#[from] dgiwarp::Error),
    /// The system: memory, threads, sockets, randomness.
    #[error("{what}: {source}")]
    System {
        /// Subject of the failure.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// A text that names no service.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A file or text that is no key, secret or token.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The endpoint serves this service already.
    #[error("service {0} is served already")]
    AlreadyServed(ServiceName),
    /// The endpoint does not listen, so nobody could call it.
    #[error("the endpoint has no address to listen on")]
    DoesNotListen,
    /// The endpoint takes no messages for this service.
    #[error("service {0} has no inbox")]
    NoInbox(ServiceName),
    /// The endpoint is closed.
    #[error("the endpoint is closed")]
    Closed,
    /// A line of a static file that is not of its format.
    #[error("{file}, line {line}: {problem}")]
    File {
        /// Name of the file.
        file: String,
        /// Number of the line.
        line: usize,
        /// Fault of the line.
        problem: String,
    },
}

impl Error {
    pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what, source }
    }
}

//! Events of a connection.

use crate::error::Error;
use crate::startup::{Established, Rejection, Request};

/// Event of a connection, from [`Connection::poll_event`](crate::Connection::poll_event).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Responder: a Request arrived. Answer it with
    /// [`accept`](crate::Connection::accept) or [`reject`](crate::Connection::reject).
    Request(Request),
    /// Full operation has begun.
    Established(Established),
    /// Initiator: the Responder rejected. MPA is over; TCP stays open for the ULP.
    Rejected(Rejection),
    /// The connection failed. No ULPDU is delivered any more.
    ///
    /// If [`Error::closes_tcp`], TCP is to be closed at once. Otherwise a Terminate with
    /// [`Error::code`] is to be sent, if
    /// [`may_send`](crate::Connection::may_send), and then TCP closed.
    Failed(Error),
    /// The peer closed its half of TCP between two FPDUs: a graceful close
    /// (RFC 5044 §7.2).
    PeerClosed,
}

/// End of TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TcpEnd {
    /// The peer's FIN, after all that it sent.
    Fin,
    /// A reset, or a timeout of TCP.
    Lost,
}

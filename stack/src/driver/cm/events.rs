//! Events of connections, and errors of connecting.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Instant;

use dgiwarp_llp_tcp_mpa::{
    ConfigError, Connection, Error as MpaError, Established, Rejection, Request,
};

use crate::Error;
use crate::driver::cm::event_connections::EventConnections;
use crate::driver::cm::timewait::Timewait;
use crate::driver::reactor::event_queue::EventQueue;
use dgiwarp_engine::connected::RcEnd;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// TCP could not connect, or was lost.
    #[error("TCP: {0}")]
    Tcp(#[from] io::Error),
    /// The MPA startup failed.
    #[error(transparent)]
    Mpa(MpaError),
    /// The peer rejected the connection.
    #[error("the peer rejected the connection")]
    Rejected(Rejection),
    /// Our own request or answer cannot be encoded.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The queue pair has or had a connection.
    #[error("the queue pair is or was connected")]
    State,
    /// The device could not take the connection over.
    #[error(transparent)]
    Device(Error),
}

/// Event of a connection (`rdma_get_cm_event(3)`). `context` is the number that the program gave the listener or connection.
#[derive(Debug)]
#[non_exhaustive]
pub enum ConnectionEvent {
    /// A peer asks a listener for a connection.
    Request {
        /// The listener's.
        context: u64,
        /// To be accepted, rejected or dropped.
        request: RcRequest,
    },
    /// A QP is connected.
    Established {
        /// The connection's.
        context: u64,
        /// Negotiated parameters.
        established: Established,
    },
    /// The peer rejected the connection; the QP may be connected again.
    Rejected {
        /// The connection's.
        context: u64,
        /// The peer's Reject frame.
        rejection: Rejection,
    },
    /// There will be no connection: a QP could not be connected and may be tried again, or a peer connected to a listener without
    /// a proper request.
    Failed {
        /// The connection's, or the listener's.
        context: u64,
        /// The other end.
        peer: SocketAddr,
        /// Why.
        error: ConnectError,
    },
    /// A connection is over; everything posted has completed. Where the peer ended it, this comes after the program took the completions
    /// that succeeded before, or a second later.
    Disconnected {
        /// The connection's.
        context: u64,
        /// Why.
        end: RcEnd,
    },
    /// The time after a connection is over in which InfiniBand does not reuse its queue pair; only where
    /// [`ConnectionChannel::report_timewait`](crate::ConnectionChannel::report_timewait) requests it.
    TimewaitExit {
        /// The connection's.
        context: u64,
    },
}

/// Takes the events of connections at once, instead of a queue. The thread that makes progress calls it, which is usually
/// the device's background thread, and may hold the lock of the QP in question: an implementation records the event and returns, and calls nothing of
/// the device.
pub trait ConnectionSink: std::fmt::Debug + Send + Sync {
    /// Takes one event.
    fn happened(&self, event: ConnectionEvent);
}

/// A peer that asks for a connection. Dropping it closes TCP without an answer.
#[derive(Debug)]
pub struct RcRequest {
    pub(crate) incoming: IncomingRequest,
}

/// MPA Request that waits for the program's accept or reject.
#[derive(Debug)]
pub(crate) struct IncomingRequest {
    pub(crate) stream: TcpStream,
    pub(crate) peer: SocketAddr,
    pub(crate) connection: Box<Connection>,
    pub(crate) request: Request,
}

/// Connection that was accepted and is not reported as established yet.
#[derive(Debug)]
pub(crate) struct PendingEstablished {
    pub(crate) established: Established,
    pub(crate) peer: SocketAddr,
    /// Deadline of the peer's first FPDU.
    pub(crate) until: Instant,
}

/// Events of connections: queued, or handed to a sink at once.
#[derive(Debug)]
pub(crate) struct CmQueue {
    pub(super) events: EventQueue<ConnectionEvent>,
    pub(super) sink: Option<Arc<dyn ConnectionSink>>,
    pub(super) timewait: Timewait,
    /// Connections beside which messages go by reliable datagrams.
    pub(super) event_connections: EventConnections,
}

impl CmQueue {
    pub(crate) fn push(&self, happened: ConnectionEvent) {
        if let Some(happened) = self.event_connections.keep_end(happened) {
            self.report(happened);
        }
    }

    /// Reports an event without delay.
    pub(super) fn report(&self, happened: ConnectionEvent) {
        if let ConnectionEvent::Disconnected { context, .. } = happened {
            self.timewait.enter(context);
        }
        if let Some(sink) = &self.sink {
            return sink.happened(happened);
        }
        self.events.push(happened);
    }
}

//! Services of an endpoint: handlers of calls, and inboxes of messages.

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::names::{MethodId, ServiceId, ServiceName};
use crate::payload::Payload;
use crate::status::Status;

/// Executes calls.
pub(crate) type Handler = Arc<dyn Fn(Request) -> Result<Payload, Status> + Send + Sync>;

/// A service that is served.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) name: ServiceName,
    pub(crate) handler: Handler,
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Service({})", self.name)
    }
}

/// A call of a peer, as its handler gets it.
#[derive(Debug)]
pub struct Request {
    /// The service.
    pub service: ServiceId,
    /// The method.
    pub method: MethodId,
    /// Items and metadata.
    pub payload: Payload,
    /// Address of the caller.
    pub caller: SocketAddr,
    pub(crate) deadline: Option<Instant>,
    pub(crate) cancelled: Arc<AtomicBool>,
}

impl Request {
    /// Time at which the caller has given up.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Whether the caller has cancelled the call, or its time is over by the caller's clock: a handler may end early.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }
}

/// A call that waits for a thread.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) caller: u64,
    pub(crate) number: u64,
    pub(crate) service: Service,
    pub(crate) request: Request,
}

/// Way of the reply to a call that is executed.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) connection: u64,
    /// Cost of the CALL on that connection.
    pub(crate) cost: u64,
    pub(crate) service: ServiceId,
    pub(crate) method: MethodId,
    /// Time by the endpoint's clock.
    pub(crate) deadline: Option<Duration>,
    pub(crate) cancelled: Arc<AtomicBool>,
}

/// A message that came to a service.
#[derive(Debug)]
pub struct Incoming {
    /// Service that it is from.
    pub from: ServiceId,
    /// Items and metadata.
    pub payload: Payload,
}

/// Messages of a service that the program has not taken, with the connection and the cost of each. Their octets are bounded by credit.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    pub(crate) messages: VecDeque<(u64, u64, Incoming)>,
}

//! Calls of services.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::Endpoint;
use super::peer::Out;
use super::state::Pending;
use crate::names::{MethodId, ServiceName};
use crate::payload::Payload;
use crate::status::{Code, Status};
use crate::system::{after, replace_waker};

/// How a call is made.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallOptions {
    /// Time for the call. `None` for no limit. Default 5 s.
    pub timeout: Option<Duration>,
    /// Whether it may be executed more than once: it then goes to a server that was started again, too. Default no.
    pub idempotent: bool,
    /// Lengths of memory for the long items of the reply, in bytes: the server writes an item into it without asking first. At most 16. Default none.
    pub room: Vec<usize>,
}

impl Default for CallOptions {
    fn default() -> Self {
        Self {
            timeout: Some(Duration::from_secs(5)),
            idempotent: false,
            room: Vec::new(),
        }
    }
}

impl CallOptions {
    /// The defaults with this time for the call.
    #[must_use]
    pub fn timeout(timeout: Duration) -> Self {
        Self {
            timeout: Some(timeout),
            ..Self::default()
        }
    }

    /// With memory for a long item of the reply, in bytes.
    #[must_use]
    pub fn and_room(mut self, length: usize) -> Self {
        self.room.push(length);
        self
    }

    /// For a call that may be executed more than once.
    #[must_use]
    pub fn and_idempotent(mut self) -> Self {
        self.idempotent = true;
        self
    }
}

/// A service as its callers have it: its name, and the addresses of endpoints that serve it. Calls go to the first address, and to the next ones where a
/// connection cannot be made.
#[derive(Debug)]
pub struct Client {
    endpoint: Endpoint,
    service: ServiceName,
    addresses: Vec<SocketAddr>,
    /// Position of the address that is used.
    current: AtomicUsize,
}

/// A call that was begun: [`wait`](Self::wait) for it, or await it in any runtime. Dropping it cancels the call. A task learns of a deadline at most a quarter of
/// a second late.
#[derive(Debug)]
pub struct PendingCall {
    endpoint: Endpoint,
    number: u64,
    deadline: Option<Instant>,
}

impl Endpoint {
    /// A client of a service at these addresses.
    #[must_use]
    pub fn client(&self, service: ServiceName, addresses: Vec<SocketAddr>) -> Client {
        Client {
            endpoint: self.clone(),
            service,
            addresses,
            current: AtomicUsize::new(0),
        }
    }
}

impl Client {
    /// The service.
    #[must_use]
    pub fn service(&self) -> &ServiceName {
        &self.service
    }

    /// The addresses.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Calls a method and waits for its reply.
    ///
    /// # Errors
    /// The status of the service, or of the library: `DEADLINE_EXCEEDED`, `UNAVAILABLE` where the connection was lost or none can be made,
    /// `RESOURCE_EXHAUSTED`, `UNIMPLEMENTED`, `ABORTED`.
    pub fn call(
        &self,
        method: MethodId,
        payload: Payload,
        options: &CallOptions,
    ) -> Result<Payload, Status> {
        let deadline = options.timeout.and_then(after);
        let payload = Arc::new(payload);
        let mut result = Err(Status::new(Code::NotFound, "the service has no address"));
        for _ in 0..self.addresses.len() {
            let at = self.current.load(Ordering::Relaxed);
            let begun = self.begin_at(at, method, Arc::clone(&payload), options, deadline);
            let (unsent, ended) = match begun {
                Ok(call) => call.finish(),
                Err(status) => (status.code == Code::Unavailable, Err(status)),
            };
            result = ended;
            if !unsent {
                break;
            }
            self.turn_from(at);
        }
        result
    }

    /// Calls a method without holding a thread. Dropping the future cancels the call.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub async fn call_async(
        &self,
        method: MethodId,
        payload: Payload,
        options: &CallOptions,
    ) -> Result<Payload, Status> {
        let deadline = options.timeout.and_then(after);
        let payload = Arc::new(payload);
        let mut result = Err(Status::new(Code::NotFound, "the service has no address"));
        for _ in 0..self.addresses.len() {
            let at = self.current.load(Ordering::Relaxed);
            let begun = self.begin_at(at, method, Arc::clone(&payload), options, deadline);
            let (unsent, ended) = match begun {
                Ok(mut call) => std::future::poll_fn(|context| call.poll_result(context)).await,
                Err(status) => (status.code == Code::Unavailable, Err(status)),
            };
            result = ended;
            if !unsent {
                break;
            }
            self.turn_from(at);
        }
        result
    }

    /// Uses the address behind this one, where nothing listens.
    fn turn_from(&self, at: usize) {
        let next = (at + 1) % self.addresses.len();
        let _ = self
            .current
            .compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Begins a call of a method, at the address that is used now.
    ///
    /// # Errors
    /// `NOT_FOUND` without an address, `INVALID_ARGUMENT` for more than 64 items or 16 rooms, `UNAVAILABLE` where a connection cannot be begun.
    pub fn begin(
        &self,
        method: MethodId,
        payload: Payload,
        options: &CallOptions,
    ) -> Result<PendingCall, Status> {
        let deadline = options.timeout.and_then(after);
        let at = self.current.load(Ordering::Relaxed);
        self.begin_at(at, method, Arc::new(payload), options, deadline)
    }

    fn begin_at(
        &self,
        at: usize,
        method: MethodId,
        payload: Arc<Payload>,
        options: &CallOptions,
        deadline: Option<Instant>,
    ) -> Result<PendingCall, Status> {
        let Some(target) = self.addresses.get(at).copied() else {
            return Err(Status::new(Code::NotFound, "the service has no address"));
        };
        let most = crate::wire::message::MAX_WINDOWS;
        if !payload.fits() || options.room.len() > most || options.room.contains(&0) {
            let text = "too many items or rooms, or a room without bytes";
            return Err(Status::new(Code::InvalidArgument, text));
        }
        let shared = self.endpoint.shared();
        let mut inner = shared.lock();
        if inner.state.closed {
            return Err(Status::new(Code::Unavailable, "the endpoint is closed"));
        }
        let clock = shared.clock();
        let state = &mut inner.state;
        let connection = state.connection_to(target, clock.now)?;
        let limit = deadline.map(|at| at.saturating_duration_since(clock.start));
        let number = state.calls.begin(clock.now, limit, options.idempotent);
        let pending = Pending {
            connection,
            target,
            service: self.service.id,
            method,
            payload,
            rooms: options.room.clone(),
            detached: false,
            unsent: false,
            result: None,
            waker: None,
        };
        state.pending.insert(number, pending);
        if let Some(peer) = state.peers.get_mut(&connection) {
            peer.queue.push_back(Out::Call(number));
        }
        state.flush(connection, clock.now);
        Ok(PendingCall {
            endpoint: self.endpoint.clone(),
            number,
            deadline,
        })
    }
}

impl PendingCall {
    /// Waits for the reply.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub fn wait(self) -> Result<Payload, Status> {
        self.finish().1
    }

    /// Ends the call: it is not executed if it has not begun, and its memory is withdrawn. A reply that has come already is returned.
    ///
    /// # Errors
    /// `CANCELLED`, or as [`Client::call`].
    pub fn cancel(self) -> Result<Payload, Status> {
        let shared = self.endpoint.shared();
        {
            let mut inner = shared.lock();
            let now = shared.clock().now;
            inner.state.cancel(self.number, now);
        }
        self.finish().1
    }

    /// Whether the result has come.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let inner = self.endpoint.shared().lock();
        let pending = inner.state.pending.get(&self.number);
        pending.is_none_or(|it| it.result.is_some())
    }

    /// The result, and whether the call surely was not sent; the task is woken when there is one.
    fn poll_result(&mut self, context: &mut Context<'_>) -> Poll<(bool, Result<Payload, Status>)> {
        let mut inner = self.endpoint.shared().lock();
        let pending = inner.state.pending.get_mut(&self.number);
        if let Some(pending) = pending.filter(|it| it.result.is_none()) {
            let replaced = replace_waker(&mut pending.waker, context.waker());
            drop(inner);
            // With it another task may end, and calls and replies that it owns.
            drop(replaced);
            return Poll::Pending;
        }
        let found = inner.state.pending.remove(&self.number);
        drop(inner);
        let unsent = found.as_ref().is_some_and(|it| it.unsent);
        let result = found.and_then(|it| it.result);
        let over = || Err(Status::new(Code::Cancelled, "the call is over"));
        Poll::Ready((unsent, result.unwrap_or_else(over)))
    }

    /// The result, and whether the call surely was not sent.
    fn finish(self) -> (bool, Result<Payload, Status>) {
        let number = self.number;
        let found = self
            .endpoint
            .shared()
            .wait_until(self.deadline, |state, clock| {
                let is_ready = |state: &super::state::State| {
                    let pending = state.pending.get(&number);
                    pending.is_none_or(|it| it.result.is_some())
                };
                if !is_ready(state) {
                    state.expire(clock.now);
                }
                is_ready(state).then(|| state.pending.remove(&number))
            });
        let found = found.flatten();
        let unsent = found.as_ref().is_some_and(|it| it.unsent);
        match found.and_then(|pending| pending.result) {
            Some(result) => (unsent, result),
            None => {
                let text = "no reply in time: the call may have been executed";
                (false, Err(Status::new(Code::DeadlineExceeded, text)))
            }
        }
    }
}

impl Future for PendingCall {
    type Output = Result<Payload, Status>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_result(context).map(|(_, result)| result)
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        let shared = self.endpoint.shared();
        let mut inner = shared.lock();
        if let Some(pending) = inner.state.pending.get_mut(&self.number) {
            let now = shared.clock().now;
            let waker = pending.waker.take();
            pending.detached = pending.result.is_none();
            if pending.detached {
                inner.state.cancel(self.number, now);
            }
            let removed = inner.state.pending.remove(&self.number);
            drop(inner);
            // With them a task and memory may go.
            drop((waker, removed));
        }
    }
}

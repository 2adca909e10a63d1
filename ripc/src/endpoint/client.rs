//! Calls of services.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::Endpoint;
use super::attempts::{Attempts, Plan, Slot};
use super::peer::Out;
use super::progress::Shared;
use super::state::Pending;
use super::stream::{StreamId, StreamReceiver, StreamSender, Streaming};
use crate::engine::balance::{Instances, LoadBalancing};
use crate::engine::calls::Fate;
use crate::engine::urgency::Urgency;
use crate::names::{MethodId, ServiceName};
use crate::payload::Payload;
use crate::status::{Code, Status};
use crate::system::{after, random, replace_waker};
use crate::wire::message::Streams;

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
    /// Urgency, also of the streams and of the reply. Default 3.
    pub urgency: Urgency,
}

impl Default for CallOptions {
    fn default() -> Self {
        Self {
            timeout: Some(Duration::from_secs(5)),
            idempotent: false,
            room: Vec::new(),
            urgency: Urgency::DEFAULT,
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

    /// With this urgency.
    #[must_use]
    pub fn and_urgency(mut self, urgency: Urgency) -> Self {
        self.urgency = urgency;
        self
    }

    /// For a call that may be executed more than once.
    #[must_use]
    pub fn and_idempotent(mut self) -> Self {
        self.idempotent = true;
        self
    }
}

/// A service as its callers have it: its name, and the addresses of the endpoints that serve it, its instances. Calls go to the first instance, or as
/// [`balanced`](Self::balanced) has it, and to another one where no connection can be made, or where the instance refuses a call without executing it because it is
/// going away or has too many. A call that may be executed more than once goes to another one also where its connection is lost.
#[derive(Debug)]
pub struct Client {
    pub(super) endpoint: Endpoint,
    service: ServiceName,
    addresses: Vec<SocketAddr>,
    pub(super) instances: Arc<Mutex<Instances>>,
}

/// Fate and result of a call.
pub(super) type Ended = (Fate, Result<Payload, Status>);

/// A call that was begun: [`wait`](Self::wait) for it, or await it in any runtime. Dropping it cancels the call. A task learns of a deadline at most a quarter of
/// a second late.
#[derive(Debug)]
pub struct PendingCall {
    endpoint: Endpoint,
    number: u64,
    deadline: Option<Instant>,
    /// It left when it was begun, with its streams.
    opened: bool,
    /// Its result was taken.
    over: bool,
    /// Valid once it is over.
    fate: Fate,
    slot: Slot,
}

impl Endpoint {
    /// A client of a service at these addresses.
    #[must_use]
    pub fn client(&self, service: ServiceName, addresses: Vec<SocketAddr>) -> Client {
        // Without randomness all clients choose alike, and well enough.
        let instances = Instances::new(
            addresses.len(),
            random().unwrap_or_else(|_| self.instance()),
        );
        Client {
            endpoint: self.clone(),
            service,
            addresses,
            instances: Arc::new(Mutex::new(instances)),
        }
    }
}

impl Client {
    /// Chooses the instance of each call in this way, from now on. Default [`LoadBalancing::PickFirst`].
    #[must_use]
    pub fn balanced(self, policy: LoadBalancing) -> Self {
        self.instances.lock().set_policy(policy);
        self
    }

    /// The endpoint whose calls these are.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

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
        let mut attempts = self.attempts(method, payload, options, Streams::default());
        while let Some(call) = attempts.begin() {
            if attempts.is_over(call.finish()) {
                break;
            }
        }
        attempts.result
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
        let mut attempts = self.attempts(method, payload, options, Streams::default());
        while let Some(mut call) = attempts.begin() {
            let ended = std::future::poll_fn(|context| call.poll_result(context)).await;
            if attempts.is_over(ended) {
                break;
            }
        }
        attempts.result
    }

    /// Calls a method with streams of octets beside its request and its reply: one that the server may send, and, if `sends`, one of the caller's. It returns once
    /// the call is sent. Such a call is not made again where its connection is lost after octets of a stream.
    ///
    /// # Errors
    /// As [`call`](Self::call). `UNIMPLEMENTED` where the peer takes no streams and the caller's is wanted.
    pub async fn open(
        &self,
        method: MethodId,
        payload: Payload,
        options: &CallOptions,
        sends: bool,
    ) -> Result<StreamCall, Status> {
        let streams = Streams {
            down: true,
            up: sends,
        };
        self.open_by(self.attempts(method, payload, options, streams))
            .await
    }

    /// Makes a call again, at another instance, that its instance did not execute: `refusal` is its result. A call with a stream of the caller's is not made again.
    ///
    /// # Errors
    /// `refusal`, where it may have been executed, or no instance is left; else as [`open`](Self::open).
    pub async fn open_again(
        &self,
        refused: StreamCall,
        refusal: Status,
    ) -> Result<StreamCall, Status> {
        let StreamCall { call, plan, .. } = refused;
        let mut attempts = Attempts {
            client: self,
            plan,
            result: Err(Status::new(Code::Cancelled, "the call is over")),
        };
        let is_over = attempts.is_over((call.fate, Err(refusal.clone())));
        if is_over || !call.over || attempts.plan.streams.up {
            return Err(refusal);
        }
        drop(call);
        self.open_by(attempts).await
    }

    async fn open_by(&self, mut attempts: Attempts<'_>) -> Result<StreamCall, Status> {
        while let Some(call) = attempts.begin() {
            let executor: Arc<dyn Streaming> = Arc::<Shared>::clone(self.endpoint.shared());
            let id = call.stream_id();
            let sender = attempts.plan.streams.up.then(|| StreamSender {
                executor: Arc::clone(&executor),
                id,
            });
            let receiver = StreamReceiver {
                executor,
                id,
                ended: false,
            };
            let mut call = call;
            let opened = std::future::poll_fn(|context| call.poll_open(context)).await;
            match opened {
                None => {
                    return Ok(StreamCall {
                        call,
                        sender,
                        receiver,
                        plan: attempts.plan,
                    });
                }
                Some(ended) => {
                    if attempts.is_over(ended) {
                        break;
                    }
                }
            }
        }
        let over = |_| Err(Status::new(Code::Internal, "a reply before the call"));
        attempts.result.map_or_else(Err, over)
    }

    fn attempts(
        &self,
        method: MethodId,
        payload: Payload,
        options: &CallOptions,
        streams: Streams,
    ) -> Attempts<'_> {
        let plan = Plan {
            method,
            payload: Arc::new(payload),
            options: options.clone(),
            streams,
            deadline: options.timeout.and_then(after),
            tried: Vec::new(),
        };
        Attempts {
            client: self,
            plan,
            result: Err(Status::new(Code::NotFound, "the service has no address")),
        }
    }

    /// Chooses an instance that is not among `tried` for a call.
    pub(super) fn choose(&self, tried: &[usize]) -> Option<Slot> {
        let now = self.endpoint.shared().clock().now;
        let at = self.instances.lock().choose(now, tried)?;
        Some(Slot {
            instances: Arc::clone(&self.instances),
            at,
        })
    }

    /// Begins a call of a method, at one instance alone.
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
        let no_address = || Status::new(Code::NotFound, "the service has no address");
        let slot = self.choose(&[]).ok_or_else(no_address)?;
        let streams = Streams::default();
        self.begin_at(slot, method, Arc::new(payload), options, streams, deadline)
    }

    pub(super) fn begin_at(
        &self,
        slot: Slot,
        method: MethodId,
        payload: Arc<Payload>,
        options: &CallOptions,
        streams: Streams,
        deadline: Option<Instant>,
    ) -> Result<PendingCall, Status> {
        let Some(target) = self.addresses.get(slot.at).copied() else {
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
        let connection = state.connection_to(target, clock.now);
        let connection = connection.inspect_err(|_| slot.failed(clock.now))?;
        let limit = deadline.map(|at| at.saturating_duration_since(clock.start));
        let number = state.calls.begin(clock.now, limit, options.idempotent);
        let pending = Pending {
            connection,
            target,
            service: self.service.id,
            method,
            urgency: options.urgency,
            payload,
            rooms: options.room.clone(),
            detached: false,
            fate: Fate::Replied,
            result: None,
            waker: None,
        };
        state.pending.insert(number, pending);
        if streams.down {
            state.open_own(connection, number, streams, options.urgency);
        }
        if let Some(peer) = state.peers.get_mut(&connection) {
            peer.outbox.push(options.urgency, Out::Call(number));
        }
        state.flush(connection, clock.now);
        let stream = state.streams.get(&StreamId { caller: 0, number });
        let opened = stream.is_some_and(|it| it.of_call.opened);
        Ok(PendingCall {
            endpoint: self.endpoint.clone(),
            number,
            deadline,
            opened,
            over: false,
            fate: Fate::Replied,
            slot,
        })
    }
}

/// A call with streams. Dropping it, or its `call`, cancels the call; the streams end with it.
#[derive(Debug)]
pub struct StreamCall {
    /// The call: its reply comes behind the octets of the server's stream.
    pub call: PendingCall,
    /// Sending end of the caller's stream, where there is one.
    pub sender: Option<StreamSender>,
    /// Receiving end of the server's stream. Without octets, it ends with the call.
    pub receiver: StreamReceiver,
    plan: Plan,
}

impl PendingCall {
    fn stream_id(&self) -> StreamId {
        let number = self.number;
        StreamId { caller: 0, number }
    }

    /// Ready once the call is sent, or, with its result, over.
    fn poll_open(&mut self, context: &mut Context<'_>) -> Poll<Option<Ended>> {
        if self.opened {
            return Poll::Ready(None);
        }
        let mut inner = self.endpoint.shared().lock();
        if let Some(stream) = inner.state.streams.get_mut(&self.stream_id()) {
            if stream.of_call.opened {
                return Poll::Ready(None);
            }
            let replaced = replace_waker(&mut stream.writer, context.waker());
            drop(inner);
            drop(replaced);
        } else {
            drop(inner);
        }
        self.poll_result(context).map(Some)
    }

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

    /// The result, and the fate of the call; the task is woken when there is one.
    fn poll_result(&mut self, context: &mut Context<'_>) -> Poll<Ended> {
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
        self.over = true;
        let fate = found.as_ref().map(|it| it.fate).unwrap_or_default();
        self.fate = fate;
        self.note(fate);
        let result = found.and_then(|it| it.result);
        let over = || Err(Status::new(Code::Cancelled, "the call is over"));
        Poll::Ready((fate, result.unwrap_or_else(over)))
    }

    /// The result, and the fate of the call.
    fn finish(mut self) -> Ended {
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
        self.over = found.is_some();
        let found = found.flatten();
        let fate = found.as_ref().map(|it| it.fate).unwrap_or_default();
        match found.and_then(|pending| pending.result) {
            Some(result) => {
                self.note(fate);
                (fate, result)
            }
            None => {
                let text = "no reply in time: the call may have been executed";
                let status = Status::new(Code::DeadlineExceeded, text);
                (Fate::Replied, Err(status))
            }
        }
    }

    /// Takes its fate for the choice of instances for later calls.
    fn note(&self, fate: Fate) {
        match fate {
            Fate::Replied => self.slot.reached(),
            Fate::Refused => {}
            Fate::Unsent | Fate::Lost => self.slot.failed(self.endpoint.shared().clock().now),
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
        if self.over {
            return;
        }
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

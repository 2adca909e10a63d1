//! Services of an endpoint: handlers of calls, and inboxes of messages.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::peer::Out;
use super::stream::{StreamId, StreamReceiver, StreamSender, Streaming};
use crate::engine::urgency::{Queue, Urgency};
use crate::error::Error;
use crate::memory::{Block, Pool};
use crate::names::{MethodId, ServiceId, ServiceName};
use crate::payload::Payload;
use crate::security::keys::PublicKey;
use crate::status::Status;
use crate::system::replace_waker;

/// Executes calls.
#[derive(Clone)]
pub(crate) enum Handler {
    /// It holds its thread until it has the result.
    Blocking(Arc<dyn Fn(Request) -> Result<Payload, Status> + Send + Sync>),
    /// It returns at once, and replies then or later.
    Deferred(Arc<dyn Fn(Request, Reply) + Send + Sync>),
}

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
    /// Key of the caller, which it proved when it connected. `None` without a handshake.
    pub client: Option<PublicKey>,
    /// Urgency that the caller has chosen.
    pub urgency: Urgency,
    pub(crate) deadline: Option<Instant>,
    pub(crate) cancelled: Arc<Cancellation>,
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
        self.cancelled.flag.load(Ordering::Acquire)
    }
}

/// Whether a call is cancelled, and the task that waits for it.
#[derive(Debug, Default)]
pub(crate) struct Cancellation {
    flag: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Cancellation {
    /// Sets it; returns the task that is to be woken.
    pub(crate) fn set(&self) -> Option<Waker> {
        let mut waker = self.waker.lock();
        self.flag.store(true, Ordering::Release);
        waker.take()
    }
}

/// Executor of a call, as its [`Reply`] has it.
pub(crate) trait Executor: Streaming {
    /// Takes the result of a call whose handler replies later.
    fn reply(&self, caller: u64, number: u64, result: Result<Payload, Status>);
    /// Memory of the endpoint.
    fn pool(&self) -> Arc<Pool>;
}

/// A reply as it is kept.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// The call was not executed.
    pub(crate) refused: bool,
    pub(crate) payload: Arc<Payload>,
}

impl Answer {
    /// The reply, to a CALL of this cost.
    pub(crate) fn reply(&self, number: u64, consumes: u64) -> Out {
        Out::Reply {
            number,
            status: self.status,
            refused: self.refused,
            payload: Arc::clone(&self.payload),
            consumes,
        }
    }
}

/// Way of the one reply to a call. A call whose `Reply` is dropped unsent ends with `INTERNAL`.
#[derive(Debug)]
pub struct Reply {
    pub(crate) executor: Arc<dyn Executor>,
    pub(crate) caller: u64,
    pub(crate) number: u64,
    pub(crate) cancelled: Arc<Cancellation>,
    pub(crate) sent: bool,
    /// Ends of the call's streams that were not taken.
    pub(crate) streams: (bool, bool),
}

impl Reply {
    /// Ends the call with this result.
    pub fn send(mut self, result: Result<Payload, Status>) {
        self.finish(result);
    }

    /// Sending end of the stream to the caller, once; `None` where the caller takes none. Its octets come before the reply.
    pub fn sender(&mut self) -> Option<StreamSender> {
        let is_there = std::mem::take(&mut self.streams.0);
        is_there.then(|| StreamSender {
            executor: Arc::clone(&self.executor) as Arc<dyn Streaming>,
            id: self.stream_id(),
        })
    }

    /// Receiving end of the stream of the caller, once; `None` where there is none.
    pub fn receiver(&mut self) -> Option<StreamReceiver> {
        let is_there = std::mem::take(&mut self.streams.1);
        is_there.then(|| StreamReceiver {
            executor: Arc::clone(&self.executor) as Arc<dyn Streaming>,
            id: self.stream_id(),
            ended: false,
        })
    }

    fn stream_id(&self) -> StreamId {
        let (caller, number) = (self.caller, self.number);
        StreamId { caller, number }
    }

    /// Makes blocks of the endpoint's memory, as [`Endpoint::block`](crate::Endpoint::block): also behind the reply, and without keeping the endpoint open.
    pub fn allocator(&self) -> impl Fn(usize) -> Result<Block, Error> + Send + Sync + use<> {
        let pool = self.executor.pool();
        move |length| {
            pool.block(length)
                .map_err(Error::system("no memory for a block"))
        }
    }

    /// Ready once the caller has cancelled the call, or its time is over by the caller's clock. The task of the latest poll is woken.
    pub fn poll_cancelled(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let mut waker = self.cancelled.waker.lock();
        if self.cancelled.flag.load(Ordering::Acquire) {
            return Poll::Ready(());
        }
        let replaced = replace_waker(&mut waker, context.waker());
        drop(waker);
        // With it another task may end, and replies that it owns.
        drop(replaced);
        Poll::Pending
    }

    fn finish(&mut self, result: Result<Payload, Status>) {
        self.sent = true;
        self.executor.reply(self.caller, self.number, result);
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.sent {
            let text = "the handler ended without a reply";
            self.finish(Err(Status::new(crate::status::Code::Internal, text)));
        }
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

/// Calls that wait for a thread.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    /// Calls whose handlers hold their thread.
    blocking: Queue<Job>,
    /// Calls whose handlers return at once.
    deferred: Queue<Job>,
    /// Some were added since this was taken.
    added: bool,
}

impl Jobs {
    pub(crate) fn len(&self) -> usize {
        self.blocking.len() + self.deferred.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    pub(crate) fn has_blocking(&self) -> bool {
        !self.blocking.is_empty()
    }

    pub(crate) fn add(&mut self, job: Job) {
        self.added = true;
        match job.service.handler {
            Handler::Blocking(_) => self.blocking.push(job.request.urgency, job),
            Handler::Deferred(_) => self.deferred.push(job.request.urgency, job),
        }
    }

    pub(crate) fn take_added(&mut self) -> bool {
        std::mem::take(&mut self.added)
    }

    pub(crate) fn next_deferred(&mut self) -> Option<Job> {
        self.deferred.pop()
    }

    pub(crate) fn next_blocking(&mut self) -> Option<Job> {
        self.blocking.pop()
    }

    /// Calls of an urgency.
    pub(crate) fn count(&self, urgency: Urgency) -> usize {
        self.blocking.count(urgency) + self.deferred.count(urgency)
    }

    /// Takes a call out. Returns whether it was there.
    pub(crate) fn remove(&mut self, caller: u64, number: u64) -> bool {
        let is = |job: &Job| job.caller == caller && job.number == number;
        [&mut self.blocking, &mut self.deferred]
            .into_iter()
            .any(|jobs| !jobs.remove(is).is_empty())
    }

    /// Takes out the newest call of an urgency, of those whose handlers hold a thread where there is one.
    pub(crate) fn remove_newest(&mut self, urgency: Urgency) -> Option<Job> {
        let blocking = self.blocking.pop_newest(urgency);
        blocking.or_else(|| self.deferred.pop_newest(urgency))
    }
}

/// Way of the reply to a call that is executed.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) connection: u64,
    /// Cost of the CALL on that connection.
    pub(crate) cost: u64,
    pub(crate) service: ServiceId,
    pub(crate) method: MethodId,
    pub(crate) urgency: Urgency,
    /// Time by the endpoint's clock.
    pub(crate) deadline: Option<Duration>,
    pub(crate) cancelled: Arc<Cancellation>,
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
    pub(crate) messages: Queue<(u64, u64, Incoming)>,
}

//! Asynchronous events: `ibv_get_async_event(3)`. The stack queues them under its own numbers; here they get the
//! program's pointers. The descriptor that programs poll, and whose `O_NONBLOCK` they may set, is the stack's.

use crate::abi::{
    DGIWARPDV_EVENT_ERROR_QUEUE, DGIWARPDV_EVENT_RECORD_RING_FULL, ibv_async_element,
    ibv_async_event, ibv_context, ibv_cq, ibv_qp, ibv_srq,
};
use crate::cq::queue::queue;
use crate::device::context;
use crate::ffi::acks::Acks;
use crate::ffi::fork;
use crate::ffi::{Attempt, CPointer, entry, is_nonblocking, store, waiting};
use crate::qp::queue_pair;
use crate::qp::srq;
use dgiwarp::{AsyncEvent, AsyncEvents, Rnic};
use nix::errno::Errno;
use std::any::Any;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// What an event is about, by the stack's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    Cq(u64),
    Qp(u32),
    Srq(u64),
}

/// `enum ibv_event_type`, as far as it happens here, and what `dgiwarpdv.h` adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    CqError,
    QpFatal,
    QpRequestError,
    QpAccessError,
    DeviceFatal,
    SrqLimitReached,
    LastWqeReached,
    ErrorQueue,
    RecordRingFull,
}

impl Kind {
    const ALL: [Self; 9] = [
        Self::CqError,
        Self::QpFatal,
        Self::QpRequestError,
        Self::QpAccessError,
        Self::DeviceFatal,
        Self::SrqLimitReached,
        Self::LastWqeReached,
        Self::ErrorQueue,
        Self::RecordRingFull,
    ];

    fn code(self) -> c_uint {
        match self {
            Self::CqError => 0,
            Self::QpFatal => 1,
            Self::QpRequestError => 2,
            Self::QpAccessError => 3,
            Self::DeviceFatal => 8,
            Self::SrqLimitReached => 15,
            Self::LastWqeReached => 16,
            Self::ErrorQueue => DGIWARPDV_EVENT_ERROR_QUEUE,
            Self::RecordRingFull => DGIWARPDV_EVENT_RECORD_RING_FULL,
        }
    }
}

/// What an event of the stack is to programs; `None` for what the verbs have no name for.
fn translated(event: AsyncEvent) -> Option<(Kind, Option<Subject>)> {
    match event {
        AsyncEvent::CqOverrun { cq } => Some((Kind::CqError, Some(Subject::Cq(cq)))),
        AsyncEvent::SrqLimit { srq } => Some((Kind::SrqLimitReached, Some(Subject::Srq(srq)))),
        AsyncEvent::QpFatal { qpn } => Some((Kind::QpFatal, Some(Subject::Qp(qpn)))),
        AsyncEvent::QpRequestError { qpn } => Some((Kind::QpRequestError, Some(Subject::Qp(qpn)))),
        AsyncEvent::QpAccessError { qpn } => Some((Kind::QpAccessError, Some(Subject::Qp(qpn)))),
        AsyncEvent::LastWqeReached { qpn } => Some((Kind::LastWqeReached, Some(Subject::Qp(qpn)))),
        AsyncEvent::ErrorQueue { qpn } => Some((Kind::ErrorQueue, Some(Subject::Qp(qpn)))),
        AsyncEvent::RecordRingFull { qpn } => Some((Kind::RecordRingFull, Some(Subject::Qp(qpn)))),
        AsyncEvent::DeviceFatal => Some((Kind::DeviceFatal, None)),
        _ => None,
    }
}

/// An object that events may be about.
#[derive(Debug)]
struct Listed {
    pointer: CPointer<c_void>,
    acks: Arc<Acks>,
}

/// The events of one context, and the objects that they may be about.
#[derive(Debug)]
pub(crate) struct AsyncQueue {
    events: AsyncEvents,
    objects: Mutex<BTreeMap<Subject, Listed>>,
}

/// The queues of all open contexts, for events that concern the process.
static QUEUES: Mutex<Vec<Weak<AsyncQueue>>> = Mutex::new(Vec::new());

/// Keeps others away while the process forks.
pub(crate) fn hold() -> Option<Box<dyn Any>> {
    fork::held(&QUEUES)
}

/// In a child that forked off: what is here is the parent's.
pub(crate) fn forget() {
    fork::forget(&QUEUES);
}

/// Tells every open context that a panic was caught.
pub(crate) fn announce_fatal() {
    let queues = QUEUES.lock().unwrap_or_else(PoisonError::into_inner);
    for queue in queues.iter().filter_map(Weak::upgrade) {
        queue.report(AsyncEvent::DeviceFatal);
    }
}

impl AsyncQueue {
    /// The queue of a device.
    pub(crate) fn open(rnic: &Rnic) -> Arc<Self> {
        let events = rnic.async_events();
        events.keep_to_the_verbs();
        let queue = Arc::new(Self {
            events,
            objects: Mutex::default(),
        });
        let mut queues = QUEUES.lock().unwrap_or_else(PoisonError::into_inner);
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(Arc::downgrade(&queue));
        queue
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.events.as_raw_fd()
    }

    /// From now on there are the events of `dgiwarpdv.h` too.
    pub(crate) fn tell_all(&self) {
        self.events.tell_all();
    }

    /// Queues an event, unless it waits already.
    pub(crate) fn report(&self, event: AsyncEvent) {
        self.events.report(event);
    }

    fn objects(&self) -> MutexGuard<'_, BTreeMap<Subject, Listed>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the oldest event, if there is one. Those about objects count as fetched from then on.
    fn next(&self) -> Option<(Kind, Option<CPointer<c_void>>)> {
        loop {
            // Under the lock, so that destroying an object either takes it off the list or waits for the acknowledgement.
            let objects = self.objects();
            match translated(self.events.next_event(false)?) {
                Some((kind, None)) => return Some((kind, None)),
                Some((kind, Some(subject))) => {
                    if let Some(listed) = objects.get(&subject) {
                        listed.acks.fetched();
                        return Some((kind, Some(listed.pointer)));
                    }
                }
                None => {}
            }
        }
    }
}

/// An object's place among those that events may be about.
#[derive(Debug)]
pub(crate) struct Listing {
    queue: Arc<AsyncQueue>,
    subject: Subject,
    acks: Arc<Acks>,
}

impl Listing {
    pub(crate) fn new(queue: &Arc<AsyncQueue>, subject: Subject) -> Self {
        Self {
            queue: Arc::clone(queue),
            subject,
            acks: Arc::default(),
        }
    }

    /// From now on the program can be told of the object by this pointer.
    pub(crate) fn enter<T>(&self, pointer: *mut T) {
        let listed = Listed {
            pointer: CPointer(pointer.cast()),
            acks: Arc::clone(&self.acks),
        };
        self.queue.objects().insert(self.subject, listed);
    }

    /// The object goes: waits until the program has acknowledged what it was told of it.
    pub(crate) fn leave(&self) {
        self.queue.objects().remove(&self.subject);
        self.acks.wait();
    }

    /// Queues an event.
    pub(crate) fn report(&self, event: AsyncEvent) {
        self.queue.report(event);
    }
}

pub(crate) unsafe extern "C-unwind" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    waiting(|| {
        // SAFETY: the program passes an open context.
        let queue = &unsafe { context::state(context) }?.async_events;
        let Some((kind, subject)) = queue.next() else {
            if is_nonblocking(&queue.events)? {
                return Err(Errno::EAGAIN);
            }
            return Ok(Attempt::Wait(queue.descriptor()));
        };
        let found = ibv_async_event {
            element: match subject {
                Some(pointer) => ibv_async_element { wq: pointer.0 },
                None => ibv_async_element { port_num: 1 },
            },
            event_type: kind.code(),
        };
        // SAFETY: the program passes room for the event.
        unsafe { store(event, found) }.map(|()| Attempt::Done)
    })
}

pub(crate) unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    entry((), || {
        // SAFETY: the program passes an event that it fetched, whose object is alive until this acknowledges it.
        let _ = unsafe { acknowledge(event) };
    });
}

/// # Safety
/// `event` is NULL or an event that the program fetched and did not acknowledge before.
unsafe fn acknowledge(event: *mut ibv_async_event) -> Result<(), Errno> {
    // SAFETY: the caller's contract.
    let event = unsafe { event.as_ref() }.ok_or(Errno::EINVAL)?;
    let kind = Kind::ALL
        .into_iter()
        .find(|kind| kind.code() == event.event_type);
    // SAFETY: all members are pointers or smaller, and events about objects fill a pointer.
    let pointer = unsafe { event.element.wq };
    match kind {
        None | Some(Kind::DeviceFatal) => {}
        Some(Kind::CqError) => {
            // SAFETY: an event about a completion queue, which is alive.
            let cq = unsafe { queue(pointer.cast::<ibv_cq>()) }?;
            cq.listing.acks.acknowledged(1);
        }
        Some(Kind::SrqLimitReached) => {
            // SAFETY: an event about a shared receive queue, which is alive.
            if let Some(srq) = unsafe { srq::shared(pointer.cast::<ibv_srq>()) }? {
                srq.listing.acks.acknowledged(1);
            }
        }
        Some(
            Kind::QpFatal
            | Kind::QpRequestError
            | Kind::QpAccessError
            | Kind::LastWqeReached
            | Kind::ErrorQueue
            | Kind::RecordRingFull,
        ) => {
            // SAFETY: an event about a queue pair, which is alive.
            let qp = unsafe { queue_pair::state(pointer.cast::<ibv_qp>()) }?;
            qp.listing.acks.acknowledged(1);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use dgiwarp::Config;

    fn open() -> (Rnic, Arc<AsyncQueue>) {
        let rnic = Rnic::open(Config::default()).unwrap();
        let queue = AsyncQueue::open(&rnic);
        (rnic, queue)
    }

    #[test]
    fn open_contexts_hear_of_a_fatal_error() {
        let (_rnic, queue) = open();
        announce_fatal();
        assert!(matches!(queue.next(), Some((Kind::DeviceFatal, None))));
    }

    /// The next event about an object. Other tests may announce the end of the process meanwhile.
    fn next(queue: &AsyncQueue) -> Option<(Kind, CPointer<c_void>)> {
        loop {
            if let (kind, Some(pointer)) = queue.next()? {
                return Some((kind, pointer));
            }
        }
    }

    #[test]
    fn events_of_objects_that_are_not_there_are_nobodys() {
        let (_rnic, queue) = open();
        let mut object = 5_u8;
        let listing = Listing::new(&queue, Subject::Qp(7));
        queue.report(AsyncEvent::QpFatal { qpn: 7 });
        assert!(next(&queue).is_none());
        listing.enter(&raw mut object);
        queue.report(AsyncEvent::QpFatal { qpn: 7 });
        queue.report(AsyncEvent::QpFatal { qpn: 8 });
        let (kind, pointer) = next(&queue).unwrap();
        assert_eq!(kind, Kind::QpFatal);
        assert_eq!(pointer.0, (&raw mut object).cast());
        assert!(next(&queue).is_none());
        std::thread::scope(|scope| {
            let leaving = scope.spawn(|| listing.leave());
            assert!(!leaving.is_finished());
            listing.acks.acknowledged(1);
        });
        queue.report(AsyncEvent::QpFatal { qpn: 7 });
        assert!(next(&queue).is_none());
    }
}

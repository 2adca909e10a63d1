//! Queue of asynchronous events. The stack queues them by number; here each gets the program's pointer to its object. Programs
//! poll the stack's descriptor, and may set its `O_NONBLOCK`.

use crate::abi::{DGIWARPDV_EVENT_ERROR_QUEUE, DGIWARPDV_EVENT_RECORD_RING_FULL};
use crate::ffi::fork::ProcessTable;
use crate::ffi::unacked::Unacked;
use crate::ffi::{CPointer, on_fatal};
use dgiwarp::{AsyncEvent, AsyncEvents, Rnic};
use std::collections::BTreeMap;
use std::ffi::{c_uint, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Object that an event is about, by the stack's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    Cq(u64),
    Qp(u32),
    Srq(u64),
}

/// `enum ibv_event_type` and the additions of `dgiwarpdv.h`, as far as the device raises them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    CqError,
    QpFatal,
    QpRequestError,
    QpAccessError,
    CommunicationEstablished,
    SqDrained,
    DeviceFatal,
    PortActive,
    PortError,
    LidChange,
    SrqLimitReached,
    LastWqeReached,
    GidChange,
    ErrorQueue,
    RecordRingFull,
}

impl Kind {
    pub(crate) const ALL: [Self; 15] = [
        Self::CqError,
        Self::QpFatal,
        Self::QpRequestError,
        Self::QpAccessError,
        Self::CommunicationEstablished,
        Self::SqDrained,
        Self::DeviceFatal,
        Self::PortActive,
        Self::PortError,
        Self::LidChange,
        Self::SrqLimitReached,
        Self::LastWqeReached,
        Self::GidChange,
        Self::ErrorQueue,
        Self::RecordRingFull,
    ];

    pub(crate) fn code(self) -> c_uint {
        match self {
            Self::CqError => 0,
            Self::QpFatal => 1,
            Self::QpRequestError => 2,
            Self::QpAccessError => 3,
            Self::CommunicationEstablished => 4,
            Self::SqDrained => 5,
            Self::DeviceFatal => 8,
            Self::PortActive => 9,
            Self::PortError => 10,
            Self::LidChange => 11,
            Self::SrqLimitReached => 15,
            Self::LastWqeReached => 16,
            Self::GidChange => 18,
            Self::ErrorQueue => DGIWARPDV_EVENT_ERROR_QUEUE,
            Self::RecordRingFull => DGIWARPDV_EVENT_RECORD_RING_FULL,
        }
    }
}

/// Type and object of an event of the stack; `None` for events without a name in verbs.
fn translated(event: AsyncEvent) -> Option<(Kind, Option<Subject>)> {
    match event {
        AsyncEvent::CqOverrun { cq } => Some((Kind::CqError, Some(Subject::Cq(cq)))),
        AsyncEvent::SrqLimit { srq } => Some((Kind::SrqLimitReached, Some(Subject::Srq(srq)))),
        AsyncEvent::QpFatal { qpn } => Some((Kind::QpFatal, Some(Subject::Qp(qpn)))),
        AsyncEvent::QpRequestError { qpn } => Some((Kind::QpRequestError, Some(Subject::Qp(qpn)))),
        AsyncEvent::QpAccessError { qpn } => Some((Kind::QpAccessError, Some(Subject::Qp(qpn)))),
        AsyncEvent::CommunicationEstablished { qpn } => {
            Some((Kind::CommunicationEstablished, Some(Subject::Qp(qpn))))
        }
        AsyncEvent::SqDrained { qpn } => Some((Kind::SqDrained, Some(Subject::Qp(qpn)))),
        AsyncEvent::LastWqeReached { qpn } => Some((Kind::LastWqeReached, Some(Subject::Qp(qpn)))),
        AsyncEvent::ErrorQueue { qpn } => Some((Kind::ErrorQueue, Some(Subject::Qp(qpn)))),
        AsyncEvent::RecordRingFull { qpn } => Some((Kind::RecordRingFull, Some(Subject::Qp(qpn)))),
        AsyncEvent::DeviceFatal => Some((Kind::DeviceFatal, None)),
        AsyncEvent::PortActive => Some((Kind::PortActive, None)),
        AsyncEvent::PortError => Some((Kind::PortError, None)),
        AsyncEvent::LidChange => Some((Kind::LidChange, None)),
        AsyncEvent::GidChange => Some((Kind::GidChange, None)),
        _ => None,
    }
}

/// The program's pointer to an object, and its fetched events.
#[derive(Debug)]
struct Listed {
    pointer: CPointer<c_void>,
    unacked: Arc<Unacked>,
}

/// Asynchronous events of one context.
#[derive(Debug)]
pub(crate) struct AsyncQueue {
    pub(crate) events: AsyncEvents,
    objects: Mutex<BTreeMap<Subject, Listed>>,
}

/// Queues of all open contexts, for events that concern the process.
static QUEUES: ProcessTable<Vec<Weak<AsyncQueue>>> = ProcessTable::new(Vec::new());

/// Raises a fatal event in every open context. Returns their number.
pub(crate) fn raise_fatal() -> usize {
    let queues = QUEUES.lock();
    let open = queues.iter().filter_map(Weak::upgrade);
    open.inspect(|queue| queue.raise(AsyncEvent::DeviceFatal))
        .count()
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
        let mut queues = QUEUES.lock();
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(Arc::downgrade(&queue));
        drop(queues);
        on_fatal(|| {
            raise_fatal();
        });
        queue
    }

    /// Raises the events of `dgiwarpdv.h` from now on.
    pub(crate) fn enable_all(&self) {
        self.events.tell_all();
    }

    /// Queues an event, unless an equal one is queued.
    pub(crate) fn raise(&self, event: AsyncEvent) {
        self.events.report(event);
    }

    fn objects(&self) -> MutexGuard<'_, BTreeMap<Subject, Listed>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the oldest event. An event about an object counts as fetched from then on.
    pub(crate) fn next(&self) -> Option<(Kind, Option<CPointer<c_void>>)> {
        loop {
            // Under the lock: an object that is destroyed either leaves the list before, or waits for the acknowledgement.
            let objects = self.objects();
            match translated(self.events.next_event(false)?) {
                Some((kind, None)) => return Some((kind, None)),
                Some((kind, Some(subject))) => {
                    if let Some(listed) = objects.get(&subject) {
                        listed.unacked.fetched();
                        return Some((kind, Some(listed.pointer)));
                    }
                }
                None => {}
            }
        }
    }
}

/// Source of asynchronous events about one object.
#[derive(Debug)]
pub(crate) struct EventSource {
    queue: Arc<AsyncQueue>,
    subject: Subject,
    unacked: Arc<Unacked>,
}

impl EventSource {
    pub(crate) fn new(queue: &Arc<AsyncQueue>, subject: Subject) -> Self {
        Self {
            queue: Arc::clone(queue),
            subject,
            unacked: Arc::default(),
        }
    }

    /// Lists the object: its events carry this pointer.
    pub(crate) fn enter<T>(&self, pointer: *mut T) {
        let listed = Listed {
            pointer: CPointer(pointer.cast()),
            unacked: Arc::clone(&self.unacked),
        };
        self.queue.objects().insert(self.subject, listed);
    }

    /// Removes the object and waits until the program has acknowledged its events.
    pub(crate) fn leave(&self) {
        self.queue.objects().remove(&self.subject);
        self.unacked.wait();
    }

    /// Raises an event about the object.
    pub(crate) fn raise(&self, event: AsyncEvent) {
        self.queue.raise(event);
    }

    /// Counts the acknowledgement of one event.
    pub(crate) fn acknowledged(&self) {
        self.unacked.acknowledged(1);
    }
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
    fn a_fatal_error_is_raised_in_every_open_context() {
        let (_rnic, queue) = open();
        raise_fatal();
        assert!(matches!(queue.next(), Some((Kind::DeviceFatal, None))));
    }

    /// The next event about an object. Other tests may raise fatal events meanwhile.
    fn next(queue: &AsyncQueue) -> Option<(Kind, CPointer<c_void>)> {
        loop {
            if let (kind, Some(pointer)) = queue.next()? {
                return Some((kind, pointer));
            }
        }
    }

    #[test]
    fn events_of_objects_that_are_not_listed_are_dropped() {
        let (_rnic, queue) = open();
        let mut object = 5_u8;
        let source = EventSource::new(&queue, Subject::Qp(7));
        queue.raise(AsyncEvent::QpFatal { qpn: 7 });
        assert!(next(&queue).is_none());
        source.enter(&raw mut object);
        queue.raise(AsyncEvent::QpFatal { qpn: 7 });
        queue.raise(AsyncEvent::QpFatal { qpn: 8 });
        let (kind, pointer) = next(&queue).unwrap();
        assert_eq!(kind, Kind::QpFatal);
        assert_eq!(pointer.0, (&raw mut object).cast());
        assert!(next(&queue).is_none());
        std::thread::scope(|scope| {
            let leaving = scope.spawn(|| source.leave());
            assert!(!leaving.is_finished());
            source.acknowledged();
        });
        queue.raise(AsyncEvent::QpFatal { qpn: 7 });
        assert!(next(&queue).is_none());
    }
}

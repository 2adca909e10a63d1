//! Asynchronous events: a queue whose descriptor programs may poll, and whose `O_NONBLOCK` they may set.

use crate::abi::{ibv_async_element, ibv_async_event, ibv_context};
use crate::context;
use crate::ffi::{entry, minus_one, store};
use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::VecDeque;
use std::ffi::{c_int, c_uint};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// An event about the device or its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The library caught a panic.
    DeviceFatal,
}

impl Event {
    /// `enum ibv_event_type`.
    fn event_type(self) -> c_uint {
        match self {
            Self::DeviceFatal => 8,
        }
    }
}

/// The events of one context that the program has not fetched yet.
///
/// The descriptor counts them as a semaphore, so its readability is exactly "the queue is not empty", and a blocking
/// read of it is exactly "wait for an event".
#[derive(Debug)]
pub(crate) struct AsyncQueue {
    counter: EventFd,
    events: Mutex<VecDeque<Event>>,
}

/// The queues of all open contexts, for events that concern the device.
static QUEUES: Mutex<Vec<Weak<AsyncQueue>>> = Mutex::new(Vec::new());

/// Tells every open context that a panic was caught.
pub(crate) fn announce_fatal() {
    let queues = QUEUES.lock().unwrap_or_else(PoisonError::into_inner);
    for queue in queues.iter().filter_map(Weak::upgrade) {
        queue.push(Event::DeviceFatal);
    }
}

impl AsyncQueue {
    /// An empty queue that hears of device events.
    pub(crate) fn open() -> Result<Arc<Self>, Errno> {
        let queue = Arc::new(Self::new()?);
        let mut queues = QUEUES.lock().unwrap_or_else(PoisonError::into_inner);
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(Arc::downgrade(&queue));
        Ok(queue)
    }

    fn new() -> Result<Self, Errno> {
        let counter = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_SEMAPHORE)?;
        Ok(Self {
            counter,
            events: Mutex::default(),
        })
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.counter.as_fd().as_raw_fd()
    }

    /// Queues an event and wakes whoever waits.
    fn push(&self, event: Event) {
        self.events
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push_back(event);
        // The counter would have to hold 2^64 - 1 events before this could block or fail.
        let _ = self.counter.write(1);
    }

    /// Takes the oldest event; waits for one unless the program made the descriptor non-blocking.
    fn next(&self) -> Result<Event, Errno> {
        self.counter.read()?;
        self.events
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop_front()
            .ok_or(Errno::EAGAIN)
    }
}

pub(crate) unsafe extern "C" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    minus_one(|| {
        // SAFETY: the program passes an open context.
        let context = unsafe { context::state(context) }?;
        let next = context.async_events.next()?;
        let element = ibv_async_element { port_num: 1 };
        // SAFETY: the program passes room for the event.
        unsafe {
            store(
                event,
                ibv_async_event {
                    element,
                    event_type: next.event_type(),
                },
            )
        }
        .map(|()| 0)
    })
}

/// Only events about objects need their acknowledgement counted, and there are none of these yet.
pub(crate) extern "C" fn ibv_ack_async_event(_event: *mut ibv_async_event) {
    entry((), || ());
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    #[test]
    fn the_descriptor_is_readable_exactly_while_events_wait() {
        let queue = AsyncQueue::new().unwrap();
        let readable = || {
            let mut fds = [PollFd::new(queue.counter.as_fd(), PollFlags::POLLIN)];
            poll(&mut fds, PollTimeout::ZERO).unwrap() == 1
        };
        assert!(!readable());
        queue.push(Event::DeviceFatal);
        queue.push(Event::DeviceFatal);
        assert_eq!(queue.next(), Ok(Event::DeviceFatal));
        assert!(readable());
        assert_eq!(queue.next(), Ok(Event::DeviceFatal));
        assert!(!readable());
    }

    #[test]
    fn open_contexts_hear_of_a_fatal_error() {
        let queue = AsyncQueue::open().unwrap();
        announce_fatal();
        assert_eq!(queue.next(), Ok(Event::DeviceFatal));
    }

    #[test]
    fn a_non_blocking_descriptor_answers_eagain() {
        let queue = AsyncQueue::new().unwrap();
        fcntl(queue.counter.as_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        assert_eq!(queue.next(), Err(Errno::EAGAIN));
    }
}

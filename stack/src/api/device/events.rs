//! Asynchronous events: reports about objects instead of work requests.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::Mutex;
use rustc_hash::FxHashSet;

use crate::driver::reactor::event_queue::EventQueue;
use crate::{AsyncEvent, Error};

/// The events of a device that nobody took yet. An event that waits already is not added again, so there are at most a few for each object.
#[derive(Debug)]
pub(crate) struct Events {
    queue: EventQueue<AsyncEvent>,
    /// The elements of `queue`, under its lock.
    known: Mutex<FxHashSet<AsyncEvent>>,
    /// Live QPs whose [`AsyncEvent::LastWqeReached`] was raised since they were made or reset.
    ended: Mutex<FxHashSet<u32>>,
    /// Nobody asks for the events of error queues and records.
    plain: AtomicBool,
}

impl Events {
    pub(crate) fn new() -> Result<Arc<Self>, Error> {
        Ok(Arc::new(Self {
            queue: EventQueue::new()?,
            known: Mutex::default(),
            ended: Mutex::default(),
            plain: AtomicBool::new(false),
        }))
    }

    /// Adds an event, unless it waits already; a state that waits goes to the end, so that the last one is the present one. A QP reaches its last receive once: its own end and its peer's may come together.
    pub(crate) fn raise(&self, event: AsyncEvent) {
        let special = matches!(
            event,
            AsyncEvent::ErrorQueue { .. } | AsyncEvent::RecordRingFull { .. }
        );
        if special && self.plain.load(Ordering::Relaxed) {
            return;
        }
        if let AsyncEvent::LastWqeReached { qpn } = event
            && !self.ended.lock().insert(qpn)
        {
            return;
        }
        self.queue.update(|queue| {
            if self.known.lock().insert(event) {
                queue.push_back(event);
            } else if event.is_state() {
                queue.retain(|waiting| *waiting != event);
                queue.push_back(event);
            }
        });
    }

    /// A QP with this number was made, reset or destroyed.
    pub(crate) fn begin_qp(&self, qpn: u32) {
        self.ended.lock().remove(&qpn);
    }

    /// Removes the events of an object that is gone; its number may be given to another.
    pub(crate) fn forget(&self, gone: impl Fn(AsyncEvent) -> bool) {
        self.queue.update(|queue| {
            queue.retain(|event| !gone(*event));
            self.known.lock().retain(|event| !gone(*event));
        });
    }

    fn take(&self) -> Option<AsyncEvent> {
        self.queue.update(|queue| {
            let event = queue.pop_front()?;
            self.known.lock().remove(&event);
            Some(event)
        })
    }
}

/// Hands out the asynchronous events of a device, each to one taker. Cloning shares it.
#[derive(Debug, Clone)]
pub struct AsyncEvents {
    events: Arc<Events>,
}

impl AsyncEvents {
    pub(crate) fn new(events: Arc<Events>) -> Self {
        Self { events }
    }

    /// Adds an event from outside of the device, unless it waits already.
    pub fn report(&self, event: AsyncEvent) {
        self.events.raise(event);
    }

    /// Drops events that verbs have no name for: [`AsyncEvent::ErrorQueue`] and [`AsyncEvent::RecordRingFull`].
    pub fn keep_to_the_verbs(&self) {
        self.events.plain.store(true, Ordering::Relaxed);
    }

    /// Ends that: from now on they come too.
    pub fn tell_all(&self) {
        self.events.plain.store(false, Ordering::Relaxed);
    }

    /// The next event. With `block` it waits for one; else `None` means that there is none now.
    #[must_use]
    pub fn next_event(&self, block: bool) -> Option<AsyncEvent> {
        loop {
            let event = self.events.take();
            if event.is_some() || !block {
                return event;
            }
            let mut fds = [PollFd::new(self.as_fd(), PollFlags::POLLIN)];
            let _ = poll(&mut fds, PollTimeout::NONE);
        }
    }
}

/// Readable while there is an event.
impl AsFd for AsyncEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.queue.as_fd()
    }
}

/// The number of that descriptor.
impl AsRawFd for AsyncEvents {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_readable(events: &AsyncEvents) -> bool {
        let mut fds = [PollFd::new(events.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).unwrap() > 0
    }

    #[test]
    fn events_come_once_in_order_and_make_the_descriptor_readable() {
        let raised = Events::new().unwrap();
        let events = AsyncEvents::new(Arc::clone(&raised));
        assert!(!is_readable(&events));
        let (a, b) = (
            AsyncEvent::ErrorQueue { qpn: 1 },
            AsyncEvent::RecordRingFull { qpn: 1 },
        );
        raised.raise(a);
        raised.raise(b);
        raised.raise(a);
        assert!(is_readable(&events));
        assert_eq!(events.next_event(false), Some(a));
        assert!(is_readable(&events));
        assert_eq!(events.next_event(true), Some(b));
        assert!(!is_readable(&events));
        assert_eq!(events.next_event(false), None);
        raised.raise(a);
        assert_eq!(events.next_event(false), Some(a));
    }

    #[test]
    fn the_last_state_of_the_port_is_the_present_one() {
        let raised = Events::new().unwrap();
        let events = AsyncEvents::new(Arc::clone(&raised));
        let (active, error) = (AsyncEvent::PortActive, AsyncEvent::PortError);
        for event in [error, active, AsyncEvent::GidChange, error] {
            raised.raise(event);
        }
        let left = std::iter::from_fn(|| events.next_event(false));
        assert_eq!(
            left.collect::<Vec<_>>(),
            [active, AsyncEvent::GidChange, error]
        );
        assert!(!is_readable(&events));
    }

    #[test]
    fn a_queue_pair_reaches_its_last_receive_once_in_its_life() {
        let raised = Events::new().unwrap();
        let events = AsyncEvents::new(Arc::clone(&raised));
        let last = |qpn| AsyncEvent::LastWqeReached { qpn };
        for life in 0..2 {
            raised.raise(last(1));
            raised.raise(last(2));
            assert_eq!(events.next_event(false), Some(last(1)));
            events.report(last(1));
            let other = (life == 0).then_some(last(2));
            assert_eq!(events.next_event(false), other);
            assert_eq!(events.next_event(false), None);
            raised.begin_qp(1);
        }
    }

    #[test]
    fn what_is_gone_leaves_no_event() {
        let raised = Events::new().unwrap();
        let events = AsyncEvents::new(Arc::clone(&raised));
        raised.raise(AsyncEvent::ErrorQueue { qpn: 1 });
        raised.raise(AsyncEvent::ErrorQueue { qpn: 2 });
        raised.forget(|event| event == AsyncEvent::ErrorQueue { qpn: 1 });
        assert_eq!(
            events.next_event(false),
            Some(AsyncEvent::ErrorQueue { qpn: 2 })
        );
        raised.raise(AsyncEvent::ErrorQueue { qpn: 2 });
        raised.forget(|_| true);
        assert!(!is_readable(&events));
        // Without anything to forget it does not wait for something.
        raised.forget(|_| true);
        events.keep_to_the_verbs();
        raised.raise(AsyncEvent::ErrorQueue { qpn: 2 });
        assert!(!is_readable(&events));
        events.tell_all();
        raised.raise(AsyncEvent::ErrorQueue { qpn: 2 });
        assert!(is_readable(&events));
        assert_eq!(
            events.next_event(false),
            Some(AsyncEvent::ErrorQueue { qpn: 2 })
        );
        events.report(AsyncEvent::DeviceFatal);
        assert_eq!(events.next_event(true), Some(AsyncEvent::DeviceFatal));
        raised.raise(AsyncEvent::QpFatal { qpn: 1 });
        assert!(is_readable(&events));
    }
}

//! Event queues: events that a program takes one by one, with a descriptor that is readable exactly while the queue is not empty.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::Mutex;

use crate::Error;
use crate::driver::device::clock;
use crate::driver::reactor::waker::Task;

/// Events in the order in which they were raised.
#[derive(Debug)]
pub(crate) struct EventQueue<T> {
    events: Mutex<VecDeque<T>>,
    /// Readable exactly while `events` is not empty: it changes under that lock only, since otherwise a thread that takes the event between
    /// push and write would leave it readable for nothing.
    readable: EventFd,
}

impl<T> EventQueue<T> {
    /// An empty queue.
    pub(crate) fn new() -> Result<Self, Error> {
        // Read only while readable, so that it never blocks here. The mode of the descriptor belongs to the program.
        let readable = EventFd::from_flags(EfdFlags::EFD_CLOEXEC)
            .map_err(|errno| Error::system("cannot make an eventfd")(errno.into()))?;
        Ok(Self {
            events: Mutex::default(),
            readable,
        })
    }

    /// Changes the queue.
    pub(crate) fn update<R>(&self, change: impl FnOnce(&mut VecDeque<T>) -> R) -> R {
        let mut events = self.events.lock();
        let before = events.is_empty();
        let result = change(&mut events);
        match (before, events.is_empty()) {
            (true, false) => {
                let _ = self.readable.write(1);
            }
            (false, true) => {
                let _ = self.readable.read();
            }
            (true, true) | (false, false) => {}
        }
        result
    }

    pub(crate) fn push(&self, event: T) {
        self.update(|events| events.push_back(event));
    }

    /// Takes the oldest event.
    pub(crate) fn take(&self) -> Option<T> {
        self.update(VecDeque::pop_front)
    }

    /// Takes the oldest event; until `deadline` it waits for one and drives `task`, which raises them.
    pub(crate) fn wait(&self, task: &dyn Task, deadline: Option<Instant>) -> Option<T> {
        loop {
            task.progress();
            if let Some(event) = self.take() {
                return Some(event);
            }
            let now = clock::now();
            if deadline.is_some_and(|deadline| deadline <= now) {
                return None;
            }
            let next = deadline.into_iter().chain(task.poll_timeout()).min();
            let mut fds = [
                PollFd::new(task.work_fd(), PollFlags::POLLIN),
                PollFd::new(self.as_fd(), PollFlags::POLLIN),
            ];
            let _ = poll(&mut fds, timeout(now, next));
        }
    }
}

/// Readable exactly while there is an event.
impl<T> AsFd for EventQueue<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }
}

/// The timeout of poll(2) from `now` to `deadline`, rounded up so that the last wait does not end early.
pub(crate) fn timeout(now: Instant, deadline: Option<Instant>) -> PollTimeout {
    deadline.map_or(PollTimeout::NONE, |deadline| {
        let left = deadline.saturating_duration_since(now);
        PollTimeout::try_from(left.as_micros().div_ceil(1000)).unwrap_or(PollTimeout::MAX)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;
    use std::time::Duration;

    use nix::fcntl::{FcntlArg, OFlag, fcntl};

    use super::*;

    fn is_readable<T>(queue: &EventQueue<T>) -> bool {
        let mut fds = [PollFd::new(queue.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).unwrap() > 0
    }

    #[test]
    fn the_descriptor_is_readable_exactly_while_there_is_an_event() {
        let queue = EventQueue::new().unwrap();
        assert!(!is_readable(&queue));
        queue.push(1);
        queue.push(2);
        assert_eq!((is_readable(&queue), queue.take()), (true, Some(1)));
        assert_eq!((is_readable(&queue), queue.take()), (true, Some(2)));
        assert_eq!((is_readable(&queue), queue.take()), (false, None));
        queue.update(|events| events.extend([3, 4]));
        assert!(is_readable(&queue));
        queue.update(|events| events.retain(|event| *event == 4));
        assert!(is_readable(&queue));
        queue.update(VecDeque::clear);
        assert!(!is_readable(&queue));
    }

    /// A taker that is as fast as can be, while the event is still being pushed, and a program that made the descriptor non-blocking.
    #[test]
    fn a_taker_beside_the_pusher_leaves_nothing_readable() {
        const ROUNDS: usize = 10_000;
        let queue = EventQueue::new().unwrap();
        fcntl(queue.as_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        let [pushed, checked] = [(); 2].map(|()| AtomicUsize::new(0));
        thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    queue.push(round);
                    pushed.store(round, Ordering::SeqCst);
                    while checked.load(Ordering::SeqCst) < round {
                        thread::yield_now();
                    }
                }
            });
            let mut spurious = 0;
            for round in 1..=ROUNDS {
                while queue.take().is_none() {
                    std::hint::spin_loop();
                }
                while pushed.load(Ordering::SeqCst) < round {
                    thread::yield_now();
                }
                spurious += usize::from(is_readable(&queue));
                checked.store(round, Ordering::SeqCst);
            }
            assert_eq!(spurious, 0, "of {ROUNDS} rounds");
        });
    }

    #[test]
    fn timeouts_are_rounded_up_and_none_is_for_ever() {
        let now = clock::now();
        let after = |micros| timeout(now, Some(now + Duration::from_micros(micros)));
        assert_eq!(after(0), PollTimeout::ZERO);
        assert_eq!(after(1), PollTimeout::from(1u8));
        assert_eq!(after(1001), PollTimeout::from(2u8));
        assert_eq!(timeout(now, None), PollTimeout::NONE);
    }
}

//! Completion channels.
//!
//! A channel has two descriptors. The program's is readable exactly while an event is queued. A thread that waits in a call of the channel sleeps on the
//! other one, which is readable also when data arrives: it receives for itself, without the background thread between.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::Error;
use crate::driver::cq::completion_queue::{CompletionQueue, both};
use crate::driver::cq::direct::DirectCompletions;
use crate::driver::device::fds::leave_low_numbers;
use crate::driver::reactor::event_queue::EventQueue;
use crate::driver::reactor::poll_set::{By, PollSet};

/// A completion channel, shared by its handle and its completion queues.
#[derive(Debug)]
pub(crate) struct ChannelShared {
    /// Readable when there is an event, or data that may become one.
    work: Epoll,
    /// Completion queues with an event, by id.
    events: EventQueue<u64>,
    queues: Mutex<Vec<Weak<CompletionQueue>>>,
}

impl ChannelShared {
    pub(crate) fn new() -> Result<Arc<Self>, Error> {
        let failed = |errno: Errno| Error::system("cannot make a completion channel")(errno.into());
        let work = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(failed)?;
        let work = Epoll(leave_low_numbers(work.0));
        let events = EventQueue::new()?;
        work.add(events.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, 0))
            .map_err(failed)?;
        Ok(Arc::new(Self {
            work,
            events,
            queues: Mutex::new(Vec::new()),
        }))
    }

    pub(crate) fn attach(self: &Arc<Self>, cq: &Arc<CompletionQueue>) -> Result<(), Error> {
        self.work
            .add(
                cq.poll_set().sockets_fd(),
                EpollEvent::new(EpollFlags::EPOLLIN, 0),
            )
            .map_err(|errno| Error::system("cannot watch a completion queue")(errno.into()))?;
        let mut queues = self.queues.lock();
        queues.retain(|it| it.strong_count() > 0);
        queues.push(Arc::downgrade(cq));
        drop(queues);
        cq.set_channel(Arc::clone(self));
        Ok(())
    }

    /// Wakes waiting threads also when data arrives at a linked poll set.
    pub(crate) fn watch(&self, set: &PollSet) -> io::Result<()> {
        let event = EpollEvent::new(EpollFlags::EPOLLIN, 0);
        match self.work.add(set.sockets_fd(), event) {
            Ok(()) | Err(Errno::EEXIST) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    pub(crate) fn raise(&self, cq: u64) {
        self.events.push(cq);
    }

    /// Takes the oldest event.
    pub(crate) fn take(&self) -> Option<u64> {
        self.events.take()
    }

    /// Takes the events of a queue that is destroyed out.
    pub(crate) fn forget(&self, cq: u64) {
        self.events
            .update(|events| events.retain(|event| *event != cq));
    }

    /// The calling thread is about to sleep on the returned descriptor: readable when there is an event, or data that may become one. The
    /// thread makes progress when it wakes.
    pub(crate) fn begin_wait(&self) -> BorrowedFd<'_> {
        for cq in self.live_queues() {
            cq.poll_set().receive_by_waiting();
            for set in cq.linked_sets() {
                set.receive_by_waiting();
            }
        }
        self.work.0.as_fd()
    }

    fn live_queues(&self) -> SmallVec<[Arc<CompletionQueue>; 4]> {
        let queues = self.queues.lock();
        queues.iter().filter_map(Weak::upgrade).collect()
    }

    /// Makes progress at the completion queues.
    pub(crate) fn progress(&self) {
        for cq in self.live_queues() {
            // The call that finds no more flushes acknowledgements.
            while self.progress_at(&cq) == Some(true) && !cq.has_completions() {}
        }
    }

    /// Progress at a queue and its linked sets, but for those whose own queue is on this channel.
    fn progress_at(&self, cq: &CompletionQueue) -> Option<bool> {
        let mut got = cq.progress_own(By::Poller, &mut DirectCompletions::default());
        for set in cq.linked_sets() {
            if !self.has_set(&set) {
                got = both(got, set.progress(By::Poller));
            }
        }
        got
    }

    fn has_set(&self, set: &Arc<PollSet>) -> bool {
        let queues = self.queues.lock();
        queues
            .iter()
            .filter_map(Weak::upgrade)
            .any(|cq| Arc::ptr_eq(cq.poll_set(), set))
    }
}

/// Readable exactly while there is an event.
impl AsFd for ChannelShared {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

//! Completion channels.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use parking_lot::Mutex;

use crate::Error;
use crate::driver::cq::completion_queue::{CompletionQueue, both};
use crate::driver::reactor::event_queue::EventQueue;
use crate::driver::reactor::poll_set::{By, PollSet};

/// A completion channel, shared by its handle and its completion queues.
#[derive(Debug)]
pub(crate) struct ChannelShared {
    /// Readable when there is an event, or data that may become one.
    epoll: Epoll,
    /// Completion queues with an event, by id.
    events: EventQueue<u64>,
    queues: Mutex<Vec<Weak<CompletionQueue>>>,
}

impl ChannelShared {
    pub(crate) fn new() -> Result<Arc<Self>, Error> {
        let failed = |errno: Errno| Error::system("cannot make a completion channel")(errno.into());
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(failed)?;
        let events = EventQueue::new()?;
        epoll
            .add(events.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, 0))
            .map_err(failed)?;
        Ok(Arc::new(Self {
            epoll,
            events,
            queues: Mutex::new(Vec::new()),
        }))
    }

    pub(crate) fn attach(self: &Arc<Self>, cq: &Arc<CompletionQueue>) -> Result<(), Error> {
        // Data that nobody received yet wakes the program too: it receives for itself, without another thread between.
        self.epoll
            .add(
                cq.poll_set().sockets_fd(),
                EpollEvent::new(EpollFlags::EPOLLIN, 0),
            )
            .map_err(|errno| Error::system("cannot watch a completion queue")(errno.into()))?;
        self.queues.lock().push(Arc::downgrade(cq));
        cq.set_channel(Arc::clone(self));
        Ok(())
    }

    /// Makes the channel readable also when data arrives at a linked poll set.
    pub(crate) fn watch(&self, set: &PollSet) -> io::Result<()> {
        let event = EpollEvent::new(EpollFlags::EPOLLIN, 0);
        match self.epoll.add(set.sockets_fd(), event) {
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

    /// Makes progress at the completion queues.
    pub(crate) fn progress(&self) {
        let queues: Vec<_> = self
            .queues
            .lock()
            .iter()
            .filter_map(Weak::upgrade)
            .collect();
        for cq in queues {
            // The call that finds no more flushes acknowledgements.
            while self.progress_at(&cq) == Some(true) && !cq.has_completions() {}
        }
    }

    /// Progress at a queue and its linked sets, but for those whose own queue is on this channel.
    fn progress_at(&self, cq: &CompletionQueue) -> Option<bool> {
        let mut got = cq.progress_own();
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

/// Readable when there is an event, or data that may become one.
impl AsFd for ChannelShared {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}

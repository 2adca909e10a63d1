//! Queue of an event channel. Programs poll its descriptor, and may set its `O_NONBLOCK`.

use crate::abi::rdma_event_channel;
use crate::ffi::{Facade, Object, is_nonblocking};
use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Events of one channel that were not fetched.
///
/// The descriptor is an eventfd in semaphore mode whose count is that of the events: it is readable while there are events, and a
/// read of it waits for one. A reader that finds no event, because the event was removed meanwhile, reads again.
pub(crate) struct EventQueue<T> {
    counter: EventFd,
    events: Mutex<VecDeque<T>>,
    /// The program has destroyed the channel.
    destroyed: AtomicBool,
}

impl<T: Send> Facade for Arc<EventQueue<T>> {
    type C = rdma_event_channel;
    const TAG: u32 = 0x6463_6563;
}

impl<T: Send> EventQueue<T> {
    pub(crate) fn new() -> Result<Arc<Self>, Errno> {
        let counter = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_SEMAPHORE)?;
        Ok(Arc::new(Self {
            counter,
            events: Mutex::default(),
            destroyed: AtomicBool::new(false),
        }))
    }

    /// The program's pointer to a queue.
    pub(crate) fn into_c(self: Arc<Self>) -> *mut rdma_event_channel {
        let fd = self.descriptor().as_raw_fd();
        Object::create(rdma_event_channel { fd }, self)
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.counter.as_fd()
    }

    /// Marks the channel as destroyed; returns whether it was before.
    pub(crate) fn mark_destroyed(&self) -> bool {
        self.destroyed.swap(true, Ordering::AcqRel)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, event: T) {
        let mut events = self.lock();
        events.push_back(event);
        // Under the lock: the count is that of the events. It cannot overflow 64 bits.
        let _ = self.counter.write(1);
    }

    /// Takes the oldest event, and waits for one unless the program has set `O_NONBLOCK`. Runs `taken` under the queue's lock.
    pub(crate) fn next(&self, taken: impl Fn(&T)) -> Result<T, Errno> {
        loop {
            self.counter.read()?;
            if let Some(event) = self.pop(&taken) {
                return Ok(event);
            }
        }
    }

    /// Takes the oldest event without waiting. Runs `taken` under the queue's lock.
    pub(crate) fn try_next(&self, taken: impl Fn(&T)) -> Option<T> {
        while self.decrement() {
            if let Some(event) = self.pop(&taken) {
                return Some(event);
            }
        }
        None
    }

    fn pop(&self, taken: impl Fn(&T)) -> Option<T> {
        self.lock().pop_front().inspect(taken)
    }

    /// Whether calls of the program wait.
    pub(crate) fn may_wait(&self) -> bool {
        !is_nonblocking(&self.counter).unwrap_or(false)
    }

    /// Removes the events for which `which` holds.
    pub(crate) fn remove(&self, which: impl Fn(&T) -> bool) -> VecDeque<T> {
        let mut events = self.lock();
        let (removed, left) = std::mem::take(&mut *events).into_iter().partition(which);
        *events = left;
        for _ in &removed {
            self.decrement();
        }
        removed
    }

    /// Number of events for which `which` holds.
    pub(crate) fn count(&self, which: impl Fn(&T) -> bool) -> usize {
        self.lock().iter().filter(|event| which(event)).count()
    }

    /// Decrements the count without waiting, whatever the descriptor's mode is; returns whether it was above zero. At zero
    /// another thread has read it and will find no event.
    fn decrement(&self) -> bool {
        let mut count = [0_u8; 8];
        let part = libc::iovec {
            iov_base: count.as_mut_ptr().cast(),
            iov_len: count.len(),
        };
        let fd = self.descriptor().as_raw_fd();
        // SAFETY: one part, of as many octets as an eventfd gives.
        let read = unsafe { libc::preadv2(fd, &raw const part, 1, -1, libc::RWF_NOWAIT) };
        read > 0
    }
}

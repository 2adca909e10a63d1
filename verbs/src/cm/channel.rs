//! Event channels: queues of what happened, whose descriptors programs may poll, and whose `O_NONBLOCK` they may set.

use super::event::{self, What};
use super::id::Id;
use crate::abi::{rdma_cm_event, rdma_event_channel};
use crate::ffi::{
    Attempt, CPointer, Facade, Object, entry, is_nonblocking, minus_one, pointer, store, waiting,
};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Something that happened to an identifier.
pub(crate) struct Happening {
    pub(crate) id: Arc<Id>,
    pub(crate) what: What,
}

/// What happened to the identifiers of one channel and was not fetched yet.
///
/// The descriptor counts as a semaphore, so that its readability is "there is an event", and a blocking read of it is
/// "wait for an event". Whoever takes a count and finds no event, since it was taken back meanwhile, waits again.
pub(crate) struct EventQueue {
    counter: EventFd,
    happenings: Mutex<VecDeque<Happening>>,
    /// The program has destroyed the channel.
    closed: AtomicBool,
}

impl Facade for Arc<EventQueue> {
    type C = rdma_event_channel;
    const TAG: u32 = 0x6463_6563;
}

impl EventQueue {
    pub(crate) fn new() -> Result<Arc<Self>, Errno> {
        let counter = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_SEMAPHORE)?;
        Ok(Arc::new(Self {
            counter,
            happenings: Mutex::default(),
            closed: AtomicBool::new(false),
        }))
    }

    /// The pointer that programs have, for a queue.
    pub(crate) fn into_c(self: Arc<Self>) -> *mut rdma_event_channel {
        let fd = self.descriptor();
        Object::create(rdma_event_channel { fd }, self)
    }

    fn descriptor(&self) -> RawFd {
        self.counter.as_fd().as_raw_fd()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Happening>> {
        self.happenings
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues something and wakes whoever waits.
    pub(crate) fn push(&self, happening: Happening) {
        let mut happenings = self.lock();
        happenings.push_back(happening);
        // The counter would have to hold 2^64 - 1 events before this could block or fail.
        let _ = self.counter.write(1);
    }

    /// Takes the oldest; waits for one unless the program made the descriptor non-blocking. From then on it is one that
    /// the program has to acknowledge.
    pub(crate) fn next(&self) -> Result<Happening, Errno> {
        loop {
            self.counter.read()?;
            let mut happenings = self.lock();
            if let Some(happening) = happenings.pop_front() {
                // Under the lock, so that destroying the identifier either removes it or waits for it.
                happening.id.note_fetched();
                return Ok(happening);
            }
        }
    }

    /// The same without waiting.
    pub(crate) fn try_next(&self) -> Option<Happening> {
        while self.uncount() {
            let mut happenings = self.lock();
            if let Some(happening) = happenings.pop_front() {
                happening.id.note_fetched();
                return Some(happening);
            }
        }
        None
    }

    /// Whether the program lets its calls wait.
    pub(crate) fn may_wait(&self) -> bool {
        let flags = fcntl(&self.counter, FcntlArg::F_GETFL).unwrap_or(0);
        !OFlag::from_bits_retain(flags).contains(OFlag::O_NONBLOCK)
    }

    /// Takes away all that happened to one identifier.
    pub(crate) fn remove_all(&self, id: &Arc<Id>) -> Vec<Happening> {
        let mut happenings = self.lock();
        let all = std::mem::take(&mut *happenings);
        let (theirs, others) = all.into_iter().partition(|it| Arc::ptr_eq(&it.id, id));
        *happenings = others;
        let theirs: Vec<Happening> = Vec::from(theirs);
        for _ in &theirs {
            self.uncount();
        }
        theirs
    }

    /// How many of one identifier's wait that `which` says.
    pub(crate) fn count(&self, id: &Arc<Id>, which: impl Fn(&What) -> bool) -> usize {
        let happenings = self.lock();
        let theirs = happenings.iter().filter(|it| Arc::ptr_eq(&it.id, id));
        theirs.filter(|it| which(&it.what)).count()
    }

    /// Takes back one count if there is one, without waiting, whatever the descriptor's mode is: another thread may have
    /// taken it just now, and will find nothing. Returns whether there was one.
    fn uncount(&self) -> bool {
        let mut count = [0_u8; 8];
        let part = libc::iovec {
            iov_base: count.as_mut_ptr().cast(),
            iov_len: count.len(),
        };
        // SAFETY: one part, of as many octets as an event descriptor gives.
        let taken =
            unsafe { libc::preadv2(self.descriptor(), &raw const part, 1, -1, libc::RWF_NOWAIT) };
        taken > 0
    }
}

/// Channels that were destroyed lately, whose memory is still theirs.
///
/// Programs end by destroying their channel while the thread that waits on it goes round once more, as `rping` does. It waits for ever, as one
/// does that was waiting before; freed memory could have it fail, and make that the program's exit status.
static LEAVING: Mutex<VecDeque<CPointer<rdma_event_channel>>> = Mutex::new(VecDeque::new());
/// How many of them there are.
const LEAVING_AT_MOST: usize = 8;

/// # Safety
/// `channel` is NULL or a live channel.
unsafe fn destroy(channel: *mut rdma_event_channel) -> Result<(), Errno> {
    // SAFETY: the caller's contract.
    let queue = unsafe { queue(channel) }?;
    if queue.closed.swap(true, Ordering::AcqRel) {
        return Err(Errno::EINVAL);
    }
    let oldest = {
        let mut leaving = LEAVING.lock().unwrap_or_else(PoisonError::into_inner);
        leaving.push_back(CPointer(channel));
        let full = leaving.len() > LEAVING_AT_MOST;
        if full { leaving.pop_front() } else { None }
    };
    if let Some(oldest) = oldest {
        // SAFETY: destroyed long ago, and in the list once.
        drop(unsafe { Object::<Arc<EventQueue>>::release(oldest.0) });
    }
    Ok(())
}

/// The queue behind a channel.
///
/// # Safety
/// `channel` is NULL or a live channel.
pub(crate) unsafe fn queue(channel: *mut rdma_event_channel) -> Result<Arc<EventQueue>, Errno> {
    // SAFETY: the caller's contract is the same.
    unsafe { Object::<Arc<EventQueue>>::state(channel) }.cloned()
}

pub(crate) unsafe extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    pointer(|| EventQueue::new().map(EventQueue::into_c))
}

pub(crate) unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    entry((), || {
        // SAFETY: the program passes a live channel and does not use it any more.
        if let Err(errno) = unsafe { destroy(channel) } {
            errno.set();
        }
    });
}

pub(crate) unsafe extern "C-unwind" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    waiting(|| {
        // SAFETY: the program passes a live channel.
        let queue = unsafe { queue(channel) }?;
        if event.is_null() {
            return Err(Errno::EINVAL);
        }
        let Some(found) = event::try_fetch(&queue) else {
            if is_nonblocking(&queue.counter)? {
                return Err(Errno::EAGAIN);
            }
            return Ok(Attempt::Wait(queue.descriptor()));
        };
        // SAFETY: and room for the pointer.
        unsafe { store(event, found) }.map(|()| Attempt::Done)
    })
}

pub(crate) unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    minus_one(|| {
        // SAFETY: the program passes an event that it fetched, once.
        unsafe { event::acknowledge(event) }.map(|()| 0)
    })
}

#[cfg(test)]
mod tests {
    use super::super::event::EventType;
    use super::super::id::{self, Making};
    use super::*;
    use crate::abi::RDMA_PS_TCP;
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::ptr;

    /// A channel with identifiers on it.
    fn channel_with(ids: usize) -> (*mut rdma_event_channel, Vec<*mut crate::abi::rdma_cm_id>) {
        let channel = EventQueue::new().unwrap().into_c();
        let making = Making {
            channel: Some(CPointer(channel)),
            context: ptr::null_mut(),
            port_space: RDMA_PS_TCP,
        };
        // SAFETY: the channel is alive.
        let make = |_| unsafe { id::create(&making) }.unwrap();
        (channel, (0..ids).map(make).collect())
    }

    fn is_readable(queue: &EventQueue) -> bool {
        let mut fds = [PollFd::new(queue.counter.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).unwrap() == 1
    }

    #[test]
    fn the_descriptor_is_readable_exactly_while_events_wait() {
        let (channel, ids) = channel_with(2);
        // SAFETY: the channel is alive.
        let queue = unsafe { queue(channel) }.unwrap();
        // SAFETY: the identifiers are alive.
        let of = |which: usize| unsafe { id::id(ids[which]) }.unwrap();
        assert!(!is_readable(&queue) && queue.try_next().is_none());
        of(0).push_plain(EventType::AddrResolved, 0);
        of(1).push_plain(EventType::AddrError, -1);
        of(0).push_plain(EventType::RouteResolved, 0);
        assert_eq!(queue.count(of(0), |_| true), 2);
        let first = queue.try_next().unwrap();
        assert!(Arc::ptr_eq(&first.id, of(0)));
        first.id.note_acknowledged();
        drop(first);
        // What is destroyed takes its events with it; the other's stays.
        // SAFETY: nobody uses it any more.
        unsafe { id::destroy(ids[0]) }.unwrap();
        assert!(is_readable(&queue));
        let left = queue.try_next().unwrap();
        assert!(Arc::ptr_eq(&left.id, of(1)));
        left.id.note_acknowledged();
        drop(left);
        assert!(!is_readable(&queue) && queue.try_next().is_none());
        // SAFETY: nobody uses them any more.
        unsafe { id::destroy(ids[1]) }.unwrap();
        // SAFETY: as above.
        unsafe { destroy(channel) }.unwrap();
        // Its memory is still its own.
        // SAFETY: as above.
        assert_eq!(unsafe { destroy(channel) }, Err(Errno::EINVAL));
    }
}

//! `rdma_create_event_channel(3)`, `rdma_get_cm_event(3)` and their kin.

use crate::abi::{rdma_cm_event, rdma_event_channel};
use crate::cm::event::fetch::try_fetch;
use crate::cm::event::fetched::acknowledge;
use crate::cm::id::identifier::{Queue, queue};
use crate::ffi::{
    Attempt, CPointer, Object, entry, minus_one, pointer, store, thread_order, waiting,
};
use nix::errno::Errno;
use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::{Arc, Mutex, PoisonError};

/// Channels destroyed last, whose memory is not freed yet; at most [`MAX_DESTROYED`].
///
/// Programs end by destroying a channel while another thread begins to wait on it, as `rping` does. The thread waits
/// for ever; freed memory could fail its call, and with it the program.
static DESTROYED: Mutex<VecDeque<CPointer<rdma_event_channel>>> = Mutex::new(VecDeque::new());
const MAX_DESTROYED: usize = 8;

/// # Safety
/// `channel` is NULL or a live channel.
unsafe fn destroy(channel: *mut rdma_event_channel) -> Result<(), Errno> {
    // SAFETY: the caller's contract.
    if unsafe { Object::<Arc<Queue>>::live(channel) }?.mark_destroyed() {
        return Err(Errno::EINVAL);
    }
    let mut destroyed = DESTROYED.lock().unwrap_or_else(PoisonError::into_inner);
    destroyed.push_back(CPointer(channel));
    if destroyed.len() > MAX_DESTROYED
        && let Some(oldest) = destroyed.pop_front()
    {
        // SAFETY: a channel that the program destroyed long ago, in the list once.
        drop(unsafe { Object::<Arc<Queue>>::release(oldest.0) });
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    pointer(|| Queue::new().map(Queue::into_c))
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
        let Some(found) = try_fetch(&queue) else {
            return Attempt::again(queue.descriptor());
        };
        thread_order::after(channel);
        // SAFETY: and room for the pointer.
        unsafe { store(event, found) }.map(|()| Attempt::Done)
    })
}

pub(crate) unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    minus_one(|| {
        // SAFETY: the program passes an event that it fetched, once.
        unsafe { acknowledge(event) }.map(|()| 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::RDMA_PS_TCP;
    use crate::cm::event::types::EventType;
    use crate::cm::id::identifier::{self, IdAttr, Queued};
    use crate::cm::id::lifecycle;
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::ptr;

    /// A channel with identifiers on it.
    fn channel_with(ids: usize) -> (*mut rdma_event_channel, Vec<*mut crate::abi::rdma_cm_id>) {
        let channel = Queue::new().unwrap().into_c();
        let attr = IdAttr {
            channel: Some(CPointer(channel)),
            context: ptr::null_mut(),
            port_space: RDMA_PS_TCP,
        };
        // SAFETY: the channel is alive.
        let make = |_| unsafe { identifier::create(&attr) }.unwrap();
        (channel, (0..ids).map(make).collect())
    }

    fn is_readable(queue: &Queue) -> bool {
        let mut fds = [PollFd::new(queue.descriptor(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).unwrap() == 1
    }

    #[test]
    fn the_descriptor_is_readable_exactly_while_events_wait() {
        let (channel, ids) = channel_with(2);
        // SAFETY: the channel is alive.
        let queue = unsafe { queue(channel) }.unwrap();
        // SAFETY: the identifiers are alive.
        let of = |which: usize| unsafe { identifier::id(ids[which]) }.unwrap();
        assert!(!is_readable(&queue) && queue.try_next(|_| ()).is_none());
        of(0).raise_plain(EventType::AddrResolved, 0);
        of(1).raise_plain(EventType::AddrError, -1);
        of(0).raise_plain(EventType::RouteResolved, 0);
        assert_eq!(queue.count(|it| Arc::ptr_eq(&it.id, of(0))), 2);
        let fetched = |it: &Queued| it.id.unacked.fetched();
        let first = queue.try_next(fetched).unwrap();
        assert!(Arc::ptr_eq(&first.id, of(0)));
        first.id.unacked.acknowledged(1);
        drop(first);
        // Destroying an identifier removes its events, and only those.
        // SAFETY: not used any more.
        unsafe { lifecycle::destroy(ids[0]) }.unwrap();
        assert!(is_readable(&queue));
        let left = queue.try_next(fetched).unwrap();
        assert!(Arc::ptr_eq(&left.id, of(1)));
        left.id.unacked.acknowledged(1);
        drop(left);
        assert!(!is_readable(&queue) && queue.try_next(|_| ()).is_none());
        // SAFETY: not used any more.
        unsafe { lifecycle::destroy(ids[1]) }.unwrap();
        // SAFETY: as above.
        unsafe { destroy(channel) }.unwrap();
        // The memory is not freed yet.
        // SAFETY: as above.
        assert_eq!(unsafe { destroy(channel) }, Err(Errno::EINVAL));
    }
}

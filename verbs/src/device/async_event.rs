//! `ibv_get_async_event(3)` and `ibv_ack_async_event(3)`.

use crate::abi::{ibv_async_element, ibv_async_event, ibv_context};
use crate::cq::queue::Cq;
use crate::device::async_queue::Kind;
use crate::device::context;
use crate::ffi::{Attempt, Object, entry, store, waiting};
use crate::qp::queue_pair::Qp;
use crate::qp::srq::Srq;
use nix::errno::Errno;
use std::ffi::c_int;
use std::sync::Arc;

pub(crate) unsafe extern "C-unwind" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    waiting(|| {
        // SAFETY: the program passes an open context.
        let queue = &unsafe { context::state(context) }?.async_events;
        let Some((kind, object)) = queue.next() else {
            return Attempt::again(&queue.events);
        };
        let found = ibv_async_event {
            element: match object {
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
        None
        | Some(
            Kind::DeviceFatal
            | Kind::PortActive
            | Kind::PortError
            | Kind::LidChange
            | Kind::GidChange,
        ) => {}
        Some(Kind::CqError) => {
            // SAFETY: an event about a completion queue, which waits for this before it goes.
            let cq = unsafe { Object::<Arc<Cq>>::live(pointer.cast()) }?;
            cq.event_source.acknowledged();
        }
        Some(Kind::SrqLimitReached) => {
            // SAFETY: an event about a shared receive queue, which waits for this before it goes.
            let srq = unsafe { Object::<Arc<Srq>>::live(pointer.cast()) }?;
            srq.event_source.acknowledged();
        }
        Some(
            Kind::QpFatal
            | Kind::QpRequestError
            | Kind::QpAccessError
            | Kind::CommunicationEstablished
            | Kind::SqDrained
            | Kind::LastWqeReached
            | Kind::ErrorQueue
            | Kind::RecordRingFull,
        ) => {
            // SAFETY: an event about a queue pair, which waits for this before it goes.
            let qp = unsafe { Object::<Qp>::live(pointer.cast()) }?;
            qp.event_source.acknowledged();
        }
    }
    Ok(())
}

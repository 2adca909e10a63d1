//! Life of an identifier: `rdma_create_id(3)`, `rdma_destroy_id(3)`, `rdma_migrate_id(3)`, and the wait of synchronous calls.

use crate::abi::{rdma_cm_id, rdma_event_channel};
use crate::cm::device;
use crate::cm::event::fetch::fetch;
use crate::cm::event::fetched::acknowledge;
use crate::cm::event::types::Raised;
use crate::cm::id::identifier::{
    Id, IdAttr, Inner, Queue, State, Transport, create, id, live_id, own_channel, queue,
};
use crate::cm::tcp::state::refuse;
use crate::ffi::{CPointer, Object, entry, minus_one, minus_one_making, store};
use dgiwarp::ConnectionEvent;
use nix::errno::Errno;
use std::ffi::{c_int, c_uint, c_void};
use std::net::SocketAddr;
use std::sync::Arc;
use std::{mem, ptr};

/// Waits for the event that ends a call of a synchronous identifier, and keeps it in `id->event`. The status of the event is the
/// call's.
///
/// # Safety
/// `pointer` is a live identifier, used by no other call.
pub(crate) unsafe fn complete(pointer: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: the caller's contract.
    let id = unsafe { id(pointer) }?;
    if !id.lock().synchronous {
        return Ok(());
    }
    // SAFETY: the caller's contract.
    unsafe { ack_event(pointer) }?;
    let found = fetch(&id.events())?;
    // SAFETY: the caller's contract: no other call uses the identifier.
    unsafe { (*pointer).event = found };
    // SAFETY: just fetched.
    let c = unsafe { &*found };
    outcome(c.event, c.status)
}

/// Result of the call that an event ends.
fn outcome(event: c_uint, status: c_int) -> Result<(), Errno> {
    const REJECTED: c_uint = 8;
    match (event, status) {
        (_, 0) => Ok(()),
        (REJECTED, _) => Err(Errno::ECONNREFUSED),
        (_, status) => Err(Errno::from_raw(status.saturating_abs())),
    }
}

/// Acknowledges the event in `id->event`.
///
/// # Safety
/// As for [`complete`].
pub(crate) unsafe fn ack_event(pointer: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: the caller's contract: no other call uses the identifier.
    let event = mem::replace(unsafe { &mut (*pointer).event }, ptr::null_mut());
    if event.is_null() {
        return Ok(());
    }
    // SAFETY: fetched by `complete`; acknowledged here only.
    unsafe { acknowledge(event) }
}

/// # Safety
/// No other call uses the identifier.
pub(crate) unsafe fn destroy(pointer: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: the caller's contract.
    let id = Arc::clone(unsafe { live_id(pointer) }?);
    id.unlist();
    id.open_gate();
    let (transport, path, synchronous) = {
        let mut inner = id.lock();
        inner.state = State::Over;
        let transport = mem::replace(&mut inner.transport, Transport::Closed);
        (transport, inner.path.take(), inner.synchronous)
    };
    // Without the identifier's lock, which closing may take.
    match transport {
        Transport::Tcp(tcp) => tcp.close(id.key),
        Transport::Udp(udp) => drop(udp),
        Transport::Closed => {}
    }
    for queued in id.events().remove(|queued| Arc::ptr_eq(&queued.id, &id)) {
        if let Raised::Connection(ConnectionEvent::Request { request, .. }) = queued.event {
            refuse(&*device::device()?, request);
        }
    }
    // SAFETY: the caller's contract.
    unsafe { ack_event(pointer) }?;
    id.unacked.wait();
    if synchronous {
        // SAFETY: the channel is the identifier's own.
        let own = unsafe { (*pointer).channel };
        // SAFETY: as above.
        drop(unsafe { Object::<Arc<Queue>>::release(own) });
    }
    if let Some(path) = path {
        // SAFETY: made by `write_path` as a Box, and not used any more.
        drop(unsafe { Box::from_raw(path.0) });
    }
    // SAFETY: the caller's contract.
    drop(unsafe { Object::<Arc<Id>>::release(pointer) }?);
    Ok(())
}

/// # Safety
/// `pointer` is a live identifier, and `channel` NULL or a live channel.
unsafe fn migrate(pointer: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> Result<(), Errno> {
    // SAFETY: the caller's contract.
    let id = unsafe { id(pointer) }?;
    let synchronous = channel.is_null();
    let (new, new_c) = if synchronous {
        own_channel()?
    } else {
        // SAFETY: the caller's contract.
        (unsafe { queue(channel) }?, channel)
    };
    {
        let mut current = id.queue();
        if !Arc::ptr_eq(&current, &new) {
            for queued in current.remove(|queued| Arc::ptr_eq(&queued.id, id)) {
                new.push(queued);
            }
            *current = new;
        }
    }
    // rdma_migrate_id(3): the call waits until all events of the old channel are acknowledged. The event of a synchronous
    // call is acknowledged here.
    // SAFETY: the caller's contract.
    unsafe { ack_event(pointer) }?;
    id.unacked.wait();
    let was_synchronous = mem::replace(&mut id.lock().synchronous, synchronous);
    // SAFETY: the caller's contract.
    let old_c = mem::replace(unsafe { &mut (*pointer).channel }, new_c);
    if was_synchronous {
        // SAFETY: the channel was the identifier's own.
        drop(unsafe { Object::<Arc<Queue>>::release(old_c) });
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    pointer: *mut *mut rdma_cm_id,
    context: *mut c_void,
    port_space: c_uint,
) -> c_int {
    minus_one_making(|| {
        if pointer.is_null() {
            return Err(Errno::EINVAL);
        }
        let attr = IdAttr {
            channel: (!channel.is_null()).then_some(CPointer(channel)),
            context,
            port_space,
        };
        // SAFETY: the program passes a live channel or NULL.
        let made = unsafe { create(&attr) }?;
        // SAFETY: and room for the pointer.
        unsafe { store(pointer, made) }.map(|()| 0)
    })
}

pub(crate) unsafe extern "C" fn rdma_destroy_id(pointer: *mut rdma_cm_id) -> c_int {
    // SAFETY: the program passes a live identifier and does not use it any more.
    minus_one(|| unsafe { destroy(pointer) }.map(|()| 0))
}

pub(crate) unsafe extern "C" fn rdma_migrate_id(
    pointer: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> c_int {
    // SAFETY: the program passes a live identifier and channel.
    minus_one(|| unsafe { migrate(pointer, channel) }.map(|()| 0))
}

/// Port number of one of the addresses, in network order; 0 without one.
///
/// # Safety
/// `pointer` is NULL or a live identifier.
unsafe fn port(pointer: *mut rdma_cm_id, which: impl Fn(&Inner) -> Option<SocketAddr>) -> u16 {
    entry(0, || {
        // SAFETY: the caller's contract.
        let found = unsafe { id(pointer) }.ok();
        let address = found.and_then(|id| which(&id.lock()));
        address.map_or(0, |address| address.port().to_be())
    })
}

pub(crate) unsafe extern "C" fn rdma_get_src_port(pointer: *mut rdma_cm_id) -> u16 {
    // SAFETY: the program passes a live identifier.
    unsafe { port(pointer, |inner| inner.local) }
}

pub(crate) unsafe extern "C" fn rdma_get_dst_port(pointer: *mut rdma_cm_id) -> u16 {
    // SAFETY: the program passes a live identifier.
    unsafe { port(pointer, |inner| inner.peer) }
}

//! Endpoints: `rdma_create_ep(3)`, `rdma_destroy_ep(3)` and `rdma_get_request(3)`.

use crate::abi::{RAI_PASSIVE, ibv_pd, ibv_qp_init_attr, rdma_addrinfo, rdma_cm_event, rdma_cm_id};
use crate::cm::addr::{address, bind, resolve};
use crate::cm::event::fetch::fetch;
use crate::cm::event::fetched::acknowledge;
use crate::cm::id::identifier::{self, IdAttr, State, Template, id};
use crate::cm::id::lifecycle::{ack_event, complete, destroy};
use crate::cm::qp::{rdma_create_qp, rdma_destroy_qp};
use crate::cm::srq::rdma_destroy_srq;
use crate::ffi::{entry, load, minus_one_making, store};
use nix::errno::Errno;
use std::ffi::{c_int, c_uint};
use std::ptr;

/// # Safety
/// As for `rdma_create_ep(3)`.
unsafe fn create(
    info: &rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> Result<*mut rdma_cm_id, Errno> {
    let attr = IdAttr {
        channel: None,
        context: ptr::null_mut(),
        port_space: c_uint::try_from(info.ai_port_space).map_err(|_| Errno::EINVAL)?,
    };
    // SAFETY: there is no channel.
    let made = unsafe { identifier::create(&attr) }?;
    // SAFETY: the caller's contract, and just made.
    let prepared = unsafe { prepare(made, info, pd, init) };
    if let Err(errno) = prepared {
        // SAFETY: just created, and unused.
        unsafe { rdma_destroy_ep(made) };
        return Err(errno);
    }
    Ok(made)
}

/// # Safety
/// As for [`create`]; `made` is a live identifier.
unsafe fn prepare(
    made: *mut rdma_cm_id,
    info: &rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> Result<(), Errno> {
    let qp_type = c_uint::try_from(info.ai_qp_type).map_err(|_| Errno::EINVAL)?;
    // SAFETY: just made.
    let id = unsafe { id(made) }?;
    if info.ai_flags & RAI_PASSIVE != 0 {
        // SAFETY: the program's address.
        bind::bind(id, unsafe { address::read_any(info.ai_src_addr) }?)?;
        if !pd.is_null() {
            // SAFETY: the program does not have it yet.
            unsafe { (*made).pd = pd };
        }
        if !init.is_null() {
            // SAFETY: the program's attributes; rdma_create_ep(3) sets their type.
            unsafe { (*init).qp_type = qp_type };
            // SAFETY: as above.
            id.lock().template = Some(Template(unsafe { load(init) }?));
        }
        return Ok(());
    }
    let from = if info.ai_src_addr.is_null() {
        None
    } else {
        // SAFETY: the program's address.
        Some(unsafe { address::read_any(info.ai_src_addr) }?)
    };
    // SAFETY: the program's address.
    resolve::resolve(id, from, unsafe { address::read_any(info.ai_dst_addr) }?)?;
    // SAFETY: the program does not have it yet.
    unsafe { complete(made) }?;
    resolve::resolve_route(id)?;
    // SAFETY: the program does not have it yet.
    unsafe { complete(made) }?;
    if !init.is_null() {
        // SAFETY: the program's attributes.
        unsafe { (*init).qp_type = qp_type };
        // SAFETY: live objects, or NULL.
        if unsafe { rdma_create_qp(made, pd, init) } != 0 {
            return Err(Errno::last());
        }
    }
    Ok(())
}

/// The next request of a synchronous listener, with a queue pair if the endpoint has attributes for one.
///
/// # Safety
/// `listener` is NULL or a live identifier that no other call uses.
unsafe fn get_request(listener: *mut rdma_cm_id) -> Result<*mut rdma_cm_id, Errno> {
    // SAFETY: the caller's contract.
    let id = unsafe { id(listener) }?;
    {
        let inner = id.lock();
        if !inner.synchronous || inner.state != State::Listening {
            return Err(Errno::EINVAL);
        }
    }
    // SAFETY: the caller's contract.
    unsafe { ack_event(listener) }?;
    let event: *mut rdma_cm_event = fetch(&id.events())?;
    // SAFETY: just fetched.
    let face = unsafe { load(event) }?;
    if face.status != 0 || face.listen_id != listener {
        // SAFETY: just fetched.
        unsafe { acknowledge(event) }?;
        return Err(match face.status {
            0 => Errno::EINVAL,
            status => Errno::from_raw(status.saturating_abs()),
        });
    }
    let new = face.id;
    let template = id.lock().template;
    if let Some(template) = template {
        let mut init = template.0;
        // SAFETY: the caller's contract.
        let pd = unsafe { (*listener).pd };
        // SAFETY: a new identifier, and live objects or NULL.
        if unsafe { rdma_create_qp(new, pd, &raw mut init) } != 0 {
            let errno = Errno::last();
            // SAFETY: just fetched.
            unsafe { acknowledge(event) }?;
            // SAFETY: the program does not have it.
            unsafe { destroy(new) }?;
            return Err(errno);
        }
    }
    // SAFETY: the program does not have it yet, and will read the private data there.
    unsafe { (*new).event = event };
    Ok(new)
}

pub(crate) unsafe extern "C" fn rdma_create_ep(
    pointer: *mut *mut rdma_cm_id,
    info: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    minus_one_making(|| {
        if pointer.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the program passes a result of `rdma_getaddrinfo`.
        let info = unsafe { load(info) }?;
        // SAFETY: and live objects, or NULL.
        let made = unsafe { create(&info, pd, init) }?;
        // SAFETY: and room for the pointer.
        unsafe { store(pointer, made) }.map(|()| 0)
    })
}

pub(crate) unsafe extern "C" fn rdma_destroy_ep(pointer: *mut rdma_cm_id) {
    entry((), || {
        // SAFETY: the program passes an identifier and does not use it any more.
        unsafe { rdma_destroy_qp(pointer) };
        // SAFETY: as above.
        unsafe { rdma_destroy_srq(pointer) };
        // SAFETY: as above.
        if let Err(errno) = unsafe { destroy(pointer) } {
            errno.set();
        }
    });
}

pub(crate) unsafe extern "C" fn rdma_get_request(
    listener: *mut rdma_cm_id,
    pointer: *mut *mut rdma_cm_id,
) -> c_int {
    minus_one_making(|| {
        if pointer.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the program passes a live identifier.
        let new = unsafe { get_request(listener) }?;
        // SAFETY: and room for the pointer.
        unsafe { store(pointer, new) }.map(|()| 0)
    })
}

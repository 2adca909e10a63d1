//! Identifiers made whole (`rdma_create_ep(3)`), requests taken by waiting calls, and shared receive queues.

use super::addr::address;
use super::addr::resolve;
use super::event;
use super::id::{self, Making, State};
use super::qp::{rdma_create_qp, rdma_destroy_qp};
use crate::abi::{
    IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE, RAI_PASSIVE, ibv_pd, ibv_qp_init_attr, ibv_srq,
    ibv_srq_init_attr, ibv_srq_init_attr_ex, rdma_addrinfo, rdma_cm_event, rdma_cm_id,
};
use crate::ffi::{CPointer, entry, load, minus_one, store};
use crate::qp::srq::{create_srq_ex, ibv_create_srq, ibv_destroy_srq};
use nix::errno::Errno;
use std::ffi::{c_int, c_uint};
use std::ptr;

/// What an endpoint that listens makes for each request.
#[derive(Clone, Copy)]
pub(crate) struct Template {
    init: CPointer<ibv_qp_init_attr>,
}

impl Template {
    fn new(init: ibv_qp_init_attr) -> Self {
        Self {
            init: CPointer(Box::into_raw(Box::new(init))),
        }
    }

    /// A copy for one queue pair.
    fn get(self) -> ibv_qp_init_attr {
        // SAFETY: made by `new`, and freed with the identifier only.
        unsafe { self.init.0.read() }
    }

    /// # Safety
    /// It is not used any more.
    pub(crate) unsafe fn free(self) {
        // SAFETY: made by `new` as a Box.
        drop(unsafe { Box::from_raw(self.init.0) });
    }
}

/// # Safety
/// As for `rdma_create_ep(3)`.
unsafe fn create(
    info: &rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> Result<*mut rdma_cm_id, Errno> {
    let making = Making {
        channel: None,
        context: ptr::null_mut(),
        port_space: c_uint::try_from(info.ai_port_space).map_err(|_| Errno::EINVAL)?,
    };
    // SAFETY: there is no channel.
    let made = unsafe { id::create(&making) }?;
    // SAFETY: the caller's contract, and just made.
    let prepared = unsafe { prepare(made, info, pd, init) };
    if let Err(errno) = prepared {
        // SAFETY: just made, and nobody's.
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
    let id = unsafe { id::id(made) }?;
    if info.ai_flags & RAI_PASSIVE != 0 {
        // SAFETY: the program's address.
        resolve::bind(id, unsafe { address::read(info.ai_src_addr) }?)?;
        if !pd.is_null() {
            // SAFETY: nobody else has it yet.
            unsafe { (*made).pd = pd };
        }
        if !init.is_null() {
            // SAFETY: the program's attributes; rdma_create_ep(3) sets their type.
            unsafe { (*init).qp_type = qp_type };
            // SAFETY: as above.
            id.lock().template = Some(Template::new(unsafe { load(init) }?));
        }
        return Ok(());
    }
    let from = if info.ai_src_addr.is_null() {
        None
    } else {
        // SAFETY: the program's address.
        Some(unsafe { address::read(info.ai_src_addr) }?)
    };
    // SAFETY: the program's address.
    resolve::resolve(id, from, unsafe { address::read(info.ai_dst_addr) }?)?;
    // SAFETY: nobody else has it yet.
    unsafe { id::complete(made) }?;
    resolve::resolve_route(id)?;
    // SAFETY: nobody else has it yet.
    unsafe { id::complete(made) }?;
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

/// The next request of a listener whose calls wait, with its queue pair if the endpoint was made for that.
///
/// # Safety
/// `listener` is NULL or a live identifier that no other call uses.
unsafe fn get_request(listener: *mut rdma_cm_id) -> Result<*mut rdma_cm_id, Errno> {
    // SAFETY: the caller's contract.
    let id = unsafe { id::id(listener) }?;
    {
        let inner = id.lock();
        if !inner.waits || inner.state != State::Listening {
            return Err(Errno::EINVAL);
        }
    }
    // SAFETY: the caller's contract.
    unsafe { id::forget_event(listener) }?;
    let event: *mut rdma_cm_event = event::fetch(&id.events())?;
    // SAFETY: just fetched.
    let shown = unsafe { load(event) }?;
    if shown.status != 0 || shown.listen_id != listener {
        // SAFETY: just fetched.
        unsafe { event::acknowledge(event) }?;
        return Err(match shown.status {
            0 => Errno::EINVAL,
            status => Errno::from_raw(status.saturating_abs()),
        });
    }
    let new = shown.id;
    let template = id.lock().template;
    if let Some(template) = template {
        let mut init = template.get();
        // SAFETY: the caller's contract.
        let pd = unsafe { (*listener).pd };
        // SAFETY: a new identifier, and live objects or NULL.
        if unsafe { rdma_create_qp(new, pd, &raw mut init) } != 0 {
            let errno = Errno::last();
            // SAFETY: just fetched.
            unsafe { event::acknowledge(event) }?;
            // SAFETY: nobody has it.
            unsafe { id::destroy(new) }?;
            return Err(errno);
        }
    }
    // SAFETY: nobody else has it yet. The program reads the private data there.
    unsafe { (*new).event = event };
    Ok(new)
}

pub(crate) unsafe extern "C" fn rdma_create_ep(
    pointer: *mut *mut rdma_cm_id,
    info: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    minus_one(|| {
        if pointer.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the program passes an answer of `rdma_getaddrinfo`.
        let info = unsafe { load(info) }?;
        // SAFETY: and live objects, or NULL.
        let made = unsafe { create(&info, pd, init) }?;
        // SAFETY: and room for the pointer.
        unsafe { store(pointer, made) }.map(|()| 0)
    })
}

pub(crate) unsafe extern "C" fn rdma_destroy_ep(pointer: *mut rdma_cm_id) {
    entry((), || {
        // SAFETY: the program passes a live identifier and does not use it any more.
        unsafe { rdma_destroy_qp(pointer) };
        // SAFETY: as above.
        unsafe { rdma_destroy_srq(pointer) };
        // SAFETY: as above.
        if let Err(errno) = unsafe { id::destroy(pointer) } {
            errno.set();
        }
    });
}

pub(crate) unsafe extern "C" fn rdma_get_request(
    listener: *mut rdma_cm_id,
    pointer: *mut *mut rdma_cm_id,
) -> c_int {
    minus_one(|| {
        if pointer.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the program passes a live identifier.
        let new = unsafe { get_request(listener) }?;
        // SAFETY: and room for the pointer.
        unsafe { store(pointer, new) }.map(|()| 0)
    })
}

/// Gives an identifier the shared receive queue that `make` makes in a domain of the identifier's device.
///
/// # Safety
/// `c` is NULL or a live identifier, `pd` NULL, which means the identifier's own, or live; `make` is called with a live one.
unsafe fn give_srq(
    c: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    make: impl FnOnce(*mut ibv_pd) -> *mut ibv_srq,
) -> Result<c_int, Errno> {
    // SAFETY: the caller's contract.
    unsafe { id::id(c) }?;
    // SAFETY: as above.
    let shown = unsafe { &*c };
    let pd = if pd.is_null() { shown.pd } else { pd };
    // SAFETY: a live protection domain; this field never changes.
    let fits = !pd.is_null() && unsafe { (*pd).context } == shown.verbs;
    if !fits || !shown.srq.is_null() {
        return Err(Errno::EINVAL);
    }
    let srq = make(pd);
    if srq.is_null() {
        return Err(Errno::last());
    }
    // SAFETY: the identifier is used by this call alone.
    unsafe { (*c).srq = srq };
    // SAFETY: as above.
    unsafe { (*c).pd = pd };
    Ok(0)
}

pub(crate) unsafe extern "C" fn rdma_create_srq(
    c: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> c_int {
    minus_one(|| {
        // SAFETY: a live domain and the program's valid attributes.
        let make = |pd| unsafe { ibv_create_srq(pd, init) };
        // SAFETY: the program passes a live identifier.
        unsafe { give_srq(c, pd, make) }
    })
}

/// The domain may be left to the identifier; then it is written into the program's attributes.
pub(crate) unsafe extern "C" fn rdma_create_srq_ex(
    c: *mut rdma_cm_id,
    init: *mut ibv_srq_init_attr_ex,
) -> c_int {
    minus_one(|| {
        // SAFETY: NULL or the program's attributes.
        let attr = unsafe { init.as_mut() }.ok_or(Errno::EINVAL)?;
        if attr.comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 {
            return Err(Errno::EINVAL);
        }
        let pd = if attr.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 {
            ptr::null_mut()
        } else {
            attr.pd
        };
        let make = |pd| {
            attr.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
            attr.pd = pd;
            // SAFETY: valid attributes with a live domain.
            unsafe { create_srq_ex(ptr::null_mut(), attr) }
        };
        // SAFETY: the program passes a live identifier.
        unsafe { give_srq(c, pd, make) }
    })
}

pub(crate) unsafe extern "C" fn rdma_destroy_srq(c: *mut rdma_cm_id) {
    entry((), || {
        // SAFETY: the program passes a live identifier.
        if unsafe { id::id(c) }.is_err() {
            return;
        }
        // SAFETY: as above.
        let srq = unsafe { (*c).srq };
        if !srq.is_null() {
            // SAFETY: made by `rdma_create_srq`, and not used any more.
            unsafe { ibv_destroy_srq(srq) };
            // SAFETY: as above.
            unsafe { (*c).srq = ptr::null_mut() };
        }
    });
}

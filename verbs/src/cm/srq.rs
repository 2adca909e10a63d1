//! Shared receive queues of identifiers: `rdma_create_srq(3)`.

use crate::abi::{
    IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE, ibv_pd, ibv_srq, ibv_srq_init_attr,
    ibv_srq_init_attr_ex, rdma_cm_id,
};
use crate::cm::id::identifier::{id, live_id};
use crate::ffi::{entry, minus_one_making};
use crate::qp::srq::{create_srq_ex, ibv_create_srq, ibv_destroy_srq};
use nix::errno::Errno;
use std::ffi::c_int;
use std::{mem, ptr};

/// Creates the shared receive queue of an identifier with `make`, in a protection domain of the identifier's device.
///
/// # Safety
/// `c` is NULL or a live identifier, `pd` live, or NULL for the identifier's own; `make` is called with a live one.
unsafe fn create(
    c: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    make: impl FnOnce(*mut ibv_pd) -> *mut ibv_srq,
) -> Result<c_int, Errno> {
    // SAFETY: the caller's contract.
    unsafe { id(c) }?;
    // SAFETY: as above.
    let face = unsafe { &*c };
    let pd = if pd.is_null() { face.pd } else { pd };
    // SAFETY: a live protection domain; this field never changes.
    let fits = !pd.is_null() && unsafe { (*pd).context } == face.verbs;
    if !fits || !face.srq.is_null() {
        return Err(Errno::EINVAL);
    }
    let srq = make(pd);
    if srq.is_null() {
        return Err(Errno::last());
    }
    // SAFETY: no other call uses the identifier.
    let id = unsafe { &mut *c };
    (id.srq, id.pd) = (srq, pd);
    Ok(0)
}

pub(crate) unsafe extern "C" fn rdma_create_srq(
    c: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> c_int {
    minus_one_making(|| {
        // SAFETY: a live domain and the program's valid attributes.
        let make = |pd| unsafe { ibv_create_srq(pd, init) };
        // SAFETY: the program passes a live identifier.
        unsafe { create(c, pd, make) }
    })
}

/// Without a protection domain in the attributes, the identifier's is used and written to them.
pub(crate) unsafe extern "C" fn rdma_create_srq_ex(
    c: *mut rdma_cm_id,
    init: *mut ibv_srq_init_attr_ex,
) -> c_int {
    minus_one_making(|| {
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
        unsafe { create(c, pd, make) }
    })
}

pub(crate) unsafe extern "C" fn rdma_destroy_srq(c: *mut rdma_cm_id) {
    entry((), || {
        // SAFETY: the program passes an identifier that no other call uses.
        if let Err(errno) = unsafe { live_id(c) } {
            errno.set();
            return;
        }
        // SAFETY: as above.
        let srq = mem::replace(unsafe { &mut (*c).srq }, ptr::null_mut());
        if !srq.is_null() {
            // SAFETY: made by `rdma_create_srq`, and not used any more.
            unsafe { ibv_destroy_srq(srq) };
        }
    });
}

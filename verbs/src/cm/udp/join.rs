//! `rdma_join_multicast(3)`, `rdma_join_multicast_ex(3)` and `rdma_leave_multicast(3)`.

use crate::abi::{rdma_cm_id, rdma_cm_join_mc_attr_ex};
use crate::cm::addr::address;
use crate::cm::id::identifier::{id, live_id};
use crate::cm::id::lifecycle::complete;
use crate::cm::udp::multicast::{join, leave};
use crate::ffi::{CPointer, load, minus_one, minus_one_making};
use libc::sockaddr;
use nix::errno::Errno;
use std::ffi::{c_int, c_void};

/// `enum rdma_cm_join_mc_attr_mask`.
const MASK_ADDRESS: u32 = 1;
const MASK_FLAGS: u32 = 1 << 1;
/// `enum rdma_cm_mc_join_flags`.
const FULL_MEMBER: u32 = 0;
const SEND_ONLY: u32 = 1;

/// # Safety
/// `pointer` is NULL or a live identifier, used by no other call; `to` NULL or an address.
unsafe fn join_call(
    pointer: *mut rdma_cm_id,
    to: *const sockaddr,
    send_only: bool,
    context: *mut c_void,
) -> Result<c_int, Errno> {
    // SAFETY: the caller's contract.
    let id = unsafe { id(pointer) }?;
    // SAFETY: the caller's contract.
    let to = unsafe { address::read_any(to) }?;
    join(id, to, send_only, CPointer(context))?;
    // SAFETY: the caller's contract.
    unsafe { complete(pointer) }.map(|()| 0)
}

pub(crate) unsafe extern "C" fn rdma_join_multicast(
    pointer: *mut rdma_cm_id,
    to: *mut sockaddr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the program passes a live identifier and an address.
    minus_one_making(|| unsafe { join_call(pointer, to, false, context) })
}

pub(crate) unsafe extern "C" fn rdma_join_multicast_ex(
    pointer: *mut rdma_cm_id,
    attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    minus_one_making(|| {
        // SAFETY: the program passes attributes.
        let attr = unsafe { load(attr) }?;
        let known = MASK_ADDRESS | MASK_FLAGS;
        let send_only = match attr.join_flags {
            FULL_MEMBER => false,
            SEND_ONLY => true,
            _ => return Err(Errno::EINVAL),
        };
        // Both fields are required.
        if attr.comp_mask != known {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the program passes a live identifier, and the mask includes an address.
        unsafe { join_call(pointer, attr.addr, send_only, context) }
    })
}

pub(crate) unsafe extern "C" fn rdma_leave_multicast(
    pointer: *mut rdma_cm_id,
    to: *mut sockaddr,
) -> c_int {
    minus_one(|| {
        // SAFETY: the program passes an identifier that no other call destroys.
        let id = unsafe { live_id(pointer) }?;
        // SAFETY: and an address.
        let to = unsafe { address::read_any(to) }?;
        let qp = id.qp();
        // SAFETY: the queue pair of a live identifier is live.
        unsafe { leave(id, qp, to) }.map(|()| 0)
    })
}

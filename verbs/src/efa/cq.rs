//! Completion queues that report the GID of a message's sender.

use super::adapter::expect_efa;
use super::sized::load_attr;
use crate::abi::{
    EFADV_WC_EX_WITH_SGID, IBV_WC_RDMA_READ, IBV_WC_SEND, efadv_cq, efadv_cq_init_attr,
    ibv_context, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_gid,
};
use crate::cq::cq_ex;
use crate::cq::sgid::SgidReader;
use crate::device::gid::to_gid;
use crate::ffi::{entry, pointer, store};
use nix::errno::Errno;
use std::ffi::{c_int, c_uint};

pub(super) unsafe extern "C" fn efadv_create_cq(
    context: *mut ibv_context,
    init: *mut ibv_cq_init_attr_ex,
    efa: *const efadv_cq_init_attr,
    inlen: u32,
) -> *mut ibv_cq_ex {
    pointer(|| {
        expect_efa()?;
        // SAFETY: the program passes `inlen` bytes of attributes.
        let attr = unsafe { load_attr(efa, inlen) }?;
        if attr.comp_mask != 0 {
            return Err(Errno::EINVAL);
        }
        if attr.wc_flags & !EFADV_WC_EX_WITH_SGID != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        // SAFETY: the contract is that of `ibv_create_cq_ex(3)`.
        unsafe { cq_ex::create(context, init, |face| face.read_opcode = Some(read_opcode)) }
    })
}

/// EFA devices report Reads as Sends, and libfabric knows no other completion of a send queue.
unsafe extern "C" fn read_opcode(cq: *mut ibv_cq_ex) -> c_uint {
    // SAFETY: the program reads between starting and ending to poll.
    entry(IBV_WC_SEND, || match unsafe { cq_ex::opcode(cq) } {
        IBV_WC_RDMA_READ => IBV_WC_SEND,
        other => other,
    })
}

/// Every extended completion queue reads the GID, whether requested at creation or not.
pub(super) unsafe extern "C" fn efadv_cq_from_ibv_cq_ex(cq: *mut ibv_cq_ex) -> *mut efadv_cq {
    pointer(|| {
        expect_efa()?;
        // SAFETY: the program passes a live extended completion queue.
        let state = unsafe { cq_ex::state(cq) }?;
        Ok(state.sgid_reader(cq, wc_read_sgid))
    })
}

/// Convention: 0 or a negative errno value. `ENOENT` without a sender.
unsafe extern "C" fn wc_read_sgid(reader: *mut efadv_cq, to: *mut ibv_gid) -> c_int {
    let read = || {
        // SAFETY: the program passes the reader of a live completion queue.
        let cq = unsafe { SgidReader::queue(reader) }.ok_or(Errno::EINVAL)?;
        // SAFETY: between starting and ending to poll it.
        let (from, _) = unsafe { cq_ex::source(cq) }?;
        // SAFETY: and room for a GID.
        unsafe { store(to, to_gid(from.ip())) }
    };
    entry(-libc::EIO, || {
        read().map_or_else(|errno| -(errno as c_int), |()| 0)
    })
}

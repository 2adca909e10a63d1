//! Work requests that verbs do not have, and the maps of failed Reads.

use super::datagram::to_int;
use super::records::store_ranges;
use crate::abi::{
    IBV_QP_EX_WITH_RDMA_WRITE, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, dgiwarpdv_range, ibv_qp,
    ibv_qp_ex,
};
use crate::ffi::{minus_one, store};
use crate::post::wr_calls::{begin, with_builder};
use crate::qp::queue_pair::{self, Transport};
use dgiwarp::RcOperation;
use nix::errno::Errno;
use std::ffi::c_int;
use std::time::Duration;

/// Begins a Write-Record.
///
/// # Safety
/// `qp` is a live queue pair, and the thread is between `ibv_wr_start` and its end.
unsafe fn write_record(
    qp: *mut ibv_qp_ex,
    (rkey, remote_addr): (u32, u64),
    immediate: Option<u32>,
) {
    let flag = match immediate {
        None => IBV_QP_EX_WITH_RDMA_WRITE,
        Some(_) => IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
    };
    let operation = || {
        Ok(RcOperation::Write {
            rkey,
            remote_addr,
            immediate,
        })
    };
    // SAFETY: the caller's contract.
    unsafe { begin(qp, flag, operation) };
    // SAFETY: the caller's contract.
    unsafe {
        with_builder(qp, |state, builder| match state.qp {
            Transport::Ud(_) | Transport::Uc(_) => builder.set_record(),
            Transport::Rd(_) | Transport::Rc(_) | Transport::RcRd(_) | Transport::XrcTarget(_) => {
                Err(Errno::EOPNOTSUPP)
            }
        });
    }
}

pub(super) unsafe extern "C" fn dgiwarpdv_wr_write_record(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
) {
    // SAFETY: called between `ibv_wr_start` and `ibv_wr_complete`, as `ibv_wr_post(3)` demands.
    unsafe { write_record(qp, (rkey, remote_addr), None) };
}

pub(super) unsafe extern "C" fn dgiwarpdv_wr_write_record_imm(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    immediate: u32,
) {
    // SAFETY: called between `ibv_wr_start` and `ibv_wr_complete`, as `ibv_wr_post(3)` demands.
    unsafe { write_record(qp, (rkey, remote_addr), Some(u32::from_be(immediate))) };
}

pub(super) unsafe extern "C" fn dgiwarpdv_wr_set_read_timeout(qp: *mut ibv_qp_ex, timeout_ms: u32) {
    // SAFETY: called between `ibv_wr_start` and `ibv_wr_complete`, as `ibv_wr_post(3)` demands.
    unsafe {
        with_builder(qp, |state, builder| match state.qp {
            Transport::Ud(_) => builder.set_timeout(Duration::from_millis(timeout_ms.into())),
            Transport::Uc(_)
            | Transport::Rd(_)
            | Transport::Rc(_)
            | Transport::RcRd(_)
            | Transport::XrcTarget(_) => Err(Errno::EOPNOTSUPP),
        });
    }
}

pub(super) unsafe extern "C" fn dgiwarpdv_take_read_map(
    qp: *mut ibv_qp,
    wr_id: u64,
    length: *mut u32,
    ranges: *mut dgiwarpdv_range,
    max: c_int,
) -> c_int {
    minus_one(|| {
        // Check everything before taking the map, which works once.
        if max < 0 || (max > 0 && ranges.is_null()) {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the program passes a live queue pair.
        let map = match unsafe { &queue_pair::state(qp)?.qp } {
            Transport::Ud(ud) => ud.take_read_map(wr_id).ok_or(Errno::ENOENT)?,
            Transport::Uc(_)
            | Transport::Rd(_)
            | Transport::Rc(_)
            | Transport::RcRd(_)
            | Transport::XrcTarget(_) => {
                return Err(Errno::EOPNOTSUPP);
            }
        };
        if !length.is_null() {
            // SAFETY: not NULL, so room for it.
            unsafe { store(length, map.length) }?;
        }
        // SAFETY: the program passes room for the ranges.
        unsafe { store_ranges(&map.ranges, ranges, max) }?;
        to_int(map.ranges.len())
    })
}

//! The functions behind `ibv_wr_start` and its kin. Programs reach them through the queue pair's own table.

use crate::abi::{
    IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, IBV_QP_EX_WITH_BIND_MW,
    IBV_QP_EX_WITH_LOCAL_INV, IBV_QP_EX_WITH_RDMA_READ, IBV_QP_EX_WITH_RDMA_WRITE,
    IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_SEND_WITH_IMM,
    IBV_QP_EX_WITH_SEND_WITH_INV, ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp,
    ibv_qp_ex, ibv_sge,
};
use crate::ffi::{Object, entry, errno_value};
use crate::post::posting::address;
use crate::post::wr_builder::Batch;
use crate::qp::ah::Ah;
use crate::qp::queue_pair::{self, Qp};
use dgiwarp::{AtomicOperation, MAX_SGE, RcOperation, Sge};
use nix::errno::Errno;
use std::ffi::{c_int, c_void};
use std::{ptr, slice};

/// The extended view of a queue pair that was made with `IBV_QP_INIT_ATTR_SEND_OPS_FLAGS`; NULL for others.
pub(crate) unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    entry(ptr::null_mut(), || {
        // SAFETY: the program passes a live queue pair.
        match unsafe { queue_pair::state(qp) } {
            Ok(state) if state.batches.is_some() => qp.cast(),
            Ok(_) | Err(_) => ptr::null_mut(),
        }
    })
}

/// Fills the table. An operation that the queue pair was not made for is a mistake, found by `ibv_wr_complete`.
pub(crate) fn fill(ex: &mut ibv_qp_ex) {
    ex.wr_atomic_cmp_swp = Some(atomic_cmp_swp);
    ex.wr_atomic_fetch_add = Some(atomic_fetch_add);
    ex.wr_bind_mw = Some(bind_mw);
    ex.wr_local_inv = Some(local_inv);
    ex.wr_rdma_read = Some(rdma_read);
    ex.wr_rdma_write = Some(rdma_write);
    ex.wr_rdma_write_imm = Some(rdma_write_imm);
    ex.wr_send = Some(send);
    ex.wr_send_imm = Some(send_imm);
    ex.wr_send_inv = Some(send_inv);
    ex.wr_send_tso = Some(send_tso);
    ex.wr_set_ud_addr = Some(set_ud_addr);
    ex.wr_set_xrc_srqn = Some(set_xrc_srqn);
    ex.wr_set_inline_data = Some(set_inline_data);
    ex.wr_set_inline_data_list = Some(set_inline_data_list);
    ex.wr_set_sge = Some(set_sge);
    ex.wr_set_sge_list = Some(set_sge_list);
    ex.wr_start = Some(start);
    ex.wr_complete = Some(complete);
    ex.wr_abort = Some(abort);
    ex.wr_atomic_write = Some(atomic_write);
}

/// Goes on with the batch of a queue pair.
///
/// # Safety
/// `qp` is a live queue pair, and the thread is between `ibv_wr_start` and its end, as `ibv_wr_post(3)` has it.
pub(crate) unsafe fn go_on(
    qp: *mut ibv_qp_ex,
    body: impl FnOnce(&Qp, &mut Batch) -> Result<(), Errno>,
) {
    entry((), || {
        // SAFETY: the caller's contract.
        let Ok(state) = (unsafe { queue_pair::state(qp.cast()) }) else {
            return;
        };
        if let Some(batches) = &state.batches {
            // SAFETY: the caller's contract.
            unsafe { batches.go_on(|batch| body(state, batch)) };
        }
    });
}

/// Begins a work request of the kind `flag`, with the `wr_id` and `wr_flags` that the program wrote into the queue pair.
///
/// # Safety
/// As for [`go_on`].
pub(crate) unsafe fn build(
    qp: *mut ibv_qp_ex,
    flag: u64,
    operation: impl FnOnce() -> Result<RcOperation, Errno>,
) {
    let begin = |state: &Qp, batch: &mut Batch| {
        let allowed = state.batches.as_ref().map_or(0, |it| it.allowed);
        if allowed & flag == 0 {
            return Err(Errno::EINVAL);
        }
        // SAFETY: a live queue pair that this thread has to itself now.
        let note = unsafe { qp.as_ref() }.ok_or(Errno::EINVAL)?;
        let note = (note.wr_id, note.wr_flags);
        batch.begin(operation()?, note, state.cap.max_send_wr)
    };
    // SAFETY: the caller's contract.
    unsafe { go_on(qp, begin) };
}

unsafe extern "C" fn start(qp: *mut ibv_qp_ex) {
    entry((), || {
        // SAFETY: the program passes a live queue pair.
        if let Ok(Some(batches)) =
            unsafe { queue_pair::state(qp.cast()) }.map(|state| &state.batches)
        {
            batches.start();
        }
    });
}

unsafe extern "C" fn complete(qp: *mut ibv_qp_ex) -> c_int {
    errno_value(|| {
        // SAFETY: the program passes a live queue pair.
        let state = unsafe { queue_pair::state(qp.cast()) }?;
        let batches = state.batches.as_ref().ok_or(Errno::EINVAL)?;
        // SAFETY: the thread that completes is the one that started.
        unsafe { batches.post(state) }
    })
}

unsafe extern "C" fn abort(qp: *mut ibv_qp_ex) {
    entry((), || {
        // SAFETY: the program passes a live queue pair.
        if let Ok(Some(batches)) =
            unsafe { queue_pair::state(qp.cast()) }.map(|state| &state.batches)
        {
            // SAFETY: the thread that aborts is the one that started.
            unsafe { batches.end() };
        }
    });
}

unsafe extern "C" fn send(qp: *mut ibv_qp_ex) {
    let operation = || Ok(RcOperation::Send { invalidate: None });
    // SAFETY: `ibv_wr_send` is called between start and completion.
    unsafe { build(qp, IBV_QP_EX_WITH_SEND, operation) };
}

unsafe extern "C" fn send_imm(qp: *mut ibv_qp_ex, immediate: u32) {
    let operation = || {
        Ok(RcOperation::SendImmediate {
            immediate: u32::from_be(immediate),
        })
    };
    // SAFETY: as for `send`.
    unsafe { build(qp, IBV_QP_EX_WITH_SEND_WITH_IMM, operation) };
}

unsafe extern "C" fn send_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    let operation = || {
        Ok(RcOperation::Send {
            invalidate: Some(rkey),
        })
    };
    // SAFETY: as for `send`.
    unsafe { build(qp, IBV_QP_EX_WITH_SEND_WITH_INV, operation) };
}

unsafe extern "C" fn rdma_write(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
    let operation = || {
        Ok(RcOperation::Write {
            rkey,
            remote_addr,
            immediate: None,
        })
    };
    // SAFETY: as for `send`.
    unsafe { build(qp, IBV_QP_EX_WITH_RDMA_WRITE, operation) };
}

unsafe extern "C" fn rdma_write_imm(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    immediate: u32,
) {
    let operation = || {
        Ok(RcOperation::Write {
            rkey,
            remote_addr,
            immediate: Some(u32::from_be(immediate)),
        })
    };
    // SAFETY: as for `send`.
    unsafe { build(qp, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, operation) };
}

unsafe extern "C" fn rdma_read(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
    let operation = || Ok(RcOperation::Read { rkey, remote_addr });
    // SAFETY: as for `send`.
    unsafe { build(qp, IBV_QP_EX_WITH_RDMA_READ, operation) };
}

unsafe extern "C" fn atomic_cmp_swp(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    compare: u64,
    swap: u64,
) {
    let operation = || {
        Ok(RcOperation::Atomic {
            rkey,
            remote_addr,
            operation: AtomicOperation::CompareSwap {
                compare,
                compare_mask: u64::MAX,
                swap,
                swap_mask: u64::MAX,
            },
        })
    };
    // SAFETY: as for `send`.
    unsafe { build(qp, IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, operation) };
}

unsafe extern "C" fn atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, add: u64) {
    let operation = || {
        Ok(RcOperation::Atomic {
            rkey,
            remote_addr,
            operation: AtomicOperation::FetchAdd { add, mask: 0 },
        })
    };
    // SAFETY: as for `send`.
    unsafe { build(qp, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, operation) };
}

unsafe extern "C" fn local_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    let operation = || Ok(RcOperation::LocalInvalidate { rkey });
    // SAFETY: as for `send`.
    unsafe { build(qp, IBV_QP_EX_WITH_LOCAL_INV, operation) };
}

unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    let operation = || {
        // SAFETY: `ibv_wr_bind_mw` is passed a live window and the description of its binding.
        unsafe { crate::mem::mw::binding(mw, rkey, info) }
    };
    // SAFETY: as for `send`.
    unsafe { build(qp, IBV_QP_EX_WITH_BIND_MW, operation) };
}

/// No queue pair is made for TSO, XRC or atomic writes, so that these are mistakes.
fn unheard_of() -> Result<RcOperation, Errno> {
    Err(Errno::EOPNOTSUPP)
}

unsafe extern "C" fn send_tso(qp: *mut ibv_qp_ex, _header: *mut c_void, _length: u16, _mss: u16) {
    // SAFETY: as for `send`.
    unsafe { build(qp, u64::MAX, unheard_of) };
}

unsafe extern "C" fn atomic_write(
    qp: *mut ibv_qp_ex,
    _rkey: u32,
    _remote_addr: u64,
    _data: *const c_void,
) {
    // SAFETY: as for `send`.
    unsafe { build(qp, u64::MAX, unheard_of) };
}

unsafe extern "C" fn set_xrc_srqn(qp: *mut ibv_qp_ex, _srqn: u32) {
    // SAFETY: as for `send`.
    unsafe { go_on(qp, |_, _| Err(Errno::EINVAL)) };
}

unsafe extern "C" fn set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    let set = |state: &Qp, batch: &mut Batch| {
        // SAFETY: the program passes a live address handle.
        let ah = unsafe { Object::<Ah>::state(ah) }?;
        batch.set_destination(address(state, ah, qpn, qkey)?)
    };
    // SAFETY: as for `send`.
    unsafe { go_on(qp, set) };
}

unsafe extern "C" fn set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let sge = Sge { addr, length, lkey };
    // SAFETY: as for `send`.
    unsafe { go_on(qp, |_, batch| batch.set_elements([sge].into_iter())) };
}

unsafe extern "C" fn set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    let set = |_: &Qp, batch: &mut Batch| {
        // SAFETY: the program passes `count` elements.
        let list = unsafe { list_of(list, count) }?;
        batch.set_elements(list.iter().map(|sge| Sge {
            addr: sge.addr,
            length: sge.length,
            lkey: sge.lkey,
        }))
    };
    // SAFETY: as for `send`.
    unsafe { go_on(qp, set) };
}

/// # Safety
/// `list` points to `count` valid elements, unless `count` is 0.
unsafe fn list_of<'a, T>(list: *const T, count: usize) -> Result<&'a [T], Errno> {
    if count == 0 {
        return Ok(&[]);
    }
    if list.is_null() || count > MAX_SGE {
        return Err(Errno::EINVAL);
    }
    // SAFETY: not NULL, so `count` elements by the caller's contract.
    Ok(unsafe { slice::from_raw_parts(list, count) })
}

unsafe extern "C" fn set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    let buffer = ibv_data_buf { addr, length };
    // SAFETY: as for `send`, with a list of one.
    unsafe { set_inline_data_list(qp, 1, &raw const buffer) };
}

unsafe extern "C" fn set_inline_data_list(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    let set = |_: &Qp, batch: &mut Batch| {
        // SAFETY: the program passes `count` buffers.
        let list = unsafe { list_of(list, count) }?;
        let buffers = list.iter().filter(|it| it.length > 0 && !it.addr.is_null());
        batch.set_inline(buffers.map(|it| {
            // SAFETY: each is memory that the program may read, of that length.
            unsafe { slice::from_raw_parts(it.addr.cast::<u8>().cast_const(), it.length) }
        }))
    };
    // SAFETY: as for `send`.
    unsafe { go_on(qp, set) };
}

//! The extended calls, `ibv_wr_start` and its kin, which programs call through the queue pair's own table.

use crate::abi::{
    IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, IBV_QP_EX_WITH_BIND_MW,
    IBV_QP_EX_WITH_LOCAL_INV, IBV_QP_EX_WITH_RDMA_READ, IBV_QP_EX_WITH_RDMA_WRITE,
    IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_SEND_WITH_IMM,
    IBV_QP_EX_WITH_SEND_WITH_INV, IBV_SEND_INLINE, ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info,
    ibv_qp, ibv_qp_ex, ibv_sge,
};
use crate::ffi::{Object, entry, errno, errno_value, thread_order};
use crate::mem::mw;
use crate::post::list::array;
use crate::post::operation::{WorkRequest, compare_swap, fetch_add, send_immediate, write};
use crate::post::send::address;
use crate::post::wr_builder::{SendOps, WrBuilder};
use crate::qp::ah::Ah;
use crate::qp::queue_pair::{self, Qp, Transport};
use crate::qp::state::{QpState, Service};
use dgiwarp::{PostError, RcOperation, Sge};
use nix::errno::Errno;
use std::ffi::{c_int, c_void};
use std::{ptr, slice};

/// The extended view of a queue pair created with `IBV_QP_INIT_ATTR_SEND_OPS_FLAGS`; NULL for others.
pub(crate) unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    entry(ptr::null_mut(), || {
        // SAFETY: the program passes a live queue pair.
        match unsafe { queue_pair::state(qp) } {
            Ok(state) if state.send_ops.is_some() => qp.cast(),
            Ok(_) | Err(_) => ptr::null_mut(),
        }
    })
}

/// Fills the table. `ibv_wr_complete` fails if an operation was used that the queue pair was not created with.
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
    if thread_order::is_checked() {
        ex.wr_start = Some(ordered_start);
        ex.wr_complete = Some(ordered_complete);
        ex.wr_abort = Some(ordered_abort);
    }
}

/// Runs a call on the builder of a queue pair.
///
/// # Safety
/// `qp` is a live queue pair, and the calling thread is between `ibv_wr_start` and `ibv_wr_complete` or `ibv_wr_abort`.
pub(crate) unsafe fn with_builder(
    qp: *mut ibv_qp_ex,
    call: impl FnOnce(&Qp, &mut WrBuilder) -> Result<(), Errno>,
) {
    entry((), || {
        // SAFETY: the caller's contract.
        if let Ok((state, send_ops)) = unsafe { send_ops(qp) } {
            // SAFETY: the caller's contract.
            unsafe { send_ops.with(|builder| call(state, builder)) };
        }
    });
}

/// The queue pair behind a pointer, if it has extended calls.
///
/// # Safety
/// `qp` is NULL or a live queue pair that stays alive for `'a`.
unsafe fn send_ops<'a>(qp: *mut ibv_qp_ex) -> Result<(&'a Qp, &'a SendOps), Errno> {
    // SAFETY: the caller's contract.
    let state = unsafe { queue_pair::state(qp.cast()) }?;
    Ok((state, state.send_ops.as_ref().ok_or(Errno::EINVAL)?))
}

/// Begins a work request with the `wr_id` and `wr_flags` of the queue pair. `flag` is the bit of `send_ops_flags` that the queue
/// pair needs.
///
/// # Safety
/// As for [`with_builder`].
pub(crate) unsafe fn begin(
    qp: *mut ibv_qp_ex,
    flag: u64,
    operation: impl FnOnce() -> Result<RcOperation, Errno>,
) {
    let begin = |state: &Qp, builder: &mut WrBuilder| {
        if state
            .send_ops
            .as_ref()
            .is_none_or(|it| it.allowed & flag == 0)
        {
            return Err(Errno::EINVAL);
        }
        // SAFETY: a live queue pair whose fields belong to the calling thread.
        let face = unsafe { qp.as_ref() }.ok_or(Errno::EINVAL)?;
        // The calls for inline data replace the flag.
        let (wr_id, flags) = (face.wr_id, face.wr_flags & !IBV_SEND_INLINE);
        let request = WorkRequest::new(operation()?, wr_id, flags, state.signal_all)?;
        builder.begin(request, state.cap.max_send_wr)
    };
    // SAFETY: the caller's contract.
    unsafe { with_builder(qp, begin) };
}

unsafe extern "C" fn start(qp: *mut ibv_qp_ex) {
    entry((), || {
        // SAFETY: the program passes a live queue pair.
        if let Ok((_, send_ops)) = unsafe { send_ops(qp) } {
            send_ops.start();
        }
    });
}

unsafe extern "C" fn complete(qp: *mut ibv_qp_ex) -> c_int {
    errno_value(|| {
        // SAFETY: the program passes a live queue pair.
        let (state, send_ops) = unsafe { send_ops(qp) }?;
        // SAFETY: the thread that completes is the one that started.
        unsafe { send_ops.complete(|builder| post(state, builder)) }
    })
}

/// For race detectors: after the thread that held the list.
unsafe extern "C" fn ordered_start(qp: *mut ibv_qp_ex) {
    // SAFETY: the contract is the same.
    unsafe { start(qp) };
    thread_order::after(qp);
}

/// For race detectors: before the next thread that holds the list, and before the completions are polled.
unsafe extern "C" fn ordered_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the program passes a live queue pair, or NULL; the field never changes.
    if let Some(face) = unsafe { qp.as_ref() } {
        thread_order::before(face.qp_base.send_cq);
    }
    thread_order::before(qp);
    // SAFETY: the contract is the same.
    unsafe { complete(qp) }
}

/// Posts all work requests or none.
fn post(qp: &Qp, builder: &mut WrBuilder) -> Result<(), Errno> {
    if !qp.state().takes_sends() {
        return Err(Errno::EINVAL);
    }
    if !qp.qp.service().is_reliable() && builder.has_inline() {
        qp.inline.post(&qp.pd, |slots| {
            builder.register_inline(slots)?;
            hand_over(qp, builder)
        })?;
    } else {
        hand_over(qp, builder)?;
    }
    if qp.state() == QpState::Error {
        qp.qp.flush();
    }
    Ok(())
}

fn hand_over(qp: &Qp, builder: &WrBuilder) -> Result<(), Errno> {
    let posted = match &qp.qp {
        Transport::Rc(rc) => rc.post_send_all(builder.rc()),
        Transport::RcRd(rc) => rc.post_send_all(builder.rc()),
        Transport::Uc(uc) => uc.post_send_all(builder.uc()),
        Transport::Ud(ud) => ud.post_send_all(builder.ud()),
        Transport::Rd(rd) => rd.post_send_all(builder.rd()),
        Transport::XrcTarget(_) => Err(PostError::Malformed),
    };
    posted.map_err(errno::of_post)
}

/// For race detectors: before the next thread that holds the list.
unsafe extern "C" fn ordered_abort(qp: *mut ibv_qp_ex) {
    thread_order::before(qp);
    // SAFETY: the contract is the same.
    unsafe { abort(qp) };
}

unsafe extern "C" fn abort(qp: *mut ibv_qp_ex) {
    entry((), || {
        // SAFETY: the program passes a live queue pair.
        if let Ok((_, send_ops)) = unsafe { send_ops(qp) } {
            // SAFETY: the thread that aborts is the one that started.
            unsafe { send_ops.abort() };
        }
    });
}

unsafe extern "C" fn send(qp: *mut ibv_qp_ex) {
    let operation = || Ok(RcOperation::Send { invalidate: None });
    // SAFETY: `ibv_wr_send` is called between start and completion.
    unsafe { begin(qp, IBV_QP_EX_WITH_SEND, operation) };
}

unsafe extern "C" fn send_imm(qp: *mut ibv_qp_ex, immediate: u32) {
    let operation = || Ok(send_immediate(immediate));
    // SAFETY: as for `send`.
    unsafe { begin(qp, IBV_QP_EX_WITH_SEND_WITH_IMM, operation) };
}

unsafe extern "C" fn send_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    let invalidate = Some(rkey);
    let operation = || Ok(RcOperation::Send { invalidate });
    // SAFETY: as for `send`.
    unsafe { begin(qp, IBV_QP_EX_WITH_SEND_WITH_INV, operation) };
}

unsafe extern "C" fn rdma_write(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
    let operation = || Ok(write(rkey, remote_addr, None));
    // SAFETY: as for `send`.
    unsafe { begin(qp, IBV_QP_EX_WITH_RDMA_WRITE, operation) };
}

unsafe extern "C" fn rdma_write_imm(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    immediate: u32,
) {
    let operation = || Ok(write(rkey, remote_addr, Some(immediate)));
    // SAFETY: as for `send`.
    unsafe { begin(qp, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, operation) };
}

unsafe extern "C" fn rdma_read(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
    let operation = || Ok(RcOperation::Read { rkey, remote_addr });
    // SAFETY: as for `send`.
    unsafe { begin(qp, IBV_QP_EX_WITH_RDMA_READ, operation) };
}

unsafe extern "C" fn atomic_cmp_swp(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    compare: u64,
    swap: u64,
) {
    let operation = || Ok(compare_swap(rkey, remote_addr, compare, swap));
    // SAFETY: as for `send`.
    unsafe { begin(qp, IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, operation) };
}

unsafe extern "C" fn atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, add: u64) {
    let operation = || Ok(fetch_add(rkey, remote_addr, add));
    // SAFETY: as for `send`.
    unsafe { begin(qp, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, operation) };
}

unsafe extern "C" fn local_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    let operation = || Ok(RcOperation::LocalInvalidate { rkey });
    // SAFETY: as for `send`.
    unsafe { begin(qp, IBV_QP_EX_WITH_LOCAL_INV, operation) };
}

unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    // SAFETY: `ibv_wr_bind_mw` is passed a live window and the description of its binding.
    let operation = || unsafe { mw::binding(mw, rkey, info) };
    // SAFETY: as for `send`.
    unsafe { begin(qp, IBV_QP_EX_WITH_BIND_MW, operation) };
}

/// No queue pair has TSO or atomic writes.
fn unsupported() -> Result<RcOperation, Errno> {
    Err(Errno::EOPNOTSUPP)
}

unsafe extern "C" fn send_tso(qp: *mut ibv_qp_ex, _header: *mut c_void, _length: u16, _mss: u16) {
    // SAFETY: as for `send`.
    unsafe { begin(qp, u64::MAX, unsupported) };
}

unsafe extern "C" fn atomic_write(
    qp: *mut ibv_qp_ex,
    _rkey: u32,
    _remote_addr: u64,
    _data: *const c_void,
) {
    // SAFETY: as for `send`.
    unsafe { begin(qp, u64::MAX, unsupported) };
}

unsafe extern "C" fn set_xrc_srqn(qp: *mut ibv_qp_ex, srqn: u32) {
    let set = |state: &Qp, builder: &mut WrBuilder| match state.qp.service() {
        Service::XrcInitiator => builder.set_srq(srqn),
        Service::UnreliableDatagram
        | Service::UnreliableConnected
        | Service::ReliableDatagram
        | Service::ReliableConnected
        | Service::XrcTarget => Err(Errno::EINVAL),
    };
    // SAFETY: as for `send`.
    unsafe { with_builder(qp, set) };
}

unsafe extern "C" fn set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    let set = |state: &Qp, builder: &mut WrBuilder| {
        // SAFETY: the program passes a live address handle.
        let ah = unsafe { Object::<Ah>::state(ah) }?;
        builder.set_destination(address(state, ah, qpn, qkey)?)
    };
    // SAFETY: as for `send`.
    unsafe { with_builder(qp, set) };
}

unsafe extern "C" fn set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let sge = Sge { addr, length, lkey };
    // SAFETY: as for `send`.
    unsafe { with_builder(qp, |_, builder| builder.set_sges([sge].into_iter())) };
}

unsafe extern "C" fn set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    let set = |_: &Qp, builder: &mut WrBuilder| {
        // SAFETY: the program passes `count` elements.
        let list = unsafe { array(list, count) }?;
        builder.set_sges(list.iter().copied().map(Sge::from))
    };
    // SAFETY: as for `send`.
    unsafe { with_builder(qp, set) };
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
    let set = |_: &Qp, builder: &mut WrBuilder| {
        // SAFETY: the program passes `count` buffers.
        let list = unsafe { array(list, count) }?;
        let buffers = list.iter().filter(|it| it.length > 0 && !it.addr.is_null());
        builder.set_inline(buffers.map(|it| {
            // SAFETY: each is memory that the program may read, of that length.
            unsafe { slice::from_raw_parts(it.addr.cast::<u8>().cast_const(), it.length) }
        }))
    };
    // SAFETY: as for `send`.
    unsafe { with_builder(qp, set) };
}

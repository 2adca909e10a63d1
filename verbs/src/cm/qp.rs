//! Queue pairs of identifiers: `rdma_create_qp(3)` and `rdma_init_qp_attr(3)`.

use crate::abi::{
    IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, IBV_QP_ACCESS_FLAGS,
    IBV_QP_AV, IBV_QP_DEST_QPN, IBV_QP_INIT_ATTR_PD, IBV_QP_MAX_DEST_RD_ATOMIC,
    IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER, IBV_QP_PATH_MTU, IBV_QP_PKEY_INDEX, IBV_QP_PORT,
    IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN, IBV_QP_SQ_PSN, IBV_QP_STATE, IBV_QP_TIMEOUT,
    ibv_ah_attr, ibv_comp_channel, ibv_cq, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_init_attr,
    ibv_qp_init_attr_ex, rdma_cm_id,
};
use crate::cm::id::identifier::{Id, Transport, id, live_id};
use crate::cm::udp;
use crate::cm::udp::param::{ah_attr, source};
use crate::cq::queue::{
    ibv_create_comp_channel, ibv_create_cq, ibv_destroy_comp_channel, ibv_destroy_cq,
};
use crate::device::limits::MAX_RD_ATOMIC;
use crate::ffi::{entry, minus_one, minus_one_making};
use crate::qp::create::{create_qp_ex, ibv_create_qp};
use crate::qp::queue_pair::{CM_PEER, ibv_destroy_qp, ibv_modify_qp};
use crate::qp::state::QpState;
use nix::errno::Errno;
use std::ffi::{c_int, c_uint};
use std::{mem, ptr};

/// Attributes and mask of the transition of an identifier's queue pair to a state.
fn attributes(id: &Id, to: QpState) -> Result<(ibv_qp_attr, c_int), Errno> {
    if is_datagram(id) {
        return udp::qp::attributes(to).ok_or(Errno::EINVAL);
    }
    let blank = ibv_qp_attr {
        qp_state: to.code(),
        ..ibv_qp_attr::default()
    };
    match to {
        QpState::Init => Ok((
            ibv_qp_attr {
                port_num: 1,
                qp_access_flags: IBV_ACCESS_REMOTE_WRITE
                    | IBV_ACCESS_REMOTE_READ
                    | IBV_ACCESS_REMOTE_ATOMIC,
                ..blank
            },
            IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
        )),
        QpState::ReadyToReceive => Ok((
            ibv_qp_attr {
                path_mtu: 5,
                dest_qp_num: CM_PEER,
                max_dest_rd_atomic: MAX_RD_ATOMIC,
                ah_attr: peer_attr(id)?,
                ..blank
            },
            IBV_QP_STATE
                | IBV_QP_AV
                | IBV_QP_PATH_MTU
                | IBV_QP_DEST_QPN
                | IBV_QP_RQ_PSN
                | IBV_QP_MAX_DEST_RD_ATOMIC
                | IBV_QP_MIN_RNR_TIMER,
        )),
        QpState::ReadyToSend => Ok((
            ibv_qp_attr {
                timeout: 14,
                retry_cnt: 7,
                rnr_retry: 7,
                max_rd_atomic: MAX_RD_ATOMIC,
                ..blank
            },
            IBV_QP_STATE
                | IBV_QP_SQ_PSN
                | IBV_QP_TIMEOUT
                | IBV_QP_RETRY_CNT
                | IBV_QP_RNR_RETRY
                | IBV_QP_MAX_QP_RD_ATOMIC,
        )),
        QpState::Reset | QpState::SendQueueDrained | QpState::Error => Err(Errno::EINVAL),
    }
}

/// Address handle attributes of the peer.
fn peer_attr(id: &Id) -> Result<ibv_ah_attr, Errno> {
    let (local, peer) = {
        let inner = id.lock();
        inner.local.zip(inner.peer).ok_or(Errno::EINVAL)?
    };
    let sgid_index = source(local, peer.ip()).map_or(0, |(index, _)| index);
    Ok(ah_attr(peer.ip(), sgid_index, 64))
}

fn is_datagram(id: &Id) -> bool {
    match id.lock().transport {
        Transport::Udp(_) => true,
        Transport::Tcp(_) | Transport::Closed => false,
    }
}

/// Creates the completion queues that the program leaves out, each with a channel of its own for the waiting calls of
/// `rdma_verbs.h`.
///
/// # Safety
/// `c` is a live identifier of the device, in a call of the program's.
unsafe fn create_cqs(c: *mut rdma_cm_id, init: &mut ibv_qp_init_attr) -> Result<(), Errno> {
    // SAFETY: the caller's contract.
    let id = unsafe { &mut *c };
    if init.send_cq.is_null() {
        // SAFETY: the caller's contract.
        let (channel, cq) = unsafe { create_cq(c, init.cap.max_send_wr) }?;
        (id.send_cq_channel, id.send_cq, init.send_cq) = (channel, cq, cq);
    }
    if init.recv_cq.is_null() {
        // SAFETY: the caller's contract.
        let (channel, cq) = unsafe { create_cq(c, init.cap.max_recv_wr) }?;
        (id.recv_cq_channel, id.recv_cq, init.recv_cq) = (channel, cq, cq);
    }
    Ok(())
}

/// # Safety
/// As for [`create_cqs`].
unsafe fn create_cq(
    c: *mut rdma_cm_id,
    depth: u32,
) -> Result<(*mut ibv_comp_channel, *mut ibv_cq), Errno> {
    // SAFETY: the caller's contract.
    let verbs = unsafe { (*c).verbs };
    // SAFETY: an open context.
    let channel = unsafe { ibv_create_comp_channel(verbs) };
    if channel.is_null() {
        return Err(Errno::last());
    }
    let depth = c_int::try_from(depth.max(1)).map_err(|_| Errno::EINVAL)?;
    // SAFETY: an open context and a live channel.
    let cq = unsafe { ibv_create_cq(verbs, depth, c.cast(), channel, 0) };
    if cq.is_null() {
        let errno = Errno::last();
        // SAFETY: just created, and unused.
        unsafe { ibv_destroy_comp_channel(channel) };
        return Err(errno);
    }
    Ok((channel, cq))
}

/// Destroys the completion queues of [`create_cqs`].
///
/// # Safety
/// As for [`create_cqs`], and nothing uses the queues any more.
pub(crate) unsafe fn destroy_cqs(c: *mut rdma_cm_id) {
    // SAFETY: the caller's contract.
    let id = unsafe { &mut *c };
    for (cq, channel) in [
        (&mut id.send_cq, &mut id.send_cq_channel),
        (&mut id.recv_cq, &mut id.recv_cq_channel),
    ] {
        if !cq.is_null() {
            // SAFETY: made by `create_cq`.
            unsafe { ibv_destroy_cq(*cq) };
            *cq = ptr::null_mut();
        }
        if !channel.is_null() {
            // SAFETY: made by `create_cq`.
            unsafe { ibv_destroy_comp_channel(*channel) };
            *channel = ptr::null_mut();
        }
    }
}

/// Creates a queue pair with `make` and moves it as far as it can go without a peer.
///
/// # Safety
/// `c` is NULL or a live identifier, and `init` attributes whose pointers are live or NULL.
unsafe fn create(
    c: *mut rdma_cm_id,
    init: *mut ibv_qp_init_attr,
    pd: *mut ibv_pd,
    make: impl FnOnce(*mut ibv_pd) -> *mut ibv_qp,
) -> Result<(), Errno> {
    // SAFETY: the caller's contract.
    let id = unsafe { id(c) }?;
    id.open_gate();
    if init.is_null() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the caller's contract.
    let face = unsafe { &*c };
    let (verbs, srq) = (face.verbs, face.srq);
    if verbs.is_null() || !face.qp.is_null() {
        return Err(Errno::EINVAL);
    }
    let pd = if pd.is_null() { face.pd } else { pd };
    // SAFETY: a live protection domain; this field never changes.
    if pd.is_null() || unsafe { (*pd).context } != verbs {
        return Err(Errno::EINVAL);
    }
    // SAFETY: not NULL, so the program's attributes.
    let init = unsafe { &mut *init };
    if init.srq.is_null() {
        init.srq = srq;
    }
    // SAFETY: the caller's contract.
    unsafe { create_cqs(c, init) }.inspect_err(|_| {
        // SAFETY: nothing uses them yet.
        unsafe { destroy_cqs(c) };
    })?;
    let made = make(pd);
    let moved = if made.is_null() {
        Err(Errno::last())
    } else {
        // SAFETY: just made.
        unsafe { move_on(id, made) }
    };
    if let Err(errno) = moved {
        if !made.is_null() {
            // SAFETY: just created, and unused.
            unsafe { ibv_destroy_qp(made) };
        }
        // SAFETY: nothing uses them any more.
        unsafe { destroy_cqs(c) };
        return Err(errno);
    }
    // SAFETY: the caller's contract.
    let id = unsafe { &mut *c };
    (id.qp, id.pd) = (made, pd);
    Ok(())
}

/// Moves a new queue pair to INIT, where it waits for its connection, or to RTS if it needs none.
///
/// # Safety
/// `qp` is live.
unsafe fn move_on(id: &Id, qp: *mut ibv_qp) -> Result<(), Errno> {
    if is_datagram(id) {
        // SAFETY: the caller's contract.
        return unsafe { udp::qp::move_to_rts(qp) };
    }
    let (mut attr, mask) = attributes(id, QpState::Init)?;
    // SAFETY: live, by the caller's contract.
    match unsafe { ibv_modify_qp(qp, &raw mut attr, mask) } {
        0 => Ok(()),
        status => Err(Errno::from_raw(status)),
    }
}

pub(crate) unsafe extern "C" fn rdma_create_qp(
    c: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the program passes live objects.
    let make = |pd| unsafe { ibv_create_qp(pd, init) };
    // SAFETY: the program passes a live identifier and valid attributes.
    minus_one_making(|| unsafe { create(c, init, pd, make) }.map(|()| 0))
}

pub(crate) unsafe extern "C" fn rdma_create_qp_ex(
    c: *mut rdma_cm_id,
    init: *mut ibv_qp_init_attr_ex,
) -> c_int {
    minus_one_making(|| {
        if init.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: not NULL, so the program's attributes.
        let mask = unsafe { (*init).comp_mask };
        let pd = if mask & IBV_QP_INIT_ATTR_PD == 0 {
            ptr::null_mut()
        } else {
            // SAFETY: the mask includes the field.
            unsafe { (*init).pd }
        };
        let make = |pd| {
            // SAFETY: as above; rdma_create_qp(3): the default is the identifier's.
            unsafe { (*init).pd = pd };
            // SAFETY: as above.
            unsafe { (*init).comp_mask = mask | IBV_QP_INIT_ATTR_PD };
            // SAFETY: the attributes are valid; the context is not used.
            unsafe { create_qp_ex(ptr::null_mut(), init) }
        };
        // SAFETY: the program passes a live identifier; the struct begins with the plain one.
        unsafe { create(c, init.cast(), pd, make) }.map(|()| 0)
    })
}

pub(crate) unsafe extern "C" fn rdma_destroy_qp(c: *mut rdma_cm_id) {
    entry((), || {
        // SAFETY: the program passes an identifier that no other call uses.
        if let Err(errno) = unsafe { live_id(c) } {
            errno.set();
            return;
        }
        // SAFETY: as above.
        let qp = mem::replace(unsafe { &mut (*c).qp }, ptr::null_mut());
        if !qp.is_null() {
            // SAFETY: made by `rdma_create_qp`, and not used any more.
            unsafe { ibv_destroy_qp(qp) };
        }
        // SAFETY: the queue pair that used them is destroyed.
        unsafe { destroy_cqs(c) };
    });
}

pub(crate) unsafe extern "C" fn rdma_init_qp_attr(
    c: *mut rdma_cm_id,
    attr: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    minus_one(|| {
        // SAFETY: the program passes a live identifier.
        let id = unsafe { id(c) }?;
        if attr.is_null() || mask.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: not NULL; the program has set the state.
        let code: c_uint = unsafe { (*attr).qp_state };
        let (filled, needed) = attributes(id, QpState::from_code(code)?)?;
        // SAFETY: room for the attributes.
        unsafe { attr.write(filled) };
        // SAFETY: room for the mask.
        unsafe { mask.write(needed) };
        Ok(0)
    })
}

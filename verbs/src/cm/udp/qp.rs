//! Attributes of datagram queue pairs that rdma_cm creates.

use crate::abi::{
    IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_QKEY, IBV_QP_SQ_PSN, IBV_QP_STATE, ibv_qp, ibv_qp_attr,
};
use crate::cm::udp::param::QKEY;
use crate::qp::queue_pair::ibv_modify_qp;
use crate::qp::state::QpState;
use nix::errno::Errno;
use std::ffi::c_int;

/// Attributes and mask of the transition to a state (`rdma_init_qp_attr`); `None` for RESET and ERR.
pub(crate) fn attributes(to: QpState) -> Option<(ibv_qp_attr, c_int)> {
    let attr = ibv_qp_attr {
        qp_state: to.code(),
        port_num: 1,
        qkey: QKEY,
        ..ibv_qp_attr::default()
    };
    let mask = match to {
        QpState::Init => IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY,
        QpState::ReadyToReceive => 0,
        QpState::ReadyToSend => IBV_QP_SQ_PSN,
        QpState::Reset | QpState::SendQueueDrained | QpState::Error => return None,
    };
    Some((attr, mask | IBV_QP_STATE))
}

/// Moves a new queue pair to RTS (`rdma_create_qp(3)`): datagrams need no connection.
///
/// # Safety
/// `qp` is a live queue pair.
pub(crate) unsafe fn move_to_rts(qp: *mut ibv_qp) -> Result<(), Errno> {
    let states = [QpState::Init, QpState::ReadyToReceive, QpState::ReadyToSend];
    for (mut attr, mask) in states.into_iter().filter_map(attributes) {
        // SAFETY: the caller's contract, and attributes of ours.
        let status = unsafe { ibv_modify_qp(qp, &raw mut attr, mask) };
        if status != 0 {
            return Err(Errno::from_raw(status));
        }
    }
    Ok(())
}

//! `ibv_wr_…` calls between `ibv_wr_start` and `ibv_wr_complete`, in any order.

use std::ptr;

use arbitrary::{Result, Unstructured};

use super::requests::{local_key, remote_address, remote_key};
use super::scene::{QKEY, Scene, documented, number};
use crate::abi::*;
use crate::post::wr_calls::ibv_qp_to_qp_ex;

/// Calls a function of a queue pair's table, if it is there.
macro_rules! call {
    ($qp:expr, $name:ident $(, $argument:expr)*) => {{
        // SAFETY: the queue pair is alive, and its table never changes.
        let function = unsafe { (*$qp).$name };
        // SAFETY: between start and end, with arguments that are NULL or valid where they are pointers.
        function.map(|function| unsafe { function($qp $(, $argument)*) })
    }};
}

/// A batch on one queue pair.
pub(super) fn batch(scene: &Scene, u: &mut Unstructured<'_>) -> Result<()> {
    let plain = scene.queue_pair(u)?;
    // SAFETY: a live queue pair.
    let qp = unsafe { ibv_qp_to_qp_ex(plain) };
    assert!(!qp.is_null(), "it was made with operations");
    call!(qp, wr_start);
    for _ in 0..u.int_in_range(0..=6u8)? {
        let (id, flags) = (4, u.int_in_range(0..=15)?);
        // SAFETY: alive; programs write this field between start and end.
        unsafe { (*qp).wr_id = id };
        // SAFETY: as above.
        unsafe { (*qp).wr_flags = flags };
        operation(scene, u, qp)?;
        for _ in 0..u.int_in_range(0..=2u8)? {
            set(scene, u, qp)?;
        }
    }
    if u.ratio(1u8, 8u8)? {
        call!(qp, wr_abort);
    } else if let Some(answer) = call!(qp, wr_complete) {
        documented(answer);
    }
    Ok(())
}

fn operation(scene: &Scene, u: &mut Unstructured<'_>, qp: *mut ibv_qp_ex) -> Result<()> {
    let wild = u.ratio(1u8, 8u8)?;
    let rkey = if wild {
        remote_key(scene, u)?
    } else {
        scene.whole_remote_key()
    };
    let addr = remote_address(scene, u)?;
    match u.int_in_range(0..=9u8)? {
        0 => call!(qp, wr_send),
        1 => call!(qp, wr_send_imm, 7),
        2 => call!(qp, wr_send_inv, rkey),
        3 => call!(qp, wr_rdma_write, rkey, addr),
        4 => call!(qp, wr_rdma_write_imm, rkey, addr, 7),
        5 => call!(qp, wr_rdma_read, rkey, addr),
        6 => call!(qp, wr_atomic_cmp_swp, rkey, addr, 1, 2),
        7 => call!(qp, wr_atomic_fetch_add, rkey, addr, 1),
        8 => call!(qp, wr_local_inv, rkey),
        _ => {
            let (mw, info) = (Scene::one_of(u, &scene.mws)?, scene.binding(u)?);
            call!(qp, wr_bind_mw, mw, rkey, &raw const info)
        }
    };
    Ok(())
}

fn set(scene: &Scene, u: &mut Unstructured<'_>, qp: *mut ibv_qp_ex) -> Result<()> {
    let length = u32::from(u.arbitrary::<u8>()?);
    let addr = scene.registered(u.arbitrary()?, length);
    let lkey = if u.ratio(1u8, 8u8)? {
        local_key(scene, u)?
    } else {
        scene.whole_key()
    };
    match u.int_in_range(0..=4u8)? {
        0 | 1 => call!(qp, wr_set_sge, lkey, addr, length),
        2 => {
            let list = [ibv_sge { addr, length, lkey }; 4];
            let count = u.int_in_range(0..=4usize)?;
            call!(qp, wr_set_sge_list, count, list.as_ptr())
        }
        3 => {
            let data = ptr::with_exposed_provenance_mut(usize::try_from(addr).unwrap_or(0));
            call!(qp, wr_set_inline_data, data, length as usize)
        }
        _ => {
            let ah = Scene::one_of(u, &scene.ahs)?;
            call!(qp, wr_set_ud_addr, ah, number(qp.cast()), QKEY)
        }
    };
    Ok(())
}

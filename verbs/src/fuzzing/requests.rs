//! Lists of work requests.

use std::ffi::c_int;
use std::ptr;

use arbitrary::{Result, Unstructured};
use dgiwarp::MAX_SGE;

use super::scene::{List, QKEY, Scene, documented, number};
use crate::abi::*;
use crate::post::{recv, send};

/// Work requests of a list at most.
const MOST: usize = 3;

/// Scatter/gather elements for `count`, in the registered memory, or anywhere if `wild`. Inline data is always readable
/// memory.
fn elements(
    scene: &Scene,
    u: &mut Unstructured<'_>,
    count: c_int,
    (inline, wild): (bool, bool),
) -> Result<List> {
    let base = ibv_sge {
        addr: scene.base(),
        length: 1,
        lkey: 0,
    };
    let mut list = [base; MAX_SGE];
    for element in list
        .iter_mut()
        .take(usize::try_from(count).unwrap_or(0).min(4))
    {
        let length = u32::from(u.arbitrary::<u8>()?);
        let odd = wild && !inline && u.arbitrary()?;
        *element = ibv_sge {
            addr: if odd {
                u.arbitrary()?
            } else {
                scene.registered(u.arbitrary()?, length)
            },
            length: if odd { u.arbitrary()? } else { length },
            lkey: if wild {
                local_key(scene, u)?
            } else {
                scene.whole_key()
            },
        };
    }
    Ok(list)
}

pub(super) fn local_key(scene: &Scene, u: &mut Unstructured<'_>) -> Result<u32> {
    key(scene, u, |mr| {
        // SAFETY: the scene's regions are alive, and programs read their keys.
        unsafe { (*mr).lkey }
    })
}

pub(super) fn remote_key(scene: &Scene, u: &mut Unstructured<'_>) -> Result<u32> {
    let mw = Scene::one_of(u, &scene.mws)?;
    if !mw.is_null() && u.ratio(1u8, 4u8)? {
        // SAFETY: the scene's windows are alive, and programs read their keys.
        let rkey = unsafe { (*mw).rkey };
        return Ok(rkey ^ u32::from(u.int_in_range(0..=2u8)?));
    }
    key(scene, u, |mr| {
        // SAFETY: the scene's regions are alive, and programs read their keys.
        unsafe { (*mr).rkey }
    })
}

fn key(
    scene: &Scene,
    u: &mut Unstructured<'_>,
    of: impl FnOnce(*mut ibv_mr) -> u32,
) -> Result<u32> {
    let mr = Scene::one_of(u, &scene.mrs)?;
    if mr.is_null() {
        u.arbitrary()
    } else {
        Ok(of(mr))
    }
}

/// Mostly a number of elements that is allowed.
fn count(u: &mut Unstructured<'_>) -> Result<c_int> {
    if u.ratio(1u8, 16u8)? {
        u.arbitrary()
    } else {
        u.int_in_range(0..=3)
    }
}

/// Mostly an address of the region with all rights.
pub(super) fn remote_address(scene: &Scene, u: &mut Unstructured<'_>) -> Result<u64> {
    let inside = scene.base() + 1024 + 8 * u64::from(u.arbitrary::<u16>()? % 512);
    Ok(if u.ratio(1u8, 24u8)? {
        inside.wrapping_add(u.arbitrary()?)
    } else {
        inside
    })
}

/// The member of a work request that depends on its opcode. For UD it has an address handle, which is NULL or live.
fn remote(scene: &Scene, u: &mut Unstructured<'_>, qp: *mut ibv_qp) -> Result<ibv_send_wr_remote> {
    // SAFETY: the scene's queue pairs are alive, and their kind never changes.
    if unsafe { (*qp).qp_type } == IBV_QPT_UD {
        return Ok(ibv_send_wr_remote {
            ud: ibv_send_wr_ud {
                ah: Scene::one_of(u, &scene.ahs)?,
                remote_qpn: if u.ratio(7u8, 8u8)? {
                    number(qp)
                } else {
                    u.arbitrary()?
                },
                remote_qkey: if u.ratio(7u8, 8u8)? {
                    QKEY
                } else {
                    u.arbitrary()?
                },
            },
        });
    }
    let wild = u.ratio(1u8, 12u8)?;
    let atomic = ibv_send_wr_atomic {
        remote_addr: remote_address(scene, u)?,
        compare_add: u64::from(u.arbitrary::<u8>()?),
        swap: u64::from(u.arbitrary::<u8>()?),
        rkey: if wild {
            remote_key(scene, u)?
        } else {
            scene.whole_remote_key()
        },
    };
    let rdma = ibv_send_wr_rdma {
        remote_addr: atomic.remote_addr,
        rkey: atomic.rkey,
    };
    Ok(if u.arbitrary()? {
        ibv_send_wr_remote { atomic }
    } else {
        let mut remote = ibv_send_wr_remote { atomic };
        remote.rdma = rdma;
        remote
    })
}

fn send_request(
    scene: &Scene,
    u: &mut Unstructured<'_>,
    qp: *mut ibv_qp,
) -> Result<(ibv_send_wr, List)> {
    let flags = if u.ratio(1u8, 16u8)? {
        u.arbitrary()?
    } else {
        u.int_in_range(0..=15)?
    };
    let (count, wild) = (count(u)?, u.ratio(1u8, 12u8)?);
    let list = elements(scene, u, count, (flags & IBV_SEND_INLINE != 0, wild))?;
    let bind_mw = if u.ratio(1u8, 8u8)? {
        ibv_send_wr_bind_mw {
            mw: Scene::one_of(u, &scene.mws)?,
            rkey: remote_key(scene, u)?,
            bind_info: scene.binding(u)?,
        }
    } else {
        ibv_send_wr_bind_mw {
            mw: ptr::null_mut(),
            rkey: 0,
            bind_info: scene.no_binding(),
        }
    };
    let request = ibv_send_wr {
        wr_id: 3,
        next: ptr::null_mut(),
        sg_list: ptr::null_mut(),
        num_sge: count,
        opcode: u.int_in_range(0..=13)?,
        send_flags: flags,
        imm_data: if u.arbitrary()? {
            remote_key(scene, u)?
        } else {
            7
        },
        wr: remote(scene, u, qp)?,
        qp_type: ibv_send_wr_xrc { remote_srqn: 0 },
        bind_mw,
    };
    Ok((request, list))
}

/// `ibv_post_send` with a list of up to three.
pub(super) fn post_send(scene: &Scene, u: &mut Unstructured<'_>) -> Result<()> {
    let qp = scene.queue_pair(u)?;
    let mut requests = Vec::with_capacity(MOST);
    for _ in 0..u.int_in_range(1..=MOST)? {
        requests.push(send_request(scene, u, qp)?);
    }
    let mut next: *mut ibv_send_wr = ptr::null_mut();
    for (request, list) in requests.iter_mut().rev() {
        request.sg_list = if u.ratio(1u8, 32u8)? {
            ptr::null_mut()
        } else {
            list.as_mut_ptr()
        };
        request.next = next;
        next = request;
    }
    let mut bad = ptr::null_mut();
    // SAFETY: a live queue pair, a list whose pointers are NULL or valid, and room for a pointer.
    let answer = unsafe { send::post_send(qp, next, &raw mut bad) };
    documented(answer);
    // The first refused work request is reported.
    let first = &raw const requests[0].0;
    assert_eq!(answer == 0, bad.is_null());
    assert!(
        bad.is_null() || requests.iter().any(|(it, _)| ptr::eq(it, bad)),
        "{first:?}"
    );
    Ok(())
}

/// `ibv_post_recv` and `ibv_post_srq_recv`.
pub(super) fn post_receive(scene: &Scene, u: &mut Unstructured<'_>) -> Result<()> {
    let (count, wild) = (count(u)?, u.ratio(1u8, 12u8)?);
    let mut list = elements(scene, u, count, (false, wild))?;
    let mut second = ibv_recv_wr {
        wr_id: 1,
        next: ptr::null_mut(),
        sg_list: list.as_mut_ptr(),
        num_sge: count,
    };
    let mut first = ibv_recv_wr {
        wr_id: 2,
        next: &raw mut second,
        sg_list: list.as_mut_ptr(),
        num_sge: count,
    };
    let mut bad = ptr::null_mut();
    let answer = if u.ratio(1u8, 4u8)? {
        // SAFETY: a live queue, a list whose pointers are valid, and room for a pointer.
        unsafe { recv::post_srq_recv(scene.srq, &raw mut first, &raw mut bad) }
    } else {
        let qp = scene.queue_pair(u)?;
        // SAFETY: a live queue pair, a list whose pointers are valid, and room for a pointer.
        unsafe { recv::post_recv(qp, &raw mut first, &raw mut bad) }
    };
    documented(answer);
    assert_eq!(answer == 0, bad.is_null());
    Ok(())
}

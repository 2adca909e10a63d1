//! `ibv_post_recv(3)` and `ibv_post_srq_recv(3)`, which programs call through the context's table.

use crate::abi::{ibv_qp, ibv_recv_wr, ibv_srq};
use crate::ffi::{Object, data_path_entry, errno, thread_order};
use crate::post::list::{BATCH, Refused, elements, post_chain};
use crate::qp::queue_pair::{self, Qp};
use crate::qp::srq::Srq;
use crate::qp::state::QpState;
use arrayvec::ArrayVec;
use dgiwarp::{PostFailure, RecvWr};
use nix::errno::Errno;
use std::ffi::c_int;
use std::sync::Arc;

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    data_path_entry(libc::EIO, || {
        // SAFETY: the program passes a live queue pair.
        let qp = unsafe { queue_pair::state(qp) };
        // SAFETY: and a chain of valid work requests, or NULL.
        let first = unsafe { wr.as_ref() };
        if let (Ok(qp), Some(first)) = (qp, first)
            && first.next.is_null()
            && post_alone(qp, first)
        {
            return 0;
        }
        // SAFETY: a chain of valid work requests.
        unsafe { post_chain(wr, bad, |wr| wr.next, |wrs| post_all(qp, wrs)) }
    })
}

/// Posts the only work request of a chain, the most frequent one. Where it cannot be posted now, returns `false`: [`post_all`] tells why.
#[inline]
fn post_alone(qp: &Qp, wr: &ibv_recv_wr) -> bool {
    // SAFETY: part of a valid work request.
    let Ok(sges) = (unsafe { elements(wr.sg_list, wr.num_sge) }) else {
        return false;
    };
    let state = qp.state();
    if matches!(state, QpState::Reset | QpState::Error) {
        return false;
    }
    let request = RecvWr {
        wr_id: wr.wr_id,
        sges,
    };
    let posted = qp.qp.post_recv(&[request]);
    if qp.state() == QpState::Error {
        qp.qp.flush();
    }
    posted.is_ok()
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    data_path_entry(libc::EIO, || {
        // SAFETY: the program passes a live shared receive queue.
        let srq = unsafe { Object::<Arc<Srq>>::state(srq) };
        let post = |wrs: &[&ibv_recv_wr]| {
            let srq = srq.map_err(|errno| (0, errno))?;
            translate(wrs, |requests| srq.srq.post_recv(requests))
        };
        // SAFETY: and a chain of valid work requests.
        unsafe { post_chain(wr, bad, |wr| wr.next, post) }
    })
}

/// [`post_recv`] for race detectors: before the completion is polled.
pub(crate) unsafe extern "C" fn ordered_post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the program passes a live queue pair, or NULL; the field never changes.
    if let Some(face) = unsafe { qp.as_ref() } {
        thread_order::before(face.recv_cq);
    }
    // SAFETY: the contract is the same.
    unsafe { post_recv(qp, wr, bad) }
}

/// [`post_srq_recv`] for race detectors: before a completion of any queue of the device is polled.
pub(crate) unsafe extern "C" fn ordered_post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the program passes a live queue, or NULL; the field never changes.
    if let Some(face) = unsafe { srq.as_ref() } {
        thread_order::before(face.context);
    }
    // SAFETY: the contract is the same.
    unsafe { post_srq_recv(srq, wr, bad) }
}

/// Posts work requests in the stack's form, up to the first that has none.
fn translate(
    wrs: &[&ibv_recv_wr],
    post: impl FnOnce(&[RecvWr<'_>]) -> Result<(), PostFailure>,
) -> Result<(), Refused> {
    let mut requests = ArrayVec::<_, BATCH>::new();
    let mut refused = Ok(());
    for wr in wrs {
        // SAFETY: part of a valid work request.
        match unsafe { elements(wr.sg_list, wr.num_sge) } {
            Ok(sges) => requests.push(RecvWr {
                wr_id: wr.wr_id,
                sges,
            }),
            Err(errno) => {
                refused = Err((requests.len(), errno));
                break;
            }
        }
    }
    post(&requests).map_err(errno::of_refusal)?;
    refused
}

fn post_all(qp: Result<&Qp, Errno>, wrs: &[&ibv_recv_wr]) -> Result<(), Refused> {
    let qp = qp.map_err(|errno| (0, errno))?;
    if qp.state() == QpState::Reset {
        return Err((0, Errno::EINVAL));
    }
    let posted = translate(wrs, |requests| qp.qp.post_recv(requests));
    if qp.state() == QpState::Error {
        qp.qp.flush();
    }
    posted
}

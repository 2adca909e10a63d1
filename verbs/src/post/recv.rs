//! `ibv_post_recv(3)` and `ibv_post_srq_recv(3)`, which programs call through the context's table.

use crate::abi::{ibv_qp, ibv_recv_wr, ibv_srq};
use crate::ffi::{Object, entry, errno, thread_order};
use crate::post::list::{Sges, elements, post_chain};
use crate::qp::queue_pair::{self, Qp};
use crate::qp::srq::Srq;
use crate::qp::state::QpState;
use dgiwarp::{PostFailure, RecvWr};
use nix::errno::Errno;
use std::ffi::c_int;
use std::sync::Arc;

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    entry(libc::EIO, || {
        // SAFETY: the program passes a live queue pair.
        let qp = unsafe { queue_pair::state(qp) };
        // SAFETY: and a chain of valid work requests.
        unsafe { post_chain(wr, bad, |wr| wr.next, |wr| post_one(qp?, wr)) }
    })
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    entry(libc::EIO, || {
        // SAFETY: the program passes a live shared receive queue.
        let srq = unsafe { Object::<Arc<Srq>>::state(srq) };
        let post = |wr: &ibv_recv_wr| {
            let srq = srq?;
            translate(wr, |request| srq.srq.post_recv(&[request]))
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

/// Posts a work request in the stack's form.
fn translate(
    wr: &ibv_recv_wr,
    post: impl FnOnce(RecvWr<'_>) -> Result<(), PostFailure>,
) -> Result<(), Errno> {
    // SAFETY: part of a valid work request.
    let list = unsafe { elements(wr.sg_list, wr.num_sge) }?;
    let mut sges = Sges::default();
    let request = RecvWr {
        wr_id: wr.wr_id,
        sges: sges.of(list),
    };
    post(request).map_err(errno::of_post_failure)
}

fn post_one(qp: &Qp, wr: &ibv_recv_wr) -> Result<(), Errno> {
    if qp.state() == QpState::Reset {
        return Err(Errno::EINVAL);
    }
    translate(wr, |request| qp.qp.post_recv(request))?;
    if qp.state() == QpState::Error {
        qp.qp.flush();
    }
    Ok(())
}

//! The queue pairs that rdma_cm may connect, by number: `rdma_connect(3)` and `rdma_accept(3)` name one that the program made.

use crate::abi::ibv_qp;
use crate::ffi::CPointer;
use crate::ffi::fork::ProcessTable;
use crate::qp::queue_pair::{self, Qp, Transport};
use dgiwarp::RcQp;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// One reliable queue pair of this process. Numbers are used again, so it also has a place in the order of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    qpn: u32,
    order: u64,
}

static QPS: ProcessTable<BTreeMap<u32, (u64, CPointer<ibv_qp>)>> =
    ProcessTable::new(BTreeMap::new());

/// A reliable queue pair was made.
pub(crate) fn enter(qpn: u32, qp: *mut ibv_qp) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let order = NEXT.fetch_add(1, Ordering::Relaxed);
    QPS.lock().insert(qpn, (order, CPointer(qp)));
}

/// A queue pair is going to be destroyed.
pub(crate) fn leave(qp: *mut ibv_qp) {
    QPS.lock().retain(|_, (_, known)| known.0 != qp);
}

/// The queue pair of a number.
pub(crate) fn find(qpn: u32) -> Option<Name> {
    QPS.lock()
        .get(&qpn)
        .map(|(order, _)| Name { qpn, order: *order })
}

/// A queue pair that is still there.
#[derive(Clone, Copy)]
pub(crate) struct Found<'a> {
    pub(crate) c: *mut ibv_qp,
    pub(crate) qp: &'a Qp,
    pub(crate) rc: &'a RcQp,
}

impl Name {
    /// Runs `with` on the queue pair, if it is still there. The program may not destroy it meanwhile: it is in a call about it.
    pub(crate) fn with<T>(self, with: impl FnOnce(Found<'_>) -> T) -> Option<T> {
        let c = {
            let all = QPS.lock();
            let (order, c) = all.get(&self.qpn)?;
            (*order == self.order).then_some(c.0)?
        };
        // SAFETY: it is entered, so it was not destroyed, and the program does not do that during its call.
        let qp = unsafe { queue_pair::state(c) }.ok()?;
        match &qp.qp {
            Transport::Rc(rc) => Some(with(Found { c, qp, rc })),
            Transport::Ud(_) | Transport::Uc(_) => None,
        }
    }
}

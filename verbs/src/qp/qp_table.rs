//! All reliable queue pairs of the process by number: `rdma_connect(3)` and `rdma_accept(3)` may name one that the program created
//! without rdma_cm.

use crate::abi::ibv_qp;
use crate::ffi::CPointer;
use crate::ffi::fork::ProcessTable;
use crate::qp::cm_qp::CmQp;
use crate::qp::queue_pair::{self, Qp};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// A reliable queue pair of this process: its number and, because numbers are used again, its serial number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QpRef {
    qpn: u32,
    serial: u64,
}

/// Serial number and pointer of each queue pair, by QPN.
static QPS: ProcessTable<BTreeMap<u32, (u64, CPointer<ibv_qp>)>> =
    ProcessTable::new(BTreeMap::new());

/// Adds a new queue pair.
pub(crate) fn enter(qpn: u32, qp: *mut ibv_qp) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let serial = NEXT.fetch_add(1, Ordering::Relaxed);
    QPS.lock().insert(qpn, (serial, CPointer(qp)));
}

/// Removes a queue pair that is going to be destroyed.
pub(crate) fn leave(qp: *mut ibv_qp) {
    QPS.lock().retain(|_, (_, entered)| entered.0 != qp);
}

/// The queue pair of a number.
pub(crate) fn find(qpn: u32) -> Option<QpRef> {
    let serial = QPS.lock().get(&qpn)?.0;
    Some(QpRef { qpn, serial })
}

/// A live queue pair.
#[derive(Clone, Copy)]
pub(crate) struct Found<'a> {
    pub(crate) c: *mut ibv_qp,
    pub(crate) qp: &'a Qp,
    pub(crate) rc: CmQp<'a>,
}

impl QpRef {
    /// Runs `with` on the queue pair, unless it was destroyed. The program does not destroy it during its own call about it.
    pub(crate) fn with<T>(self, with: impl FnOnce(Found<'_>) -> T) -> Option<T> {
        let c = {
            let qps = QPS.lock();
            let (serial, c) = qps.get(&self.qpn)?;
            (*serial == self.serial).then_some(c.0)?
        };
        // SAFETY: entered, so not destroyed; the program does not destroy it during its call.
        let qp = unsafe { queue_pair::state(c) }.ok()?;
        let rc = qp.qp.for_cm()?;
        Some(with(Found { c, qp, rc }))
    }
}

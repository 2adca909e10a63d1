//! One end of a connection.

use std::time::{Duration, Instant};

use dgiwarp::{
    Access, Buffer, Cq, Mr, Pd, RcOperation, RcQp, RcQpAttr, RcSendWr, ReadDepths, RecvWr, Rnic,
};

use super::statuses::Statuses;
use crate::common::now;

/// Everything posted has ended by then.
pub(crate) const LIMIT: Duration = Duration::from_secs(5);
pub(crate) const DEPTHS: ReadDepths = ReadDepths { ird: 4, ord: 4 };

pub(crate) struct End {
    pub(crate) qp: RcQp,
    pub(crate) cq: Cq,
    pub(crate) mr: Mr,
    pub(crate) memory: Buffer,
}

impl End {
    pub(crate) fn on(rnic: &Rnic, room: usize) -> Self {
        Self::of(&rnic.alloc_pd(), room)
    }

    /// One that shares its domain with others.
    pub(crate) fn of(pd: &Pd, room: usize) -> Self {
        let cq = pd.rnic().create_cq(64).unwrap();
        let memory = Buffer::zeroed(room).unwrap();
        Self {
            qp: pd.create_rc_qp(&RcQpAttr::new(&cq, &cq)).unwrap(),
            mr: pd.register(memory.region(), Access::all()).unwrap(),
            cq,
            memory,
        }
    }

    pub(crate) fn post_recv(&self, wr_id: u64) {
        let sges = [self.mr.sge(..64)];
        self.qp.post_recv(&[RecvWr { wr_id, sges: &sges }]).unwrap();
    }

    /// Posts an operation with octets at the start of the memory.
    pub(crate) fn post(&self, wr_id: u64, operation: RcOperation, octets: usize) {
        let sges = [self.mr.sge(..octets)];
        let wr = RcSendWr::new(wr_id, operation, &sges);
        self.qp.post_send(&[wr]).unwrap();
    }

    /// The completions of so many work requests, which all come before `deadline`.
    #[track_caller]
    pub(crate) fn all(&self, posted: usize, deadline: Instant) -> Statuses {
        let mut statuses = Statuses::default();
        for left in (1..=posted).rev() {
            let wait = deadline.saturating_duration_since(now());
            let wc = self.cq.wait(wait).unwrap();
            let wc = wc.unwrap_or_else(|| {
                panic!("{left} work requests have not ended: {:?}", self.qp.end())
            });
            statuses.push(wc);
        }
        assert_eq!(self.cq.poll_one().unwrap(), None, "more than was posted");
        statuses
    }
}

//! Receive queues that queue pairs share.

use std::sync::Arc;

use crate::{AsyncEvent, Error, MAX_SGE, Pd, PostFailure, RecvWr};
use dgiwarp_engine::recv_queue::{ReceiveSink, RecvQueue};
use dgiwarp_engine::xrc::XrcDomain;

/// Most work requests of a queue.
pub(super) const MAX_WR: usize = 1 << 16;

/// Attributes of a shared receive queue (`ibv_srq_init_attr`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SrqAttr {
    /// Receives posted at most, 1 to 65,536. Default 256.
    pub max_wr: usize,
    /// Scatter elements per receive, 1 to [`MAX_SGE`]. Default 4.
    pub max_sge: usize,
}

impl Default for SrqAttr {
    fn default() -> Self {
        Self {
            max_wr: 256,
            max_sge: 4,
        }
    }
}

/// A receive queue that queue pairs of any transport share (`ibv_create_srq(3)`). A message to any of them takes the receive at its head and
/// completes in that queue pair's completion queue. Receives name memory of this queue's protection domain.
///
/// The receives belong to the queue: a queue pair that is flushed or destroyed leaves them, and returns those that it had bound to
/// incomplete messages. Dropping the queue takes away this handle; queue pairs go on with posted receives.
#[derive(Debug)]
pub struct Srq {
    pub(crate) queue: Arc<RecvQueue>,
    pd: Pd,
    id: u64,
    xrc_domain: Option<Arc<XrcDomain>>,
}

impl Srq {
    /// A queue, which may belong to an XRC domain and then completes to a completion queue of its own.
    pub(crate) fn create(
        pd: &Pd,
        attr: &SrqAttr,
        xrc: Option<(Arc<XrcDomain>, Arc<dyn ReceiveSink>)>,
    ) -> Result<Self, Error> {
        Error::check_limit("max_wr", attr.max_wr, 1, MAX_WR)?;
        Error::check_limit("max_sge", attr.max_sge, 1, MAX_SGE)?;
        let id = pd.rnic.shared.background.next_id();
        let queue = RecvQueue::shared(attr.max_wr, attr.max_sge, id, pd.id);
        let (queue, xrc_domain) = match xrc {
            None => (queue, None),
            Some((domain, sink)) => (queue.completing_to(sink), Some(domain)),
        };
        let srq = Self {
            queue: Arc::new(queue),
            pd: pd.clone(),
            id,
            xrc_domain,
        };
        if let Some(domain) = &srq.xrc_domain {
            domain.enter(srq.number(), &srq.queue);
        }
        Ok(srq)
    }

    /// Number of the queue, by which XRC initiators name it (`ibv_get_srq_num(3)`).
    #[must_use]
    pub fn number(&self) -> u32 {
        u32::try_from(self.id & u64::from(u32::MAX)).unwrap_or(0)
    }

    /// Identifies the queue in [`AsyncEvent::SrqLimit`].
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The protection domain.
    #[must_use]
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Posts receives, in order (`ibv_post_srq_recv(3)`). Threads may do so at the same time.
    ///
    /// # Errors
    /// [`PostFailure`] has the number of accepted work requests, and the error of the next one.
    pub fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostFailure> {
        self.queue.post_all(wrs)
    }

    /// Asks for one [`AsyncEvent::SrqLimit`] once fewer than `limit` receives remain, which may be at once; 0 takes the request back
    /// (`ibv_modify_srq(3)`). The event disarms the limit.
    ///
    /// # Errors
    /// [`Error::Limit`] if `limit` is more than the queue holds.
    pub fn arm_limit(&self, limit: usize) -> Result<(), Error> {
        Error::check_limit("limit", limit, 0, self.queue.capacity())?;
        if let Some(event) = self.queue.arm_limit(limit) {
            self.pd.rnic.shared.background.events().raise(event);
        }
        Ok(())
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        if let Some(domain) = &self.xrc_domain {
            domain.leave(self.number());
        }
        let _ = self.queue.arm_limit(0);
        let gone = AsyncEvent::SrqLimit { srq: self.id };
        let events = self.pd.rnic.shared.background.events();
        events.forget(|event| event == gone);
    }
}

/// Shared receive queues of a protection domain.
impl Pd {
    /// Makes a receive queue that queue pairs share (`ibv_create_srq(3)`).
    ///
    /// # Errors
    /// [`Error::Limit`] for sizes outside the device's.
    pub fn create_srq(&self, attr: &SrqAttr) -> Result<Srq, Error> {
        Srq::create(self, attr, None)
    }
}

//! States and rights of a connected QP that its program sets: ready to receive or to send, drained, access flags.

use std::sync::atomic::Ordering;

use crate::driver::tcp::qp::{RcInner, RcShared};
use crate::{Access, RnrLimits};
use dgiwarp_engine::connected::RcEngine;
use dgiwarp_engine::sq_drain::SqDrain;

impl RcInner {
    /// Hands a new engine what the program set before the connection.
    pub(super) fn set_up(&self, engine: &mut RcEngine) {
        engine.await_first_message(self.awaits_first_message);
        engine.limit_rnr(self.rnr_limits);
    }

    /// Begins or ends a drain. Without a connection nothing has begun.
    pub(super) fn set_sq_drain_locked(qp: &RcShared, inner: &mut Self, mut drain: SqDrain) {
        let mut completions = qp.completions();
        match &mut inner.link {
            Some(link) => link.engine.set_sq_drain(drain, &mut completions),
            None => drain.complete(qp.qpn, &mut completions),
        }
        inner.sq_drain = drain;
        qp.work(inner);
    }
}

impl RcShared {
    /// Whether the first message of the peer raises an event.
    pub(crate) fn await_first_message(&self, awaits: bool) {
        self.run(|inner| {
            inner.awaits_first_message = awaits;
            if let Some(link) = &mut inner.link {
                link.engine.await_first_message(awaits);
            }
        });
    }

    /// Says what peers may not do, whatever keys they have.
    pub(crate) fn deny(&self, denied: Access) {
        self.run(|inner| {
            inner.denied = denied;
            if let Some(link) = &mut inner.link {
                link.engine.deny(denied);
                Self::revoke_grants(link);
            }
        });
    }

    /// Sets the limits of messages that wait for a receive.
    pub(crate) fn limit_rnr(&self, limits: RnrLimits) {
        self.run(|inner| {
            inner.rnr_limits = limits;
            if let Some(link) = &mut inner.link {
                link.engine.limit_rnr(limits);
            }
        });
    }

    /// Lets work requests be posted before there is a connection: they wait for it.
    pub(crate) fn open(&self) {
        self.open.store(true, Ordering::Release);
    }

    /// Whether work requests may be posted.
    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// Whether work requests are outstanding that had begun when the drain began.
    pub(crate) fn is_draining(&self) -> bool {
        self.run(|inner| {
            let link = inner.link.as_ref();
            link.is_some_and(|link| link.engine.sq_drain().is_draining())
        })
    }
}

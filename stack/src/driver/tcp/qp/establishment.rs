//! Establishment of a connection, as its program is told.

use std::sync::Arc;

use crate::ConnectionEvent;
use crate::driver::cm::events::{CmQueue, PendingEstablished};
use crate::driver::reactor::member::NextReceive;
use crate::driver::tcp::qp::{From, RcInner, RcShared};
use dgiwarp_engine::cm::connect::is_established;

impl RcShared {
    /// Reports the establishment of the connection to `queue`, which may be later, and its end. Returns whether it is later.
    pub(crate) fn report_established(
        &self,
        queue: &Arc<CmQueue>,
        context: u64,
        pending_established: PendingEstablished,
    ) -> bool {
        self.run(|inner| {
            inner.listener = Some((Arc::clone(queue), context));
            inner.pending_established = Some(Box::new(pending_established));
            Self::begin(inner);
            // It may be over already.
            self.wind_down(inner);
            self.note_deadline(inner);
            inner.pending_established.is_some()
        })
    }

    /// Receives on a connection whose establishment is not reported yet. Returns whether it still is not.
    pub(crate) fn awaits_first_fpdu(&self) -> bool {
        self.run(|inner| {
            if inner.pending_established.is_some() {
                self.receive_once(inner, NextReceive::Unknown, From::All);
            }
            inner.pending_established.is_some()
        })
    }

    /// Reports the connection as established once it is.
    pub(super) fn begin(inner: &mut RcInner) {
        let (Some(link), Some((queue, context))) = (&inner.link, &inner.listener) else {
            return;
        };
        let has_begun = |it: &mut Box<PendingEstablished>| {
            is_established(&it.established.negotiation, link.engine.may_send())
        };
        if let Some(pending_established) = inner.pending_established.take_if(has_begun) {
            queue.push(ConnectionEvent::Established {
                context: *context,
                established: pending_established.established,
            });
        }
    }
}

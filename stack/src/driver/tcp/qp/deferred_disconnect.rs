//! The disconnect event of a connection, raised once.

use std::time::Instant;

use crate::driver::tcp::qp::{Link, RcInner, RcShared};
use crate::{ConnectError, ConnectionEvent};
use dgiwarp_engine::connected::RcEnd;

impl RcShared {
    /// Raises the disconnect event, unless it was raised or is to be deferred.
    pub(crate) fn raise_disconnect(&self, inner: &mut RcInner, end: RcEnd, now: Instant) {
        let Some(link) = &mut inner.link else {
            return;
        };
        if inner.listener.is_none() {
            return;
        }
        let disconnected = link.graceful_close.is_some();
        let (follows, peer) = (inner.follows, link.peer);
        let untaken = || {
            let others = follows.is_some_and(|follows| follows(peer));
            others || self.has_success()
        };
        if link
            .deferred_disconnect
            .is_due(now, end, disconnected, untaken)
        {
            push(inner, end);
        }
    }

    /// Whether completions of messages lie in the completion queues.
    pub(super) fn has_success(&self) -> bool {
        let mut queues = [&self.send_cq, &self.recv_cq].into_iter();
        queues.any(|cq| cq.has_success_of(self.qpn))
    }

    /// Raises a deferred disconnect event now: the QP is going, and with it the completions from before the end.
    pub(crate) fn raise_deferred_disconnect(inner: &mut RcInner) {
        let deferred = |link: &Link| {
            link.deferred_disconnect
                .deadline()
                .and_then(|_| link.engine.end())
        };
        if let Some(end) = inner.link.as_ref().and_then(deferred) {
            push(inner, end);
        }
    }
}

/// Pushes the event to the queue of the connection, once.
fn push(inner: &mut RcInner, end: RcEnd) {
    let Some((queue, context)) = inner.listener.take() else {
        return;
    };
    queue.push(match inner.pending_established.take() {
        Some(beginning) => ConnectionEvent::Failed {
            context,
            peer: beginning.peer,
            error: ConnectError::Mpa(dgiwarp_llp_tcp_mpa::Error::ClosedInStartup),
        },
        None => ConnectionEvent::Disconnected { context, end },
    });
}

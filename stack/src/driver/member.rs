//! A QP of either transport, as a completion queue sees it.

use std::sync::{Arc, Weak};
use std::time::Instant;

use super::ud::UdShared;
use super::udp_socket::ReceiveBuffer;
use super::udp_sockets::SocketIndex;

/// A QP that a completion queue receives for.
#[derive(Debug, Clone)]
pub(crate) enum Qp {
    Ud(Arc<UdShared>),
}

/// The same, without keeping it.
#[derive(Debug)]
pub(super) enum WeakQp {
    Ud(Weak<UdShared>),
}

impl WeakQp {
    #[inline]
    pub(super) fn upgrade(&self) -> Option<Qp> {
        match self {
            Self::Ud(qp) => qp.upgrade().map(Qp::Ud),
        }
    }
}

impl Qp {
    pub(super) fn downgrade(&self) -> WeakQp {
        match self {
            Self::Ud(qp) => WeakQp::Ud(Arc::downgrade(qp)),
        }
    }

    /// Receives once on one socket. `None` if another thread is at work; else whether something came.
    #[inline]
    pub(super) fn receive(&self, socket: SocketIndex, buffer: &mut ReceiveBuffer) -> Option<bool> {
        match self {
            Self::Ud(qp) => qp.receive(socket, buffer),
        }
    }

    /// Goes on with what could not be sent. If something is left, returns whether a full socket is why.
    pub(super) fn flush_unsent(&self) -> Option<bool> {
        match self {
            Self::Ud(qp) => qp.flush_unsent(),
        }
    }

    /// Runs timers that are due and returns when the next one is.
    pub(super) fn handle_timeout(&self, now: Instant) -> Option<Instant> {
        match self {
            Self::Ud(qp) => qp.handle_timeout(now),
        }
    }
}

//! A QP of either transport, as a completion queue sees it.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};
use std::time::Instant;

use super::rc::RcShared;
use super::ud::UdShared;
use super::udp_socket::ReceiveBuffer;
use super::udp_sockets::SocketIndex;

/// A QP that a completion queue receives for.
#[derive(Debug, Clone)]
pub(crate) enum Qp {
    Ud(Arc<UdShared>),
    Rc(Arc<RcShared>),
}

/// The same, without keeping it.
#[derive(Debug)]
pub(super) enum WeakQp {
    Ud(Weak<UdShared>),
    Rc(Weak<RcShared>),
}

impl WeakQp {
    #[inline]
    pub(super) fn upgrade(&self) -> Option<Qp> {
        match self {
            Self::Ud(qp) => qp.upgrade().map(Qp::Ud),
            Self::Rc(qp) => qp.upgrade().map(Qp::Rc),
        }
    }
}

impl Qp {
    pub(super) fn downgrade(&self) -> WeakQp {
        match self {
            Self::Ud(qp) => WeakQp::Ud(Arc::downgrade(qp)),
            Self::Rc(qp) => WeakQp::Rc(Arc::downgrade(qp)),
        }
    }

    /// Receives once on one socket. `None` if another thread is at work; else whether something came.
    #[inline]
    pub(super) fn receive(&self, socket: SocketIndex, buffer: &mut ReceiveBuffer) -> Option<bool> {
        match self {
            Self::Ud(qp) => qp.receive(socket, buffer),
            Self::Rc(qp) => qp.receive(),
        }
    }

    /// Reads what the network says of datagrams sent earlier. `None` if another thread is at work.
    pub(super) fn read_notices(&self, socket: SocketIndex) -> Option<()> {
        match self {
            Self::Ud(qp) => qp.read_notices(socket),
            // The error of a stream is its end, which receiving meets.
            Self::Rc(_) => None,
        }
    }

    /// Runs `with` on the descriptor of a socket, if it is there.
    pub(super) fn with_socket<R>(
        &self,
        socket: SocketIndex,
        with: impl FnOnce(BorrowedFd<'_>) -> R,
    ) -> Option<R> {
        match self {
            Self::Ud(qp) => qp.with_socket(socket, with),
            // A stream brings much with each call; its share of the epoll set's cost is small.
            Self::Rc(_) => None,
        }
    }

    /// Goes on with what could not be sent. If something is left, returns whether a full socket is why.
    pub(super) fn flush_unsent(&self) -> Option<bool> {
        match self {
            Self::Ud(qp) => qp.flush_unsent(),
            Self::Rc(qp) => qp.flush_unsent(),
        }
    }

    /// Runs timers that are due and returns when the next one is.
    pub(super) fn handle_timeout(&self, now: Instant) -> Option<Instant> {
        match self {
            Self::Ud(qp) => qp.handle_timeout(now),
            Self::Rc(qp) => qp.handle_timeout(now),
        }
    }
}

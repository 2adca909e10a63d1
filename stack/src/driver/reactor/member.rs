//! A QP of either transport, as a completion queue sees it.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};
use std::time::Instant;

use crate::driver::cq::Pace;
use crate::driver::tcp::qp::RcShared;
use crate::driver::udp::qp::UdShared;
use crate::driver::udp::socket::ReceiveBuffer;
use crate::driver::udp::sockets::SocketIndex;

/// A QP that a completion queue receives for.
#[derive(Debug, Clone)]
pub(crate) enum Qp {
    Ud(Arc<UdShared>),
    Rc(Arc<RcShared>),
}

/// The same, without keeping it.
#[derive(Debug)]
pub(crate) enum WeakQp {
    Ud(Weak<UdShared>),
    Rc(Weak<RcShared>),
}

impl WeakQp {
    #[inline]
    pub(crate) fn upgrade(&self) -> Option<Qp> {
        match self {
            Self::Ud(qp) => qp.upgrade().map(Qp::Ud),
            Self::Rc(qp) => qp.upgrade().map(Qp::Rc),
        }
    }
}

/// What a receive call brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Got {
    Nothing,
    Something,
    /// All there was: another call would find nothing.
    Everything,
}

impl Qp {
    pub(crate) fn downgrade(&self) -> WeakQp {
        match self {
            Self::Ud(qp) => WeakQp::Ud(Arc::downgrade(qp)),
            Self::Rc(qp) => WeakQp::Rc(Arc::downgrade(qp)),
        }
    }

    /// Receives once on one socket. `None` if another thread is at work.
    #[inline]
    pub(crate) fn receive(
        &self,
        socket: SocketIndex,
        buffer: &mut ReceiveBuffer,
        pace: Pace,
    ) -> Option<Got> {
        match self {
            Self::Ud(qp) => match qp.receive(socket, buffer)? {
                true => Some(Got::Something),
                false => Some(Got::Nothing),
            },
            Self::Rc(qp) => qp.receive(pace),
        }
    }

    /// Reads what the network says of datagrams sent earlier. `None` if another thread is at work.
    pub(crate) fn read_notices(&self, socket: SocketIndex) -> Option<()> {
        match self {
            Self::Ud(qp) => qp.read_notices(socket),
            // The error of a stream is its end, which receiving meets.
            Self::Rc(_) => None,
        }
    }

    /// Runs `with` on the descriptor of a socket, if it is there.
    pub(crate) fn with_socket<R>(
        &self,
        socket: SocketIndex,
        with: impl FnOnce(BorrowedFd<'_>) -> R,
    ) -> Option<R> {
        match self {
            Self::Ud(qp) => qp.with_socket(socket, with),
            Self::Rc(qp) => qp.with_socket(with),
        }
    }

    /// Goes on with what could not be sent. If something is left, returns whether a full socket is why.
    pub(crate) fn flush_unsent(&self) -> Option<bool> {
        match self {
            Self::Ud(qp) => qp.flush_unsent(),
            Self::Rc(qp) => qp.flush_unsent(),
        }
    }

    /// Tells the peer what it waits for, `at_once` or if it has waited long enough. Returns whether nothing is left to be told.
    pub(crate) fn settle(&self, at_once: bool) -> bool {
        match self {
            Self::Ud(_) => true,
            Self::Rc(qp) => qp.settle(at_once),
        }
    }

    /// Tells the peer what it does not wait for.
    pub(crate) fn settle_late(&self) {
        match self {
            Self::Ud(_) => {}
            Self::Rc(qp) => qp.settle_late(),
        }
    }

    /// Ends the QP if its completions are lost.
    pub(crate) fn fail_overrun(&self) {
        match self {
            Self::Ud(qp) => qp.fail_overrun(),
            Self::Rc(qp) => qp.fail_overrun(),
        }
    }

    /// Runs timers that are due and returns when the next one is.
    pub(crate) fn handle_timeout(&self, now: Instant) -> Option<Instant> {
        match self {
            Self::Ud(qp) => qp.handle_timeout(now),
            Self::Rc(qp) => qp.handle_timeout(now),
        }
    }
}

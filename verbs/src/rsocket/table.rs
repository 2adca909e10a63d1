//! The sockets of the process by their descriptors.

use crate::ffi::fork::ProcessTable;
use crate::rsocket::companion::socket::Companion;
use crate::rsocket::datagram::socket::DatagramSocket;
use crate::rsocket::edges::{Edges, Interest};
use crate::rsocket::stream::connection::Connection;
use crate::rsocket::stream::socket::StreamSocket;
use libc::{c_int, c_short, pollfd};
use nix::errno::Errno;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A socket.
#[derive(Clone)]
pub(super) enum Socket {
    Stream(Arc<StreamSocket>),
    Datagram(Arc<DatagramSocket>),
    /// Beside a UDP socket of the program.
    Companion(Arc<Companion>),
}

static SOCKETS: ProcessTable<Vec<Option<Socket>>> = ProcessTable::new(Vec::new());

/// Makes sockets give a TCP port up for another socket of the program. Returns their number.
pub(crate) fn yield_port(port: u16) -> usize {
    let sockets: Vec<_> = SOCKETS.lock().iter().flatten().cloned().collect();
    let yields = |socket: &&Socket| match socket {
        Socket::Stream(stream) => stream.yield_port(port),
        Socket::Datagram(_) | Socket::Companion(_) => false,
    };
    sockets.iter().filter(yields).count()
}

/// The process ends: peers of sockets that it did not close read what was sent, and then the end.
pub(super) fn leave() {
    // In a process that exits, threads may hold locks for ever.
    let Some(sockets) = SOCKETS.try_lock() else {
        return;
    };
    for socket in sockets.iter().flatten() {
        if let Socket::Stream(stream) = socket {
            stream.leave();
        }
    }
}

impl Socket {
    fn fd(&self) -> RawFd {
        match self {
            Self::Stream(stream) => stream.mailbox.fd(),
            Self::Datagram(datagram) => datagram.fd(),
            Self::Companion(companion) => companion.fd(),
        }
    }

    /// Enters the socket and returns its descriptor.
    pub(super) fn enter(self) -> Result<c_int, Errno> {
        let fd = self.fd();
        let at = usize::try_from(fd).map_err(|_| Errno::EMFILE)?;
        let mut sockets = SOCKETS.lock();
        if sockets.len() <= at {
            sockets.resize(at + 1, None);
        }
        if let Some(slot) = sockets.get_mut(at) {
            *slot = Some(self);
        }
        Ok(fd)
    }

    /// The socket with a descriptor.
    pub(super) fn find(fd: c_int) -> Option<Self> {
        let at = usize::try_from(fd).ok()?;
        SOCKETS.lock().get(at)?.clone()
    }

    /// Whether both are one socket.
    pub(super) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Stream(one), Self::Stream(other)) => Arc::ptr_eq(one, other),
            (Self::Datagram(one), Self::Datagram(other)) => Arc::ptr_eq(one, other),
            (Self::Companion(one), Self::Companion(other)) => Arc::ptr_eq(one, other),
            (Self::Stream(_) | Self::Datagram(_) | Self::Companion(_), _) => false,
        }
    }

    /// A number that no other open socket has.
    pub(super) fn identity(&self) -> usize {
        match self {
            Self::Stream(stream) => Arc::as_ptr(stream).addr(),
            Self::Datagram(datagram) => Arc::as_ptr(datagram).addr(),
            Self::Companion(companion) => Arc::as_ptr(companion).addr(),
        }
    }

    /// Counts a check of a poll set that goes through its sockets one after the other.
    pub(super) fn count_check(&self) {
        if let Self::Stream(stream) = self {
            stream.checks.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether so many such checks were made of a stream socket; then they are counted anew.
    pub(super) fn was_checked(&self, times: u32) -> bool {
        let Self::Stream(stream) = self else {
            return false;
        };
        let enough = stream.checks.load(Ordering::Relaxed) >= times;
        if enough {
            stream.checks.store(0, Ordering::Relaxed);
        }
        enough
    }

    /// The connection of a stream socket.
    pub(super) fn connected(&self) -> Option<Arc<Connection>> {
        match self {
            Self::Stream(stream) => stream.connected(),
            Self::Datagram(_) | Self::Companion(_) => None,
        }
    }

    pub(super) fn get(fd: c_int) -> Result<Self, Errno> {
        Self::find(fd).ok_or(Errno::EBADF)
    }

    /// The stream socket with a descriptor, for calls that datagram sockets do not have.
    pub(super) fn stream(fd: c_int) -> Result<Arc<StreamSocket>, Errno> {
        match Self::get(fd)? {
            Self::Stream(stream) => Ok(stream),
            Self::Datagram(_) | Self::Companion(_) => Err(Errno::EOPNOTSUPP),
        }
    }

    /// Takes the socket with a descriptor out.
    pub(super) fn remove(fd: c_int) -> Result<Self, Errno> {
        let at = usize::try_from(fd).map_err(|_| Errno::EBADF)?;
        let mut sockets = SOCKETS.lock();
        let slot = sockets.get_mut(at).ok_or(Errno::EBADF)?;
        slot.take().ok_or(Errno::EBADF)
    }

    pub(super) fn set_nonblocking(&self, nonblocking: bool) {
        match self {
            Self::Stream(it) => it.nonblocking.store(nonblocking, Ordering::Relaxed),
            Self::Datagram(it) => it.nonblocking.store(nonblocking, Ordering::Relaxed),
            // Its calls never wait.
            Self::Companion(_) => {}
        }
    }

    /// Events of poll(2) that the socket has now.
    pub(super) fn check(&self, events: c_short) -> c_short {
        self.check_edges(events).0
    }

    /// Events of poll(2) that the socket has now, and the changes until then of a socket with edges.
    pub(super) fn check_edges(&self, events: c_short) -> (c_short, Option<Edges>) {
        match self {
            Self::Stream(stream) => stream.check(events),
            Self::Datagram(datagram) => (datagram.check(events), None),
            Self::Companion(companion) => {
                let (found, edges) = companion.check(events);
                (found, Some(edges))
            }
        }
    }

    /// Prepares the calling thread to sleep until an event, unless one is there: that is the error.
    pub(super) fn arm(&self, interest: Interest, waker: RawFd) -> Result<[pollfd; 2], c_short> {
        let unused = pollfd {
            fd: -1,
            events: 0,
            revents: 0,
        };
        match self {
            Self::Stream(stream) => stream.arm(interest, waker).map(|it| [it, unused]),
            Self::Companion(companion) => companion.arm(interest, waker).map(|it| [it, unused]),
            Self::Datagram(datagram) => datagram.arm(interest.events, waker),
        }
    }

    /// Ends what [`arm`](Self::arm) began.
    pub(super) fn disarm(&self, waker: RawFd) {
        match self {
            Self::Stream(stream) => stream.disarm(waker),
            Self::Datagram(datagram) => datagram.disarm(waker),
            Self::Companion(companion) => companion.disarm(waker),
        }
    }

    /// Whether a call that waits polls for a while before it sleeps.
    pub(super) fn polls(&self) -> bool {
        match self {
            Self::Stream(_) | Self::Datagram(_) => true,
            Self::Companion(companion) => companion.has_routes(),
        }
    }
}

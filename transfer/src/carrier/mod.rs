//! Carriers of frames and blocks: a queue pair, or a TCP connection.

mod rc;
mod tcp;
mod wake;

pub(crate) use rc::RcCarrier;
pub use rc::{RcPort, rc_config};
pub(crate) use tcp::TcpCarrier;
pub(crate) use wake::{Wake, Waker};

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use dgiwarp::Buffer;
use nix::poll::PollFlags;

use crate::engine::Outgoing;
use crate::wire::{Frame, Malformed, Window};

/// Receives of each end.
pub(crate) const RECEIVES: u16 = 128;
/// Time in which TCP gives a host up that does not acknowledge.
pub(crate) const HOST_TIMEOUT: Duration = Duration::from_secs(4);

/// A failure below the session.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CarrierError {
    /// There is no connection.
    #[error("{to}: {reason}")]
    Connect {
        /// The peer.
        to: SocketAddr,
        /// Why.
        reason: String,
    },
    /// The connection is gone before the session ended.
    #[error("the peer is gone: {0}")]
    Lost(String),
    /// A device or socket could not be set up.
    #[error("{0}")]
    Device(String),
    /// The peer sent something that is no frame.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// A block that does not fit the pool.
    #[error("a block of {length} octets for slot {slot}")]
    Block {
        /// The slot.
        slot: u16,
        /// Octets.
        length: u32,
    },
}

impl From<io::Error> for CarrierError {
    fn from(error: io::Error) -> Self {
        Self::Lost(error.to_string())
    }
}

/// Something came or left.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// A frame, with the `taken` of its header. The octets of a block are in their slot.
    Frame(u32, Frame),
    /// The octets of a local slot have left.
    Sent(u16),
    /// Octets of something that is not whole yet.
    Some,
}

/// Memory of a session: slots of equal length.
#[derive(Debug, Clone)]
pub(crate) struct Pool {
    pub(crate) buffer: Buffer,
    pub(crate) slot_length: u32,
    pub(crate) slots: u16,
}

impl Pool {
    pub(crate) fn new(slot_length: u32, slots: u16) -> io::Result<Self> {
        let buffer = Buffer::zeroed(slot_length as usize * usize::from(slots))?;
        Ok(Self {
            buffer,
            slot_length,
            slots,
        })
    }

    /// First octet of a slot.
    pub(crate) fn start(&self, slot: u16) -> usize {
        usize::from(slot) * self.slot_length as usize
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) enum Carrier {
    Rc(Box<RcCarrier>),
    Tcp(Box<TcpCarrier>),
}

impl Carrier {
    /// Gives the carrier the pool, before blocks move. Returns the window of a sink.
    pub(crate) fn attach(&mut self, pool: &Pool) -> Result<Window, CarrierError> {
        match self {
            Self::Rc(it) => it.attach(pool),
            Self::Tcp(it) => Ok(it.attach(pool)),
        }
    }

    /// The sink's window is there.
    pub(crate) fn set_window(&mut self, window: Window) {
        match self {
            Self::Rc(it) => it.set_window(window),
            Self::Tcp(_) => {}
        }
    }

    /// Whether [`send`](Self::send) may be called.
    pub(crate) fn has_room(&self) -> bool {
        match self {
            Self::Rc(it) => it.has_room(),
            Self::Tcp(it) => it.has_room(),
        }
    }

    /// Sends or takes over.
    pub(crate) fn send(&mut self, taken: u32, outgoing: &Outgoing) -> Result<(), CarrierError> {
        match self {
            Self::Rc(it) => it.send(taken, outgoing),
            Self::Tcp(it) => it.send(taken, outgoing),
        }
    }

    /// Receives what is there. Bounded work.
    pub(crate) fn poll(&mut self, arrivals: &mut Vec<Arrival>) -> Result<(), CarrierError> {
        match self {
            Self::Rc(it) => it.poll(arrivals),
            Self::Tcp(it) => it.poll(arrivals),
        }
    }

    /// Whether all that was sent has left this process.
    pub(crate) fn is_drained(&self) -> bool {
        match self {
            Self::Rc(it) => it.is_drained(),
            Self::Tcp(it) => it.is_drained(),
        }
    }

    /// Gets ready to wait; returns whether nothing is there yet. [`end_wait`](Self::end_wait) follows.
    pub(crate) fn prepare(&mut self) -> Result<bool, CarrierError> {
        match self {
            Self::Rc(it) => it.prepare(),
            Self::Tcp(_) => Ok(true),
        }
    }

    /// The descriptor that shows that something comes, or that there is room.
    pub(crate) fn waited(&self) -> (BorrowedFd<'_>, PollFlags) {
        match self {
            Self::Rc(it) => it.waited(),
            Self::Tcp(it) => it.waited(),
        }
    }

    pub(crate) fn end_wait(&mut self) {
        match self {
            Self::Rc(it) => it.end_wait(),
            Self::Tcp(_) => {}
        }
    }

    /// Waits for something to come, room, or the waker.
    pub(crate) fn wait(&mut self, wake: &Wake, timeout: Duration) -> Result<(), CarrierError> {
        if self.prepare()? {
            wake.sleep_on(&[self.waited()], timeout)?;
        }
        self.end_wait();
        Ok(())
    }
}

//! Carriers of frames and blocks: a queue pair, or a TCP connection.

mod frames;
mod rc;
mod tcp;
mod wake;

pub(crate) use frames::FrameCodec;
pub(crate) use rc::RcCarrier;
pub use rc::{RcPort, rc_config};
pub(crate) use tcp::TcpCarrier;
pub(crate) use wake::{Wake, Waker};

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dgiwarp::Buffer;
use nix::poll::PollFlags;

use crate::engine::Outgoing;
use crate::protection::{BlockProtection, FrameProtection, SLOT_OVERHEAD, TRAILER};
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

/// Place of a block beside its slot.
#[derive(Debug, Default)]
pub(crate) struct Outside {
    /// Its memory. Octets of an earlier block stay, so that it is not cleared for each.
    octets: Vec<u8>,
    /// Whether the block is here, not in the slot.
    pub(crate) is_used: bool,
}

impl Outside {
    /// Room for a block, which takes the place of the slot.
    pub(crate) fn begin(&mut self, length: usize) -> &mut [u8] {
        self.is_used = true;
        self.octets.resize(length, 0);
        &mut self.octets
    }

    /// The block, if it is here.
    pub(crate) fn block(&self) -> Option<&[u8]> {
        self.is_used.then_some(&self.octets)
    }
}

/// Memory of a session: slots of equal length. Cloning shares it.
#[derive(Debug, Clone)]
pub(crate) struct Pool {
    pub(crate) buffer: Buffer,
    pub(crate) slot_length: u32,
    pub(crate) slots: u16,
    /// Keys of blocks, where they are encrypted.
    protection: Option<Arc<BlockProtection>>,
    /// Blocks that wait outside the slots, for a copy to the peer's memory.
    outside: Arc<[Mutex<Outside>]>,
    /// Whether the last block was copied to memory of the peer that this process maps.
    is_mapped: Arc<AtomicBool>,
    /// Octets of all such blocks.
    mapped: Arc<AtomicU64>,
}

impl Pool {
    /// Memory from which blocks are sent.
    pub(crate) fn new(
        block: u32,
        slots: u16,
        protection: Option<Arc<BlockProtection>>,
    ) -> io::Result<Self> {
        Self::made_by((block, slots), protection, Buffer::zeroed)
    }

    fn made_by(
        (block, slots): (u32, u16),
        protection: Option<Arc<BlockProtection>>,
        make: impl FnOnce(usize) -> io::Result<Buffer>,
    ) -> io::Result<Self> {
        let overhead = protection.as_ref().map_or(0, |_| SLOT_OVERHEAD);
        let slot_length = block + overhead;
        Ok(Self {
            buffer: make(slot_length as usize * usize::from(slots))?,
            slot_length,
            slots,
            protection,
            outside: (0..slots).map(|_| Mutex::default()).collect(),
            is_mapped: Arc::default(),
            mapped: Arc::default(),
        })
    }

    /// Octets of the longest block.
    pub(crate) fn block_length(&self) -> u32 {
        let overhead = self.protection.as_ref().map_or(0, |_| SLOT_OVERHEAD);
        self.slot_length - overhead
    }

    /// Octets of a block in its slot.
    pub(crate) fn octets(&self, length: u32) -> usize {
        let trailer = self.protection.as_ref().map_or(0, |_| TRAILER);
        length as usize + trailer
    }

    /// Whether blocks are encrypted.
    pub(crate) fn is_protected(&self) -> bool {
        self.protection.is_some()
    }

    /// Takes octets of a block that is not encrypted into its local slot.
    pub(crate) fn fill(&self, slot: u16, offset: usize, octets: &[u8]) {
        self.outside(slot).is_used = false;
        self.buffer.write(self.start(slot) + offset, octets);
    }

    /// Takes a whole block into its local slot, encrypted where blocks are; then `block` is as well.
    pub(crate) fn fill_whole(&self, slot: u16, block: &mut [u8]) {
        let trailer = self.protection.as_ref().map(|it| it.encrypt(block));
        self.fill(slot, 0, block);
        if let Some(trailer) = trailer {
            self.buffer.write(self.start(slot) + block.len(), &trailer);
        }
    }

    /// Copies a whole block out of its slot, once: the peer may write there at any time. It is decrypted where blocks are encrypted; returns whether it is
    /// authentic.
    pub(crate) fn take_whole(&self, slot: u16, block: &mut [u8]) -> bool {
        let start = self.start(slot);
        self.buffer.read(start, block);
        let Some(protection) = &self.protection else {
            return true;
        };
        let mut trailer = [0; TRAILER];
        self.buffer.read(start + block.len(), &mut trailer);
        protection.decrypt(block, &trailer)
    }

    /// Place of a block beside its local slot.
    pub(crate) fn outside(&self, slot: u16) -> MutexGuard<'_, Outside> {
        let outside = &self.outside[usize::from(slot)];
        outside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether blocks had better wait outside the slots, from which they are copied once less.
    pub(crate) fn is_mapped(&self) -> bool {
        self.is_mapped.load(Ordering::Relaxed)
    }

    /// A block was copied to such memory, or could not be.
    pub(crate) fn set_mapped(&self, octets: Option<u32>) {
        self.is_mapped.store(octets.is_some(), Ordering::Relaxed);
        let octets = u64::from(octets.unwrap_or(0));
        self.mapped.fetch_add(octets, Ordering::Relaxed);
    }

    /// Octets that were copied to such memory.
    pub(crate) fn mapped(&self) -> u64 {
        self.mapped.load(Ordering::Relaxed)
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
    /// Memory for blocks of the peer's. One on this host may map it.
    pub(crate) fn create_pool(
        &self,
        (block, slots): (u32, u16),
        protection: Option<Arc<BlockProtection>>,
    ) -> io::Result<Pool> {
        match self {
            Self::Rc(it) => {
                let make = |octets| it.create_buffer(octets);
                Pool::made_by((block, slots), protection, make)
            }
            Self::Tcp(_) => Pool::new(block, slots, protection),
        }
    }

    /// Protects frames from now on, in both directions.
    pub(crate) fn protect(&mut self, protection: FrameProtection) {
        let codec = match self {
            Self::Rc(it) => &mut it.codec,
            Self::Tcp(it) => &mut it.codec,
        };
        codec.protect(protection);
    }

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

    /// Whether frames were parsed that [`poll`](Self::poll) has not given yet.
    pub(crate) fn has_found(&self) -> bool {
        match self {
            Self::Rc(it) => it.has_found(),
            Self::Tcp(_) => false,
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

//! Sessions: an engine, a carrier and the threads of its files.

mod connection;
mod delta;
mod jobs;
mod joins;
mod lines;
mod pack;
mod request;
mod run;
mod workers;

pub use connection::{Arriving, Connection, Port, Stranger};
pub use joins::{Dial, Join};
pub use request::Request;
pub use run::{receive, send};

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use crate::carrier::{CarrierError, Wake, Waker};
use crate::engine::{Begun, Failure, Next, SILENCE, Violation, Waits};
use crate::wire::{Answer, Entry, Reason, Removal, Status};

/// Files to send. Several threads call it; calls for one file may overlap.
pub trait Source: Send + Sync {
    /// Finds the next entry and opens it under this number. Called by one thread at a time.
    fn next(&self, file: u32) -> Next;

    /// Fills all of `octets` from a place in the file.
    ///
    /// # Errors
    /// [`Failure`] with [`Status::Changed`](crate::wire::Status::Changed) where the file is shorter, else
    /// [`Status::Unreadable`](crate::wire::Status::Unreadable).
    fn read(&self, file: u32, offset: u64, octets: &mut [u8]) -> Result<(), Failure>;

    /// Checks that the file is the one that was offered.
    ///
    /// # Errors
    /// [`Failure`] with [`Status::Changed`](crate::wire::Status::Changed).
    fn check(&self, file: u32) -> Result<(), Failure>;

    /// Closes the file.
    fn close(&self, file: u32);

    /// Whether entries can have extended attributes. Default no.
    fn has_attributes(&self) -> bool {
        false
    }

    /// Both ends keep extended attributes: entries are to have them from now on. Called before the first is found.
    fn keep_attributes(&self) {}

    /// The means to send short files packed, many to a block; without it each is offered by itself.
    fn packer(&self) -> Option<&dyn Packer> {
        None
    }
}

/// Short files to send, many to a block.
pub trait Packer: Send + Sync {
    /// Finds entries that follow, at least one of anything, with numbers from `first`. Files of up to `short` octets are described and not opened, others as by
    /// [`Source::next`]. Called by one thread at a time.
    fn batch(&self, first: u32, short: u32) -> Vec<Next>;

    /// Fills `octets`, which are as long as the file is described, and checks that it is unchanged.
    ///
    /// # Errors
    /// [`Failure`] as of [`Source::read`] and [`Source::check`].
    fn load(&self, file: u32, octets: &mut [u8]) -> Result<(), Failure>;

    /// Files are finished.
    fn forget(&self, files: &[u32]);
}

/// A place for files that come. Several threads call it; calls for one file may overlap, except that the first is `begin` and the last
/// `finish` or `abandon`.
pub trait Sink: Send + Sync {
    /// Opens a file, or does all there is to do for a directory or link. `block` is the length of blocks in octets.
    ///
    /// # Errors
    /// [`Failure`].
    fn begin(&self, file: u32, entry: &Entry, block: u32) -> Result<Begun, Failure>;

    /// Writes octets of a block, which may turn out corrupt and come again.
    ///
    /// # Errors
    /// [`Failure`].
    fn write(&self, file: u32, offset: u64, octets: &[u8]) -> Result<(), Failure>;

    /// Makes blocks durable, which are written and whole, and notes them for a later session.
    ///
    /// # Errors
    /// [`Failure`].
    fn sync(&self, file: u32, blocks: &[(u64, [u8; 32])]) -> Result<(), Failure>;

    /// Octets of an old copy of a file that was begun, where there is one that may serve.
    fn old_copy(&self, _file: u32) -> Option<u64> {
        None
    }

    /// Fills all of `octets` from a place in the old copy. It may change meanwhile: octets of it are checked before they are used.
    ///
    /// # Errors
    /// [`Failure`] where it is shorter, or cannot be read.
    fn read_old_copy(&self, _file: u32, _offset: u64, _octets: &mut [u8]) -> Result<(), Failure> {
        Err(Failure::new(Status::Failed, "there is no old copy"))
    }

    /// Gives the file its name: all of it is there and has this BLAKE3.
    ///
    /// # Errors
    /// [`Failure`]; nothing is under the name then that was not before.
    fn finish(&self, file: u32, root: &[u8; 32]) -> Result<(), Failure>;

    /// Closes the file without a name. With `keep`, noted blocks are kept for a later session.
    fn abandon(&self, file: u32, keep: bool);

    /// Whether extended attributes of entries are kept. Default no.
    fn has_attributes(&self) -> bool {
        false
    }

    /// A text for people of both ends that is due, once: what could not be kept, though no file failed.
    fn remark(&self) -> Option<String> {
        None
    }

    /// Removes entries beneath the target that did not come, once all that did are finished. Called once, where [`Options::prune`] says so.
    fn prune(&self) -> Vec<Removal> {
        Vec::new()
    }

    /// The means to take short files packed, many to a block.
    fn unpacker(&self) -> Option<&dyn Unpacker> {
        None
    }
}

/// A file of a packed block.
#[derive(Debug, Clone, Copy)]
pub struct Short<'a> {
    /// Its number.
    pub file: u32,
    /// Description.
    pub entry: &'a Entry,
    /// All octets.
    pub octets: &'a [u8],
}

/// A place for short files that come many to a block. Several threads call it, but not for one file at a time.
pub trait Unpacker: Send + Sync {
    /// Makes a directory or link, or finds whether a file is wanted. Called in the order of entries.
    ///
    /// # Errors
    /// [`Failure`].
    fn list(&self, entries: &[Entry]) -> Vec<Result<Answer, Failure>>;

    /// Writes files, which get no name yet.
    fn store(&self, files: &[Short<'_>]) -> Vec<Result<(), Failure>>;

    /// Gives stored files their names, durable where that is promised.
    fn commit(&self, files: &[u32]) -> Vec<Result<(), Failure>>;
}

/// Sizes of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Longest block in octets, a power of two, 1024 to 64 MiB; the smaller of both ends' holds. Default 1 MiB.
    pub block: u32,
    /// Blocks of memory, 2 to 4096. Default 32.
    pub slots: u16,
    /// Threads that read or write files, 1 to 64. Default 2.
    pub threads: usize,
    /// Secret that both ends were given. Default zeroes.
    pub token: [u8; 16],
    /// The sink removes what the source has not; both ends have to say so. Default no.
    pub prune: bool,
    /// Of a file that changed, octets that the sink's old copy has are not sent, where both ends say so. Both read all of it for that. Default no.
    pub deltas: bool,
    /// Extended attributes of the namespace `user.` are kept, where both ends say so, and source and sink have them. Default yes.
    pub attributes: bool,
    /// Octets of blocks are encrypted, whether or not the peer asks for it, on connections with a [`Secret`](crate::Secret) only. Default no.
    pub encrypt: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            block: 1 << 20,
            slots: 32,
            threads: 2,
            token: [0; 16],
            prune: false,
            deltas: false,
            attributes: true,
            encrypt: false,
        }
    }
}

/// Ends a session from another thread. Cloning shares it.
#[derive(Debug, Clone)]
pub struct Cancel {
    flag: Arc<AtomicBool>,
    waker: Waker,
}

impl Cancel {
    /// Ends the session; the peer gets the reason. Files that are not whole are kept as after a crash.
    pub fn cancel(&self) {
        self.flag.store(true, Ordering::Release);
        self.waker.wake();
    }
}

/// Tells whether a session's [`Control`] still exists.
#[derive(Debug, Clone)]
pub struct Watch(Weak<AtomicBool>);

impl Watch {
    /// Whether it does.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.0.strong_count() > 0
    }
}

/// The means of a session to be cancelled.
#[derive(Debug)]
pub struct Control {
    flag: Arc<AtomicBool>,
    pub(crate) wake: Wake,
}

impl Control {
    /// A control for one session.
    ///
    /// # Errors
    /// Errors of `eventfd(2)`.
    pub fn new() -> io::Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        let wake = Wake::new()?;
        Ok(Self { flag, wake })
    }

    /// A handle that cancels it.
    #[must_use]
    pub fn cancel(&self) -> Cancel {
        Cancel {
            flag: Arc::clone(&self.flag),
            waker: self.wake.waker(),
        }
    }

    /// A handle that tells whether it still exists.
    #[must_use]
    pub fn watch(&self) -> Watch {
        Watch(Arc::downgrade(&self.flag))
    }

    /// Whether [`Cancel::cancel`] was called.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.flag.load(Ordering::Acquire)
    }
}

/// Why a session ended before its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The connection.
    #[error(transparent)]
    Carrier(#[from] CarrierError),
    /// The peer broke a rule.
    #[error("the peer broke the transfer protocol: {0}")]
    Violation(#[from] Violation),
    /// The peer ended the session.
    #[error("the peer ended the session: {text}")]
    Ended {
        /// Why.
        reason: Reason,
        /// The reason for people.
        text: String,
    },
    /// Nothing came from the peer, whose host is there.
    #[error("the peer has been silent for {} s", SILENCE.as_secs())]
    Silent,
    /// [`Cancel::cancel`].
    #[error("cancelled")]
    Cancelled,
    /// No memory, descriptors or threads.
    #[error("cannot begin: {0}")]
    System(#[from] io::Error),
    /// An option outside its range.
    #[error("{0} is out of range")]
    Option(&'static str),
    /// No peer came.
    #[error("no peer connected in time")]
    NoPeer,
}

/// Counts of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    /// Entries that are at the sink now, without those that were there.
    pub stored: u64,
    /// Entries that were there.
    pub present: u64,
    /// Entries that failed.
    pub failed: u64,
    /// Octets of blocks that were placed.
    pub octets: u64,
    /// Octets of these that were taken from old copies at the sink, and not sent.
    pub copied: u64,
    /// Octets of blocks that a source copied to memory of the sink, on one host, which both processes map.
    pub mapped: u64,
    /// Octets that a former session had left.
    pub resumed: u64,
    /// Blocks that came again because they were corrupt.
    pub repeated: u64,
    /// Entries that the sink removed.
    pub removed: u64,
    /// Most streams at a time.
    pub streams: u64,
    /// Time of the session, by the part that limited it.
    pub waits: Waits,
}

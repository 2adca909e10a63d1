//! Decisions of both ends, without sockets, files, threads or clocks: frames and results of jobs go in, frames and jobs come out.

mod attributes;
mod limit;
mod link;
mod sink;
mod sink_job;
mod sink_packs;
mod source;
mod source_job;
mod source_packs;
mod streams;
mod tuner;

#[cfg(test)]
mod simulation;

pub use attributes::MAX_ATTRIBUTES;
pub use limit::{Limit, LimitMeter, Waits};
pub use link::{Link, MIN_RECEIVES, Outgoing, SILENCE};
pub use sink::SinkEngine;
pub use sink_job::{Begun, MAX_OPEN_PIECES, SinkDone, SinkJob, Unpacked};
pub use source::SourceEngine;
pub use source_job::{Delta, Next, SourceDone, SourceJob};
pub use streams::{MAX_STREAMS, Streams};
pub use tuner::Tuner;

use crate::wire::{Entry, Status};

/// Files that are offered and not finished at a time.
pub const MAX_OPEN: usize = 64;
/// Entries that are listed and not finished at a time.
pub const MAX_LISTED: usize = 4096;
/// Times that one block may be asked for again.
pub const MAX_REPEATS: u32 = 8;

/// The peer broke a rule of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// Too few receives.
    #[error("the peer has {0} receives")]
    Receives(u16),
    /// `taken` counts frames that were not sent.
    #[error("the peer took frames up to {0}, which were not sent")]
    Taken(u32),
    /// A frame that this end does not take, or not now.
    #[error("a frame of kind {0} does not belong here")]
    Unexpected(u8),
    /// A file number that is not known.
    #[error("file {0} is not known")]
    File(u32),
    /// More files than may be open.
    #[error("more than {MAX_OPEN} files are open")]
    Open,
    /// A slot that is not granted, or granted already.
    #[error("slot {0} is not granted")]
    Slot(u16),
    /// A block or range that is not of this file.
    #[error("octets at {offset} of file {file} are no block of it")]
    Range {
        /// Number of the file.
        file: u32,
        /// First octet.
        offset: u64,
    },
    /// Signatures of pieces that do not follow one another, have no length of pieces, or are too many.
    #[error("signatures of an old copy of file {0} are out of order or too many")]
    Signatures(u32),
    /// Extended attributes that are malformed, not in the order of their entries, not whole before their entry, or too many.
    #[error("extended attributes of entry {0} are malformed, out of order or too many")]
    Attributes(u32),
    /// A window that cannot be used.
    #[error("slots of {0} octets are too short")]
    Window(u32),
    /// A block length that is no power of two from 1024 octets to 64 MiB.
    #[error("{0} octets are no length of a block")]
    BlockLength(u32),
    /// Both ends have, or want, files.
    #[error("both ends have the same role")]
    Role,
}

/// A failure of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Kind.
    pub status: Status,
    /// The failure for people.
    pub text: String,
}

impl Failure {
    /// A failure with its text.
    #[must_use]
    pub fn new(status: Status, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { status, text }
    }
}

/// Progress of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A file begins.
    Offered {
        /// Its number.
        file: u32,
        /// Its description.
        entry: Entry,
    },
    /// Octets of a file were there already.
    Resumed {
        /// Number of the file.
        file: u32,
        /// How many.
        octets: u64,
    },
    /// A block is in the file at the sink.
    Placed {
        /// Number of the file.
        file: u32,
        /// Its octets.
        octets: u64,
    },
    /// Octets of a block that was placed are those of an old copy, and were not sent.
    Copied {
        /// Number of the file.
        file: u32,
        /// How many.
        octets: u64,
    },
    /// A block was corrupt and is asked for again.
    Repeated {
        /// Number of the file.
        file: u32,
        /// First octet of the block.
        offset: u64,
    },
    /// A file is finished.
    Finished {
        /// Its number.
        file: u32,
        /// Result.
        status: Status,
        /// The failure for people.
        text: String,
    },
    /// The sink removed an entry that the source has not, or failed to.
    Removed {
        /// Its name beneath the target.
        name: Vec<u8>,
        /// Result.
        status: Status,
        /// The failure for people.
        text: String,
    },
    /// Once a second: time that the session was limited until now, by the part that limited it.
    Limited(Waits),
    /// The sink has something to say to people of both ends that is no failure.
    Remark {
        /// The text.
        text: String,
    },
    /// The source cannot read an entry, which is left out.
    Unreadable {
        /// Its name.
        name: String,
        /// The failure for people.
        text: String,
    },
}

/// Blocks of a file.
fn blocks(size: u64, block: u32) -> u64 {
    size.div_ceil(u64::from(block))
}

/// Length of the block at an offset, if that begins one.
fn block_length(size: u64, block: u32, offset: u64) -> Option<u32> {
    if offset >= size || !offset.is_multiple_of(u64::from(block)) {
        return None;
    }
    Some(u32::try_from(size - offset).unwrap_or(block).min(block))
}

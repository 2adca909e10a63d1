//! Jobs of a source, their results, and the queues of all that leaves its engine.

use std::collections::VecDeque;
use std::sync::Arc;

use super::attributes::OutgoingAttributes;
use super::{Event, Failure};
use crate::delta::Index;
use crate::wire::{Entry, Frame, Status};

/// Work for the source's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceJob {
    /// Find the next entry and open it under this number.
    Next {
        /// Number of the file.
        file: u32,
    },
    /// Read a block into a local slot, and hash it.
    Read {
        /// Number of the file.
        file: u32,
        /// First octet.
        offset: u64,
        /// Octets.
        length: u32,
        /// The slot.
        local: u16,
        /// Whether the block is all of the file.
        whole: bool,
    },
    /// Read a block, hash it, and fill a local slot with its parts in terms of an old copy, or with all of it where they are not shorter.
    Delta {
        /// Number of the file.
        file: u32,
        /// First octet.
        offset: u64,
        /// Octets.
        length: u32,
        /// The slot.
        local: u16,
        /// Whether the block is all of the file.
        whole: bool,
        /// Octets of the file.
        size: u64,
        /// Pieces of the old copy.
        index: Arc<Index>,
    },
    /// Check that the file has not changed since it was opened.
    Check {
        /// Number of the file.
        file: u32,
    },
    /// Close the file.
    Close {
        /// Number of the file.
        file: u32,
    },
    /// Find entries that follow: those of short files are not opened.
    Batch {
        /// Number of the first.
        first: u32,
        /// Longest file that is packed, in octets.
        short: u32,
    },
    /// Read files into a local slot as records, and hash it.
    Pack {
        /// Number of the packed block.
        pack: u64,
        /// Files and their sizes.
        files: Vec<(u32, u32)>,
        /// The slot.
        local: u16,
    },
    /// Packed files are finished.
    Forget {
        /// Their numbers.
        files: Vec<u32>,
    },
}

impl SourceJob {
    /// Whether a result follows.
    pub(super) const fn has_result(&self) -> bool {
        !matches!(self, Self::Close { .. } | Self::Forget { .. })
    }
}

/// Result of a [`SourceJob`]; closing and forgetting have none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceDone {
    /// The next entry.
    Next(Next),
    /// A block was read: its hash.
    Read {
        /// Number of the file.
        file: u32,
        /// First octet.
        offset: u64,
        /// Octets.
        length: u32,
        /// The slot.
        local: u16,
        /// Its hash.
        result: Result<[u8; 32], Failure>,
    },
    /// A block was searched for pieces of an old copy.
    Delta {
        /// Number of the file.
        file: u32,
        /// First octet.
        offset: u64,
        /// The slot.
        local: u16,
        /// Hash of the block, and what is in the slot.
        result: Result<Delta, Failure>,
    },
    /// The file was checked.
    Checked {
        /// Number of the file.
        file: u32,
        /// The failure [`Status::Changed`](crate::wire::Status::Changed) if it changed.
        result: Result<(), Failure>,
    },
    /// Entries that follow; the last may be the end.
    Batch(Vec<Next>),
    /// Files were packed.
    Packed {
        /// Number of the packed block.
        pack: u64,
        /// The slot.
        local: u16,
        /// Octets of the block.
        length: u32,
        /// Its hash.
        hash: [u8; 32],
    },
}

/// Result of [`SourceJob::Delta`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delta {
    /// Hash of the block.
    pub hash: [u8; 32],
    /// Octets in the slot.
    pub octets: u32,
    /// Octets of the block that are copies; 0 where the slot has the block itself.
    pub copied: u32,
}

/// Result of [`SourceJob::Next`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// An entry.
    Entry(Entry),
    /// An entry that is left out.
    Unreadable {
        /// Its name.
        name: String,
        /// The failure for people.
        text: String,
    },
    /// No further entries.
    End,
}

/// All that leaves the engine.
#[derive(Debug, Default)]
pub(super) struct SourceOut {
    pub(super) jobs: VecDeque<SourceJob>,
    pub(super) outgoing: VecDeque<Frame>,
    pub(super) events: VecDeque<Event>,
    pub(super) attributes: OutgoingAttributes,
}

impl SourceOut {
    /// An entry is finished.
    pub(super) fn finished(&mut self, file: u32, status: Status, text: String) {
        self.attributes.release(file);
        self.events
            .push_back(Event::Finished { file, status, text });
    }

    /// An entry begins: its attributes leave, which it has not any more.
    pub(super) fn offered(&mut self, file: u32, entry: &mut Entry) {
        self.attributes.send(file, entry, &mut self.outgoing);
        let entry = entry.clone();
        self.events.push_back(Event::Offered { file, entry });
    }
}

//! Jobs of a sink, their results, and the queues of all that leaves its engine.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use super::attributes::IncomingAttributes;
use super::{Event, Failure};
use crate::wire::{
    Answer, Done, Entry, FRAME_LIMIT, Frame, HEADER, Malformed, Record, Removal, Removed,
    Signature, Status,
};

/// Pieces of old copies whose files are not finished, at most.
pub const MAX_OPEN_PIECES: u32 = 1 << 20;

/// Work for the sink's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SinkJob {
    /// Open the file, or do all there is to do for a directory or link.
    Begin {
        /// Number of the file.
        file: u32,
        /// Description.
        entry: Entry,
    },
    /// Write a slot to the file, and hash it.
    Write {
        /// Number of the file.
        file: u32,
        /// First octet.
        offset: u64,
        /// Octets.
        length: u32,
        /// The slot.
        slot: u16,
        /// Hash that the source sent.
        hash: [u8; 32],
        /// Whether the block is all of the file.
        whole: bool,
    },
    /// Sign pieces of the old copy.
    Sign {
        /// Number of the file.
        file: u32,
        /// Octets of each.
        piece: u32,
        /// Index of the first.
        first: u32,
        /// How many.
        count: u32,
    },
    /// Put a block together of the parts in a slot and those of the old copy, hash it, and write it if its hash is right.
    Patch {
        /// Number of the file.
        file: u32,
        /// First octet.
        offset: u64,
        /// Octets of the block.
        length: u32,
        /// The slot.
        slot: u16,
        /// Octets in the slot.
        octets: u32,
        /// Hash that the source sent.
        hash: [u8; 32],
        /// Whether the block is all of the file.
        whole: bool,
    },
    /// Make blocks durable and note them in the journal.
    Sync {
        /// Number of the file.
        file: u32,
        /// Index and hash of the blocks.
        blocks: Vec<(u64, [u8; 32])>,
    },
    /// Give the whole file its name.
    Finish {
        /// Number of the file.
        file: u32,
        /// Its BLAKE3.
        root: [u8; 32],
    },
    /// Close the file without a name.
    Abandon {
        /// Number of the file.
        file: u32,
        /// Whether its blocks may serve another session.
        keep: bool,
    },
    /// Check listed entries: make directories and links, and find the files that are there.
    List {
        /// Number of the first entry.
        first: u32,
        /// Descriptions.
        entries: Vec<Entry>,
    },
    /// Copy a packed block out of its slot, hash it, and find its records.
    Unpack {
        /// Number of the block.
        pack: u64,
        /// The slot.
        slot: u16,
        /// Octets.
        length: u32,
        /// Hash that the source sent.
        hash: [u8; 32],
    },
    /// Write files of a packed block, without a name yet.
    Store {
        /// The slot, whose octets are in `octets`.
        slot: u16,
        /// Files with the range of their octets.
        files: Vec<(u32, Entry, Range<usize>)>,
        /// Octets of the block.
        octets: Arc<Vec<u8>>,
    },
    /// Give stored files their names, durable where that is promised.
    Commit {
        /// Numbers of the files.
        files: Vec<u32>,
    },
    /// Remove what the source has not.
    Prune,
}

/// How a file begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begun {
    /// Nothing further to do.
    Finished(Status),
    /// Blocks that a former session left, by index.
    Partial(BTreeMap<u64, [u8; 32]>),
}

impl SinkJob {
    /// Whether a result follows.
    pub(super) const fn has_result(&self) -> bool {
        !matches!(self, Self::Abandon { .. })
    }
}

/// Result of a [`SinkJob`]; abandoning has none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SinkDone {
    /// A file was opened.
    Begun {
        /// Its number.
        file: u32,
        /// How it begins.
        result: Result<Begun, Failure>,
        /// Octets of an old copy that may be read; 0 without one.
        old: u64,
    },
    /// A slot was written: whether the hash is right.
    Written {
        /// Number of the file.
        file: u32,
        /// First octet.
        offset: u64,
        /// Octets.
        length: u32,
        /// The slot.
        slot: u16,
        /// Hash that the source sent.
        hash: [u8; 32],
        /// Whether the octets have it.
        result: Result<bool, Failure>,
        /// Octets that are those of the old copy.
        copied: u32,
    },
    /// Pieces of the old copy were signed.
    Signed {
        /// Number of the file.
        file: u32,
        /// Index of the first.
        first: u32,
        /// One for each; fewer where the old copy cannot be read so far.
        signatures: Vec<Signature>,
    },
    /// Blocks are durable.
    Synced {
        /// Number of the file.
        file: u32,
        /// Indexes of the blocks.
        blocks: Vec<u64>,
        /// Success or failure.
        result: Result<(), Failure>,
    },
    /// A file has its name.
    Finished {
        /// Number of the file.
        file: u32,
        /// Success or failure.
        result: Result<(), Failure>,
    },
    /// Listed entries were checked.
    Listed {
        /// Number of the first entry.
        first: u32,
        /// Results, in the order of the entries.
        answers: Vec<Result<Answer, Failure>>,
    },
    /// A packed block was copied.
    Unpacked {
        /// Number of the block.
        pack: u64,
        /// The slot.
        slot: u16,
        /// Its octets and records; `None` where the hash is another.
        result: Option<Unpacked>,
    },
    /// Files of a packed block were written.
    Stored {
        /// The slot.
        slot: u16,
        /// Files with success or failure.
        results: Vec<(u32, Result<(), Failure>)>,
    },
    /// Files have their names.
    Committed {
        /// Files with success or failure.
        results: Vec<(u32, Result<(), Failure>)>,
    },
    /// Entries were removed.
    Pruned(Vec<Removal>),
}

/// Octets of a packed block, and its records.
pub type Unpacked = (Arc<Vec<u8>>, Result<Vec<Record>, Malformed>);

/// All that leaves the engine.
#[derive(Debug, Default)]
pub(super) struct SinkOut {
    pub(super) jobs: VecDeque<SinkJob>,
    pub(super) outgoing: VecDeque<Frame>,
    pub(super) events: VecDeque<Event>,
    pub(super) attributes: IncomingAttributes,
}

impl SinkOut {
    /// Reports removed entries, many to a frame.
    pub(super) fn removed(&mut self, removals: Vec<Removal>) {
        let mut entries = Vec::new();
        let mut octets = HEADER + 4;
        for removal in removals {
            let Removal { name, status, text } = removal.clone();
            self.events.push_back(Event::Removed { name, status, text });
            if octets + removal.octets() > FRAME_LIMIT {
                let entries = std::mem::take(&mut entries);
                let last = false;
                self.outgoing
                    .push_back(Frame::Removed(Removed { last, entries }));
                octets = HEADER + 4;
            }
            octets += removal.octets();
            entries.push(removal);
        }
        let last = true;
        self.outgoing
            .push_back(Frame::Removed(Removed { last, entries }));
    }

    /// A file ends with DONE.
    pub(super) fn done(&mut self, file: u32, status: Status, text: String) {
        let done = Done {
            file,
            status,
            text: text.clone(),
        };
        self.outgoing.push_back(Frame::Done(done));
        self.finished(file, status, text);
    }

    /// A file is finished, which the source learns.
    pub(super) fn finished(&mut self, file: u32, status: Status, text: String) {
        self.attributes.release(file);
        self.events
            .push_back(Event::Finished { file, status, text });
    }
}

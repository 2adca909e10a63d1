//! Extended attributes of entries: frames before their OFFER or LIST, and what unfinished entries may have together.

use std::collections::{BTreeMap, VecDeque};

use super::{MAX_LISTED, Violation};
use crate::wire::{ATTRIBUTES_LIMIT, Attributes, AttributesPart, Entry, Frame};

/// Octets of the attributes of all entries that are not finished, at most.
pub const MAX_ATTRIBUTES: usize = 4 << 20;
/// Remarks of a session at most.
const MAX_REMARKS: u32 = 8;

/// Octets of attributes that unfinished entries have.
#[derive(Debug, Default)]
struct Held {
    of: BTreeMap<u32, usize>,
    total: usize,
}

impl Held {
    fn add(&mut self, file: u32, octets: usize) {
        self.total += octets;
        self.of.insert(file, octets);
    }

    fn release(&mut self, file: u32) {
        self.total -= self.of.remove(&file).unwrap_or(0);
    }
}

/// Attributes at a source.
#[derive(Debug, Default)]
pub(super) struct OutgoingAttributes {
    agreed: bool,
    held: Held,
    /// Remarks that came.
    remarks: u32,
}

impl OutgoingAttributes {
    pub(super) fn agree(&mut self) {
        self.agreed = true;
    }

    pub(super) fn is_agreed(&self) -> bool {
        self.agreed
    }

    /// Whether an entry may be offered or listed now. One that waits gets its room when others are finished.
    pub(super) fn has_room(&self, entry: &Entry) -> bool {
        let octets = entry.attributes.as_ref().map_or(0, Attributes::octets);
        !self.agreed || self.held.total + octets <= MAX_ATTRIBUTES
    }

    /// Queues the attributes of an entry that follows, and takes them out of it.
    pub(super) fn send(&mut self, file: u32, entry: &mut Entry, outgoing: &mut VecDeque<Frame>) {
        let attributes = entry.attributes.take().filter(|_| self.agreed);
        let Some(attributes) = attributes.filter(|it| !it.is_empty()) else {
            return;
        };
        self.held.add(file, attributes.octets());
        outgoing.extend(attributes.parts(file).into_iter().map(Frame::Attributes));
    }

    pub(super) fn release(&mut self, file: u32) {
        self.held.release(file);
    }

    /// Counts a remark of the sink's.
    pub(super) fn take_remark(&mut self) -> Result<(), Violation> {
        self.remarks += 1;
        if !self.agreed || self.remarks > MAX_REMARKS {
            return Err(Violation::Unexpected(26));
        }
        Ok(())
    }
}

/// Attributes at a sink.
#[derive(Debug, Default)]
pub(super) struct IncomingAttributes {
    agreed: bool,
    held: Held,
    /// The entry whose attributes are not all there, with the octets that follow.
    open: Option<(u32, usize)>,
    sequence: Vec<u8>,
    /// Attributes of entries that are not there.
    whole: BTreeMap<u32, Attributes>,
    /// Remarks that left.
    remarks: u32,
}

impl IncomingAttributes {
    pub(super) fn agree(&mut self) {
        self.agreed = true;
    }

    /// Takes a part; `next` is the number of the next entry.
    pub(super) fn take(&mut self, part: &AttributesPart, next: u32) -> Result<(), Violation> {
        if !self.agreed {
            return Err(Violation::Unexpected(25));
        }
        let AttributesPart {
            file, following, ..
        } = *part;
        let bad = Violation::Attributes(file);
        let following = following as usize;
        let octets = part.octets.len().checked_add(following).ok_or(bad)?;
        if let Some(open) = self.open {
            if open != (file, octets) {
                return Err(bad);
            }
        } else {
            let last = self.whole.last_key_value();
            let is_behind = file >= next && last.is_none_or(|(last, _)| file > *last);
            let fits = octets <= ATTRIBUTES_LIMIT && self.held.total + octets <= MAX_ATTRIBUTES;
            if !is_behind || !fits || self.whole.len() >= MAX_LISTED {
                return Err(bad);
            }
            self.held.add(file, octets);
        }
        self.sequence.extend(&part.octets);
        self.open = (following > 0).then_some((file, following));
        if self.open.is_none() {
            let sequence = std::mem::take(&mut self.sequence);
            let attributes = Attributes::parse(&sequence).map_err(|_| bad)?;
            self.whole.insert(file, attributes);
        }
        Ok(())
    }

    /// Gives an entry that came its attributes.
    pub(super) fn complete(&mut self, file: u32, entry: &mut Entry) -> Result<(), Violation> {
        if let Some((open, _)) = self.open {
            return Err(Violation::Attributes(open));
        }
        entry.attributes = self
            .agreed
            .then(|| self.whole.remove(&file).unwrap_or_default());
        Ok(())
    }

    pub(super) fn release(&mut self, file: u32) {
        self.held.release(file);
    }

    /// Whether another remark may leave.
    pub(super) fn may_remark(&mut self) -> bool {
        self.remarks += 1;
        self.agreed && self.remarks <= MAX_REMARKS
    }
}

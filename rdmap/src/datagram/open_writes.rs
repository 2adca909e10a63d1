//! UC Writes of more than one segment that are not complete (§5.2).

use std::time::Instant;

use dgiwarp_ddp::{RangeMap, STag, TaggedOffset};

use super::source::SourceId;

/// Writes that a QP keeps track of at a time. One peer has no more within the reorder window; a peer that restarts
/// leaves some behind, and then the one that was silent for longest gives way.
pub(super) const MAX_OPEN_WRITES: usize = 65;

/// A Write of which not all octets have arrived.
#[derive(Debug)]
pub(super) struct OpenWrite {
    pub(super) owner: SourceId,
    pub(super) number: u32,
    pub(super) stag: STag,
    pub(super) base: TaggedOffset,
    pub(super) length: u32,
    pub(super) last_placed: Instant,
    /// The octets that are there, relative to `base`.
    pub(super) map: RangeMap,
}

/// The incomplete Writes of a UC QP.
#[derive(Debug, Default)]
pub(super) struct OpenWrites {
    active: Vec<OpenWrite>,
    /// Maps of finished Writes, kept for their room.
    maps: Vec<RangeMap>,
    /// Segments come in runs of one message: the last one found.
    latest: usize,
}

impl OpenWrites {
    pub(super) fn is_full(&self) -> bool {
        self.active.len() >= MAX_OPEN_WRITES
    }

    #[inline]
    pub(super) fn find(&mut self, owner: SourceId, number: u32) -> Option<usize> {
        let is_it = |write: &OpenWrite| write.number == number && write.owner == owner;
        if self.active.get(self.latest).is_some_and(is_it) {
            return Some(self.latest);
        }
        self.latest = self.active.iter().position(is_it)?;
        Some(self.latest)
    }

    #[inline]
    pub(super) fn get(&self, position: usize) -> &OpenWrite {
        &self.active[position]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, position: usize) -> &mut OpenWrite {
        &mut self.active[position]
    }

    /// Adds a Write, with an empty map.
    pub(super) fn add(
        &mut self,
        now: Instant,
        (owner, number): (SourceId, u32),
        (stag, base, length): (STag, TaggedOffset, u32),
    ) -> usize {
        let map = self.maps.pop().unwrap_or_default();
        self.active.push(OpenWrite {
            owner,
            number,
            stag,
            base,
            length,
            last_placed: now,
            map,
        });
        // Room for the maps to come back to: memory may be held then, and nothing may be allocated.
        self.maps.reserve(self.active.len());
        self.latest = self.active.len() - 1;
        self.latest
    }

    /// Takes a Write out and returns its owner and number.
    pub(super) fn remove(&mut self, position: usize) -> (SourceId, u32) {
        let mut write = self.active.swap_remove(position);
        write.map.clear();
        self.maps.push(write.map);
        (write.owner, write.number)
    }

    /// The Write that was silent for longest.
    pub(super) fn most_silent(&self) -> Option<usize> {
        (0..self.active.len()).min_by_key(|&position| self.active[position].last_placed)
    }

    /// The first Write of this kind.
    pub(super) fn position(&self, is_it: impl Fn(&OpenWrite) -> bool) -> Option<usize> {
        self.active.iter().position(is_it)
    }

    /// When each was last placed.
    pub(super) fn last_placed(&self) -> impl Iterator<Item = Instant> + '_ {
        self.active.iter().map(|write| write.last_placed)
    }
}

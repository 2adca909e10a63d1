//! UC Writes of more than one segment that are not complete (§5.2).

use std::time::Instant;

use dgiwarp_ddp::RangeMap;

use super::segment::Target;
use super::source::SourceId;

/// Most open Writes of a QP. One epoch of the peer has no more within the reorder window; with Writes of an earlier epoch, the one
/// without segments for longest is closed.
pub(super) const MAX_OPEN_WRITES: usize = 65;

/// A Write without some of its octets.
#[derive(Debug)]
pub(super) struct OpenWrite {
    pub(super) owner: SourceId,
    pub(super) number: u32,
    pub(super) target: Target,
    pub(super) last_placed: Instant,
    /// Validity map, relative to the target's base.
    pub(super) map: RangeMap,
}

/// The incomplete Writes of a UC QP.
#[derive(Debug, Default)]
pub(super) struct OpenWrites {
    active: Vec<OpenWrite>,
    /// Maps of closed Writes, kept for their memory.
    maps: Vec<RangeMap>,
    /// Position of the latest segment's Write: segments of one message mostly arrive together.
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
        target: Target,
    ) -> usize {
        let map = self.maps.pop().unwrap_or_default();
        self.active.push(OpenWrite {
            owner,
            number,
            target,
            last_placed: now,
            map,
        });
        // No memory may be allocated when the maps are returned, because registered memory may be held then.
        self.maps.reserve(self.active.len());
        self.latest = self.active.len() - 1;
        self.latest
    }

    /// Removes a Write and returns its owner and number.
    pub(super) fn remove(&mut self, position: usize) -> (SourceId, u32) {
        let mut write = self.active.swap_remove(position);
        write.map.clear();
        self.maps.push(write.map);
        (write.owner, write.number)
    }

    /// The Write without segments for longest.
    pub(super) fn most_silent(&self) -> Option<usize> {
        (0..self.active.len()).min_by_key(|&position| self.active[position].last_placed)
    }

    /// The first Write of this kind.
    pub(super) fn position(&self, is_it: impl Fn(&OpenWrite) -> bool) -> Option<usize> {
        self.active.iter().position(is_it)
    }

    /// Time of the latest placement of each.
    pub(super) fn last_placed(&self) -> impl Iterator<Item = Instant> + '_ {
        self.active.iter().map(|write| write.last_placed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::source::SourceTable;
    use super::*;
    use crate::test_clock::origin;
    use dgiwarp_ddp::{STag, TaggedOffset};
    use std::time::Duration;

    fn target(length: u32) -> Target {
        Target {
            stag: STag::new(1),
            base: TaggedOffset::new(2),
            length,
        }
    }

    #[test]
    fn writes_are_found_until_they_are_removed() {
        let now = origin();
        let mut table = SourceTable::new(2);
        let [a, b] = ['a', 'b'].map(|key| table.insert(now, key, 0, 0).unwrap());
        let what = target(3);
        let mut writes = OpenWrites::default();
        let after = |seconds| now + Duration::from_secs(seconds);
        for (at, message) in [(after(2), (a, 1)), (after(1), (b, 1)), (after(3), (a, 2))] {
            let position = writes.add(at, message, what);
            assert_eq!(writes.find(message.0, message.1), Some(position));
        }
        assert_eq!(writes.find(b, 2), None);
        for (owner, number, position) in [(a, 1, 0), (a, 2, 2), (b, 1, 1)] {
            assert_eq!(writes.find(owner, number), Some(position));
            let write = writes.get(position);
            assert_eq!((write.owner, write.number), (owner, number));
            assert_eq!(write.target, what);
        }
        assert_eq!(writes.most_silent(), Some(1));
        assert_eq!(writes.position(|write| write.number == 2), Some(2));
        assert_eq!(writes.position(|write| write.number == 3), None);
        let placed: Vec<_> = writes.last_placed().collect();
        assert_eq!(placed, [after(2), after(1), after(3)]);
        writes.get_mut(0).map.insert(0, 3).unwrap();
        assert_eq!(writes.remove(0), (a, 1));
        assert_eq!((writes.find(a, 1), writes.find(a, 2)), (None, Some(0)));
        let again = writes.add(now, (b, 3), what);
        assert_eq!(
            writes.get(again).map.octets(),
            0,
            "the map is used again, and empty"
        );
    }

    #[test]
    fn their_number_is_limited() {
        let now = origin();
        let owner = SourceTable::new(1).insert(now, 'a', 0, 0).unwrap();
        let mut writes = OpenWrites::default();
        assert_eq!(writes.most_silent(), None);
        for number in 0..65 {
            assert!(!writes.is_full());
            writes.add(now, (owner, number), target(1));
        }
        assert!(writes.is_full());
    }
}

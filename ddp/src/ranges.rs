//! Validity map: the octets of a message that are placed.

/// Most ranges that a map holds. Each segment lost inside a message adds one.
pub const MAX_RANGES: usize = 64;

/// A segment would need one range more than [`MAX_RANGES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a validity map holds at most {MAX_RANGES} ranges")]
pub struct MapFull;

/// Octets of a message that were placed, as sorted ranges that neither touch nor overlap.
///
/// Memory for all ranges is allocated with the map, and none between checks and placement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeMap {
    /// `(start, end)` in octets of the message, with start < end < next start; at most [`MAX_RANGES`].
    ranges: Vec<(u32, u32)>,
    /// Sum of the ranges' lengths in octets.
    octets: u32,
}

impl Default for RangeMap {
    fn default() -> Self {
        Self::new()
    }
}

impl RangeMap {
    /// An empty map.
    #[must_use]
    pub fn new() -> Self {
        Self {
            ranges: Vec::with_capacity(MAX_RANGES),
            octets: 0,
        }
    }

    /// Removes all ranges and keeps their memory.
    pub fn clear(&mut self) {
        self.ranges.clear();
        self.octets = 0;
    }

    /// Number of valid octets.
    #[must_use]
    pub const fn octets(&self) -> u32 {
        self.octets
    }

    /// The ranges `(start, end)`, ascending, `end` excluded.
    #[must_use]
    pub fn ranges(&self) -> &[(u32, u32)] {
        &self.ranges
    }

    /// Whether all octets of `start..end` are valid.
    #[must_use]
    pub fn contains(&self, start: u32, end: u32) -> bool {
        let after = self.ranges.partition_point(|range| range.0 <= start);
        start == end
            || after
                .checked_sub(1)
                .and_then(|before| self.ranges.get(before))
                .is_some_and(|range| end <= range.1)
    }

    /// Whether [`insert`](Self::insert) of `start..end` would succeed.
    #[must_use]
    #[inline]
    pub fn has_room(&self, start: u32, end: u32) -> bool {
        if self.ranges.len() < MAX_RANGES {
            return true;
        }
        let first = self.ranges.partition_point(|range| range.1 < start);
        self.ranges.get(first).is_some_and(|range| range.0 <= end)
    }

    /// Marks `start..end` valid.
    ///
    /// # Errors
    /// [`MapFull`] where a 65th range would be needed; the map is unchanged.
    #[inline]
    pub fn insert(&mut self, start: u32, end: u32) -> Result<(), MapFull> {
        if start >= end {
            return Ok(());
        }
        // Segments mostly arrive in order: the last range grows.
        if let Some(last) = self.ranges.last_mut()
            && last.1 == start
        {
            last.1 = end;
            self.octets += end - start;
            return Ok(());
        }
        self.insert_anywhere(start, end)
    }

    fn insert_anywhere(&mut self, start: u32, end: u32) -> Result<(), MapFull> {
        // The ranges first..after touch or overlap the new one and are merged with it.
        let first = self.ranges.partition_point(|range| range.1 < start);
        let after = self.ranges.partition_point(|range| range.0 <= end);
        let merged = self.ranges.get(first..after).unwrap_or_default();
        let (Some(head), Some(tail)) = (merged.first(), merged.last()) else {
            if self.ranges.len() == MAX_RANGES {
                return Err(MapFull);
            }
            self.ranges.insert(first, (start, end));
            self.octets += end - start;
            return Ok(());
        };
        let whole = (head.0.min(start), tail.1.max(end));
        let before: u32 = merged.iter().map(|range| range.1 - range.0).sum();
        self.octets += whole.1 - whole.0 - before;
        self.ranges.drain(first + 1..after);
        if let Some(range) = self.ranges.get_mut(first) {
            *range = whole;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_65th_range_is_refused_and_a_touching_one_is_not() {
        let mut map = RangeMap::new();
        for i in 0..64 {
            map.insert(i * 10, i * 10 + 5).unwrap();
        }
        let full = map.clone();
        assert!(!map.has_room(7, 8));
        assert_eq!(map.insert(7, 8), Err(MapFull));
        assert!(!map.has_room(1000, 1001));
        assert_eq!(map.insert(1000, 1001), Err(MapFull));
        assert_eq!(map, full);
        assert!(map.has_room(5, 7));
        map.insert(5, 7).unwrap();
        assert!(map.has_room(635, 640));
        map.insert(635, 640).unwrap();
        map.insert(7, 10).unwrap();
        assert_eq!(map.ranges().len(), 63);
        assert_eq!(map.octets(), 64 * 5 + 2 + 5 + 3);
    }

    #[test]
    fn nothing_is_contained_in_an_empty_map_but_nothing() {
        let map = RangeMap::new();
        assert!(map.contains(3, 3));
        assert!(!map.contains(0, 1));
    }

    #[test]
    fn a_cleared_map_is_a_new_one() {
        let mut map = RangeMap::new();
        map.insert(3, 9).unwrap();
        map.clear();
        assert_eq!(map, RangeMap::new());
        assert!(!map.contains(3, 4));
    }

    proptest! {
        /// The map equals a plain bit per octet.
        #[test]
        fn equals_a_bitmap(spans in proptest::collection::vec((0u32..400, 0u32..60), 0..80)) {
            let mut map = RangeMap::new();
            let mut bits = [false; 512];
            for (start, length) in spans {
                let end = start + length;
                let room = map.has_room(start, end) || length == 0;
                prop_assert_eq!(map.insert(start, end).is_ok(), room);
                if room {
                    bits[start as usize..end as usize].fill(true);
                }
                let span = &bits[start as usize..end as usize];
                prop_assert_eq!(map.contains(start, end), span.iter().all(|&bit| bit));
            }
            let mut expected = Vec::new();
            for (i, _) in bits.iter().enumerate().filter(|(_, bit)| **bit) {
                let i = u32::try_from(i).unwrap();
                match expected.last_mut() {
                    Some((_, end)) if *end == i => *end = i + 1,
                    Some(_) | None => expected.push((i, i + 1)),
                }
            }
            prop_assert_eq!(map.ranges(), &expected[..]);
            prop_assert_eq!(map.octets() as usize, bits.iter().filter(|bit| **bit).count());
        }
    }
}

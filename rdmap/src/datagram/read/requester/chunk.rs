//! Chunks: parts of a Read that one Read Request asks for at first, and their missing octets.

use arrayvec::ArrayVec;
use dgiwarp_ddp::{MAX_RANGES, RangeMap};

/// Chunks of one Read that are asked for and not complete.
pub(super) const MAX_CHUNKS: usize = 16;
/// A requested range of a Read's message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) start: u32,
    pub(super) end: u32,
    /// Octets not placed.
    pub(super) missing: u32,
    /// Datagrams in which they are expected.
    pub(super) datagrams: u32,
}

/// The chunks of a Read, in order of their starts.
pub(super) type Chunks = ArrayVec<Chunk, MAX_CHUNKS>;

impl Chunk {
    /// Subtracts octets that arrived. Returns the number of datagrams that are no longer in flight.
    pub(super) fn arrived(&mut self, octets: u32, segment: u32) -> u32 {
        self.missing -= octets;
        let left = self.missing.div_ceil(segment);
        let fewer = self.datagrams.saturating_sub(left);
        self.datagrams -= fewer;
        fewer
    }
}

/// Missing ranges of `start..end`, at most `max`: the closest ones are merged.
pub(super) fn gaps(
    map: &RangeMap,
    start: u32,
    end: u32,
    max: usize,
) -> ArrayVec<(u32, u32), { MAX_RANGES + 1 }> {
    let mut gaps = ArrayVec::new();
    let mut at = start;
    let first = map.ranges().partition_point(|range| range.1 <= start);
    for range in map.ranges().iter().skip(first) {
        if range.0 >= end {
            break;
        }
        if range.0 > at {
            gaps.push((at, range.0));
        }
        at = range.1;
    }
    if at < end {
        gaps.push((at, end));
    }
    while gaps.len() > max.max(1) {
        let closest = (1..gaps.len())
            .min_by_key(|&later| gaps[later].0 - gaps[later - 1].1)
            .unwrap_or(1);
        let (_, end) = gaps.remove(closest);
        gaps[closest - 1].1 = end;
    }
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn chunk(missing: u32, datagrams: u32) -> Chunk {
        Chunk {
            start: 0,
            end: missing,
            missing,
            datagrams,
        }
    }

    #[test]
    fn arrivals_are_subtracted() {
        let mut chunk = chunk(1000, 4);
        assert_eq!(chunk.arrived(100, 300), 1, "900 octets are three datagrams");
        assert_eq!((chunk.missing, chunk.datagrams), (900, 3));
        assert_eq!(chunk.arrived(1, 300), 0);
        assert_eq!(chunk.arrived(599, 300), 2);
        assert_eq!((chunk.missing, chunk.datagrams), (300, 1));
        assert_eq!(chunk.arrived(0, 100), 0, "never more than before");
        assert_eq!(chunk.arrived(300, 100), 1);
        assert_eq!((chunk.missing, chunk.datagrams), (0, 0));
    }

    #[test]
    fn the_closest_gaps_melt() {
        let mut map = RangeMap::new();
        for (start, end) in [(10, 20), (25, 26), (40, 100)] {
            map.insert(start, end).unwrap();
        }
        assert_eq!(
            gaps(&map, 0, 110, 9)[..],
            [(0, 10), (20, 25), (26, 40), (100, 110)]
        );
        assert_eq!(gaps(&map, 0, 110, 3)[..], [(0, 10), (20, 40), (100, 110)]);
        assert_eq!(gaps(&map, 0, 110, 1)[..], [(0, 110)]);
        assert_eq!(gaps(&map, 12, 18, 4)[..], []);
        assert_eq!(gaps(&map, 15, 30, 4)[..], [(20, 25), (26, 30)]);
        assert_eq!(gaps(&map, 25, 30, 4)[..], [(26, 30)], "begins with a range");
    }

    /// As many as there can be: one more than ranges.
    #[test]
    fn a_full_map_has_a_gap_around_each_range() {
        let mut map = RangeMap::new();
        let ranges = u32::try_from(MAX_RANGES).unwrap();
        for range in 0..ranges {
            map.insert(10 * range + 5, 10 * range + 10).unwrap();
        }
        let found = gaps(&map, 0, 10 * ranges + 5, usize::MAX);
        assert_eq!(found.len(), MAX_RANGES + 1);
    }

    proptest! {
        /// Gaps cover exactly what is missing, or more if they melt, and are disjoint.
        #[test]
        fn gaps_cover_what_is_missing(
            spans in proptest::collection::vec((0u32..300, 1u32..20), 0..40),
            start in 0u32..200,
            length in 0u32..200,
            max in 1usize..80,
        ) {
            let mut map = RangeMap::new();
            for (at, length) in spans {
                let _ = map.insert(at, at + length);
            }
            let found = gaps(&map, start, start + length, max);
            prop_assert!(found.len() <= max);
            prop_assert!(found.windows(2).all(|pair| pair[0].1 < pair[1].0));
            let exact = gaps(&map, start, start + length, usize::MAX);
            for at in start..start + length {
                let inside = |gaps: &[(u32, u32)]| gaps.iter().any(|gap| (gap.0..gap.1).contains(&at));
                prop_assert_eq!(inside(&exact), !map.contains(at, at + 1));
                prop_assert!(inside(&found) || map.contains(at, at + 1));
            }
        }
    }
}

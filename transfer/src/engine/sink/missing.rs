//! Ranges that a sink lacks.

use std::collections::BTreeMap;

use super::super::blocks;

/// Ranges of a WANT at most: blocks between ranges beyond that are asked for too.
const MAX_RANGES: usize = 256;

/// Ranges of blocks without a hash. Hashes of blocks that are asked for all the same are taken out.
pub(super) fn missing(
    size: u64,
    block: u32,
    hashes: &mut BTreeMap<u64, [u8; 32]>,
) -> Vec<(u64, u64)> {
    let count = blocks(size, block);
    hashes.retain(|index, _| *index < count);
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    let mut at = 0;
    for index in hashes.keys().copied().chain([count]) {
        if index > at {
            if ranges.len() == MAX_RANGES {
                // The rest is one range.
                at = ranges.pop().map_or(at, |(start, _)| start);
                ranges.push((at, count));
                break;
            }
            ranges.push((at, index));
        }
        at = index + 1;
    }
    hashes.retain(|index, _| {
        !ranges
            .iter()
            .any(|(start, end)| (start..end).contains(&index))
    });
    let octets = |index: u64| index.saturating_mul(u64::from(block)).min(size);
    let range = |(start, end): &(u64, u64)| (octets(*start), octets(*end) - octets(*start));
    ranges.iter().map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_ranges_are_whole_blocks_and_bounded() {
        let mut hashes: BTreeMap<_, _> = [(0, [0; 32]), (2, [0; 32]), (9, [0; 32])].into();
        assert_eq!(
            missing(4500, 1024, &mut hashes),
            [(1024, 1024), (3072, 1428)]
        );
        assert_eq!(hashes.len(), 2);
        assert_eq!(missing(0, 1024, &mut BTreeMap::new()), []);
        let mut odd: BTreeMap<_, _> = (0..5000).map(|it| (2 * it, [0; 32])).collect();
        let ranges = missing(10_000 * 1024, 1024, &mut odd);
        assert_eq!(ranges.len(), MAX_RANGES);
        let wanted: u64 = ranges.iter().map(|(_, length)| length / 1024).sum();
        assert_eq!(wanted + odd.len() as u64, 10_000);
    }
}

//! Octets of a file in an old copy of it, at any place: signatures of the copy's pieces, and the search for them (`rfc-notes/transfer.md` §5.4).
//!
//! The rolling hash is that of Tridgell's rsync: of two sums modulo 2^16, of octets and of those sums. A wrong match is no danger, as each block has its BLAKE3.

use std::ops::Range;

use crate::wire::{Part, Signature};

/// Pieces of one old copy at most; pieces of a larger one are longer.
pub const MAX_PIECES: u32 = 1 << 19;
/// Shortest piece, but where blocks are short.
const SHORT_PIECE: u32 = 4096;
/// Pieces of a block at least: a search reads a piece beyond both ends of the block.
const PIECES_OF_BLOCK: u32 = 4;
/// A search ends after wrong matches of so many times the octets in which it searches.
const WRONG: usize = 4;

/// Octets of each piece of an old copy, and how many there are; `None` where the blocks are too short for an old copy so long, or the copy for a piece.
#[must_use]
pub fn pieces(copy: u64, block: u32) -> Option<(u32, u32)> {
    let longest = block / PIECES_OF_BLOCK;
    let mut piece = SHORT_PIECE.min(longest);
    while copy / u64::from(piece) > u64::from(MAX_PIECES) {
        piece = piece.checked_mul(2).filter(|it| *it <= longest)?;
    }
    let count = u32::try_from(copy / u64::from(piece)).ok()?;
    (count > 0).then_some((piece, count))
}

/// Whether a peer may have pieces of this length.
#[must_use]
pub fn is_piece(piece: u32, block: u32) -> bool {
    let longest = block / PIECES_OF_BLOCK;
    piece.is_power_of_two() && (SHORT_PIECE.min(longest)..=longest).contains(&piece)
}

/// Two sums, of octets and of the sums at each of them.
#[derive(Debug, Clone, Copy)]
struct Weak {
    sum: u32,
    sums: u32,
    length: u32,
}

impl Weak {
    fn of(octets: &[u8]) -> Self {
        let length = u32::try_from(octets.len()).unwrap_or(u32::MAX);
        let (mut sum, mut sums) = (0_u32, 0_u32);
        // In runs that a processor adds side by side.
        for run in octets.chunks(64) {
            let (mut part, mut parts) = (0_u32, 0_u32);
            let count = u32::try_from(run.len()).unwrap_or(0);
            for (octet, weight) in run.iter().zip((1..=count).rev()) {
                part += u32::from(*octet);
                parts += u32::from(*octet) * weight;
            }
            sums = sums.wrapping_add(sum.wrapping_mul(count));
            sums = sums.wrapping_add(parts);
            sum = sum.wrapping_add(part);
        }
        Self { sum, sums, length }
    }

    /// One octet further.
    fn roll(&mut self, out: u8, next: u8) {
        let out = u32::from(out);
        self.sum = self.sum.wrapping_add(u32::from(next)).wrapping_sub(out);
        let left = self.length.wrapping_mul(out);
        self.sums = self.sums.wrapping_add(self.sum).wrapping_sub(left);
    }

    fn value(self) -> u32 {
        self.sum & 0xffff | self.sums << 16
    }
}

fn strong(piece: &[u8]) -> [u8; 8] {
    let [s0, s1, s2, s3, s4, s5, s6, s7, ..] = *blake3::hash(piece).as_bytes();
    [s0, s1, s2, s3, s4, s5, s6, s7]
}

/// Signatures of whole pieces.
#[must_use]
pub fn sign(octets: &[u8], piece: u32) -> Vec<Signature> {
    let pieces = octets.chunks_exact(piece as usize);
    let sign = |piece: &[u8]| Signature {
        weak: Weak::of(piece).value(),
        strong: strong(piece),
    };
    pieces.map(sign).collect()
}

/// Signatures of an old copy, by hash. 24 to 32 octets of memory for each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Index {
    piece: u32,
    /// In order, each once, with its place.
    found: Vec<(Signature, u32)>,
    /// A bit for weak hashes that are there: 32 bits for a signature or more.
    filter: Vec<u64>,
    shift: u32,
    /// Where signatures begin whose weak hash has these first bits, and the bits that it has further.
    heads: Vec<u32>,
    further: u32,
}

impl Index {
    /// An index of all pieces, in the order of the copy.
    #[must_use]
    pub fn new(piece: u32, signatures: &[Signature]) -> Self {
        let mut found: Vec<_> = signatures.iter().copied().zip(0..).collect();
        found.sort_unstable();
        found.dedup_by_key(|(signature, _)| *signature);
        let bits = (found.len().max(64) * 32).next_power_of_two();
        let shift = 32 - bits.trailing_zeros();
        let mut filter = vec![0; bits / 64];
        for (signature, _) in &found {
            let bit = spread(signature.weak, shift);
            if let Some(word) = filter.get_mut(bit / 64) {
                *word |= 1 << (bit % 64);
            }
        }
        let further = shift + 5;
        let count = 1 << (32 - further);
        let head = |bits: u64| {
            let at = found.partition_point(|(it, _)| u64::from(it.weak) >> further < bits);
            u32::try_from(at).unwrap_or(u32::MAX)
        };
        let heads = (0..=count).map(head).collect();
        Self {
            piece,
            found,
            filter,
            shift,
            heads,
            further,
        }
    }

    /// Octets of each piece.
    #[must_use]
    pub fn piece(&self) -> u32 {
        self.piece
    }

    /// Pieces that differ.
    #[must_use]
    pub fn len(&self) -> usize {
        self.found.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    fn may_have(&self, weak: u32) -> bool {
        let bit = spread(weak, self.shift);
        let word = self.filter.get(bit / 64).copied().unwrap_or_default();
        word >> (bit % 64) & 1 == 1
    }

    /// The place of a piece with this weak hash; an error if others have it.
    fn look_up(&self, weak: u32, octets: &[u8]) -> Result<Option<u64>, ()> {
        let least = Signature {
            weak,
            strong: [0; 8],
        };
        let head = |at: usize| self.heads.get(at).map_or(0, |it| *it as usize);
        let bits = (weak >> self.further) as usize;
        let near = self.found.get(head(bits)..head(bits + 1));
        let near = near.unwrap_or_default();
        let at = near.partition_point(|(it, _)| *it < least);
        if near.get(at).is_none_or(|(it, _)| it.weak != weak) {
            return Ok(None);
        }
        let strong = strong(octets);
        let searched = Signature { weak, strong };
        let found = near.binary_search_by_key(&searched, |(it, _)| *it);
        let (_, place) = found.ok().and_then(|at| near.get(at)).ok_or(())?;
        Ok(Some(u64::from(*place) * u64::from(self.piece)))
    }

    /// Parts that make up a range of octets, a block, by pieces at any place in it. Octets around it, up to a piece, serve pieces that begin or end beyond.
    #[must_use]
    pub fn search(&self, octets: &[u8], block: Range<usize>) -> Vec<Part> {
        let piece = self.piece as usize;
        let mut parts = Parts {
            block: block.clone(),
            literal: block.start,
            parts: Vec::new(),
        };
        let mut wrong = WRONG * octets.len();
        let mut at = 0;
        let mut weak = octets.get(..piece).map(Weak::of);
        while let Some(mut sums) = weak {
            at = self.advance(octets, at, block.end, &mut sums);
            let Some(here) = octets.get(at..at + piece).filter(|_| at < block.end) else {
                break;
            };
            if self.may_have(sums.value()) {
                match self.look_up(sums.value(), here) {
                    Ok(Some(offset)) => {
                        parts.copy(at, offset, piece);
                        at += piece;
                        weak = octets.get(at..at + piece).map(Weak::of);
                        continue;
                    }
                    Ok(None) => {}
                    Err(()) => {
                        let Some(left) = wrong.checked_sub(piece) else {
                            break;
                        };
                        wrong = left;
                    }
                }
            }
            let Some(next) = octets.get(at + piece) else {
                break;
            };
            sums.roll(here.first().copied().unwrap_or_default(), *next);
            weak = Some(sums);
            at += 1;
        }
        parts.literal(block.end);
        parts.parts
    }

    /// The first place from `at`, whose hash is `sums`, where there may be a piece, and its hash; `end` or the last place otherwise.
    fn advance(&self, octets: &[u8], at: usize, end: usize, sums: &mut Weak) -> usize {
        let out = octets.get(at..end).unwrap_or_default();
        let next = octets.get(at + self.piece as usize..).unwrap_or_default();
        let mut passed = 0;
        for (out, next) in out.iter().zip(next) {
            if self.may_have(sums.value()) {
                break;
            }
            sums.roll(*out, *next);
            passed += 1;
        }
        at + passed
    }
}

/// Place of a weak hash in a filter.
fn spread(weak: u32, shift: u32) -> usize {
    (weak.wrapping_mul(0x9e37_79b1) >> shift) as usize
}

/// Parts of a block so far.
struct Parts {
    block: Range<usize>,
    /// First octet that no part has.
    literal: usize,
    parts: Vec<Part>,
}

impl Parts {
    fn literal(&mut self, end: usize) {
        if self.literal < end {
            self.parts.push(Part::Literal(self.literal..end));
            self.literal = end;
        }
    }

    /// Octets from `at` are those of the copy from `offset`.
    fn copy(&mut self, at: usize, offset: u64, length: usize) {
        let start = at.max(self.literal);
        let end = (at + length).min(self.block.end);
        if start >= end {
            return;
        }
        let offset = offset + (start - at) as u64;
        let Ok(length) = u32::try_from(end - start) else {
            return;
        };
        self.literal(start);
        self.literal = end;
        if let Some(Part::Copy {
            offset: before,
            length: there,
        }) = self.parts.last_mut()
            && *before + u64::from(*there) == offset
        {
            *there += length;
            return;
        }
        self.parts.push(Part::Copy { offset, length });
    }
}

/// Octets of the parts as records, and how many of the block are copies.
#[must_use]
pub fn measure(parts: &[Part]) -> (usize, u32) {
    let octets = parts.iter().map(Part::octets).sum();
    let copied = parts.iter().map(|part| match part {
        Part::Copy { length, .. } => *length,
        Part::Literal(_) => 0,
    });
    (octets, copied.sum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::SeedableRng as _;
    use rand_chacha::ChaCha8Rng;

    const PIECE: u32 = 64;

    fn random(seed: u64, length: usize) -> Vec<u8> {
        let mut octets = vec![0; length];
        ChaCha8Rng::seed_from_u64(seed).fill_bytes(&mut octets);
        octets
    }

    /// A block from its parts.
    fn put_together(old: &[u8], new: &[u8], parts: &[Part]) -> Vec<u8> {
        let mut octets = Vec::new();
        for part in parts {
            octets.extend_from_slice(match part {
                Part::Literal(range) => &new[range.clone()],
                Part::Copy { offset, length } => {
                    let start = usize::try_from(*offset).unwrap();
                    &old[start..start + *length as usize]
                }
            });
        }
        octets
    }

    fn literals(parts: &[Part]) -> u64 {
        let literal = |part: &&Part| matches!(part, Part::Literal(_));
        parts.iter().filter(literal).map(Part::length).sum()
    }

    #[test]
    fn the_rolling_hash_is_that_of_each_place() {
        let octets = random(1, 5000);
        let mut weak = Weak::of(&octets[..1000]);
        for at in 0..4000 {
            assert_eq!(weak.value(), Weak::of(&octets[at..at + 1000]).value());
            weak.roll(octets[at], octets[at + 1000]);
        }
        // As in the specification.
        assert_eq!(Weak::of(b"abc").value(), 294 | (97 * 3 + 98 * 2 + 99) << 16);
    }

    proptest! {
        /// Blocks are found in an old copy that differs from the file in some places, and parts are always those of the block.
        #[test]
        fn parts_of_a_block_make_it_up(seed: u64, count in 0_usize..6) {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let old = random(seed ^ 1, rng.random_range(0..10_000));
            let mut new = old.clone();
            for _ in 0..count {
                let at = rng.random_range(0..=new.len());
                match rng.random_range(0..3) {
                    0 => new.truncate(at),
                    1 => drop(new.splice(at..at, random(seed ^ 2, rng.random_range(0..300)))),
                    _ => drop(new.splice(at..(at + 9).min(new.len()), [0; 9])),
                }
            }
            let index = Index::new(PIECE, &sign(&old, PIECE));
            let mut all = Vec::new();
            let mut sent = 0;
            for start in (0..new.len()).step_by(1000) {
                let end = (start + 1000).min(new.len());
                let from = start.saturating_sub(PIECE as usize - 1);
                let to = (end + PIECE as usize - 1).min(new.len());
                let parts = index.search(&new[from..to], start - from..end - from);
                sent += literals(&parts);
                all.extend(put_together(&old, &new[from..to], &parts));
            }
            prop_assert_eq!(all, new);
            // Each change costs itself and the pieces that it is in, and the end has no whole piece.
            prop_assert!(sent <= (count as u64) * (300 + 2 * 64) + 64, "{} octets", sent);
        }
    }

    #[test]
    fn wrong_matches_are_bounded() {
        // Each place of the block has the weak hash of a piece that it is not.
        let octets = vec![5; 10_000];
        let signature = Signature {
            weak: Weak::of(&octets[..PIECE as usize]).value(),
            strong: [1; 8],
        };
        let index = Index::new(PIECE, &[signature]);
        assert_eq!(index.search(&octets, 0..10_000), [Part::Literal(0..10_000)]);
        assert_eq!(index.look_up(signature.weak, &octets[..64]), Err(()));
        // A search that has had too many of them ends, whatever follows.
        let behind = [&octets[..], &random(1, 64)].concat();
        let signatures = [&[signature][..], &sign(&behind[10_000..], PIECE)].concat();
        let index = Index::new(PIECE, &signatures);
        let all = behind.len();
        assert_eq!(index.search(&behind, 0..all), [Part::Literal(0..all)]);
        let found = index.search(&behind[9990..], 0..74);
        assert_eq!(literals(&found), 10);
        // Of pieces that are alike the first serves.
        let alike = Index::new(PIECE, &sign(&octets, PIECE));
        assert_eq!(alike.len(), 1);
        let parts = alike.search(&octets, 0..10_000);
        assert_eq!(literals(&parts), 10_000 % 64);
        assert!(Index::new(PIECE, &[]).is_empty());
    }

    #[test]
    fn pieces_grow_with_the_copy_up_to_a_part_of_the_block() {
        assert_eq!(pieces(4095, 1 << 20), None);
        assert_eq!(pieces(1 << 30, 1 << 20), Some((4096, 1 << 18)));
        assert_eq!(pieces(10 << 30, 1 << 20), Some((32768, 10 << 15)));
        assert_eq!(pieces(128 << 30, 1 << 20), Some((256 << 10, 1 << 19)));
        assert_eq!(pieces(129 << 30, 1 << 20), None);
        assert_eq!(pieces(1000, 1024), Some((256, 3)));
        for (piece, block, is) in [
            (256, 1024, true),
            (128, 1024, false),
            (512, 1024, false),
            (4096, 1 << 20, true),
            (6000, 1 << 20, false),
            (0, 1024, false),
        ] {
            assert_eq!(is_piece(piece, block), is, "{piece} of {block}");
        }
    }
}

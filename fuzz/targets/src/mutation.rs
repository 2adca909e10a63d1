//! Inputs made of others: what a fuzzer does without coverage to guide it.

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

/// Numbers at which checks turn: ends of ranges, lengths of headers, sizes of pages and datagrams.
const TURNS: [u64; 24] = [
    0,
    1,
    2,
    3,
    4,
    8,
    14,
    18,
    20,
    28,
    40,
    52,
    64,
    512,
    1024,
    1442,
    4096,
    0x3fff,
    0xffff,
    1 << 24,
    1 << 30,
    0x7fff_ffff,
    0xffff_ffff,
    u64::MAX,
];

/// Makes inputs. Equal seeds make equal inputs.
#[derive(Debug)]
pub struct Mutator<'a> {
    rng: ChaCha8Rng,
    corpus: &'a [Vec<u8>],
    longest: usize,
}

impl<'a> Mutator<'a> {
    /// Makes inputs of at most `longest` octets out of these.
    #[must_use]
    pub fn new(seed: u64, corpus: &'a [Vec<u8>], longest: usize) -> Self {
        Self {
            rng: ChaCha8Rng::seed_from_u64(seed),
            corpus,
            longest,
        }
    }

    /// The next input.
    pub fn input(&mut self) -> Vec<u8> {
        let mut octets = self.original().to_vec();
        // Mostly few changes: many at once leave nothing of what made the input valid.
        for _ in 0..1 << self.rng.random_range(0..5u32) {
            self.mutate(&mut octets);
        }
        octets.truncate(self.longest);
        octets
    }

    fn original(&mut self) -> &'a [u8] {
        let count = self.corpus.len();
        if count == 0 || self.rng.random_ratio(1, 64) {
            return &[];
        }
        self.corpus
            .get(self.rng.random_range(0..count))
            .map_or(&[], Vec::as_slice)
    }

    /// A place in `octets`; its end is one.
    fn place(&mut self, octets: &[u8]) -> usize {
        self.rng.random_range(0..=octets.len())
    }

    /// A part of `octets`, mostly a short one.
    fn part(&mut self, octets: &[u8]) -> std::ops::Range<usize> {
        let start = self.place(octets);
        let most = 1usize << self.rng.random_range(0..12u32);
        let length = self.rng.random_range(0..=most);
        start..(start + length).min(octets.len())
    }

    fn mutate(&mut self, octets: &mut Vec<u8>) {
        match self.rng.random_range(0..10u32) {
            0 | 1 => self.change(octets, |rng, octet| {
                *octet ^= 1 << rng.random_range(0..8u32)
            }),
            2 => self.change(octets, |rng, octet| *octet = rng.random()),
            3 => self.overwrite_number(octets),
            4 => self.add_to_number(octets),
            5 => {
                let part = self.part(octets);
                octets.drain(part);
            }
            6 => {
                let part = self.part(octets);
                let copy = octets.get(part).unwrap_or_default().to_vec();
                self.insert(octets, &copy);
            }
            7 => {
                let fresh: Vec<u8> = (0..self.rng.random_range(1..32u32))
                    .map(|_| self.rng.random())
                    .collect();
                self.insert(octets, &fresh);
            }
            8 => {
                let other = self.original();
                let part = self.part(other);
                let piece = other.get(part).unwrap_or_default();
                self.insert(octets, piece);
            }
            _ => {
                // The beginning of one and the end of another.
                let other = self.original();
                let (keep, from) = (self.place(octets), self.place(other));
                octets.truncate(keep);
                octets.extend_from_slice(other.get(from..).unwrap_or_default());
            }
        }
    }

    fn change(&mut self, octets: &mut [u8], change: impl FnOnce(&mut ChaCha8Rng, &mut u8)) {
        let at = self.place(octets);
        if let Some(octet) = octets.get_mut(at) {
            change(&mut self.rng, octet);
        }
    }

    fn insert(&mut self, octets: &mut Vec<u8>, piece: &[u8]) {
        let at = self.place(octets);
        octets.splice(at..at, piece.iter().copied());
    }

    /// A field of one, two, four or eight octets somewhere.
    fn field<'o>(&mut self, octets: &'o mut [u8]) -> &'o mut [u8] {
        let width = 1usize << self.rng.random_range(0..4u32);
        let last = octets.len().saturating_sub(width);
        let at = self.rng.random_range(0..=last);
        octets.get_mut(at..at + width).unwrap_or_default()
    }

    fn overwrite_number(&mut self, octets: &mut [u8]) {
        let turn = TURNS
            .get(self.rng.random_range(0..TURNS.len()))
            .copied()
            .unwrap_or_default();
        // One less, that, or one more.
        let number = turn
            .wrapping_add(self.rng.random_range(0..3u64))
            .wrapping_sub(1);
        self.put(octets, |_| number);
    }

    fn add_to_number(&mut self, octets: &mut [u8]) {
        let add = self.rng.random_range(0..65u64).wrapping_sub(32);
        self.put(octets, |found| found.wrapping_add(add));
    }

    /// Replaces the number in a field, in network byte order or the machine's.
    fn put(&mut self, octets: &mut [u8], number: impl FnOnce(u64) -> u64) {
        let swapped = self.rng.random();
        let field = self.field(octets);
        if swapped {
            field.reverse();
        }
        let found = field
            .iter()
            .fold(0, |sum, octet| sum << 8 | u64::from(*octet));
        let new = number(found).to_be_bytes();
        let skip = new.len() - field.len();
        field.copy_from_slice(new.split_at(skip).1);
        if swapped {
            field.reverse();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_seed_makes_the_same_inputs_again_and_another_makes_others() {
        let corpus = [b"one input".to_vec(), vec![7; 300]];
        let inputs = |seed| {
            let mut mutator = Mutator::new(seed, &corpus, 256);
            (0..500).map(|_| mutator.input()).collect::<Vec<_>>()
        };
        assert_eq!(inputs(1), inputs(1));
        assert_ne!(inputs(1), inputs(2));
        assert!(inputs(1).iter().all(|input| input.len() <= 256));
        let distinct: HashSet<_> = inputs(1).into_iter().collect();
        assert!(distinct.len() > 400);
    }

    #[test]
    fn nothing_is_made_something() {
        let mut mutator = Mutator::new(3, &[], 64);
        assert!((0..100).any(|_| !mutator.input().is_empty()));
    }
}

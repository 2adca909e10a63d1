//! Keys: random, unlike each other, and not reused soon.
//!
//! The keys of a region are drawn whole. Keys of a window, and of a region for fast registration, have an index of 24 bits that is drawn
//! once, and behind it 8 bits that change with each binding (`ibv_inc_rkey(3)`).

use std::collections::{BTreeMap, VecDeque};

use rand::Rng;
use rand_chacha::ChaCha20Rng;

use super::windows::Slot;

/// Retired STags, and retired indices, that are not reused.
const QUARANTINE: usize = 4096;
/// Bits that a binding may change.
const KEY_BITS: u32 = 8;

/// The part of a key that does not change with a binding.
pub(super) const fn index(key: u32) -> u32 {
    key >> KEY_BITS
}

/// The key with this index, and the low bits of `like`.
pub(super) const fn with_index(index: u32, like: u32) -> u32 {
    index << KEY_BITS | like & ((1 << KEY_BITS) - 1)
}

/// The next key with the same index, as `ibv_inc_rkey(3)` has it.
pub const fn increment(key: u32) -> u32 {
    with_index(index(key), key.wrapping_add(1))
}

/// Generator of keys.
#[derive(Debug)]
pub(super) struct Keyring {
    generator: ChaCha20Rng,
    retired: VecDeque<u32>,
    retired_indices: VecDeque<u32>,
    /// Windows and regions for fast registration, by index.
    pub(super) slots: BTreeMap<u32, Slot>,
}

impl Keyring {
    pub(super) fn new(generator: ChaCha20Rng) -> Self {
        Self {
            generator,
            retired: VecDeque::with_capacity(QUARANTINE),
            retired_indices: VecDeque::new(),
            slots: BTreeMap::new(),
        }
    }

    /// Whether a key may be given out, where no region has `taken` it.
    pub(super) fn is_usable(&self, key: u32, taken: impl Fn(u32) -> bool) -> bool {
        // 0 and all ones are values of uninitialised fields of programs.
        key != 0 && key != u32::MAX && !taken(key) && !self.slots.contains_key(&index(key))
    }

    /// A key for a region.
    pub(super) fn draw(&mut self, taken: impl Fn(u32) -> bool) -> u32 {
        loop {
            let key = self.generator.next_u32();
            let fresh = !self.retired.contains(&key) && !self.retired_indices.contains(&index(key));
            if fresh && self.is_usable(key, &taken) {
                return key;
            }
        }
    }

    /// Eight bits of a first key.
    pub(super) fn draw_key_part(&mut self) -> u32 {
        self.generator.next_u32()
    }

    /// An index that no key in use has.
    pub(super) fn draw_index(&mut self, taken: impl Fn(u32) -> bool) -> u32 {
        loop {
            let drawn = index(self.generator.next_u32());
            let all = drawn << KEY_BITS..=drawn << KEY_BITS | ((1 << KEY_BITS) - 1);
            let fresh = !self.retired.iter().any(|key| index(*key) == drawn)
                && !self.retired_indices.contains(&drawn);
            if fresh && all.into_iter().all(|key| self.is_usable(key, &taken)) {
                return drawn;
            }
        }
    }

    pub(super) fn retire(&mut self, key: u32) {
        push_bounded(&mut self.retired, key);
    }

    pub(super) fn retire_index(&mut self, index: u32) {
        push_bounded(&mut self.retired_indices, index);
    }
}

fn push_bounded(queue: &mut VecDeque<u32>, value: u32) {
    if queue.len() == QUARANTINE {
        queue.pop_front();
    }
    queue.push_back(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_goes_round_within_its_index() {
        assert_eq!(increment(0x1234_5678), 0x1234_5679);
        assert_eq!(increment(0x1234_56ff), 0x1234_5600);
        assert_eq!(with_index(index(0xabcd_ef12), 0x99), 0xabcd_ef99);
        let mut key = 0x77;
        for _ in 0..256 {
            key = increment(key);
        }
        assert_eq!(key, 0x77);
    }
}

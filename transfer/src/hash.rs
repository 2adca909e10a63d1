//! BLAKE3 of files, from the hashes of their blocks (`rfc-notes/transfer.md` §6).
//!
//! BLAKE3 is a tree. A block whose length is a power of two of at least 1024 octets, at a multiple of its length, is a subtree; the chaining
//! values of all blocks yield the hash of the file without a second look at its octets.

use blake3::hazmat::{
    ChainingValue, HasherExt as _, Mode, merge_subtrees_non_root, merge_subtrees_root,
};

/// Shortest block length: that of a chunk of BLAKE3.
pub const MIN_BLOCK: u32 = 1024;

/// Hashes one block as its octets come.
#[derive(Debug)]
pub struct BlockHasher {
    hasher: blake3::Hasher,
    whole: bool,
}

impl BlockHasher {
    /// A block at `offset`, a multiple of the block length; `whole` if it is all of its file.
    #[must_use]
    pub fn new(offset: u64, whole: bool) -> Self {
        let mut hasher = blake3::Hasher::new();
        if !whole {
            hasher.set_input_offset(offset);
        }
        Self { hasher, whole }
    }

    /// Adds octets.
    pub fn update(&mut self, octets: &[u8]) {
        self.hasher.update(octets);
    }

    /// The chaining value, or the hash of the file if the block is all of it.
    #[must_use]
    pub fn finish(&self) -> [u8; 32] {
        if self.whole {
            *self.hasher.finalize().as_bytes()
        } else {
            self.hasher.finalize_non_root()
        }
    }
}

/// Hash of one block.
#[must_use]
pub fn block(offset: u64, whole: bool, octets: &[u8]) -> [u8; 32] {
    let mut hasher = BlockHasher::new(offset, whole);
    hasher.update(octets);
    hasher.finish()
}

/// Hash of a file from those of its blocks, in order.
#[must_use]
pub fn root(blocks: &[[u8; 32]]) -> [u8; 32] {
    match blocks {
        [] => *blake3::hash(b"").as_bytes(),
        [only] => *only,
        _ => {
            let (left, right) = blocks.split_at(left_blocks(blocks.len()));
            let (left, right) = (subtree(left), subtree(right));
            *merge_subtrees_root(&left, &right, Mode::Hash).as_bytes()
        }
    }
}

/// Blocks of the left subtree: the largest power of two below the count.
fn left_blocks(count: usize) -> usize {
    count.next_power_of_two() / 2
}

fn subtree(blocks: &[[u8; 32]]) -> ChainingValue {
    match blocks {
        [only] => *only,
        _ => {
            let (left, right) = blocks.split_at(left_blocks(blocks.len()));
            merge_subtrees_non_root(&subtree(left), &subtree(right), Mode::Hash)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_root_of_the_blocks_is_the_hash_of_the_file(length in 0_usize..40_000, log in 10_u32..14, seed: u8) {
            let mut state = u32::from(seed);
            let octets: Vec<u8> = (0..length)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    state.to_be_bytes()[0]
                })
                .collect();
            let size = 1_usize << log;
            let blocks: Vec<_> = octets
                .chunks(size)
                .enumerate()
                .map(|(index, it)| block((index * size) as u64, length <= size, it))
                .collect();
            prop_assert_eq!(root(&blocks), *blake3::hash(&octets).as_bytes());
        }
    }
}

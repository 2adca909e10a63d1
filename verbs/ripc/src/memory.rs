//! Memory that the program and the library share, by its address.

use std::collections::BTreeMap;
use std::ptr::NonNull;

use dgiwarp_ripc::{Block, Region};
use parking_lot::Mutex;

/// Blocks by the address of their first octet.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    blocks: Mutex<BTreeMap<usize, Block>>,
}

impl Memory {
    /// Keeps a block until the program gives it up; returns its address.
    pub(crate) fn keep(&self, block: Block) -> usize {
        let address = usize::try_from(block.address()).unwrap_or(usize::MAX);
        let mut blocks = self.blocks.lock();
        // One that came into memory of the program's is kept already.
        if find(&blocks, address, block.len()).is_none() {
            blocks.insert(address, block);
        }
        address
    }

    /// The part of a kept block that these octets are; `None` where they are not of one.
    pub(crate) fn part(&self, address: usize, length: usize) -> Option<Block> {
        let blocks = self.blocks.lock();
        let (start, block) = find(&blocks, address, length)?;
        block.part(address - start, length)
    }

    /// Writes to kept memory.
    pub(crate) fn write(&self, address: usize, octets: &[u8]) {
        if let Some(block) = self.part(address, octets.len()) {
            // The part is as long as the octets.
            let _ = block.write(0, octets);
        }
    }

    /// Registers memory of the program. Returns false where it reaches beyond a block that it begins in, or over others.
    ///
    /// # Safety
    /// The octets stay until they are given up.
    pub(crate) unsafe fn register(&self, start: NonNull<u8>, length: usize) -> bool {
        let address = start.as_ptr().expose_provenance();
        let mut blocks = self.blocks.lock();
        if find(&blocks, address, length).is_some() {
            return true;
        }
        let Some(end) = address.checked_add(length) else {
            return false;
        };
        let before = blocks.range(..end).next_back();
        if before.is_some_and(|(start, block)| start + block.len() > address) {
            return false;
        }
        // SAFETY: the caller's promise; no Rust code has references into memory of the C program.
        let region = unsafe { Region::from_raw_parts(start, length) };
        blocks.insert(address, Block::of_region(region));
        true
    }

    /// Octets where they lie: of a kept block, or of the program's own memory.
    ///
    /// # Safety
    /// They stay as long as they are used.
    pub(crate) unsafe fn in_place(&self, start: NonNull<u8>, length: usize) -> Block {
        let known = self.part(start.as_ptr().expose_provenance(), length);
        known.unwrap_or_else(|| {
            // SAFETY: the caller's promise; no Rust code has references into memory of the C program.
            let region = unsafe { Region::from_raw_parts(start, length) };
            Block::of_region(region)
        })
    }

    /// Gives up the block that the address lies in.
    pub(crate) fn free(&self, address: usize) {
        let mut blocks = self.blocks.lock();
        if let Some((start, _)) = find(&blocks, address, 1) {
            blocks.remove(&start);
        }
    }
}

/// The block that has all of these octets.
fn find(blocks: &BTreeMap<usize, Block>, address: usize, length: usize) -> Option<(usize, &Block)> {
    let (start, block) = blocks.range(..=address).next_back()?;
    let fits = (address - start).checked_add(length)? <= block.len();
    fits.then_some((*start, block))
}

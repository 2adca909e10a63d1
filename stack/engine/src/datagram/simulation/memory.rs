//! Memory with a shadow: what it must hold, octet by octet.

use std::sync::OnceLock;

use dgiwarp_memory::Buffer;
use dgiwarp_sim::Rng;
use rand::{Rng as _, SeedableRng as _};

/// Octets from which messages are sent.
const SOURCE: usize = 3 << 20;
/// Octets compared at once.
const CHUNK: usize = 1 << 16;

/// The memory that all messages are sent from. Its octets are random, so that octets from a wrong place differ.
pub(super) struct Source {
    pub(super) octets: Vec<u8>,
    pub(super) buffer: Buffer,
}

/// Source memory, common to all runs: it is never written to.
pub(super) fn source() -> &'static Source {
    static ONCE: OnceLock<Source> = OnceLock::new();
    ONCE.get_or_init(|| {
        let mut octets = vec![0; SOURCE];
        Rng::seed_from_u64(0).fill_bytes(&mut octets);
        let buffer = Buffer::zeroed(SOURCE).unwrap();
        buffer.write(0, &octets);
        Source { octets, buffer }
    })
}

/// Registered memory, and the octets that the oracle expects in it.
pub(super) struct Memory {
    pub(super) buffer: Buffer,
    shadow: Vec<u8>,
}

impl Memory {
    pub(super) fn new(octets: usize) -> Self {
        Self {
            buffer: Buffer::zeroed(octets).unwrap(),
            shadow: vec![0; octets],
        }
    }

    /// The oracle expects these octets to be placed.
    pub(super) fn expect(&mut self, offset: usize, octets: &[u8]) {
        self.shadow[offset..offset + octets.len()].copy_from_slice(octets);
    }

    /// The first octet of a range that is not what it must be.
    pub(super) fn first_difference(&self, offset: usize, length: usize) -> Option<usize> {
        let mut chunk = [0; CHUNK];
        let end = offset + length;
        (offset..end).step_by(CHUNK).find_map(|start| {
            let part = &mut chunk[..CHUNK.min(end - start)];
            self.buffer.read(start, part);
            let expected = &self.shadow[start..start + part.len()];
            if part == expected {
                return None;
            }
            let differs = part.iter().zip(expected).position(|(is, must)| is != must);
            differs.map(|position| start + position)
        })
    }

    /// Offset of the first octet of the memory that differs.
    pub(super) fn first_difference_anywhere(&self) -> Option<usize> {
        self.first_difference(0, self.shadow.len())
    }
}

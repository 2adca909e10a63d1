//! Memory with a shadow: what it must hold, octet by octet.

use std::cell::RefCell;
use std::sync::OnceLock;

use dgiwarp_memory::Buffer;
use dgiwarp_sim::Rng;
use rand::{Rng as _, SeedableRng as _};

/// Octets from which messages are sent.
const SOURCE: usize = 3 << 20;
/// Octets compared at once.
const CHUNK: usize = 1 << 12;

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
///
/// Memory of a run that has ended is used again, since faults of fresh pages took a quarter of the time. It has been compared as a whole by then:
/// zeros everywhere but where the oracle expected octets.
pub(super) struct Memory {
    pub(super) buffer: Buffer,
    shadow: Vec<u8>,
    /// Whether the oracle expected octets, by chunk.
    touched: Vec<bool>,
}

thread_local! {
    /// Zeroed memory of runs that have ended.
    static SPARE: RefCell<Vec<Memory>> = const { RefCell::new(Vec::new()) };
}

/// Spare memories of a thread at most.
const MOST_SPARE: usize = 32;

impl Memory {
    /// Zeroed memory of so many octets.
    pub(super) fn new(octets: usize) -> Self {
        Self::of(octets, octets)
    }

    /// Zeroed memory of so many octets, or of up to twice as many.
    pub(super) fn at_least(octets: usize) -> Self {
        Self::of(octets, 2 * octets)
    }

    fn of(octets: usize, most: usize) -> Self {
        let spare = SPARE.with_borrow_mut(|spare| {
            let fits = |it: &Self| (octets..=most).contains(&it.shadow.len());
            let position = spare.iter().position(fits)?;
            Some(spare.swap_remove(position))
        });
        spare.unwrap_or_else(|| Self {
            buffer: Buffer::zeroed(octets).unwrap(),
            shadow: vec![0; octets],
            touched: vec![false; octets.div_ceil(CHUNK)],
        })
    }

    /// The oracle expects these octets to be placed.
    pub(super) fn expect(&mut self, offset: usize, octets: &[u8]) {
        let end = offset + octets.len();
        self.shadow[offset..end].copy_from_slice(octets);
        self.touched[offset / CHUNK..end.div_ceil(CHUNK)].fill(true);
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

impl Drop for Memory {
    /// Keeps the memory for another run.
    fn drop(&mut self) {
        let _ = SPARE.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            if spare.len() == MOST_SPARE {
                return;
            }
            for (at, chunk) in self.shadow.chunks_mut(CHUNK).enumerate() {
                if std::mem::take(&mut self.touched[at]) {
                    chunk.fill(0);
                    self.buffer.write(at * CHUNK, chunk);
                }
            }
            spare.push(Self {
                buffer: self.buffer.clone(),
                shadow: std::mem::take(&mut self.shadow),
                touched: std::mem::take(&mut self.touched),
            });
        });
    }
}

//! Memory of long items: blocks, and the pool that they come from and go back to.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::sync::{Arc, Weak};

use dgiwarp::{Buffer, Region};
use parking_lot::Mutex;

/// Lengths of buffers are multiples of this, in octets.
const GRAIN: usize = 4096;
/// Owner of blocks that the program asks for, and of those that are Read whole.
const PROGRAM: u64 = 0;

/// Memory of a long item. Cloning shares it. The octets of a block that was allocated are unspecified until they are written.
#[derive(Clone)]
pub struct Block {
    memory: Arc<Memory>,
    offset: usize,
    length: usize,
}

/// A range that reaches past the end of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{length} bytes at {offset} of a block of {of}")]
pub struct OutOfBounds {
    /// First byte.
    pub offset: usize,
    /// Number of bytes.
    pub length: usize,
    /// Length of the block.
    pub of: usize,
}

struct Memory {
    region: Region,
    /// Buffer of the pool, and owner of what it has; memory of the program has none.
    pooled: Option<(Buffer, u64, Weak<Pool>)>,
}

/// Free buffers, by owner and length.
///
/// A window is made of memory that nobody but its peer has written: octets that the peer claims to have written, and did not, are of no one else.
#[derive(Debug)]
pub(crate) struct Pool {
    free: Mutex<Free>,
    /// Octets that are kept at most.
    limit: usize,
}

#[derive(Debug, Default)]
struct Free {
    buffers: BTreeMap<(u64, usize), Vec<Buffer>>,
    octets: usize,
}

impl Pool {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            free: Mutex::default(),
            limit,
        })
    }

    /// A block for the program, or for an item that is read whole.
    pub(crate) fn block(self: &Arc<Self>, length: usize) -> io::Result<Block> {
        self.take(PROGRAM, length)
    }

    /// A block that a peer shall write: of memory that is new, or was written by this peer alone.
    pub(crate) fn window(self: &Arc<Self>, peer: u64, length: usize) -> io::Result<Block> {
        self.take(peer, length)
    }

    /// Reuses the shortest buffer that has room and less than twice the length.
    fn take(self: &Arc<Self>, owner: u64, length: usize) -> io::Result<Block> {
        let capacity = length.max(1).next_multiple_of(GRAIN);
        let reused = self.free.lock().take(owner, capacity);
        let buffer = match reused {
            Some(buffer) => buffer,
            None => Buffer::zeroed(capacity)?,
        };
        let region = buffer.region();
        let pooled = Some((buffer, owner, Arc::downgrade(self)));
        let memory = Arc::new(Memory { region, pooled });
        let offset = 0;
        Ok(Block {
            memory,
            offset,
            length,
        })
    }

    fn give_back(&self, owner: u64, buffer: Buffer) {
        let length = buffer.len();
        let mut free = self.free.lock();
        if length > self.limit {
            return;
        }
        while free.octets + length > self.limit {
            let Some(last) = free.buffers.keys().next_back().copied() else {
                break;
            };
            drop(free.take(last.0, last.1));
        }
        free.octets += length;
        free.buffers
            .entry((owner, length))
            .or_default()
            .push(buffer);
    }

    /// Frees what a peer that is gone had written.
    pub(crate) fn forget(&self, peer: u64) {
        let mut free = self.free.lock();
        let of_peer = free.buffers.range((peer, 0)..=(peer, usize::MAX));
        let keys: Vec<_> = of_peer.map(|(key, _)| *key).collect();
        for (owner, length) in keys {
            while free.take(owner, length).is_some() {}
        }
    }

    #[cfg(test)]
    fn kept(&self) -> usize {
        self.free.lock().octets
    }
}

impl Free {
    fn take(&mut self, owner: u64, length: usize) -> Option<Buffer> {
        let fitting = (owner, length)..(owner, length.saturating_mul(2));
        let (key, _) = self.buffers.range(fitting).next()?;
        let key = *key;
        let buffers = self.buffers.get_mut(&key)?;
        let buffer = buffers.pop();
        if buffers.is_empty() {
            self.buffers.remove(&key);
        }
        self.octets -= buffer.as_ref().map_or(0, Buffer::len);
        buffer
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some((buffer, owner, pool)) = self.pooled.take()
            && let Some(pool) = pool.upgrade()
        {
            pool.give_back(owner, buffer);
        }
    }
}

impl Block {
    /// Memory of the program's own. It stays in use until no block refers to it.
    #[must_use]
    pub fn of_region(region: Region) -> Self {
        let length = region.len();
        let pooled = None;
        let memory = Arc::new(Memory { region, pooled });
        let offset = 0;
        Self {
            memory,
            offset,
            length,
        }
    }

    /// A part of the block, which shares its memory; `None` where it reaches past the end.
    #[must_use]
    pub fn part(&self, offset: usize, length: usize) -> Option<Self> {
        let end = offset.checked_add(length)?;
        (end <= self.length).then(|| Self {
            memory: Arc::clone(&self.memory),
            offset: self.offset + offset,
            length,
        })
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Makes it shorter; a greater length changes nothing.
    pub fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    /// [`OutOfBounds`] if they do not fit.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        let region = self.region();
        let slice = region.slice(offset, bytes.len());
        slice
            .map_err(|_| self.out_of_bounds(offset, bytes.len()))?
            .place(bytes);
        Ok(())
    }

    /// Copies bytes from `offset` into `bytes`.
    ///
    /// # Errors
    /// [`OutOfBounds`] if there are not so many.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), OutOfBounds> {
        let region = self.region();
        let slice = region.slice(offset, bytes.len());
        slice
            .map_err(|_| self.out_of_bounds(offset, bytes.len()))?
            .copy_to(bytes);
        Ok(())
    }

    fn out_of_bounds(&self, offset: usize, length: usize) -> OutOfBounds {
        let of = self.length;
        OutOfBounds { offset, length, of }
    }

    /// All bytes, in a new vector.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.length];
        if let Ok(slice) = self.region().slice(0, self.length) {
            slice.copy_to(&mut bytes);
        }
        bytes
    }

    /// Address in this process.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.memory.region.address() + self.offset as u64
    }

    /// The memory, for registration.
    pub(crate) fn region(&self) -> Region {
        let part = self.memory.region.part(self.offset, self.length);
        part.expect("a block is inside its memory")
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({} bytes)", self.length)
    }
}

/// Takes the first memory of the program's that is long enough.
pub(crate) fn take_place(places: &mut VecDeque<Block>, length: usize) -> Option<Block> {
    let at = places.iter().position(|block| block.len() >= length)?;
    let mut block = places.remove(at)?;
    block.truncate(length);
    Some(block)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_used_again_up_to_half_empty() {
        let pool = Pool::new(1 << 20);
        let block = pool.block(100_000).unwrap();
        let address = block.address();
        drop(block);
        assert_eq!(pool.kept(), 102_400);
        // Less than half would be used.
        assert_ne!(pool.block(40_000).unwrap().address(), address);
        let mut again = pool.block(60_000).unwrap();
        assert_eq!((again.address(), again.len()), (address, 60_000));
        assert!(again.write(59_999, &[1]).is_ok() && again.write(60_000, &[1]).is_err());
        again.truncate(10);
        assert!(again.read(10, &mut [0]).is_err());
        assert_eq!(again.to_vec().len(), 10);
        let part = again.part(4, 6).unwrap();
        assert!(part.write(0, b"part").is_ok() && again.part(5, 6).is_none());
        assert_eq!(&again.to_vec()[4..8], b"part");
        assert_eq!(part.address(), again.address() + 4);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let pool = Pool::new(1 << 20);
        let blocks: Vec<_> = (0..20).map(|_| pool.block(100_000).unwrap()).collect();
        drop(blocks);
        assert!(pool.kept() <= 1 << 20);
        drop(pool.block(2 << 20).unwrap());
        assert!(pool.kept() <= 1 << 20);
    }

    #[test]
    fn a_window_has_nothing_of_others() {
        let pool = Pool::new(1 << 20);
        pool.block(5000).unwrap().write(0, b"secret").unwrap();
        pool.window(1, 5000).unwrap().write(0, b"of one").unwrap();
        assert_eq!(pool.window(2, 5000).unwrap().to_vec(), [0; 5000]);
        assert_eq!(&pool.window(1, 5000).unwrap().to_vec()[..6], b"of one");
        pool.forget(1);
        assert_eq!(pool.window(1, 5000).unwrap().to_vec(), [0; 5000]);
    }
}

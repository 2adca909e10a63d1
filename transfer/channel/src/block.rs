//! Slots that a program writes to, and blocks that it reads.

use std::sync::Arc;

use dgiwarp::Region;

use crate::channel::Shared;

/// A slot for a block, of this end's copy of the peer's ring. Dropped, it is free again.
#[derive(Debug)]
pub struct Slot {
    pub(crate) shared: Arc<Shared>,
    pub(crate) index: u16,
    /// The channel has it no more to take back.
    pub(crate) published: bool,
}

impl Slot {
    fn at(&self) -> usize {
        usize::from(self.index) * self.room()
    }

    /// Octets of the longest block.
    #[must_use]
    pub fn room(&self) -> usize {
        self.shared.peer.slot_size as usize
    }

    /// Copies octets to an offset of the block.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn write(&mut self, offset: usize, octets: &[u8]) {
        assert!(
            offset <= self.room() && octets.len() <= self.room() - offset,
            "{} octets at {offset} do not fit a slot of {}",
            octets.len(),
            self.room()
        );
        self.shared.copies.write(self.at() + offset, octets);
    }

    /// Its memory, for calls that take regions, until it is published.
    ///
    /// # Panics
    /// Never: the slot lies in its ring.
    #[must_use]
    pub fn region(&self) -> Region {
        let ring = self.shared.copies.region();
        ring.part(self.at(), self.room())
            .expect("it is in the ring")
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if !self.published {
            self.shared.abandon(self.index);
        }
    }
}

/// A block of the peer, in this end's ring. Dropped, its slot is released: the peer writes another block there.
///
/// The octets are the peer's: a peer that breaks the protocol may change them while they are read.
#[derive(Debug)]
pub struct Block {
    pub(crate) shared: Arc<Shared>,
    pub(crate) index: u16,
    pub(crate) length: u32,
}

impl Block {
    fn at(&self) -> usize {
        usize::from(self.index) * self.shared.slot_size as usize
    }

    /// Octets.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.length as usize
    }

    /// Whether it has no octets.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Copies octets from an offset of the block.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn read(&self, offset: usize, octets: &mut [u8]) {
        assert!(
            offset <= self.len() && octets.len() <= self.len() - offset,
            "{} octets at {offset} are not in a block of {}",
            octets.len(),
            self.len()
        );
        self.shared.ring.read(self.at() + offset, octets);
    }

    /// All octets, copied.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        self.shared.ring.to_vec(self.at(), self.len())
    }

    /// Its memory, for calls that take regions, until it is released.
    ///
    /// # Panics
    /// Never: the block lies in its ring.
    #[must_use]
    pub fn region(&self) -> Region {
        let ring = self.shared.ring.region();
        ring.part(self.at(), self.len()).expect("it is in the ring")
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.shared.release(self.index);
    }
}

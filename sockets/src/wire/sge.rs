//! Scatter/gather elements and I/O maps, which are written into the peer's memory (§2).

use super::ByteOrder;

/// Memory that a peer may write: a scatter/gather element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Sge {
    /// Address of the first octet.
    pub addr: u64,
    /// Remote key.
    pub key: u32,
    /// Octets, or elements where it describes the peer's list of them.
    pub length: u32,
}

impl Sge {
    /// Length on the wire.
    pub const LEN: usize = 16;

    /// Reads an element in this byte order.
    #[must_use]
    pub fn parse(octets: &[u8; Self::LEN], order: ByteOrder) -> Self {
        let [a, b, c, d] = words(octets);
        let mut addr = [0; 8];
        addr[..4].copy_from_slice(&a);
        addr[4..].copy_from_slice(&b);
        Self {
            addr: order.long(addr),
            key: order.word(c),
            length: order.word(d),
        }
    }

    /// Writes the element in this byte order.
    #[must_use]
    pub fn emit(&self, order: ByteOrder) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        octets[..8].copy_from_slice(&order.long_octets(self.addr));
        octets[8..12].copy_from_slice(&order.octets(self.key));
        octets[12..].copy_from_slice(&order.octets(self.length));
        octets
    }
}

fn words(octets: &[u8; Sge::LEN]) -> [[u8; 4]; 4] {
    let mut words = [[0; 4]; 4];
    for (word, octets) in words.iter_mut().zip(octets.chunks_exact(4)) {
        word.copy_from_slice(octets);
    }
    words
}

/// A range of offsets that a peer has mapped to its memory (`riomap(3)`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct IoMap {
    /// Offset of the first octet.
    pub offset: u64,
    /// The memory.
    pub sge: Sge,
}

impl IoMap {
    /// Length on the wire.
    pub const LEN: usize = 8 + Sge::LEN;

    /// Reads a map in this byte order.
    #[must_use]
    pub fn parse(octets: &[u8; Self::LEN], order: ByteOrder) -> Self {
        let (mut offset, mut sge) = ([0; 8], [0; Sge::LEN]);
        offset.copy_from_slice(&octets[..8]);
        sge.copy_from_slice(&octets[8..]);
        Self {
            offset: order.long(offset),
            sge: Sge::parse(&sge, order),
        }
    }

    /// Writes the map in this byte order.
    #[must_use]
    pub fn emit(&self, order: ByteOrder) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        octets[..8].copy_from_slice(&order.long_octets(self.offset));
        octets[8..].copy_from_slice(&self.sge.emit(order));
        octets
    }

    /// Octets of the map from `offset` on; 0 outside of it.
    #[must_use]
    pub fn left_at(&self, offset: u64) -> u64 {
        let Some(into) = offset.checked_sub(self.offset) else {
            return 0;
        };
        u64::from(self.sge.length).saturating_sub(into)
    }
}

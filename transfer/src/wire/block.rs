//! BLOCK, ACK and NACK: a filled slot, and what became of it.
//!
//! ```text
//! BLOCK  file 4 | slot 2 | flags 2 | offset 8 | length 4 | hash 32
//! ACK    level 1 | reserved 3 | file 4, length 4, offset 8, repeated
//! NACK   file 4 | length 4 | offset 8
//! ```

use super::Malformed;
use super::octets::Reader;

/// Flag: the slot has records of a delta.
const DELTA: u16 = 1;

/// Notice of a filled slot. On TCP, `length` octets follow the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Number of the file in the session.
    pub file: u32,
    /// The slot.
    pub slot: u16,
    /// First octet in the file, a multiple of the session's block length.
    pub offset: u64,
    /// Octets in the slot.
    pub length: u32,
    /// The slot has parts of the block ([`Part`](super::Part)): the lowest bit of the flags.
    pub delta: bool,
    /// BLAKE3 chaining value of the block, or the file's hash where the block is the whole file.
    pub hash: [u8; 32],
}

impl Block {
    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let file = reader.u32()?;
        let slot = reader.u16()?;
        let flags = reader.u16()?;
        Ok(Self {
            file,
            slot,
            delta: flags & DELTA != 0,
            offset: reader.u64()?,
            length: reader.u32()?,
            hash: reader.array()?,
        })
    }

    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        out.extend(self.file.to_be_bytes());
        out.extend(self.slot.to_be_bytes());
        let flags = if self.delta { DELTA } else { 0 };
        out.extend(flags.to_be_bytes());
        out.extend(self.offset.to_be_bytes());
        out.extend(self.length.to_be_bytes());
        out.extend(self.hash);
    }
}

/// State of acknowledged blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// The hash is right and the octets are in the file.
    Placed,
    /// A crash of the host does not lose them.
    Durable,
}

/// Blocks are placed or durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ack {
    /// State of the blocks.
    pub level: Level,
    /// File, offset, length.
    pub blocks: Vec<(u32, u64, u32)>,
}

impl Ack {
    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let level = reader.u8()?;
        let known = match level {
            1 => Some(Level::Placed),
            2 => Some(Level::Durable),
            _ => None,
        };
        let level = reader.value("level", level, known)?;
        reader.array::<3>()?;
        let octets = reader.rest();
        if !octets.len().is_multiple_of(16) {
            return Err(Malformed::Short { kind: 7 });
        }
        let (blocks, _) = octets.as_chunks::<16>();
        let block = |octets: &[u8; 16]| {
            let all = u128::from_be_bytes(*octets);
            let [f0, f1, f2, f3, l0, l1, l2, l3, offset @ ..] = all.to_be_bytes();
            (
                u32::from_be_bytes([f0, f1, f2, f3]),
                u64::from_be_bytes(offset),
                u32::from_be_bytes([l0, l1, l2, l3]),
            )
        };
        Ok(Self {
            level,
            blocks: blocks.iter().map(block).collect(),
        })
    }

    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        let level = match self.level {
            Level::Placed => 1,
            Level::Durable => 2,
        };
        out.extend([level, 0, 0, 0]);
        for (file, offset, length) in &self.blocks {
            out.extend(file.to_be_bytes());
            out.extend(length.to_be_bytes());
            out.extend(offset.to_be_bytes());
        }
    }
}

/// A block is wanted again: its octets do not have its hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nack {
    /// Number of the file.
    pub file: u32,
    /// First octet.
    pub offset: u64,
    /// Octets.
    pub length: u32,
}

impl Nack {
    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let file = reader.u32()?;
        let length = reader.u32()?;
        let offset = reader.u64()?;
        Ok(Self {
            file,
            offset,
            length,
        })
    }

    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        out.extend(self.file.to_be_bytes());
        out.extend(self.length.to_be_bytes());
        out.extend(self.offset.to_be_bytes());
    }
}

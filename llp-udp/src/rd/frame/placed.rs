//! Placed frame (§3.3): the segments that are placed, by number.

use std::fmt;

use super::super::octets::{Reader, emit_header};

pub(super) const KIND: u8 = 0x03;
const LEN: u16 = 12;

/// Segments that are placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Placed {
    /// All segments before this number are placed; this one is not.
    pub next: u32,
    /// Bit i, the least significant being 0, is set if segment `next + 1 + i` is placed.
    pub map: u64,
}

impl Placed {
    pub(super) fn parse(octets: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(octets);
        let placed = Self {
            next: reader.u32()?,
            map: reader.u64()?,
        };
        reader.end(placed)
    }

    /// Appends the frame.
    pub fn emit(&self, out: &mut Vec<u8>) {
        emit_header(out, KIND, 0, LEN);
        out.extend(self.next.to_be_bytes());
        out.extend(self.map.to_be_bytes());
    }
}

impl fmt::Display for Placed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "placed before {} and {:#x}", self.next, self.map)
    }
}

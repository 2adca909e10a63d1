//! WINDOW and GRANT: memory of the sink, and credits for its slots.
//!
//! ```text
//! WINDOW  STag 4 | slot length 4 | address 8 | slots 2
//! GRANT   slot 2, repeated
//! ```

use super::Malformed;
use super::octets::Reader;

/// The pool of the sink. On TCP, STag and address are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Remote key of the pool.
    pub stag: u32,
    /// Octets of a slot.
    pub slot_length: u32,
    /// Address of the first slot.
    pub address: u64,
    /// Slots.
    pub slots: u16,
}

impl Window {
    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            stag: reader.u32()?,
            slot_length: reader.u32()?,
            address: reader.u64()?,
            slots: reader.u16()?,
        })
    }

    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        out.extend(self.stag.to_be_bytes());
        out.extend(self.slot_length.to_be_bytes());
        out.extend(self.address.to_be_bytes());
        out.extend(self.slots.to_be_bytes());
    }
}

/// Slots that the source may fill, each once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// Numbers of the slots.
    pub slots: Vec<u16>,
}

impl Grant {
    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let octets = reader.rest();
        if !octets.len().is_multiple_of(2) {
            return Err(Malformed::Short { kind: 3 });
        }
        let (slots, _) = octets.as_chunks::<2>();
        Ok(Self {
            slots: slots.iter().map(|it| u16::from_be_bytes(*it)).collect(),
        })
    }

    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        for slot in &self.slots {
            out.extend(slot.to_be_bytes());
        }
    }
}

//! SIGNATURES, and records of a delta block: a file that changed, in terms of an old copy at the sink.
//!
//! ```text
//! SIGNATURES  file 4 | piece 4 | first 4 | weak 4, strong 8, repeated
//! record      kind 1 | reserved 3 | length 4 | octets, or offset 8
//! ```

use std::ops::Range;

use super::octets::Reader;
use super::{FRAME_LIMIT, HEADER, Malformed};

/// Signatures of one frame at most.
pub const SIGNATURES_LIMIT: usize = (FRAME_LIMIT - HEADER - 12) / SIGNATURE;
/// Octets of a signature.
const SIGNATURE: usize = 12;
/// Octets of a record before its own.
const RECORD: usize = 8;
/// Octets of a record that is a copy.
const COPY: usize = RECORD + 8;

/// Two hashes of a piece of an old copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Signature {
    /// The rolling one.
    pub weak: u32,
    /// First octets of the piece's BLAKE3.
    pub strong: [u8; 8],
}

/// Signatures of pieces that follow one another in an old copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signatures {
    /// Number of the file.
    pub file: u32,
    /// Octets of each piece.
    pub piece: u32,
    /// Index of the first piece.
    pub first: u32,
    /// One for each piece.
    pub signatures: Vec<Signature>,
}

impl Signatures {
    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let file = reader.u32()?;
        let piece = reader.u32()?;
        let first = reader.u32()?;
        let octets = reader.rest();
        if !octets.len().is_multiple_of(SIGNATURE) {
            return Err(Malformed::Short { kind: 23 });
        }
        let (signatures, _) = octets.as_chunks::<SIGNATURE>();
        let signature = |octets: &[u8; SIGNATURE]| {
            let [w0, w1, w2, w3, strong @ ..] = *octets;
            let weak = u32::from_be_bytes([w0, w1, w2, w3]);
            Signature { weak, strong }
        };
        Ok(Self {
            file,
            piece,
            first,
            signatures: signatures.iter().map(signature).collect(),
        })
    }

    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        out.extend(self.file.to_be_bytes());
        out.extend(self.piece.to_be_bytes());
        out.extend(self.first.to_be_bytes());
        for signature in &self.signatures {
            out.extend(signature.weak.to_be_bytes());
            out.extend(signature.strong);
        }
    }
}

/// A part of a block of a file that changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Octets of the source; a range of what the part is found in.
    Literal(Range<usize>),
    /// Octets of the old copy.
    Copy {
        /// First octet there.
        offset: u64,
        /// How many.
        length: u32,
    },
}

impl Part {
    /// Octets of the block.
    #[must_use]
    pub fn length(&self) -> u64 {
        match self {
            Self::Literal(range) => range.len() as u64,
            Self::Copy { length, .. } => u64::from(*length),
        }
    }

    /// Octets of the part as a record.
    #[must_use]
    pub fn octets(&self) -> usize {
        match self {
            Self::Literal(range) => RECORD + range.len(),
            Self::Copy { .. } => COPY,
        }
    }

    /// Adds the record of a part whose literal octets are those of `from`.
    pub fn emit(&self, from: &[u8], out: &mut Vec<u8>) {
        let length = u32::try_from(self.length()).unwrap_or(u32::MAX);
        let kind = match self {
            Self::Literal(_) => 1,
            Self::Copy { .. } => 2,
        };
        out.extend([kind, 0, 0, 0]);
        out.extend(length.to_be_bytes());
        match self {
            Self::Literal(range) => out.extend(from.get(range.clone()).unwrap_or_default()),
            Self::Copy { offset, .. } => out.extend(offset.to_be_bytes()),
        }
    }

    /// Parts of a delta block that is `length` octets long when it is put together.
    ///
    /// # Errors
    /// [`Malformed`] where the octets are not such a block.
    pub fn parse_all(octets: &[u8], length: u32) -> Result<Vec<Self>, Malformed> {
        let kind = 6;
        let mut parts = Vec::new();
        let mut left = u64::from(length);
        let mut at = 0;
        while let Some(rest) = octets.get(at..).filter(|it| !it.is_empty()) {
            let mut reader = Reader::new(kind, rest);
            let number = reader.u8()?;
            reader.array::<3>()?;
            let count = reader.u32()?;
            at += RECORD;
            let part = match number {
                1 => {
                    reader.octets(count as usize)?;
                    let range = at..at + count as usize;
                    at = range.end;
                    Self::Literal(range)
                }
                2 => {
                    let offset = reader.u64()?;
                    at += COPY - RECORD;
                    let length = count;
                    Self::Copy { offset, length }
                }
                other => return reader.value("record", other, None),
            };
            let over = Malformed::Long { kind, octets: at };
            left = left.checked_sub(part.length()).ok_or(over)?;
            parts.push(part);
        }
        if left > 0 {
            return Err(Malformed::Short { kind });
        }
        Ok(parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Octets of a delta block are parts of it, all of them, or an error.
        #[test]
        fn any_delta_block_is_its_parts_or_an_error(octets in proptest::collection::vec(prop_oneof![Just(0_u8), 0_u8..4, any::<u8>()], 0..80), length in 0_u32..300) {
            if let Ok(parts) = Part::parse_all(&octets, length) {
                prop_assert_eq!(parts.iter().map(Part::length).sum::<u64>(), u64::from(length));
                prop_assert_eq!(parts.iter().map(Part::octets).sum::<usize>(), octets.len());
            }
        }

        #[test]
        fn parts_are_found_as_they_were_put(parts in proptest::collection::vec((any::<bool>(), 0_u32..50), 0..8)) {
            let from = [7; 50];
            let (mut octets, mut expected, mut length) = (Vec::new(), Vec::new(), 0);
            for (is_copy, count) in parts {
                let at = octets.len() + RECORD;
                let literal = Part::Literal(0..count as usize);
                let copy = Part::Copy { offset: u64::MAX - u64::from(count), length: count };
                let part = if is_copy { copy } else { literal };
                part.emit(&from, &mut octets);
                expected.push(match part {
                    Part::Literal(range) => Part::Literal(at..at + range.len()),
                    copy @ Part::Copy { .. } => copy,
                });
                length += count;
            }
            prop_assert_eq!(Part::parse_all(&octets, length), Ok(expected));
            prop_assert!(Part::parse_all(&octets, length + 1).is_err());
        }
    }

    #[test]
    fn a_frame_holds_its_signatures() {
        let signature = Signature {
            weak: 1,
            strong: [2; 8],
        };
        let signatures = Signatures {
            file: 0,
            piece: 4096,
            first: 0,
            signatures: vec![signature; SIGNATURES_LIMIT],
        };
        let octets = super::super::Frame::Signatures(signatures).emit(0).len();
        assert!(octets <= FRAME_LIMIT && octets + SIGNATURE > FRAME_LIMIT);
    }
}

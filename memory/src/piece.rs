//! Parts of an outgoing message.

use crate::RegionSlice;

/// Most pieces of one message.
pub const MAX_PIECES: usize = 64;

/// Consecutive bytes of an outgoing message.
#[derive(Debug, Clone, Copy)]
pub enum Piece<'a> {
    /// Owned bytes: headers, CRCs, staged payload.
    Bytes(&'a [u8]),
    /// Registered bytes, sent without a copy.
    Region(RegionSlice<'a>),
}

impl Piece<'_> {
    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Region(slice) => slice.len(),
        }
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Buffer;

    #[test]
    fn lengths_are_those_of_either_kind() {
        let buffer = Buffer::zeroed(9).unwrap();
        let region = buffer.region();
        for len in [0, 1, 9] {
            let pieces = [
                Piece::Bytes(&[7; 9][..len]),
                Piece::Region(region.slice(0, len).unwrap()),
            ];
            for piece in pieces {
                assert_eq!((piece.len(), piece.is_empty()), (len, len == 0));
            }
        }
    }
}

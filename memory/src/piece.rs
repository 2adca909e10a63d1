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

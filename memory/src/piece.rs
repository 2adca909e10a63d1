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

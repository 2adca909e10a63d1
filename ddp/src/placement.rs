//! The seam between DDP and memory.
//!
//! Segments are checked and placed without memory of DDP's own. The RNIC implements [`TaggedBuffers`] over
//! its table of registered regions; tests implement it with a `Vec<u8>`.

use crate::error::TaggedError;
use crate::{STag, TaggedOffset};

/// Range of a tagged buffer that a peer writes or reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaggedSpan {
    /// Names the buffer.
    pub stag: STag,
    /// TO of the first octet.
    pub start: TaggedOffset,
    /// Number of octets.
    pub length: u32,
}

/// Buffers that peers may write. `P` is the payload of a segment: a slice, or memory that another process writes.
pub trait TaggedBuffers<P: ?Sized = [u8]> {
    /// Checks that the peer may write the whole span now.
    ///
    /// # Errors
    /// The row of RFC 5041 §7.2 that the span violates.
    fn check(&self, span: TaggedSpan) -> Result<(), TaggedError>;

    /// Checks the span of `payload.len()` octets at `start` and writes `payload` there, the last octet last.
    /// Each write has its own check, because the buffer may have been invalidated since [`check`](Self::check).
    ///
    /// # Errors
    /// As [`check`](Self::check); no octet was written.
    fn place(&mut self, stag: STag, start: TaggedOffset, payload: &P) -> Result<(), TaggedError>;
}

//! The seam between DDP and memory.
//!
//! DDP checks and places without owning memory. The RNIC implements [`TaggedBuffers`] over its table
//! of registered regions; tests implement it with a `Vec<u8>`.

use crate::error::TaggedError;
use crate::{STag, TaggedOffset};

/// Octets of a tagged message that a peer wants placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaggedSpan {
    /// The buffer.
    pub stag: STag,
    /// First octet.
    pub start: TaggedOffset,
    /// Number of octets.
    pub length: u32,
}

/// Buffers that peers may write.
pub trait TaggedBuffers {
    /// Checks that the peer may write the whole span now.
    ///
    /// # Errors
    /// The row of RFC 5041 §7.2 that the span violates.
    fn check(&self, span: TaggedSpan) -> Result<(), TaggedError>;

    /// Checks the span of `payload.len()` octets at `start` again and writes `payload` there, the last octet last.
    /// The check belongs to the write: the buffer may have been invalidated since [`check`](Self::check).
    ///
    /// # Errors
    /// As `check`; then nothing was written.
    fn place(&mut self, stag: STag, start: TaggedOffset, payload: &[u8])
    -> Result<(), TaggedError>;
}

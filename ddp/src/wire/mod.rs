//! DDP headers (RFC 5041 §4), one file each.
//!
//! `parse` yields a typed header and the rest of the bytes, or a named error; `emit` writes exactly
//! `LEN` bytes and cannot fail. The first octet is shared: see [`control`].

#![deny(clippy::indexing_slicing)]

pub mod control;
pub mod tagged;
pub mod untagged;

pub use control::Control;
pub use tagged::TaggedHeader;
pub use untagged::UntaggedHeader;

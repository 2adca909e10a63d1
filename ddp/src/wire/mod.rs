//! DDP headers (RFC 5041 §4), one file each.
//!
//! `parse` yields a typed header and the octets behind it, or a named error; `emit` writes exactly
//! `LEN` octets and cannot fail. All headers share the first octet, [`control`].

#![deny(clippy::indexing_slicing)]

pub mod control;
pub mod tagged;
pub mod untagged;

pub use control::Control;
pub use tagged::TaggedHeader;
pub use untagged::UntaggedHeader;

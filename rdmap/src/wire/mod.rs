//! RDMAP headers (RFC 5040 §4), one file each.

#![deny(clippy::indexing_slicing)]

pub mod control;
pub mod extension;

pub use control::{ControlError, Opcode};
pub use extension::{Extension, Flags};

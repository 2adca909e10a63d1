//! RDMAP headers (RFC 5040 §4), one file each.

#![deny(clippy::indexing_slicing)]

pub mod atomic;
pub mod control;
pub mod extension;
pub mod immediate;
pub mod read_request;
pub mod terminate;

pub use atomic::{AtomicOperation, AtomicRequest, AtomicRequestError, AtomicResponse};
pub use control::{ControlError, Opcode};
pub use extension::{Extension, Flags};
pub use immediate::ImmediateData;
pub use read_request::ReadRequest;
pub use terminate::{Cause, Terminate, TerminateControl};

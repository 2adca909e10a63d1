//! Capture files: packets and their headers.

pub(super) mod file;
pub(super) mod packet;

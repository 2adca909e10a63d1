//! Items of messages, to be sent and as they came.

pub(crate) mod inside;
pub(crate) mod lower;
mod read;

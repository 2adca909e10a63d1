//! Completion queues and completion channels.

pub(crate) mod channel;
pub(crate) mod completion_queue;
pub(crate) mod sleep;

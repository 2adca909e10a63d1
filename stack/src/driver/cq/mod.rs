//! Completion queues and completion channels.

mod awaited;
pub(crate) mod channel;
pub(crate) mod completion_queue;
pub(crate) mod direct;
pub(crate) mod sleep;
pub(crate) mod watch;

//! Completion queues and completion channels.

#[cfg(feature = "tokio")]
pub(crate) mod async_cq;
pub(crate) mod queue;
pub(crate) mod watch;

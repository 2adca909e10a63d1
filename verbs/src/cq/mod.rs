//! Completion channels, completion queues and completions.

pub(crate) mod contention;
pub(crate) mod cq_ex;
pub(crate) mod queue;
pub(crate) mod sgid;
pub(crate) mod wc;

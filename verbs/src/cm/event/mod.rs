//! Events: raised by the stack and by calls, queued with an event channel, and fetched by the program.

pub(crate) mod channel;
pub(crate) mod fetch;
pub(crate) mod fetched;
pub(crate) mod queue;
pub(crate) mod types;

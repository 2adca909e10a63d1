//! The background thread, the clock, descriptors of our own.

pub(crate) mod clock;
pub(crate) mod event;
pub(crate) mod fds;
pub(crate) mod network;
pub(crate) mod thread;

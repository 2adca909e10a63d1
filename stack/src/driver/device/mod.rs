//! The background thread, the clock, descriptors of our own.

mod agenda;
pub(crate) mod clock;
pub(crate) mod event;
pub(crate) mod fds;
pub(crate) mod library_thread;
pub(crate) mod network;
pub(crate) mod thread;

//! Which sockets are polled when, by whom, and timers.

pub(crate) mod adaptive_arming;
pub(crate) mod hot_sockets;
pub(crate) mod member;
pub(crate) mod run_queue;
pub(crate) mod timers;

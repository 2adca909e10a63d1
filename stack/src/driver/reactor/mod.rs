//! Polling of sockets, by pollers and the background thread, and timers. Queue pairs appear only as [`member`]s.

pub(crate) mod adaptive_arming;
pub(crate) mod event_queue;
pub(crate) mod hot_sockets;
pub(crate) mod io_set;
pub(crate) mod member;
mod pending_acks;
pub(crate) mod poll_set;
pub(crate) mod run_queue;
pub(crate) mod timers;
pub(crate) mod waker;

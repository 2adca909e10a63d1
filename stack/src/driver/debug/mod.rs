//! Captures and faults on purpose, between sockets and engine.

pub(crate) mod fault;
pub(crate) mod instruments;
mod ip;
mod pcapng;
pub(crate) mod tap;

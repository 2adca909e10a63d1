//! Captures and faults on purpose, between sockets and engine.

pub(crate) mod fault;
pub(crate) mod instruments;
mod ip;
pub(crate) mod own_file;
mod pcapng;
pub(crate) mod tap;

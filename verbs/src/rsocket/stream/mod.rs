//! Stream sockets and their connections.

pub(super) mod connection;
pub(super) mod data;
pub(super) mod io_map;
pub(super) mod keepalive;
pub(super) mod maps;
pub(super) mod socket;
pub(super) mod tcp;

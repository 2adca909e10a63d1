//! Datagram queue pairs and their sockets.

pub(crate) mod icmp_errors;
pub(crate) mod multicast;
pub(crate) mod path_cache;
pub(crate) mod qp;
pub(crate) mod route;
pub(crate) mod socket;
pub(crate) mod sockets;
pub(crate) mod transmit;

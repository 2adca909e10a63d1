//! Datagram queue pairs and their sockets.

pub(crate) mod icmp_errors;
pub(crate) mod lanes;
#[cfg(test)]
pub(crate) mod memory_port;
pub(crate) mod multicast;
pub(crate) mod path_cache;
pub(crate) mod peer_ports;
pub(crate) mod port;
pub(crate) mod ports;
pub(crate) mod qp;
pub(crate) mod rd_qp;
pub(crate) mod route;
pub(crate) mod socket;
pub(crate) mod transmit;

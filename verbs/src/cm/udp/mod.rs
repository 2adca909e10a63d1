//! Port spaces UDP and IPOIB: service ID resolution (SIDR) and multicast groups of datagram queue pairs.
//!
//! `rdma_connect(3)` queries the queue pair behind a port number, and the answer is an address: nothing is connected. As on InfiniBand, the
//! active side's `ESTABLISHED` ends the exchange, and the passive side gets no event after `rdma_accept(3)`.

pub(crate) mod connect;
pub(crate) mod events;
pub(crate) mod join;
pub(crate) mod multicast;
pub(crate) mod param;
pub(crate) mod qp;
pub(crate) mod state;

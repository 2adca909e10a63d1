//! Addresses: socket addresses of C, `rdma_getaddrinfo(3)`, and the resolution of addresses and routes.

pub(crate) mod address;
pub(crate) mod addrinfo;
pub(crate) mod bind;
pub(crate) mod resolve;

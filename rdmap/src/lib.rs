//! The RDMA protocol (RFC 5040, RFC 7306), sans I/O.
//!
//! [`wire`] holds RDMAP's own headers. [`datagram`] is RDMAP over unreliable datagrams: Send/Recv and
//! RDMA Write-Record with validity maps, as `rfc-notes/datagram-mapping.md` specifies them.
//! [`stream`] is RDMAP over a reliable lower layer: RFC 5040 as it stands.
//!
//! No socket, clock or thread is used here: time is an argument, memory and work queues are reached through
//! traits, and a peer is any address type of the caller.

#![forbid(unsafe_code)]

pub mod datagram;
pub mod stream;
#[cfg(test)]
mod test_clock;
pub mod wire;

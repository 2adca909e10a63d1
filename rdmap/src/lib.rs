//! The RDMA protocol (RFC 5040, RFC 7306), sans I/O.
//!
//! [`wire`] holds RDMAP's own headers. [`datagram`] is RDMAP over unreliable datagrams: Send/Recv and
//! RDMA Write-Record with validity maps, as `rfc-notes/datagram-mapping.md` specifies them.
//! [`stream`] is RDMAP over a reliable lower layer: RFC 5040 as it stands.
//!
//! Nothing here knows a socket, a clock or a thread: time comes in as an argument, memory and work
//! queues are reached through traits, and peers are whatever address type the caller uses.

#![forbid(unsafe_code)]

pub mod datagram;
pub mod stream;
pub mod wire;

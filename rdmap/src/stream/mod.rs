//! RDMAP over a reliable, ordered lower layer: one stream of RFC 5040 on one of RFC 5041.
//!
//! [`Outbound`] numbers messages and makes the headers of their segments; [`Inbound`] checks
//! each arriving segment, places it, and delivers messages. Both are plain state: the ULPDUs go
//! through MPA, the memory and queues are reached through [`Upper`].
//!
//! So far a stream carries Sends in both directions, receives RDMA Writes and Terminates, and
//! refuses every other operation of the peer by name.

mod error;
mod inbound;
mod outbound;

pub use error::{StreamError, TerminateCause};
pub use inbound::{Delivered, Inbound, Upper};
pub use outbound::{Outbound, SendMessage};

#[cfg(test)]
mod tests;

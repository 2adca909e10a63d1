//! Datagram sockets and their queue pairs.

pub(super) mod queues;
pub(super) mod socket;

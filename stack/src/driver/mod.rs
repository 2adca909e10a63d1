//! Sockets, time, pollers and the background thread. No decision about the protocol is made here.
//!
//! - [`device`]: the background thread, the clock, descriptors of our own;
//! - [`reactor`]: polling of sockets, by pollers and the background thread, and timers;
//! - [`cq`]: a completion queue and receiving on behalf of its pollers;
//! - [`qp`]: the parts of every queue pair: posting, exclusive access to its engine, buffers;
//! - [`udp`]: datagram queue pairs and their sockets;
//! - [`tcp`]: connected queue pairs, their connections, establishment and end of these;
//! - [`same_host`]: shared memory of queue pairs on one host;
//! - [`cm`]: connection management;
//! - [`debug`]: captures and faults on purpose.

pub(crate) mod cm;
pub(crate) mod cq;
pub(crate) mod debug;
pub(crate) mod device;
pub(crate) mod qp;
pub(crate) mod reactor;
pub(crate) mod same_host;
pub(crate) mod tcp;
pub(crate) mod udp;

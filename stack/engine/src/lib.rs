//! The protocol engine of dgiwarp, sans I/O: no socket, thread, clock, environment or global randomness.
//!
//! - [`types`]: work requests, completions, events, counters, options, routes;
//! - [`mr`]: the table of memory regions and windows, found by STag;
//! - [`cq_ring`], [`recv_queue`], `send_queue`, [`sges`]: queues and scatter/gather lists;
//! - [`sq_drain`]: the state SQD of a send queue;
//! - [`datagram`]: a datagram queue pair (UD, UC);
//! - [`reliable`]: a reliable datagram queue pair (RD);
//! - [`connected`]: a connected queue pair (RC);
//! - [`same_host`]: meetings of datagram queue pairs on one host, and the order of their datagrams;
//! - [`xrc`]: shared receive queues that the peer names;
//! - [`cm`]: connection management.

#![forbid(unsafe_code)]

pub mod cm;
pub mod connected;
pub mod cq_ring;
pub mod datagram;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod mr;
#[cfg(feature = "null-llp")]
#[doc(hidden)]
pub mod null_llp;
#[cfg(any(test, feature = "fuzzing"))]
mod recording_sink;
pub mod recv_queue;
pub mod reliable;
pub mod same_host;
mod send_queue;
pub mod sges;
pub mod sq_drain;
pub mod types;
pub mod xrc;

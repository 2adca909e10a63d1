//! The protocol engine, sans I/O: no socket, thread, clock, environment or global randomness.
//!
//! - [`mr`]: the table of registered regions, found by STag;
//! - [`cq`]: the ring of completions;
//! - [`line`]: a queue that is mostly empty or has one element;
//! - [`pairing`]: what QPs say of themselves that are connected by exchanged numbers;
//! - [`queue`]: work queue elements and the receive queue;
//! - [`rc`]: a connected QP;
//! - [`service`]: the lookup of services;
//! - [`sges`]: the registered memory of one message;
//! - [`ud`]: a datagram QP.

pub(crate) mod cq;
pub(crate) mod line;
pub(crate) mod mr;
pub(crate) mod pairing;
pub(crate) mod queue;
pub(crate) mod rc;
pub(crate) mod service;
pub(crate) mod sges;
pub(crate) mod ud;

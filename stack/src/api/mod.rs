//! The safe API: one file per verbs object.
//!
//! - [`device`]: the device, its settings, errors, events, statistics and faults;
//! - [`memory`]: protection domains, memory regions, memory windows;
//! - [`cq`]: completion queues and channels;
//! - [`qp`]: queue pairs, their work requests, address handles, groups, records and QPNs;
//! - [`rd`]: reliable datagram queue pairs;
//! - [`rc_rd`]: RC queue pairs on reliable datagrams;
//! - [`xrc`]: XRC domains;
//! - [`cm`]: connection management.

pub(crate) mod cm;
pub(crate) mod cq;
pub(crate) mod device;
pub(crate) mod memory;
pub(crate) mod qp;
pub(crate) mod rc_rd;
pub(crate) mod rd;
pub(crate) mod xrc;

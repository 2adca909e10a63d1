//! The device, its settings, errors, events, statistics and faults.

pub(crate) mod config;
pub(crate) mod error;
pub(crate) mod events;
pub(crate) mod fault;
pub(crate) mod rnic;
pub(crate) mod statistics;

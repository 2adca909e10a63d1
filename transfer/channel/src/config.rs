//! Configuration of an end.

use std::time::Duration;

/// Slots of a ring at most.
pub(crate) const MOST_SLOTS: u16 = 1024;

/// Configuration of an end.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Config {
    /// Slots of the ring that the peer writes to, 1 to 1024. Default 16.
    pub slots: u16,
    /// Octets of each slot, the longest block of the peer, 1 to 2^32 − 1. Default 1 MiB.
    pub slot_size: u32,
    /// Octets of the peer's ring at most, of which this end has a copy to write blocks in. Default 1 GiB.
    pub largest_ring: u64,
    /// Time for which a call polls before it sleeps. Default 20 µs.
    pub spin: Duration,
    /// Configuration of the device; [`from_environment`](dgiwarp::Config::from_environment) reads that of a program.
    pub device: dgiwarp::Config,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            slots: 16,
            slot_size: 1 << 20,
            largest_ring: 1 << 30,
            spin: Duration::from_micros(20),
            device: dgiwarp::Config::default(),
        }
    }
}

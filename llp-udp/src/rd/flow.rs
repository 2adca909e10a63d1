//! State of the path between two ends: round-trip time, datagrams in flight, numbers that arrived, pacing.

pub(super) mod pacing;
pub(super) mod received;
pub(super) mod recovery;
pub(super) mod rtt;
pub(super) mod tuning;

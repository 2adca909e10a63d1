//! Service ID resolution, sans I/O (`rfc-notes/datagram-mapping.md` §10): from a port of rdma_cm's UDP port space to a QP.
//!
//! - [`wire`]: the datagrams;
//! - [`lookup`]: the client, which repeats its lookup until it is answered;
//! - [`listener`]: the service, which passes each lookup to its program once and repeats the answer.
//!
//! Order of calls for both: `handle_input` for each datagram, `handle_timeout` at `poll_timeout`, and after each of
//! these and of the program's own calls `poll_transmit` and `poll_event` until they return nothing. Spurious calls do no harm.

pub mod listener;
pub mod lookup;
#[cfg(test)]
mod simulation_tests;
pub mod wire;

use arrayvec::ArrayVec;

pub use wire::MAX_PRIVATE_DATA;

/// Private data of a lookup or an answer.
pub type PrivateData = ArrayVec<u8, MAX_PRIVATE_DATA>;

/// QP of a service, or of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServiceQp {
    /// Its QPN.
    pub qpn: u32,
    /// Q_Key of messages to it.
    pub qkey: u32,
}

/// Reason of a reject, as on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RejectStatus(pub u16);

impl RejectStatus {
    /// No program listens on the port. InfiniBand's SIDR has this number, too.
    pub const NO_SERVICE: Self = Self(1);
    /// The program rejected the lookup. InfiniBand's SIDR has this number, too.
    pub const REJECTED: Self = Self(2);
}

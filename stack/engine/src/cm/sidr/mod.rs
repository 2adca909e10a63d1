//! The lookup of services, sans I/O (`rfc-notes/datagram-mapping.md` §10): which QP stands behind a port of rdma_cm's UDP port space.
//!
//! - [`wire`]: the datagrams;
//! - [`lookup`]: one end's question, repeated until it is answered;
//! - [`listener`]: the other end, which asks its program once for each question and repeats what the program said.
//!
//! Order of calls for both: `handle_input` for each datagram, `handle_timeout` at the time that `poll_timeout` names, and after each of
//! these and of the program's own calls `poll_transmit` and `poll_event` until they give nothing. Spurious calls do no harm.

pub mod listener;
pub mod lookup;
#[cfg(test)]
mod simulation_tests;
pub mod wire;

use arrayvec::ArrayVec;

pub use wire::MAX_PRIVATE_DATA;

/// What programs say to each other beside the numbers.
pub type PrivateData = ArrayVec<u8, MAX_PRIVATE_DATA>;

/// The QP that a service gives an asker, or that an asker tells of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServiceQp {
    /// Its QPN.
    pub qpn: u32,
    /// The Q_Key that messages to it carry.
    pub qkey: u32,
}

/// Why a service said no, as it travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RejectStatus(pub u16);

impl RejectStatus {
    /// Nobody listens on the port. InfiniBand's SIDR has the same number for it.
    pub const NO_SERVICE: Self = Self(1);
    /// The program behind it said no. InfiniBand's SIDR has the same number for it.
    pub const REJECTED: Self = Self(2);
}

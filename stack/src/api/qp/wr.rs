//! Send work requests of datagram queue pairs.

use dgiwarp_engine::types::{Operation, Sge, ShortData};

use crate::AddressHandle;

/// Where a datagram goes.
#[derive(Debug, Clone)]
pub struct Destination {
    /// The remote host and the path there.
    pub ah: AddressHandle,
    /// The remote QPN: its UDP port. Without meaning for a group.
    pub qpn: u16,
    /// The remote Q_Key; Write-Records do not use it.
    pub qkey: u32,
}

/// A Send of a datagram QP, without immediate, whose octets are in one place.
#[derive(Debug, Clone, Copy)]
pub struct ShortSendWr<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// The remote host and the path there.
    pub ah: &'a AddressHandle,
    /// The remote QPN.
    pub qpn: u16,
    /// The remote Q_Key.
    pub qkey: u32,
    /// The payload.
    pub data: ShortData<'a>,
    /// Whether success makes a completion.
    pub signaled: bool,
    /// Whether the receiver raises a solicited event.
    pub solicited: bool,
}

/// A send work request of a datagram QP (`ibv_send_wr`).
#[derive(Debug, Clone)]
pub struct SendWr<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Operation.
    pub operation: Operation,
    /// Destination.
    pub destination: Destination,
    /// The payload, gathered in this order. It must stay unchanged until the completion.
    pub sges: &'a [Sge],
    /// Whether success makes a completion; errors always do.
    pub signaled: bool,
    /// Whether the receiver raises a solicited event.
    pub solicited: bool,
}

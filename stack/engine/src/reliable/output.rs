//! Datagrams between the associations and the network.

use dgiwarp_llp_udp::{Peer, Train};

/// Datagrams that the network has not taken.
#[derive(Debug, Default)]
pub(super) struct Output {
    /// A train: datagrams of one length, and a last one that may be shorter.
    pub(super) octets: Vec<u8>,
    /// Destination of the train; `None` without one.
    pub(super) peer: Option<Peer>,
    pub(super) train: Train,
    /// A datagram behind the train that does not belong to it.
    pub(super) next: Option<(Peer, Vec<u8>)>,
}

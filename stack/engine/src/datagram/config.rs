//! Settings of a datagram QP's engine.

use std::net::IpAddr;
use std::time::Duration;

use dgiwarp_codec::Payload;
use dgiwarp_llp_udp::{Peer, ShimConfig};
use dgiwarp_rdmap::datagram::read::segment::{About, ReadSegment};
use dgiwarp_rdmap::datagram::{self, AssociationConfig, Secret};

use crate::mr::PdId;

/// The address of ours that something came to, or shall leave from.
pub(super) type Via = Option<IpAddr>;

/// The associations of a QP.
pub type Associations = datagram::Associations<Peer, Via>;

/// Settings of a datagram QP's engine.
#[derive(Debug, Clone, Copy)]
pub struct UdConfig {
    /// QPN: the UDP port number.
    pub qpn: u16,
    /// Protection domain of the QP.
    pub pd: PdId,
    /// Whether it is a UC QP, which receives from its one peer only.
    pub connected: bool,
    /// Q_Key that messages have to carry.
    pub qkey: u32,
    /// Whether receives begin with 40 octets for a GRH, as the verbs ask.
    pub grh: bool,
    /// Capacity of the receive queue, in work requests.
    pub max_recv_wr: usize,
    /// Slots of the record ring; 0 turns the reception of Write-Records off.
    pub record_slots: usize,
    /// Whether all that is sent is copied.
    pub send_copy: bool,
    /// Whether each segment of a record is reported.
    pub segment_completions: bool,
    /// A record without a placement for this long is closed.
    pub record_timeout: Duration,
    /// How many messages a Write-Record may be behind.
    pub reorder_window: u32,
    /// Octets of datagrams that may leave per second; 0 is no limit.
    pub max_rate: u64,
    /// The receive buffer that the socket was granted, in octets.
    pub receive_buffer: usize,
    /// Deadline of Reads that name none, from their posting.
    pub read_timeout: Duration,
    /// Random numbers of this life of the QP.
    pub random: Random,
    /// The stage between UDP and DDP.
    pub shim: ShimConfig,
}

/// Random numbers that distinguish the QP from others, and from its life before a reset.
#[derive(Debug, Clone, Copy)]
pub struct Random {
    /// Epoch, first message number, first MSN.
    pub seed: [u32; 3],
    /// Key of the epochs of groups.
    pub group_key: [u32; 4],
    /// Key of cookies, sink STags and nonces.
    pub secret: [u32; 4],
    /// Part of the handles of records.
    pub record_generation: u32,
}

impl UdConfig {
    pub(super) fn associations(&self) -> Associations {
        let [epoch, number, _] = self.random.seed;
        Associations::new(AssociationConfig {
            epoch,
            group_key: self.random.group_key,
            number,
            secret: self.secret(),
        })
    }

    pub(super) fn secret(&self) -> Secret {
        let [a, b, c, d] = self.random.secret;
        Secret::new([(a, b), (c, d)].map(|(high, low)| u64::from(high) << 32 | u64::from(low)))
    }

    /// Whether the QP takes a segment of Reads. UC has no Reads, but its peer may report errors.
    pub(super) fn takes<P: Payload + ?Sized>(&self, segment: &ReadSegment<'_, P>) -> bool {
        !self.connected
            || matches!(segment, ReadSegment::Terminate(report) if matches!(report.about, About::Message(_)))
    }
}

//! Settings.

use dgiwarp_llp_udp::rd::RdConfig;

use crate::mr::{PdId, StreamId};
use dgiwarp_memory::Access;

/// Settings of a reliable datagram QP's engine.
#[derive(Debug, Clone, Copy)]
pub struct RdQpConfig {
    /// QPN: the UDP port number.
    pub qpn: u16,
    /// Protection domain of the QP.
    pub pd: PdId,
    /// Q_Key that Sends have to carry.
    pub qkey: u32,
    /// Rights that a peer has not, whatever its key grants.
    pub denied: Access,
    /// Attributes of its end of all associations. It grants receives itself, so [`RdConfig::receives`] is 0.
    pub rd: RdConfig,
}

impl RdQpConfig {
    /// Its stream, as the memory table has it.
    pub(super) fn stream(&self) -> StreamId {
        StreamId {
            pd: self.pd,
            qpn: self.qpn.into(),
        }
    }
}

//! Queue pairs that rdma_cm connects: over TCP, or by the transport that both ends agree on.

use dgiwarp::{
    ConnectError, ConnectionChannel, ConnectionPort, MpaConfig, Negotiation, RcQp, RcRdQp,
    RcRequest, ReadDepths, RnrLimits,
};
use std::net::SocketAddr;

/// A queue pair that rdma_cm connects.
#[derive(Clone, Copy)]
pub(crate) enum CmQp<'a> {
    /// Over TCP.
    Tcp(&'a RcQp),
    /// By reliable datagrams where the peer agrees, else over TCP.
    Either(&'a RcRdQp),
}

impl CmQp<'_> {
    /// Begins to connect to a listener.
    pub(crate) fn connect(
        self,
        connections: &ConnectionChannel,
        (port, to): (ConnectionPort, SocketAddr),
        mpa: &MpaConfig,
        private_data: &[u8],
        key: u64,
    ) -> Result<(), ConnectError> {
        match self {
            Self::Tcp(rc) => connections.connect_from(port, rc, to, mpa, private_data, key),
            Self::Either(qp) => {
                connections.connect_datagrams_from(port, qp, to, mpa, private_data, key)
            }
        }
    }

    /// Accepts a request. The program may post from now on.
    pub(crate) fn accept(
        self,
        connections: &ConnectionChannel,
        request: RcRequest,
        depths: ReadDepths,
        private_data: &[u8],
        key: u64,
    ) -> Result<Negotiation, ConnectError> {
        match self {
            Self::Tcp(rc) => {
                rc.open();
                connections.accept_and_tell(request, rc, depths, private_data, key)
            }
            Self::Either(qp) => {
                connections.accept_datagrams_and_tell(request, qp, depths, private_data, key)
            }
        }
    }

    pub(crate) fn limit_rnr(self, limits: RnrLimits) {
        match self {
            Self::Tcp(rc) => rc.limit_rnr(limits),
            Self::Either(qp) => qp.limit_rnr(limits),
        }
    }

    pub(crate) fn flush(self) {
        match self {
            Self::Tcp(rc) => rc.flush(),
            Self::Either(qp) => qp.flush(),
        }
    }

    pub(crate) fn disconnect(self) {
        match self {
            Self::Tcp(rc) => rc.disconnect(),
            Self::Either(qp) => qp.disconnect(),
        }
    }

    pub(crate) fn local_addr(self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(rc) => rc.local_addr(),
            Self::Either(qp) => qp.local_addr(),
        }
    }
}

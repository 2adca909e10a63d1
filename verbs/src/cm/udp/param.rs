//! `struct rdma_ud_param` and address handle attributes of peers and groups.

use crate::abi::{ibv_ah_attr, ibv_global_route, rdma_ud_param};
use crate::cm::device;
use crate::device::gid::{Gid, to_gid};
use dgiwarp::ServiceQp;
use std::net::{IpAddr, SocketAddr};
use std::ptr;

/// `RDMA_UDP_QKEY`: Q_Key of queue pairs that rdma_cm creates, and of all messages between them.
pub(crate) const QKEY: u32 = 0x0123_4567;
/// Hop limit of messages to a single host.
const HOP_LIMIT: u8 = 64;

/// Parameters of an event without a queue pair.
pub(super) fn no_datagram() -> rdma_ud_param {
    rdma_ud_param {
        private_data: ptr::null(),
        private_data_len: 0,
        ah_attr: ibv_ah_attr::default(),
        qp_num: 0,
        qkey: 0,
    }
}

/// Parameters to send to a queue pair of the peer.
pub(super) fn datagram(local: SocketAddr, peer: IpAddr, qp: ServiceQp) -> rdma_ud_param {
    let sgid_index = source(local, peer).map_or(0, |(index, _)| index);
    rdma_ud_param {
        ah_attr: ah_attr(peer, sgid_index, HOP_LIMIT),
        qp_num: qp.qpn,
        qkey: qp.qkey,
        ..no_datagram()
    }
}

/// Address handle attributes of a destination.
pub(crate) fn ah_attr(to: IpAddr, sgid_index: u8, hop_limit: u8) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: to_gid(to),
            sgid_index,
            hop_limit,
            ..ibv_global_route::default()
        },
        is_global: 1,
        port_num: 1,
        ..ibv_ah_attr::default()
    }
}

/// Index and interface of the source GID: that of the identifier's address if it is of the destination's family, else a GID of
/// that family on the same interface.
pub(crate) fn source(local: SocketAddr, to: IpAddr) -> Option<(u8, u32)> {
    let scope = match local {
        SocketAddr::V6(v6) => v6.scope_id(),
        SocketAddr::V4(_) => 0,
    };
    let is_own = |gid: &Gid| gid.address == local.ip() && (scope == 0 || scope == gid.ifindex);
    let device = device::device().ok()?;
    device.context().ok()?.with_gids(|gids| {
        let own = gids.iter().find(|(_, gid)| is_own(gid));
        // Every address of 127.0.0.0/8 is this host's, and the table has one of them.
        let own = own.or_else(|| {
            let loopback = local.ip().is_loopback();
            gids.iter().find(|(_, gid)| gid.loopback == loopback)
        });
        let (_, own_gid) = own?;
        let fits =
            |gid: &Gid| gid.ifindex == own_gid.ifindex && gid.address.is_ipv4() == to.is_ipv4();
        let fitting = own.filter(|(_, gid)| fits(gid));
        let fitting = fitting.or_else(|| gids.iter().find(|(_, gid)| fits(gid)));
        let (index, gid) = fitting.or(own)?;
        Some((u8::try_from(index).ok()?, gid.ifindex))
    })
}

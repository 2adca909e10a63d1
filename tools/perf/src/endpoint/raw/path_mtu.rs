//! The largest datagram of a connected UDP socket without IP fragmentation.

use std::fs;
use std::net::{IpAddr, UdpSocket};

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{getsockopt, sockopt};

use crate::error::{IoContext, Result};

/// IPv4 and UDP headers, without options.
pub(crate) const HEADERS_IPV4: u64 = 20 + 8;
/// IPv6 and UDP headers.
const HEADERS_IPV6: u64 = 40 + 8;
/// The largest payload of a UDP datagram over IPv4.
const MAX_PAYLOAD: u64 = 65_507;
/// Every IPv6 link carries this much.
const MIN_MTU_IPV6: u64 = 1280;

/// Payload bytes of the largest unfragmented datagram on the way to the socket's peer, whose MTU counts
/// as at most `limit` unless that is 0.
pub(crate) fn datagram_payload(socket: &UdpSocket, limit: u32) -> Result<u64> {
    let limit = match limit {
        0 => u64::MAX,
        limit => u64::from(limit),
    };
    let local = socket.local_addr().during("read a local address")?;
    let payload = match local.ip() {
        IpAddr::V4(_) => {
            let mtu = getsockopt(socket, sockopt::IpMtu).during("read the path's MTU")?;
            u64::try_from(mtu)
                .unwrap_or(0)
                .min(limit)
                .saturating_sub(HEADERS_IPV4)
        }
        IpAddr::V6(_) => link_mtu(local.ip())
            .unwrap_or(MIN_MTU_IPV6)
            .min(limit)
            .saturating_sub(HEADERS_IPV6),
    };
    Ok(payload.clamp(512, MAX_PAYLOAD))
}

/// The MTU of the interface with this address.
fn link_mtu(address: IpAddr) -> Option<u64> {
    let interface = getifaddrs().ok()?.find(|interface| {
        interface
            .address
            .as_ref()
            .and_then(|found| found.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
            == Some(address)
    })?;
    let path = format!("/sys/class/net/{}/mtu", interface.interface_name);
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_carries_large_datagrams() {
        let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(peer.local_addr().unwrap()).unwrap();
        let payload = datagram_payload(&socket, 0).unwrap();
        assert!((512..=MAX_PAYLOAD).contains(&payload));
        // A datagram of this length is really sent in one piece.
        let length = usize::try_from(payload).unwrap();
        assert_eq!(socket.send(&vec![0; length]).unwrap(), length);
        assert_eq!(datagram_payload(&socket, 1500).unwrap(), 1472);
    }
}

//! Addresses of peers.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// Where a peer is. An enum, because peers on the same host will have other addresses than these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Peer {
    /// An IP address and the UDP port that is the peer's QPN.
    Ip(SocketAddr),
}

impl Peer {
    /// The peer at an IP address. An IPv4-mapped IPv6 address is the IPv4 address that it maps: a peer
    /// has one name, whatever kind of socket its datagrams come through.
    #[must_use]
    #[inline]
    pub fn ip(address: SocketAddr) -> Self {
        match address {
            SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
                Some(v4) => Self::Ip((v4, v6.port()).into()),
                None => Self::Ip(address),
            },
            SocketAddr::V4(_) => Self::Ip(address),
        }
    }

    /// The socket address, if it has one.
    #[must_use]
    #[inline]
    pub fn socket_addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Ip(address) => Some(*address),
        }
    }

    /// The IP address, if it has one.
    #[must_use]
    pub fn ip_addr(&self) -> Option<IpAddr> {
        self.socket_addr().map(|address| address.ip())
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_and_plain_addresses_are_one_peer() {
        let plain = Peer::ip("192.0.2.7:4000".parse().unwrap());
        let mapped = Peer::ip("[::ffff:192.0.2.7]:4000".parse().unwrap());
        assert_eq!(plain, mapped);
        assert_eq!(mapped.to_string(), "192.0.2.7:4000");
        assert_ne!(plain, Peer::ip("[2001:db8::1]:4000".parse().unwrap()));
    }
}

//! Identities of peers.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// Identity of a peer of a datagram queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Peer {
    /// An IP address and the UDP port that is the peer's QPN.
    Ip(SocketAddr),
}

impl Peer {
    /// The peer at an IP address. IPv4-mapped IPv6 addresses become IPv4 addresses: a peer has one identity, whichever
    /// socket its datagrams arrive at.
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
        let address = plain.socket_addr().unwrap();
        assert_eq!(address, "192.0.2.7:4000".parse().unwrap());
        assert_eq!(plain.ip_addr(), Some(address.ip()));
        let v6: SocketAddr = "[2001:db8::1]:4000".parse().unwrap();
        assert_ne!(plain, Peer::ip(v6));
        assert_eq!(Peer::ip(v6).socket_addr(), Some(v6));
    }
}

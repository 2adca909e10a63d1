//! Broadcast and multicast: which addresses are groups.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};

use socket2::{Domain, Protocol, Socket, Type};

/// Whether all hosts of a network get what is sent to this address. The kernel knows its networks: it lets no
/// socket connect to a broadcast address that was not allowed to.
pub(crate) fn is_broadcast(address: Ipv4Addr) -> io::Result<bool> {
    if address.is_broadcast() {
        return Ok(true);
    }
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    // Any port does; 9 is discard.
    let connected = socket.connect(&SocketAddrV4::new(address, 9).into());
    Ok(connected.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied))
}

/// Addresses of ours that are known to be those of one host, so that the kernel is asked once for each.
#[derive(Debug, Default)]
pub(crate) struct HostAddresses {
    known: [Option<Ipv4Addr>; 4],
    next: usize,
}

impl HostAddresses {
    /// Whether a datagram that was sent to `to` was meant for a group.
    #[inline]
    pub(crate) fn is_group(&mut self, to: IpAddr) -> bool {
        match to {
            IpAddr::V6(v6) => v6.is_multicast(),
            IpAddr::V4(v4) => !self.known.contains(&Some(v4)) && self.ask(v4),
        }
    }

    fn ask(&mut self, address: Ipv4Addr) -> bool {
        if address.is_multicast() {
            return true;
        }
        // In doubt a group: such datagrams may do less.
        let group = is_broadcast(address).unwrap_or(true);
        if !group {
            self.known[self.next] = Some(address);
            self.next = (self.next + 1) % self.known.len();
        }
        group
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_told_from_hosts() {
        let mut hosts = HostAddresses::default();
        for _ in 0..2 {
            for host in ["127.0.0.1", "127.0.0.2", "127.1.2.3", "::1", "fe80::1"] {
                assert!(!hosts.is_group(host.parse().unwrap()), "{host}");
            }
            for group in ["127.255.255.255", "255.255.255.255", "224.0.0.1", "ff02::1"] {
                assert!(hosts.is_group(group.parse().unwrap()), "{group}");
            }
        }
    }
}

//! Broadcast and multicast: addresses of groups, and the sockets of a QP that belongs to some.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};

use nix::errno::Errno;
use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::{InterfaceFlags, if_nametoindex};
use socket2::{Domain, Protocol, Socket, Type};

use crate::driver::reactor::member::SocketIndex;
use crate::driver::udp::port::Port;

/// Whether all hosts of a network receive datagrams to this address. The kernel has the networks: it lets no
/// socket without `SO_BROADCAST` connect to a broadcast address.
pub(crate) fn is_broadcast(address: Ipv4Addr) -> io::Result<bool> {
    if address.is_broadcast() {
        return Ok(true);
    }
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    // Any port does; 9 is discard.
    let connected = socket.connect(&SocketAddrV4::new(address, 9).into());
    Ok(connected.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied))
}

/// Whether the address is a group's by itself: any multicast address, and the broadcast to the sender's network.
pub(crate) fn is_known(address: IpAddr) -> bool {
    address.is_multicast() || address == IpAddr::V4(Ipv4Addr::BROADCAST)
}

/// The index of the interface that has this address.
pub(crate) fn interface_of(address: IpAddr) -> io::Result<u32> {
    let has_it = |interface: &InterfaceAddress| {
        // The loopback interface has all of 127.0.0.0/8, of which it names one.
        if address.is_loopback() {
            return interface.flags.contains(InterfaceFlags::IFF_LOOPBACK);
        }
        let own = interface.address.as_ref();
        let v4 = own
            .and_then(|own| own.as_sockaddr_in())
            .map(|own| IpAddr::V4(own.ip()));
        let v6 = own
            .and_then(|own| own.as_sockaddr_in6())
            .map(|own| IpAddr::V6(own.ip()));
        v4.or(v6) == Some(address)
    };
    let found = getifaddrs()?.find(has_it).ok_or(Errno::EADDRNOTAVAIL)?;
    Ok(if_nametoindex(found.interface_name.as_str())?)
}

/// Groups that one QP belongs to at most.
pub(crate) const MAX_GROUPS: usize = 64;
/// The index of the first member socket of a QP.
const FIRST: SocketIndex = 16;

/// A group on an interface; index 0 stands for the kernel's choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Membership {
    pub(crate) group: IpAddr,
    pub(crate) interface: u32,
}

/// Why a QP does not receive from a group.
#[derive(Debug)]
pub(crate) enum GroupError {
    /// The QP is a member already.
    Attached,
    /// The QP has the most memberships that are allowed.
    TooMany,
    System(io::Error),
}

/// The sockets that receive datagrams to the groups of a QP.
#[derive(Debug, Default)]
pub(crate) struct Members {
    places: Vec<Option<(Membership, Port)>>,
}

impl Members {
    /// Whether a socket at this index would be one of these.
    pub(crate) fn have(index: SocketIndex) -> bool {
        index >= FIRST
    }

    pub(crate) fn find(&self, membership: Membership) -> Option<SocketIndex> {
        let place = self
            .places
            .iter()
            .position(|place| place.as_ref().is_some_and(|it| it.0 == membership))?;
        SocketIndex::try_from(place).ok()?.checked_add(FIRST)
    }

    /// Keeps the socket of a new membership. `None` if there are as many as may be.
    pub(crate) fn add(&mut self, membership: Membership, socket: Port) -> Option<SocketIndex> {
        let free = self.places.iter().position(Option::is_none);
        let place = match free {
            Some(place) => place,
            None if self.places.len() < MAX_GROUPS => {
                self.places.push(None);
                self.places.len() - 1
            }
            None => return None,
        };
        self.places[place] = Some((membership, socket));
        SocketIndex::try_from(place).ok()?.checked_add(FIRST)
    }

    pub(crate) fn remove(&mut self, index: SocketIndex) {
        if let Some(place) = Self::place(index).and_then(|place| self.places.get_mut(place)) {
            *place = None;
        }
    }

    pub(crate) fn get(&self, index: SocketIndex) -> Option<&Port> {
        let place = self.places.get(Self::place(index)?)?;
        place.as_ref().map(|(_, socket)| socket)
    }

    pub(crate) fn get_mut(&mut self, index: SocketIndex) -> Option<&mut Port> {
        let place = Self::place(index)?;
        self.places
            .get_mut(place)?
            .as_mut()
            .map(|(_, socket)| socket)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Port> {
        self.places.iter().flatten().map(|(_, socket)| socket)
    }

    fn place(index: SocketIndex) -> Option<usize> {
        index.checked_sub(FIRST).map(usize::from)
    }
}

/// Cache of addresses of ours that are those of one host, so that the kernel is asked once for each.
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
        // In doubt a group: such datagrams have fewer rights.
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

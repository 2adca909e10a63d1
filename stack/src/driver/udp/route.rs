//! Routes of the kernel to a host.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::num::NonZeroU32;
use std::os::fd::AsFd;

use dgiwarp_memory::socket;
use nix::sys::socket::{getsockopt, sockopt};
use socket2::{Domain, Protocol, Socket, Type};

use crate::driver::udp::multicast as groups;
use dgiwarp_engine::types::Route;

/// A route as the kernel reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KernelRoute {
    /// MTU in octets.
    pub(crate) mtu: u32,
    /// The source address that the kernel chooses.
    pub(crate) source: IpAddr,
    /// Whether it leads to more than one host.
    pub(crate) group: bool,
}

/// Asks the kernel for the route to a host, by connecting a socket that sends nothing.
pub(crate) fn look_up(destination: IpAddr, scope_id: u32) -> io::Result<KernelRoute> {
    find(destination, scope_id, None)
}

/// Asks again for the route that an address handle was made with.
pub(crate) fn look_up_again(route: &Route) -> io::Result<KernelRoute> {
    if route.is_group() {
        look_up_group(route.destination(), route.scope_id(), route.source())
    } else {
        look_up(route.destination(), route.scope_id())
    }
}

/// Asks for the route to a multicast group or to all of the network (255.255.255.255), through an interface and from an
/// address of ours where these are chosen: no route to the group itself is needed then.
pub(crate) fn look_up_group(
    group: IpAddr,
    interface: u32,
    source: Option<IpAddr>,
) -> io::Result<KernelRoute> {
    let route = find(group, interface, source)?;
    if !route.source.is_unspecified() {
        return Ok(route);
    }
    // The kernel takes a loopback address as source only on request; without a source nobody could answer.
    find(group, interface, Some(Ipv4Addr::LOCALHOST.into()))
}

fn find(destination: IpAddr, interface: u32, source: Option<IpAddr>) -> io::Result<KernelRoute> {
    // Any port does; 9 is discard.
    let address: SocketAddr = match destination {
        IpAddr::V4(v4) => (v4, 9).into(),
        IpAddr::V6(v6) => SocketAddrV6::new(v6, 9, 0, interface).into(),
    };
    let socket = Socket::new(
        Domain::for_address(address),
        Type::DGRAM,
        Some(Protocol::UDP),
    )?;
    if groups::is_known(destination) {
        choose(&socket, destination, interface, source)?;
    }
    let broadcast = match socket.connect(&address.into()) {
        Ok(()) => false,
        // The kernel lets no socket without `SO_BROADCAST` connect to a broadcast address.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            socket.set_broadcast(true)?;
            socket.connect(&address.into())?;
            true
        }
        Err(error) => return Err(error),
    };
    let source = socket
        .local_addr()?
        .as_socket()
        .map_or_else(|| unspecified(destination), |local| local.ip());
    let mtu = match destination {
        IpAddr::V4(_) => {
            let mtu = getsockopt(&socket, sockopt::IpMtu)?;
            u32::try_from(mtu).map_err(io::Error::other)?
        }
        IpAddr::V6(_) => socket::ipv6_route_mtu(socket.as_fd())?,
    };
    Ok(KernelRoute {
        mtu,
        source,
        group: broadcast || destination.is_multicast(),
    })
}

/// Ties a socket to an interface and an address of ours.
fn choose(
    socket: &Socket,
    destination: IpAddr,
    interface: u32,
    source: Option<IpAddr>,
) -> io::Result<()> {
    let device = NonZeroU32::new(interface);
    match (destination, source) {
        (IpAddr::V4(_), Some(IpAddr::V4(v4))) => socket.bind(&SocketAddrV4::new(v4, 0).into())?,
        (IpAddr::V6(_), Some(IpAddr::V6(v6))) => {
            socket.bind(&SocketAddrV6::new(v6, 0, 0, interface).into())?;
        }
        (IpAddr::V4(_) | IpAddr::V6(_), None) => {}
        (IpAddr::V4(_), Some(IpAddr::V6(_))) | (IpAddr::V6(_), Some(IpAddr::V4(_))) => {
            return Err(io::ErrorKind::InvalidInput.into());
        }
    }
    match destination {
        IpAddr::V4(_) if device.is_some() => socket.bind_device_by_index_v4(device),
        IpAddr::V6(_) if device.is_some() => socket.bind_device_by_index_v6(device),
        IpAddr::V4(_) | IpAddr::V6(_) => Ok(()),
    }
}

fn unspecified(like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// Whether a host is this one: the kernel then sends from the very address. A group on the loopback interface has no members elsewhere.
pub(crate) fn is_local(destination: IpAddr, route: KernelRoute) -> bool {
    destination.is_loopback()
        || destination == route.source
        || (route.group && route.source.is_loopback())
}

/// Whether the peer of a connection from an address of ours is this host too, by the one or by another of its addresses.
pub(crate) fn is_of_this_host(ours: IpAddr, theirs: SocketAddr) -> bool {
    let peer = theirs.ip().to_canonical();
    if peer == ours.to_canonical() || peer.is_loopback() {
        return true;
    }
    let scope_id = match theirs {
        SocketAddr::V6(v6) => v6.scope_id(),
        SocketAddr::V4(_) => 0,
    };
    look_up(peer, scope_id).is_ok_and(|route| is_local(peer, route))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_local_and_has_a_large_mtu() {
        let loopback = IpAddr::from([127, 0, 0, 1]);
        let route = look_up(loopback, 0).unwrap();
        assert!(is_local(loopback, route));
        assert!(route.mtu >= 1500);
    }

    #[test]
    fn every_address_of_this_host_is_of_this_host() {
        let at = |ip: IpAddr| SocketAddr::new(ip, 7471);
        let loopback = IpAddr::from([127, 0, 0, 1]);
        let own = nix::ifaddrs::getifaddrs().unwrap();
        let own = own.filter_map(|it| Some(it.address?.as_sockaddr_in()?.ip()));
        for address in own.map(IpAddr::from).chain([[127, 9, 9, 9].into()]) {
            assert!(is_of_this_host(loopback, at(address)), "{address}");
            assert!(is_of_this_host(address, at(address)), "{address}");
            let mapped = match address {
                IpAddr::V4(v4) => v4.to_ipv6_mapped().into(),
                IpAddr::V6(_) => address,
            };
            assert!(is_of_this_host(mapped, at(mapped)), "{mapped}");
        }
        // A documentation address (RFC 5737), whether there is a route to it or none.
        let elsewhere = [[192, 0, 2, 1], [198, 51, 100, 1]].map(IpAddr::from);
        assert!(!is_of_this_host(loopback, at(elsewhere[0])));
        assert!(!is_of_this_host(elsewhere[1], at(elsewhere[0])));
    }

    #[test]
    fn a_group_is_on_the_interface_of_its_source() {
        let loopback = IpAddr::from([127, 0, 0, 1]);
        for group in [[239, 1, 2, 3], [255; 4]] {
            let route = look_up_group(group.into(), 0, Some(loopback)).unwrap();
            assert_eq!((route.source, route.group), (loopback, true));
            assert!(is_local(group.into(), route), "{group:?}");
        }
        let broadcast = IpAddr::from([127, 255, 255, 255]);
        assert!(look_up(broadcast, 0).unwrap().group);
        assert!(!look_up(loopback, 0).unwrap().group);
    }
}

//! What the kernel knows of the path to a host.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::AsFd;

use dgiwarp_memory::socket;
use nix::sys::socket::{getsockopt, sockopt};
use socket2::{Domain, Protocol, Socket, Type};

/// A route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Route {
    /// MTU in octets.
    pub(crate) mtu: u32,
    /// The source address that the kernel chooses.
    pub(crate) source: IpAddr,
}

/// Asks the kernel for the route to a host, by connecting a socket that sends nothing.
pub(crate) fn look_up(destination: IpAddr, scope_id: u32) -> io::Result<Route> {
    // Any port does; 9 is discard.
    let address = match destination {
        IpAddr::V4(v4) => SocketAddr::from((v4, 9)),
        IpAddr::V6(v6) => SocketAddrV6::new(v6, 9, 0, scope_id).into(),
    };
    let socket = Socket::new(
        Domain::for_address(address),
        Type::DGRAM,
        Some(Protocol::UDP),
    )?;
    socket.set_broadcast(true)?;
    socket.connect(&address.into())?;
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
    Ok(Route { mtu, source })
}

fn unspecified(like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// Whether a host is this one: the kernel then sends from the very address.
pub(crate) fn is_local(destination: IpAddr, route: Route) -> bool {
    destination.is_loopback() || destination == route.source
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
}

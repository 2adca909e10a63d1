//! C structs of socket addresses.

use crate::abi::{AF_IB, sockaddr_ib};
use crate::device::gid::host_gids;
use crate::ffi::load;
use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};
use nix::errno::Errno;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};

/// The address behind a pointer. Families other than IPv4 and IPv6 are `EAFNOSUPPORT`.
///
/// # Safety
/// `pointer` is NULL or points to an address as long as its family needs.
pub(crate) unsafe fn read(pointer: *const sockaddr) -> Result<SocketAddr, Errno> {
    // SAFETY: the caller's contract; every address begins with its family.
    let family = unsafe { load(pointer.cast::<libc::sa_family_t>()) }?;
    match libc::c_int::from(family) {
        libc::AF_INET => {
            // SAFETY: the family is that of this struct.
            let v4 = unsafe { load(pointer.cast::<sockaddr_in>()) }?;
            let address = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Ok((address, u16::from_be(v4.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the family is that of this struct.
            let v6 = unsafe { load(pointer.cast::<sockaddr_in6>()) }?;
            let address = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let (port, flow) = (u16::from_be(v6.sin6_port), v6.sin6_flowinfo);
            Ok(SocketAddrV6::new(address, port, flow, v6.sin6_scope_id).into())
        }
        _ => Err(Errno::EAFNOSUPPORT),
    }
}

/// The address behind a pointer, which may also be an InfiniBand address (`AF_IB`): a GID, which is an IP address, and
/// a service ID, whose lowest 16 bits are the port number.
///
/// # Safety
/// As for [`read`].
pub(crate) unsafe fn read_any(pointer: *const sockaddr) -> Result<SocketAddr, Errno> {
    // SAFETY: the caller's contract; every address begins with its family.
    let family = unsafe { load(pointer.cast::<libc::sa_family_t>()) }?;
    if libc::c_int::from(family) != AF_IB {
        // SAFETY: the caller's contract is the same.
        return unsafe { read(pointer) };
    }
    // SAFETY: the family is that of this struct.
    let ib = unsafe { load(pointer.cast::<sockaddr_ib>()) }?;
    let [.., high, low] = ib.sib_sid.to_ne_bytes();
    let port = u16::from_be_bytes([high, low]);
    let scope = u32::try_from(ib.sib_scope_id).unwrap_or(0);
    let gid = Ipv6Addr::from(ib.sib_addr);
    Ok(canonical(
        SocketAddrV6::new(gid, port, ib.sib_flowinfo, scope).into(),
    ))
}

/// The InfiniBand address of an IP address, its GID, in a port space; [`read_any`] reads it.
pub(crate) fn infiniband(address: SocketAddr, space: u64) -> sockaddr_ib {
    let (ip, flow, scope) = match address {
        SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped(), 0, 0),
        SocketAddr::V6(v6) => (*v6.ip(), v6.flowinfo(), v6.scope_id()),
    };
    let service = |space: u64, port: u16| (space << 16 | u64::from(port)).to_be();
    let space_mask = if space == 0 { 0 } else { u64::MAX >> 16 };
    let port_mask = if address.port() == 0 { 0 } else { u16::MAX };
    sockaddr_ib {
        sib_family: family(AF_IB),
        // The default partition.
        sib_pkey: u16::MAX,
        sib_flowinfo: flow,
        sib_addr: ip.octets(),
        sib_sid: service(space, address.port()),
        sib_sid_mask: service(space_mask, port_mask),
        sib_scope_id: u64::from(scope),
    }
}

/// No address: the unspecified family.
pub(crate) fn none() -> sockaddr_storage {
    // SAFETY: plain data for which zero is a valid value.
    unsafe { std::mem::zeroed() }
}

/// The C struct of an address, and its length in octets.
pub(crate) fn write(address: SocketAddr) -> (sockaddr_storage, libc::socklen_t) {
    let mut storage = none();
    let length = match address {
        SocketAddr::V4(v4) => {
            let c = sockaddr_in {
                sin_family: family(libc::AF_INET),
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from(*v4.ip()).to_be(),
                },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage is as long and as aligned as any address.
            unsafe { (&raw mut storage).cast::<sockaddr_in>().write(c) };
            size_of::<sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            let c = sockaddr_in6 {
                sin6_family: family(libc::AF_INET6),
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr {
                    s6_addr: v6.ip().octets(),
                },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: the storage is as long and as aligned as any address.
            unsafe { (&raw mut storage).cast::<sockaddr_in6>().write(c) };
            size_of::<sockaddr_in6>()
        }
    };
    (storage, libc::socklen_t::try_from(length).unwrap_or(0))
}

fn family(family: libc::c_int) -> libc::sa_family_t {
    libc::sa_family_t::try_from(family).unwrap_or(0)
}

/// An address with IPv4-mapped IPv6 converted to IPv4.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(v4) => (v4, address.port()).into(),
        IpAddr::V6(_) => address,
    }
}

/// The address of the socket for a program's address: its port number is `offset` (`DGIWARP_PORT_OFFSET`) higher. Port
/// number 0, the system's choice, stays 0.
pub(crate) fn to_socket(mut address: SocketAddr, offset: u16) -> SocketAddr {
    if address.port() != 0 {
        address.set_port(address.port().wrapping_add(offset));
    }
    address
}

/// The program's address for that of a socket.
pub(crate) fn from_socket(mut address: SocketAddr, offset: u16) -> SocketAddr {
    if address.port() != 0 {
        address.set_port(address.port().wrapping_sub(offset));
    }
    address
}

/// The local address that routes to a destination. `from` is bound already.
pub(crate) fn towards(from: Option<SocketAddr>, to: SocketAddr) -> Result<SocketAddr, Errno> {
    let any: SocketAddr = match to {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let mut bind = from.filter(|it| !it.ip().is_unspecified()).unwrap_or(any);
    bind.set_port(0);
    if bind.is_ipv4() != to.is_ipv4() {
        return Err(Errno::EINVAL);
    }
    // Connecting a datagram socket looks up the route and sends nothing. Any port number does.
    let mut probe = to;
    if probe.port() == 0 {
        probe.set_port(1);
    }
    let ask = || {
        let socket = UdpSocket::bind(bind)?;
        socket.connect(probe)?;
        socket.local_addr()
    };
    let mut found = match ask() {
        Ok(found) => found,
        // Groups need no route: the interface is that of the local address.
        Err(error) if to.ip().is_multicast() => {
            let chosen = Some(bind).filter(|bind| !bind.ip().is_unspecified());
            let chosen = chosen.or_else(|| first_of_kind(to));
            chosen.ok_or_else(|| crate::ffi::errno::of_io(&error))?
        }
        Err(error) => return Err(crate::ffi::errno::of_io(&error)),
    };
    found.set_port(from.map_or(0, |from| from.port()));
    Ok(found)
}

/// The host's first address of the family of `as_this`.
fn first_of_kind(as_this: SocketAddr) -> Option<SocketAddr> {
    let gids = host_gids().ok()?;
    let mut gids = gids.iter();
    let found = gids.find(|gid| gid.address.is_ipv4() == as_this.is_ipv4())?;
    Some(match found.address {
        IpAddr::V4(v4) => (v4, 0).into(),
        IpAddr::V6(v6) if v6.is_unicast_link_local() => {
            SocketAddrV6::new(v6, 0, 0, found.ifindex).into()
        }
        IpAddr::V6(v6) => (v6, 0).into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_convert_both_ways() {
        for text in ["192.0.2.7:4791", "[2001:db8::1]:1", "[fe80::1%3]:65535"] {
            let address: SocketAddr = text.parse().unwrap();
            let (c, length) = write(address);
            assert!(length > 0);
            // SAFETY: as long as any address.
            assert_eq!(unsafe { read((&raw const c).cast()) }, Ok(address));
        }
        // SAFETY: NULL is allowed.
        assert_eq!(unsafe { read(std::ptr::null()) }, Err(Errno::EINVAL));
        let nothing = none();
        assert_eq!(
            // SAFETY: as long as any address.
            unsafe { read((&raw const nothing).cast()) },
            Err(Errno::EAFNOSUPPORT)
        );
    }

    #[test]
    fn infiniband_addresses_have_a_gid_and_a_service_of_a_port_space() {
        for (text, gid) in [
            ("192.0.2.7:4791", "::ffff:192.0.2.7"),
            ("[fe80::1%3]:65535", "fe80::1"),
        ] {
            let address: SocketAddr = text.parse().unwrap();
            let ib = infiniband(address, 0x106);
            assert_eq!(Ipv6Addr::from(ib.sib_addr).to_string(), gid);
            assert_eq!(
                u64::from_be(ib.sib_sid),
                0x106_0000 | u64::from(address.port())
            );
            assert_eq!(ib.sib_sid_mask, u64::MAX);
            assert_eq!(ib.sib_pkey, 0xffff);
            // SAFETY: an address of that family.
            assert_eq!(unsafe { read_any((&raw const ib).cast()) }, Ok(address));
        }
        let any = infiniband("[::]:0".parse().unwrap(), 0x106);
        assert_eq!(u64::from_be(any.sib_sid_mask), 0xffff_ffff_ffff_0000);
        assert_eq!(infiniband("[::]:0".parse().unwrap(), 0).sib_sid_mask, 0);
    }

    #[test]
    fn the_offset_is_between_socket_and_program_only() {
        let program: SocketAddr = "127.0.0.1:7174".parse().unwrap();
        let socket = to_socket(program, 100);
        assert_eq!(socket.port(), 7274);
        assert_eq!(from_socket(socket, 100), program);
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        assert_eq!(to_socket(any, 100), any);
    }

    #[test]
    fn a_destination_says_the_source() {
        let other = Some("192.0.2.1:1".parse().unwrap());
        assert_eq!(
            towards(other, "127.0.0.9:0".parse().unwrap()),
            Err(Errno::EADDRNOTAVAIL)
        );
        let loopback = towards(None, "127.0.0.9:0".parse().unwrap()).unwrap();
        assert_eq!(loopback.to_string(), "127.0.0.1:0");
    }
}

//! Binding an identifier to a local address.

use crate::cm::id::identifier::{Id, Inner, State, Transport};
use crate::device::context::{refresh_gids, with_gids};
use crate::device::gid::GidTable;
use nix::errno::Errno;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, MutexGuard};

/// Whether an identifier that is bound to the address is bound to the device.
///
/// The kernel takes loopback addresses for unspecified ones (`cma_any_addr`), and a program that only queries an address relies on it: libfabric, with a
/// `synchronous` identifier and port 0, announces the address to other hosts if that has a device, and else searches the device's addresses for one that
/// they reach. Programs that listen at loopback addresses for tests find the device there, as does all on a host without other addresses.
fn is_of_device(address: SocketAddr, synchronous: bool, gids: &GidTable) -> bool {
    let ip = address.ip().to_canonical();
    let queries = synchronous && address.port() == 0 && ip.is_loopback();
    let reaches_others = || gids.iter().any(|(_, gid)| !gid.loopback);
    !(ip.is_unspecified() || queries && reaches_others())
}

/// Binds an identifier to an address, and to the device if the address is one of its.
pub(crate) fn bind(id: &Arc<Id>, to: SocketAddr) -> Result<(), Errno> {
    let mut inner = id.lock();
    inner.expect(State::Idle)?;
    bind_port(&mut inner, to)?;
    refresh_gids()?;
    let synchronous = inner.synchronous;
    if with_gids(|gids| is_of_device(to, synchronous, gids)) {
        id.bind_device()?;
    }
    inner.state = State::Bound;
    id.write_addresses(&inner);
    Ok(())
}

/// The locked state of a bound identifier. An idle one is bound to the unspecified address and a port number of the system's choice.
pub(crate) fn bound(id: &Arc<Id>) -> Result<MutexGuard<'_, Inner>, Errno> {
    if id.lock().state == State::Idle {
        bind(id, (Ipv4Addr::UNSPECIFIED, 0).into())?;
    }
    let inner = id.lock();
    inner.expect(State::Bound).map(|()| inner)
}

/// Binds a port number: the program's, or one of the system's choice for 0.
pub(super) fn bind_port(inner: &mut Inner, to: SocketAddr) -> Result<(), Errno> {
    let options = inner.options;
    let bound = match &mut inner.transport {
        Transport::Tcp(tcp) => tcp.bind(to, options)?,
        Transport::Udp(udp) => udp.bind(to, options)?,
        Transport::Closed => return Err(Errno::EINVAL),
    };
    inner.local = Some(bound);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::gid::Gid;
    use std::net::IpAddr;

    #[test]
    fn a_query_of_loopback_finds_no_device_where_there_are_other_addresses() {
        let table = |addresses: &[&str]| {
            let gid = |text: &&str| {
                let address: IpAddr = text.parse().unwrap();
                Gid {
                    address,
                    ifindex: 1,
                    interface: "any".to_owned(),
                    loopback: address.is_loopback(),
                }
            };
            let mut table = GidTable::new();
            table.update(addresses.iter().map(gid).collect());
            table
        };
        let (alone, host) = (
            table(&["127.0.0.1", "::1"]),
            table(&["192.0.2.1", "127.0.0.1"]),
        );
        let of = |address: &str, synchronous, gids| {
            is_of_device(address.parse().unwrap(), synchronous, gids)
        };
        for ip in ["127.0.0.1", "127.0.0.2", "[::1]", "[::ffff:127.0.0.1]"] {
            let (query, listener) = (format!("{ip}:0"), format!("{ip}:9"));
            assert!(of(&query, true, &alone) && !of(&query, true, &host), "{ip}");
            assert!(
                of(&query, false, &host) && of(&listener, true, &host),
                "{ip}"
            );
        }
        assert!(of("192.0.2.1:0", true, &host));
        for any in ["0.0.0.0:0", "[::]:0", "0.0.0.0:9"] {
            assert!(!of(any, true, &alone) && !of(any, false, &host), "{any}");
        }
    }
}

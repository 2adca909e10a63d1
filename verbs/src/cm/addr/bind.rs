//! Binding an identifier to a local address.

use crate::cm::id::identifier::{Id, Inner, State, Transport};
use crate::device::context::{refresh_gids, with_gids};
use crate::device::gid::GidTable;
use nix::errno::Errno;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, MutexGuard};

/// Whether an identifier that is bound to the address is bound to the device. The kernel takes loopback addresses for unspecified ones (`cma_any_addr`), and programs such as libfabric, which then
/// search the device's addresses for one that other hosts reach, rely on it. A host that has no others uses loopback.
fn is_of_device(address: IpAddr, gids: &GidTable) -> bool {
    let reaches_others = || gids.iter().any(|(_, gid)| !gid.loopback);
    !(address.is_unspecified() || address.to_canonical().is_loopback() && reaches_others())
}

/// Binds an identifier to an address, and to the device if the address is one of its.
pub(crate) fn bind(id: &Arc<Id>, to: SocketAddr) -> Result<(), Errno> {
    let mut inner = id.lock();
    inner.expect(State::Idle)?;
    bind_port(&mut inner, to)?;
    refresh_gids()?;
    if with_gids(|gids| is_of_device(to.ip(), gids)) {
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

    #[test]
    fn loopback_is_of_the_device_where_there_is_nothing_else() {
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
        let of = |address: &str, gids| is_of_device(address.parse().unwrap(), gids);
        for loopback in ["127.0.0.1", "127.0.0.2", "::1", "::ffff:127.0.0.1"] {
            assert!(of(loopback, &alone) && !of(loopback, &host), "{loopback}");
        }
        assert!(of("192.0.2.1", &host));
        for any in ["0.0.0.0", "::"] {
            assert!(!of(any, &alone) && !of(any, &host));
        }
    }
}

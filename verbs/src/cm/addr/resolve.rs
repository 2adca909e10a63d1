//! Addresses and routes: `rdma_bind_addr(3)`, `rdma_resolve_addr(3)`, `rdma_resolve_route(3)`.

use crate::abi::rdma_cm_id;
use crate::cm::addr::address;
use crate::cm::addr::bind::{bind, bind_port};
use crate::cm::event::types::EventType;
use crate::cm::id::identifier::{Id, State, id};
use crate::cm::id::lifecycle::complete;
use crate::ffi::minus_one_making;
use libc::sockaddr;
use nix::errno::Errno;
use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::Arc;

/// Resolves a destination: the local address that routes to it.
pub(crate) fn resolve(id: &Arc<Id>, from: Option<SocketAddr>, to: SocketAddr) -> Result<(), Errno> {
    let mut inner = id.lock();
    if !matches!(inner.state, State::Idle | State::Bound) {
        return Err(Errno::EINVAL);
    }
    if inner.state == State::Idle
        && let Some(from) = from
        && (!from.ip().is_unspecified() || from.port() != 0)
    {
        bind_port(&mut inner, from)?;
        inner.state = State::Bound;
    }
    match address::towards(inner.local, to) {
        Ok(local) => {
            id.bind_device()?;
            inner.local = Some(local);
            // The unspecified address is this host.
            let mut peer = to;
            if to.ip().is_unspecified() {
                peer.set_ip(local.ip());
            }
            inner.peer = Some(peer);
            inner.state = State::AddressResolved;
            id.write_addresses(&inner);
            id.raise_plain(EventType::AddrResolved, 0);
        }
        Err(Errno::EINVAL) => return Err(Errno::EINVAL),
        Err(errno) => id.raise_plain(EventType::AddrError, -(errno as c_int)),
    }
    Ok(())
}

/// Resolves a route. TCP and UDP route by themselves: the path record repeats what is known.
pub(crate) fn resolve_route(id: &Arc<Id>) -> Result<(), Errno> {
    let mut inner = id.lock();
    inner.expect(State::AddressResolved)?;
    let mtu = id.bind_device()?.active_mtu()?;
    id.write_path(&mut inner, mtu);
    inner.state = State::RouteResolved;
    id.raise_plain(EventType::RouteResolved, 0);
    Ok(())
}

pub(crate) unsafe extern "C" fn rdma_bind_addr(
    pointer: *mut rdma_cm_id,
    to: *mut sockaddr,
) -> c_int {
    minus_one_making(|| {
        // SAFETY: the program passes a live identifier.
        let id = unsafe { id(pointer) }?;
        // SAFETY: and an address.
        let to = unsafe { address::read_any(to) }?;
        bind(id, to).map(|()| 0)
    })
}

pub(crate) unsafe extern "C" fn rdma_resolve_addr(
    pointer: *mut rdma_cm_id,
    from: *mut sockaddr,
    to: *mut sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    minus_one_making(|| {
        // SAFETY: the program passes a live identifier.
        let id = unsafe { id(pointer) }?;
        let from = if from.is_null() {
            None
        } else {
            // SAFETY: not NULL, so an address.
            Some(unsafe { address::read_any(from) }?)
        };
        // SAFETY: the program passes an address.
        let to = unsafe { address::read_any(to) }?;
        resolve(id, from, to)?;
        // SAFETY: no other call uses the identifier.
        unsafe { complete(pointer) }.map(|()| 0)
    })
}

pub(crate) unsafe extern "C" fn rdma_resolve_route(
    pointer: *mut rdma_cm_id,
    _timeout_ms: c_int,
) -> c_int {
    minus_one_making(|| {
        // SAFETY: the program passes a live identifier.
        let id = unsafe { id(pointer) }?;
        resolve_route(id)?;
        // SAFETY: no other call uses the identifier.
        unsafe { complete(pointer) }.map(|()| 0)
    })
}

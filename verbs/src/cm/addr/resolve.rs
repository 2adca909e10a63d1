//! Addresses and routes: `rdma_bind_addr(3)`, `rdma_resolve_addr(3)`, `rdma_resolve_route(3)`.

use super::address;
use crate::abi::{ibv_port_attr, rdma_cm_id};
use crate::cm::event::EventType;
use crate::cm::id::{self, Id, Inner, State, Transport};
use crate::device::query::ibv_query_port;
use crate::ffi::minus_one;
use libc::sockaddr;
use nix::errno::Errno;
use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::Arc;

/// Binds an identifier, and the device to it unless the address is any.
pub(crate) fn bind(id: &Arc<Id>, to: SocketAddr) -> Result<(), Errno> {
    let mut inner = id.lock();
    if inner.state != State::Idle {
        return Err(Errno::EINVAL);
    }
    take_port(&mut inner, to)?;
    if !to.ip().is_unspecified() {
        id.attach()?;
    }
    inner.state = State::Bound;
    id.show(&inner);
    Ok(())
}

/// Takes the port that a program names, or one of the system's choice.
fn take_port(inner: &mut Inner, to: SocketAddr) -> Result<(), Errno> {
    let options = inner.options;
    let bound = match &mut inner.transport {
        Transport::Tcp(tcp) => tcp.bind(to, options)?,
        Transport::Udp(udp) => udp.bind(to, options)?,
        Transport::Closed => return Err(Errno::EINVAL),
    };
    inner.local = Some(bound);
    Ok(())
}

/// Finds the address of this host that leads to another.
pub(crate) fn resolve(id: &Arc<Id>, from: Option<SocketAddr>, to: SocketAddr) -> Result<(), Errno> {
    let mut inner = id.lock();
    if !matches!(inner.state, State::Idle | State::Bound) {
        return Err(Errno::EINVAL);
    }
    if inner.state == State::Idle
        && let Some(from) = from
        && (!from.ip().is_unspecified() || from.port() != 0)
    {
        take_port(&mut inner, from)?;
        inner.state = State::Bound;
    }
    match address::towards(inner.local, to) {
        Ok(local) => {
            id.attach()?;
            inner.local = Some(local);
            // rdma_resolve_addr(3) to the unspecified address means this host.
            let mut peer = to;
            if to.ip().is_unspecified() {
                peer.set_ip(local.ip());
            }
            inner.peer = Some(peer);
            inner.state = State::AddressResolved;
            id.show(&inner);
            id.push_plain(EventType::AddrResolved, 0);
        }
        Err(Errno::EINVAL) => return Err(Errno::EINVAL),
        Err(errno) => id.push_plain(EventType::AddrError, -(errno as c_int)),
    }
    Ok(())
}

/// There is always a way: TCP and UDP find it. The path that the program sees says what it knows already.
pub(crate) fn resolve_route(id: &Arc<Id>) -> Result<(), Errno> {
    let mut inner = id.lock();
    if inner.state != State::AddressResolved {
        return Err(Errno::EINVAL);
    }
    let mtu = active_mtu(id)?;
    id.show_path(&mut inner, mtu);
    inner.state = State::RouteResolved;
    id.push_plain(EventType::RouteResolved, 0);
    Ok(())
}

/// `enum ibv_mtu` of the port.
pub(crate) fn active_mtu(id: &Id) -> Result<u8, Errno> {
    let device = id.attach()?;
    let mut attr = ibv_port_attr::default();
    // SAFETY: the device's context, and room for the result.
    let status = unsafe { ibv_query_port(device.context.0, 1, &raw mut attr) };
    if status != 0 {
        return Err(Errno::from_raw(status));
    }
    u8::try_from(attr.active_mtu).map_err(|_| Errno::EINVAL)
}

pub(crate) unsafe extern "C" fn rdma_bind_addr(
    pointer: *mut rdma_cm_id,
    to: *mut sockaddr,
) -> c_int {
    minus_one(|| {
        // SAFETY: the program passes a live identifier.
        let id = unsafe { id::id(pointer) }?;
        // SAFETY: and an address.
        let to = unsafe { address::read(to) }?;
        bind(id, to).map(|()| 0)
    })
}

pub(crate) unsafe extern "C" fn rdma_resolve_addr(
    pointer: *mut rdma_cm_id,
    from: *mut sockaddr,
    to: *mut sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    minus_one(|| {
        // SAFETY: the program passes a live identifier.
        let id = unsafe { id::id(pointer) }?;
        let from = if from.is_null() {
            None
        } else {
            // SAFETY: not NULL, so an address.
            Some(unsafe { address::read(from) }?)
        };
        // SAFETY: the program passes an address.
        let to = unsafe { address::read(to) }?;
        resolve(id, from, to)?;
        // SAFETY: the identifier is used by this call alone.
        unsafe { id::complete(pointer) }.map(|()| 0)
    })
}

pub(crate) unsafe extern "C" fn rdma_resolve_route(
    pointer: *mut rdma_cm_id,
    _timeout_ms: c_int,
) -> c_int {
    minus_one(|| {
        // SAFETY: the program passes a live identifier.
        let id = unsafe { id::id(pointer) }?;
        resolve_route(id)?;
        // SAFETY: the identifier is used by this call alone.
        unsafe { id::complete(pointer) }.map(|()| 0)
    })
}

//! Calls on identifiers of port spaces UDP and IPOIB.

use crate::cm::addr::address;
use crate::cm::addr::bind::bound;
use crate::cm::conn_param::ConnParam;
use crate::cm::device;
use crate::cm::id::identifier::{Id, State};
use crate::cm::udp::param::QKEY;
use crate::cm::udp::state::Role;
use crate::ffi::errno;
use dgiwarp::ServiceQp;
use nix::errno::Errno;
use std::ffi::c_int;
use std::sync::Arc;

/// Queued queries of a listener whose program gives no backlog.
const BACKLOG: usize = 1024;

/// The queue pair that a query or an answer carries: the identifier's, else the program's `qp_num`. `None` for number 0.
fn service_qp(id: &Id, param: &ConnParam) -> Option<ServiceQp> {
    let own = id.qp();
    let qpn = if own.is_null() {
        param.qp_num()
    } else {
        // SAFETY: the queue pair of a live identifier is live.
        unsafe { (*own).qp_num }
    };
    (qpn != 0).then_some(ServiceQp { qpn, qkey: QKEY })
}

/// Listens for queries at the bound port number (`rdma_listen(3)`).
pub(crate) fn listen(id: &Arc<Id>, backlog: c_int) -> Result<(), Errno> {
    let mut inner = bound(id)?;
    let device = device::device()?;
    let number = inner.local.ok_or(Errno::EINVAL)?.port();
    let backlog = usize::try_from(backlog).unwrap_or(0);
    let backlog = if backlog == 0 { BACKLOG } else { backlog };
    let udp = inner.udp()?;
    let port = udp.port.take().ok_or(Errno::EINVAL)?;
    let service = device
        .services()?
        .listen_as(port, number, backlog, id.key)
        .map_err(errno::of)?;
    udp.role = Role::Listener { _service: service };
    inner.state = State::Listening;
    Ok(())
}

/// Queries the queue pair behind the peer's port number (`rdma_connect(3)`).
pub(crate) fn connect(id: &Arc<Id>, param: &ConnParam) -> Result<(), Errno> {
    let qp = service_qp(id, param);
    let mut inner = id.lock();
    inner.expect(State::RouteResolved)?;
    let device = device::device()?;
    let (local, peer) = inner.local.zip(inner.peer).ok_or(Errno::EINVAL)?;
    let options = inner.options;
    let udp = inner.udp()?;
    if udp.port.is_none() {
        udp.bind(local, options)?;
    }
    let port = udp.port.take().ok_or(Errno::EINVAL)?;
    let local = address::from_socket(port.local_addr(), device.port_offset);
    let to = (address::to_socket(peer, device.port_offset), peer.port());
    let lookup = device
        .services()?
        .look_up_as(port, to, qp, &param.private_data, id.key)
        .map_err(errno::of)?;
    udp.role = Role::Query { _lookup: lookup };
    if let Some(bound) = &mut inner.local {
        bound.set_port(local.port());
    }
    id.write_addresses(&inner);
    inner.state = State::Connecting;
    Ok(())
}

/// Answers a query with a queue pair (`rdma_accept(3)`).
pub(crate) fn accept(id: &Arc<Id>, param: &ConnParam) -> Result<(), Errno> {
    let qp = service_qp(id, param);
    let mut inner = id.lock();
    inner.expect(State::Requested)?;
    let qp = qp.ok_or(Errno::EINVAL)?;
    let request = inner.udp()?.take_request()?;
    request.accept(qp, &param.private_data).map_err(errno::of)?;
    inner.state = State::Connected;
    Ok(())
}

/// Rejects a query (`rdma_reject(3)`).
pub(crate) fn reject(id: &Arc<Id>, private_data: &[u8]) -> Result<(), Errno> {
    let mut inner = id.lock();
    inner.expect(State::Requested)?;
    let request = inner.udp()?.take_request()?;
    request.reject(private_data).map_err(errno::of)?;
    inner.state = State::Over;
    Ok(())
}

//! Events of service ID resolution.

use crate::cm::addr::address;
use crate::cm::event::types::{CmEvent, EventType, Param};
use crate::cm::id::identifier::{Id, State, Transport};
use crate::cm::incoming;
use crate::cm::udp::param::{datagram, no_datagram};
use crate::cm::udp::state::Udp;
use dgiwarp::{LookupError, RejectStatus, ServiceEvent, ServiceRequest};
use nix::errno::Errno;
use std::ffi::c_int;
use std::sync::Arc;

/// The program's event for one of the stack. Only in calls of the program.
pub(crate) fn translate(id: &Arc<Id>, event: ServiceEvent) -> Option<CmEvent> {
    match event {
        ServiceEvent::Request { request, .. } => queried(id, request).ok(),
        ServiceEvent::Found {
            qp, private_data, ..
        } => {
            let mut inner = id.lock();
            inner.state = State::Connected;
            let (local, peer) = inner.local.zip(inner.peer)?;
            let tos = inner.options.tos;
            drop(inner);
            let mut event = CmEvent::new(EventType::Established, 0);
            let mut param = datagram(local, peer.ip(), qp);
            param.ah_attr.grh.traffic_class = tos.unwrap_or(0);
            event.param = Param::Datagram(param);
            event.private_data = private_data;
            Some(event)
        }
        ServiceEvent::Rejected {
            status,
            private_data,
            ..
        } => {
            let mut event = unreachable(id, status.0.into());
            event.private_data = private_data;
            Some(event)
        }
        ServiceEvent::Failed { error, .. } => Some(unreachable(id, status_of(&error))),
        // Not an event of rdma_cm.
        _ => None,
    }
}

/// The event of a failed query, with the status of the SIDR reply or a negative errno value.
fn unreachable(id: &Id, status: c_int) -> CmEvent {
    id.lock().state = State::Over;
    let mut event = CmEvent::new(EventType::Unreachable, status);
    event.param = Param::Datagram(no_datagram());
    event
}

fn status_of(error: &LookupError) -> c_int {
    match error {
        // On InfiniBand, a host without the service replies so.
        LookupError::NoService => RejectStatus::NO_SERVICE.0.into(),
        LookupError::Unreachable(error) => -error.raw_os_error().unwrap_or(libc::EHOSTUNREACH),
        LookupError::TimedOut => -libc::ETIMEDOUT,
        // The enum is open.
        _ => -libc::EIO,
    }
}

/// Creates the identifier of a peer's query.
fn queried(listener: &Arc<Id>, request: ServiceRequest) -> Result<CmEvent, Errno> {
    let (new, id) = incoming::create_for(listener)?;
    let peer = address::canonical(request.peer());
    let local = request.local().map(address::canonical);
    let private_data = request.private_data().to_vec();
    let asker = request.asker();
    let mut inner = id.lock();
    inner.local = local.or(listener.lock().local);
    inner.peer = Some(peer);
    inner.state = State::Requested;
    inner.transport = Transport::Udp(Box::new(Udp::queried(request)));
    id.write_addresses(&inner);
    let mut event = CmEvent::new(EventType::ConnectRequest, 0);
    event.new_id = Some(new);
    let param = inner.local.zip(asker);
    let param = param.map(|(local, qp)| datagram(local, peer.ip(), qp));
    event.param = Param::Datagram(param.unwrap_or_else(no_datagram));
    event.private_data = private_data;
    Ok(event)
}

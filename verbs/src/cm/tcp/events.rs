//! Events of iWARP connections.

use crate::cm::addr::address;
use crate::cm::event::types::{CmEvent, EventType};
use crate::cm::id::identifier::{Id, State};
use crate::cm::tcp::depths::Depths;
use crate::cm::tcp::state::refuse;
use crate::cm::{device, incoming};
use crate::device::persona::{self, Persona};
use crate::ffi::errno;
use crate::qp::state::QpState;
use dgiwarp::{
    ConnectError, ConnectionEvent, Established, MpaError, MpaRole, RcRequest, Rejection,
};
use nix::errno::Errno;
use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::Arc;

/// `enum ib_cm_rej_reason`: no listener.
const INVALID_SERVICE_ID: c_int = 8;
/// `enum ib_cm_rej_reason`: the program has rejected the request.
const CONSUMER_DEFINED: c_int = 28;

/// The program's event for one of the stack. Only in calls of the program.
pub(crate) fn translate(id: &Arc<Id>, event: ConnectionEvent) -> Option<CmEvent> {
    match event {
        ConnectionEvent::Request { request, .. } => requested(id, request),
        ConnectionEvent::Established { established, .. } => established_event(id, established),
        ConnectionEvent::Rejected { rejection, .. } => Some(rejected(id, rejection)),
        ConnectionEvent::Failed { error, .. } => failed(id, &error),
        ConnectionEvent::Disconnected { .. } => {
            id.lock().state = State::Over;
            Some(CmEvent::new(EventType::Disconnected, 0))
        }
        ConnectionEvent::TimewaitExit { .. } => Some(CmEvent::new(EventType::TimewaitExit, 0)),
        // Not an event of rdma_cm.
        _ => None,
    }
}

/// Creates the identifier of a request. Without memory or device the request is refused.
fn requested(listener: &Arc<Id>, request: RcRequest) -> Option<CmEvent> {
    let queue = listener.events();
    listener.gate.wait(|| queue.may_wait());
    let mut request = Some(request);
    let event = create_incoming(listener, &mut request);
    if let (Some(request), Ok(device)) = (request, device::device()) {
        refuse(&device, request);
    }
    event.ok()
}

/// Takes the request unless that fails.
fn create_incoming(listener: &Arc<Id>, request: &mut Option<RcRequest>) -> Result<CmEvent, Errno> {
    let device = device::device()?;
    let (options, known_by) = {
        let inner = listener.lock();
        (inner.options, inner.local)
    };
    let (new, id) = incoming::create_for(listener)?;
    let mtu = device.active_mtu()?;
    let mut inner = id.lock();
    let arrived = request.take().ok_or(Errno::EINVAL)?;
    // A listener that has moved is known by another port number than its socket's.
    let program = |mut it: SocketAddr| {
        it.set_port(known_by.map_or_else(|| it.port(), |known_by| known_by.port()));
        address::canonical(it)
    };
    inner.local = arrived.local_addr().map(program);
    // The peer's port number is of its system's choice, without an offset.
    inner.peer = Some(address::canonical(arrived.peer()));
    inner.options = options;
    inner.state = State::Requested;
    inner.listener = Some(Arc::clone(listener));
    let message = arrived.request();
    let depths = Depths::of_mpa(message.matching_depths());
    let private_data = message.private_data.clone();
    let tcp = inner.tcp()?;
    tcp.depths = depths;
    tcp.request = Some(arrived);
    id.write_addresses(&inner);
    id.write_path(&mut inner, mtu);
    listener.gate.close();
    Ok(CmEvent {
        new_id: Some(new),
        param: depths.to_c(),
        private_data,
        ..CmEvent::new(EventType::ConnectRequest, 0)
    })
}

fn established_event(id: &Arc<Id>, established: Established) -> Option<CmEvent> {
    let mut inner = id.lock();
    inner.state = State::Connected;
    let offset = device::device().map_or(0, |device| device.port_offset);
    let timeout = inner.options.timeout();
    let tcp = inner.tcp().ok()?;
    tcp.connecting = false;
    let held = || device::device().ok()?.connections.held_addr(id.key);
    let local = tcp.qp.with_rc(|qp| qp.local_addr()).flatten().or_else(held);
    let depths = Depths::of_mpa(established.negotiation.depths);
    tcp.qp.change_state(QpState::ReadyToSend, depths, timeout);
    // The program changes the state of its queue pair, and calls rdma_establish(3) afterwards.
    let awaits_program =
        tcp.qp.is_the_programs() && established.negotiation.role == MpaRole::Initiator;
    let event_type = if awaits_program {
        EventType::ConnectResponse
    } else {
        EventType::Established
    };
    if let Some(local) = local {
        inner.local = Some(address::canonical(address::from_socket(local, offset)));
        id.write_addresses(&inner);
    }
    Some(CmEvent {
        param: depths.to_c(),
        private_data: established.private_data,
        ..CmEvent::new(event_type, 0)
    })
}

/// Ends an attempt; another may follow.
fn end_attempt(id: &Arc<Id>) {
    let mut inner = id.lock();
    inner.state = State::RouteResolved;
    if let Ok(tcp) = inner.tcp() {
        tcp.connecting = false;
    }
}

fn rejected(id: &Arc<Id>, rejection: Rejection) -> CmEvent {
    end_attempt(id);
    let status = match persona::present() {
        Persona::Roce | Persona::Efa => CONSUMER_DEFINED,
        Persona::Iwarp => -libc::ECONNREFUSED,
    };
    CmEvent {
        private_data: rejection.private_data,
        ..CmEvent::new(EventType::Rejected, status)
    }
}

fn failed(id: &Arc<Id>, error: &ConnectError) -> Option<CmEvent> {
    let state = id.lock().state;
    match state {
        // A peer connected and sent no valid request.
        State::Listening => return None,
        State::Accepted => return left(id),
        State::Idle
        | State::Bound
        | State::AddressResolved
        | State::RouteResolved
        | State::Connecting
        | State::Requested
        | State::Connected
        | State::Over => end_attempt(id),
    }
    let (event, status) = explain(error, persona::present());
    Some(CmEvent::new(event, status))
}

/// A peer that left between its request and its first message. The drivers of RNICs raise the establishment with their Reply, and the end next: servers take
/// an error for one of their own.
fn left(id: &Arc<Id>) -> Option<CmEvent> {
    let mut inner = id.lock();
    inner.state = State::Over;
    let depths = inner.tcp().ok()?.depths;
    drop(inner);
    id.raise_plain(EventType::Disconnected, 0);
    if let Ok(device) = device::device() {
        device.connections.enter_timewait(id.key);
    }
    Some(CmEvent {
        param: depths.to_c(),
        ..CmEvent::new(EventType::Established, 0)
    })
}

/// Event type and status of a failure: programs for InfiniBand expect its rejection reasons, those for iWARP errno values.
fn explain(error: &ConnectError, persona: Persona) -> (EventType, c_int) {
    let rejected = |reason: c_int, errno: Errno| match persona {
        Persona::Roce | Persona::Efa => (EventType::Rejected, reason),
        Persona::Iwarp => (EventType::Rejected, -(errno as c_int)),
    };
    match error {
        ConnectError::Tcp(error) => match errno::of_io(error) {
            Errno::ECONNREFUSED => rejected(INVALID_SERVICE_ID, Errno::ECONNREFUSED),
            Errno::ECONNRESET => (EventType::ConnectError, -libc::ECONNRESET),
            errno => (EventType::Unreachable, -(errno as c_int)),
        },
        ConnectError::Mpa(MpaError::StartupTimeout(_)) => {
            (EventType::Unreachable, -libc::ETIMEDOUT)
        }
        // The listener, or its process, has ended.
        ConnectError::Mpa(MpaError::ClosedInStartup | MpaError::TcpLost) => {
            rejected(CONSUMER_DEFINED, Errno::ECONNRESET)
        }
        ConnectError::State => (EventType::ConnectError, -libc::EINVAL),
        _ => (EventType::ConnectError, -libc::EPROTO),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn failures_are_reported_as_each_persona_expects() {
        let tcp = |errno| ConnectError::Tcp(io::Error::from_raw_os_error(errno));
        let explain = |error, persona| explain(&error, persona);
        assert_eq!(
            explain(tcp(libc::ECONNREFUSED), Persona::Roce),
            (EventType::Rejected, 8)
        );
        assert_eq!(
            explain(tcp(libc::ECONNREFUSED), Persona::Iwarp),
            (EventType::Rejected, -libc::ECONNREFUSED)
        );
        for errno in [libc::ETIMEDOUT, libc::EHOSTUNREACH, libc::ENETUNREACH] {
            assert_eq!(
                explain(tcp(errno), Persona::Roce),
                (EventType::Unreachable, -errno)
            );
        }
        assert_eq!(
            explain(ConnectError::Mpa(MpaError::ClosedInStartup), Persona::Roce),
            (EventType::Rejected, 28)
        );
    }
}

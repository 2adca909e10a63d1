//! Calls on identifiers of port space TCP.

use crate::cm::addr::address;
use crate::cm::addr::bind::bound;
use crate::cm::conn_param::ConnParam;
use crate::cm::device;
use crate::cm::event::types::{EventType, Raised};
use crate::cm::id::identifier::{Id, State, Transport};
use crate::cm::tcp::depths::Depths;
use crate::cm::tcp::qp::ConnectionQp;
use crate::cm::tcp::state::port_options;
use crate::ffi::errno;
use crate::qp::state::QpState;
use dgiwarp::{ConnectError, ConnectionEvent, ConnectionPort, MpaConfig, PortOptions};
use nix::errno::Errno;
use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Longest time from a request to the peer's answer: the peer's program decides. Loss of the peer is detected within seconds.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Begins a connection attempt.
pub(crate) fn connect(id: &Arc<Id>, param: &ConnParam) -> Result<(), Errno> {
    let mut inner = id.lock();
    inner.expect(State::RouteResolved)?;
    let device = device::device()?;
    let (local, peer) = inner.local.zip(inner.peer).ok_or(Errno::EINVAL)?;
    let depths = Depths::of(param, Depths::MAX)?;
    let options = inner.options;
    let tcp = inner.tcp()?;
    // SAFETY: the queue pair of a live identifier is live.
    let qp = unsafe { ConnectionQp::choose(id.qp(), &device, param.qp_num()) }?;
    qp.limit_rnr(param);
    let port = match tcp.port.take() {
        Some(port) => port,
        None => {
            let mut any_port = local;
            any_port.set_port(0);
            let options = PortOptions {
                port_when_connected: true,
                ..port_options(options)
            };
            ConnectionPort::bind(any_port, options).map_err(errno::of)?
        }
    };
    let mpa = MpaConfig {
        depths: depths.to_mpa(),
        startup_timeout: ANSWER_TIMEOUT,
        ..device.mpa.for_initiator()
    };
    let to = address::to_socket(peer, device.port_offset);
    let connections = &device.connections;
    if matches!(qp, ConnectionQp::StandIn(_)) {
        // The program connects queue pairs of its own by the Reply's private data, and calls rdma_establish(3) when they are ready for the peer's messages.
        connections.hold_establishment(id.key);
    }
    let begun = qp
        .with_rc(|rc| rc.connect(connections, (port, to), &mpa, &param.private_data, id.key))
        .ok_or(Errno::EINVAL)?;
    if let Err(error) = begun {
        connections.cancel(id.key);
        if let Some(errno) = call_error(&error) {
            return Err(errno);
        }
        raise_failure(id, to, error);
    }
    (tcp.qp, tcp.connecting, tcp.depths) = (qp, true, depths);
    inner.state = State::Connecting;
    Ok(())
}

/// Raises an event for an attempt that failed during the call for a reason of the network, such as a missing route.
fn raise_failure(id: &Arc<Id>, peer: SocketAddr, error: ConnectError) {
    id.raise(Raised::Connection(ConnectionEvent::Failed {
        context: id.key,
        peer,
        error,
    }));
}

/// errno value of a failed call; `None` for errors of the network, which are raised as events.
fn call_error(error: &ConnectError) -> Option<Errno> {
    match error {
        ConnectError::Tcp(error) => match errno::of_io(error) {
            Errno::ECONNREFUSED
            | Errno::EHOSTUNREACH
            | Errno::ENETUNREACH
            | Errno::ETIMEDOUT
            | Errno::ECONNRESET => None,
            other => Some(other),
        },
        ConnectError::Device(error) => Some(Errno::from_raw(error.errno())),
        // The queue pair is connected already, or the private data too long.
        _ => Some(Errno::EINVAL),
    }
}

/// Listens for connection requests.
pub(crate) fn listen(id: &Arc<Id>, backlog: c_int) -> Result<(), Errno> {
    /// TCP backlog where the program leaves it open; the kernel may allow less.
    const BACKLOG: c_int = 1024;
    let mut inner = bound(id)?;
    let device = device::device()?;
    let tcp = inner.tcp()?;
    let port = tcp.port.take().ok_or(Errno::EINVAL)?;
    // rdma_listen(3): a hint. With a short TCP backlog, SYNs are lost and repeated after whole seconds.
    let backlog = if backlog > 0 {
        backlog.max(128)
    } else {
        BACKLOG
    };
    // Events come at once.
    id.listens.store(true, Ordering::Release);
    let listener = device
        .connections
        .listen_on(port, device.mpa.for_responder(), backlog, id.key)
        .map_err(|error| {
            id.listens.store(false, Ordering::Release);
            errno::of(error)
        })?;
    let local = address::from_socket(listener.local_addr(), device.port_offset);
    tcp.listener = Some(listener);
    inner.local = Some(local);
    inner.state = State::Listening;
    id.write_addresses(&inner);
    Ok(())
}

/// Accepts a request.
pub(crate) fn accept(id: &Arc<Id>, param: &ConnParam) -> Result<(), Errno> {
    let mut inner = id.lock();
    inner.expect(State::Requested)?;
    let device = device::device()?;
    let timeout = inner.options.timeout();
    let tcp = inner.tcp()?;
    let depths = Depths::of(param, tcp.depths)?;
    // SAFETY: the queue pair of a live identifier is live.
    let qp = unsafe { ConnectionQp::choose(id.qp(), &device, param.qp_num()) }?;
    qp.limit_rnr(param);
    let request = tcp.request.take().ok_or(Errno::EINVAL)?;
    let peer = request.peer();
    let connections = &device.connections;
    // The program may post from now on. Its sends leave after the peer's first FPDU.
    qp.change_state(QpState::ReadyToSend, depths, timeout);
    let accepted = qp
        .with_rc(|rc| {
            let data = &param.private_data;
            rc.accept(connections, request, depths.to_mpa(), data, id.key)
        })
        .ok_or(Errno::EINVAL)?;
    tcp.qp = qp;
    inner.state = State::Accepted;
    match accepted {
        Ok(_) => Ok(()),
        // The peer is gone, which events report, and receives that were posted.
        Err(error @ ConnectError::Tcp(_)) => {
            inner.tcp()?.qp.with_rc(|qp| qp.flush());
            raise_failure(id, peer, error);
            Ok(())
        }
        Err(ConnectError::Device(error)) => Err(errno::of(error)),
        Err(_) => Err(Errno::EINVAL),
    }
}

/// Rejects a request, or disconnects after a response that the program refuses.
pub(crate) fn reject(id: &Arc<Id>, private_data: &[u8]) -> Result<(), Errno> {
    let mut inner = id.lock();
    let is_the_programs = inner.tcp()?.qp.is_the_programs();
    match inner.state {
        State::Requested => {
            let request = inner.tcp()?.request.take().ok_or(Errno::EINVAL)?;
            inner.state = State::Over;
            drop(inner);
            // The peer may be gone.
            match device::device()?.connections.reject(request, private_data) {
                Err(ConnectError::Config(_)) => Err(Errno::EINVAL),
                Ok(()) | Err(_) => Ok(()),
            }
        }
        State::Connected if is_the_programs => {
            inner.state = State::Over;
            let qp = std::mem::take(&mut inner.tcp()?.qp);
            drop(inner);
            device::device()?.connections.establish(id.key);
            let _ = qp.with_rc(|qp| qp.disconnect());
            Ok(())
        }
        State::Idle
        | State::Bound
        | State::AddressResolved
        | State::RouteResolved
        | State::Listening
        | State::Connecting
        | State::Accepted
        | State::Connected
        | State::Over => Err(Errno::EINVAL),
    }
}

/// `rdma_establish(3)`: a program has changed the state of its queue pair, and the peer's gets its establishment.
pub(crate) fn establish(id: &Arc<Id>) -> Result<(), Errno> {
    let mut inner = id.lock();
    let is_connected = inner.state == State::Connected;
    if !is_connected || !inner.tcp()?.qp.is_the_programs() {
        return Err(Errno::EINVAL);
    }
    drop(inner);
    device::device()?.connections.establish(id.key);
    Ok(())
}

/// Ends the connection and flushes the queue pair. Returns whether an event follows.
pub(crate) fn disconnect(id: &Arc<Id>) -> Result<bool, Errno> {
    let mut inner = id.lock();
    let state = inner.state;
    if !matches!(state, State::Accepted | State::Connected | State::Over) {
        return Err(Errno::EINVAL);
    }
    let timeout = inner.options.timeout();
    let tcp = inner.tcp()?;
    if matches!(tcp.qp, ConnectionQp::None) {
        return Err(Errno::EINVAL);
    }
    let qp = std::mem::take(&mut tcp.qp);
    let depths = tcp.depths;
    drop(inner);
    device::device()?.connections.establish(id.key);
    let exists = qp.with_rc(|qp| qp.disconnect()).is_some();
    qp.change_state(QpState::Error, depths, timeout);
    let mut inner = id.lock();
    if let Transport::Tcp(tcp) = &mut inner.transport {
        tcp.qp = qp;
    }
    if !exists && state != State::Over {
        // The queue pair was destroyed, and the connection with it.
        id.raise_plain(EventType::Disconnected, 0);
        device::device()?.connections.enter_timewait(id.key);
        inner.state = State::Over;
    }
    Ok(state != State::Over)
}

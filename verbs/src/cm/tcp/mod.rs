//! Identifiers of port space TCP: plain iWARP connections (RFC 5044, RFC 6581).

use super::addr::address;
use super::connect::Parameters;
use super::device::{self, Device};
use super::event::{EventType, NO_CONNECTION, Param, Told};
use super::id::{Id, Inner, Options, State, Transport};
use super::request;
use crate::abi::{RDMA_MAX_DEPTH, rdma_conn_param};
use crate::device::context;
use crate::device::limits::MAX_RD_ATOMIC;
use crate::device::persona::{self, Persona};
use crate::ffi::errno;
use crate::qp::qp_table::{self, Name};
use crate::qp::state::QpState;
use dgiwarp::{
    ChannelListener, ConnectError, ConnectionEvent, ConnectionPort, Established, MpaConfig,
    MpaError, MpaRevision, PortOptions, RcQp, RcQpAttr, RcRequest, ReadDepths, Rejection,
};
use nix::errno::Errno;
use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

/// How long the peer's program has for its answer. Whether there is a peer at all shows within seconds.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// Requests of one listener that wait for the program at a time; those beyond are dropped.
const MAX_PENDING: usize = 4096;
/// `enum ib_cm_rej_reason`: nobody listens there, and the program said no.
const INVALID_SERVICE_ID: c_int = 8;
const CONSUMER_DEFINED: c_int = 28;

/// What such an identifier has.
#[derive(Default)]
pub(crate) struct Tcp {
    /// Bound, and neither listening nor connected from yet.
    port: Option<ConnectionPort>,
    listener: Option<ChannelListener>,
    request: Option<RcRequest>,
    end: End,
    /// The depths of the peer's request as the program was told, which are the answer's unless it says otherwise.
    asked: Depths,
    /// An attempt is on its way, which is to be given up with the identifier.
    calling: bool,
}

/// Our end of the connection.
#[derive(Default)]
enum End {
    #[default]
    None,
    /// The identifier's own queue pair.
    Own(Name),
    /// One that the program made and named.
    Named(Name),
    /// The program named none that can be connected: it wants the events and private data only.
    StandIn(RcQp),
}

/// Reads and atomics outstanding, as programs are told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Depths {
    responder_resources: u8,
    initiator_depth: u8,
}

impl Tcp {
    /// Takes a port. Returns the address as programs name it.
    pub(crate) fn bind(&mut self, to: SocketAddr, options: Options) -> Result<SocketAddr, Errno> {
        let offset = device::device()?.port_offset;
        let port = ConnectionPort::bind(address::to_socket(to, offset), port_options(options))
            .map_err(errno::of)?;
        let local = address::from_socket(port.local_addr(), offset);
        self.port = Some(port);
        Ok(local)
    }

    /// Ends all that the identifier `key` had begun.
    pub(crate) fn close(self, key: u64) {
        let Ok(device) = device::device() else {
            return;
        };
        if self.calling {
            device.connections.cancel(key);
        }
        if let Some(request) = self.request {
            refuse(&device, request);
        }
    }
}

/// Says no to a peer whose request nobody will answer.
pub(crate) fn refuse(device: &Device, request: RcRequest) {
    // It may be gone already.
    let _ = device.connections.reject(request, &[]);
}

fn port_options(options: Options) -> PortOptions {
    PortOptions {
        only_v6: options.af_only,
        tos: options.tos,
        port_when_connected: false,
    }
}

fn tcp<'a>(inner: &'a mut MutexGuard<'_, Inner>) -> Result<&'a mut Tcp, Errno> {
    match &mut inner.transport {
        Transport::Tcp(tcp) => Ok(tcp),
        Transport::Udp(_) | Transport::Closed => Err(Errno::EINVAL),
    }
}

impl End {
    /// The end that a call names: the identifier's queue pair, else one of the program's by number.
    fn choose(id: &Id, device: &Device, qp_num: u32) -> Result<Self, Errno> {
        // SAFETY: alive as long as the program calls with it.
        let own = unsafe { (*id.c()).qp };
        if !own.is_null() {
            // SAFETY: `rdma_create_qp` made it, or the program put it there; it is alive.
            let qpn = unsafe { (*own).qp_num };
            return qp_table::find(qpn).map(Self::Own).ok_or(Errno::EINVAL);
        }
        if let Some(name) = qp_table::find(qp_num) {
            return Ok(Self::Named(name));
        }
        // SAFETY: the device's own context is never closed.
        let rnic = &unsafe { context::state(device.context.0) }?.rnic;
        let stand_in = rnic.create_cq(4).and_then(|cq| {
            let attr = RcQpAttr {
                max_send_wr: 1,
                max_recv_wr: 1,
                max_sge: 1,
                ..RcQpAttr::new(&cq, &cq)
            };
            rnic.alloc_pd().create_rc_qp(&attr)
        });
        stand_in.map(Self::StandIn).map_err(errno::of)
    }

    fn with_rc<T>(&self, with: impl FnOnce(&RcQp) -> T) -> Option<T> {
        match self {
            Self::None => None,
            Self::Own(name) | Self::Named(name) => name.with(|found| with(found.rc)),
            Self::StandIn(qp) => Some(with(qp)),
        }
    }

    /// Shows the program that its queue pair has followed.
    fn follow(&self, state: QpState, depths: Depths, timeout: u8) {
        let Self::Own(name) = self else {
            return;
        };
        let _ = name.with(|found| {
            let change = |attributes: &mut crate::qp::state::Attributes| {
                attributes.state = state;
                attributes.reliable.max_dest_rd_atomic = depths.responder_resources;
                attributes.reliable.max_rd_atomic = depths.initiator_depth;
                attributes.reliable.timeout = timeout;
            };
            // SAFETY: the program's own pointer, in a call of its.
            unsafe { found.qp.follow(found.c, change) };
        });
    }
}

impl Depths {
    const MOST: Self = Self {
        responder_resources: MAX_RD_ATOMIC,
        initiator_depth: MAX_RD_ATOMIC,
    };

    /// What a program says, where it says something.
    fn of(parameters: &Parameters, default: Self) -> Result<Self, Errno> {
        let Some(c) = &parameters.c else {
            return Ok(default);
        };
        let depth = |said: u8| match said {
            RDMA_MAX_DEPTH => Ok(MAX_RD_ATOMIC),
            0..=MAX_RD_ATOMIC => Ok(said),
            _ => Err(Errno::EINVAL),
        };
        Ok(Self {
            responder_resources: depth(c.responder_resources)?,
            initiator_depth: depth(c.initiator_depth)?,
        })
    }

    fn of_mpa(depths: ReadDepths) -> Self {
        let depth = |n: u16| u8::try_from(n).unwrap_or(u8::MAX).min(MAX_RD_ATOMIC);
        Self {
            responder_resources: depth(depths.ird),
            initiator_depth: depth(depths.ord),
        }
    }

    fn to_mpa(self) -> ReadDepths {
        ReadDepths {
            ird: self.responder_resources.into(),
            ord: self.initiator_depth.into(),
        }
    }

    fn to_c(self) -> Param {
        Param::Connection(rdma_conn_param {
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: 1,
            ..NO_CONNECTION
        })
    }
}

/// Begins to connect.
pub(crate) fn connect(id: &Arc<Id>, parameters: &Parameters) -> Result<(), Errno> {
    let mut inner = id.lock();
    if inner.state != State::RouteResolved {
        return Err(Errno::EINVAL);
    }
    let device = device::device()?;
    let (Some(local), Some(peer)) = (inner.local, inner.peer) else {
        return Err(Errno::EINVAL);
    };
    let depths = Depths::of(parameters, Depths::MOST)?;
    let options = inner.options;
    let tcp = tcp(&mut inner)?;
    let end = End::choose(id, &device, parameters.qp_num())?;
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
        // RFC 6581 §9.2: a mode of revision 2. Programs written for InfiniBand may have either side send first.
        peer_to_peer: device.mpa.peer_to_peer && device.mpa.revision == MpaRevision::Two,
        startup_timeout: ANSWER_WITHIN,
        ..device.mpa.clone()
    };
    let to = address::to_socket(peer, device.port_offset);
    let (data, key) = (&parameters.private_data, id.key());
    let begun = end
        .with_rc(|rc| {
            device
                .connections
                .connect_from(port, rc, to, &mpa, data, key)
        })
        .ok_or(Errno::EINVAL)?;
    match begun {
        Ok(()) => {}
        Err(error) => {
            let errno = told_at_once(&error);
            if let Some(errno) = errno {
                return Err(errno);
            }
            // Such as no route: the same event as if TCP had taken its time.
            let (context, peer) = (key, to);
            id.push(super::event::What::Connection(ConnectionEvent::Failed {
                context,
                peer,
                error,
            }));
        }
    }
    (tcp.end, tcp.calling, tcp.asked) = (end, true, depths);
    inner.state = State::Connecting;
    Ok(())
}

/// The errno value of a call that could not begin, unless what the network says is why.
fn told_at_once(error: &ConnectError) -> Option<Errno> {
    match error {
        ConnectError::Tcp(error) => {
            let errno = errno::of_io(error);
            match errno {
                Errno::ECONNREFUSED
                | Errno::EHOSTUNREACH
                | Errno::ENETUNREACH
                | Errno::ETIMEDOUT
                | Errno::ECONNRESET => None,
                other => Some(other),
            }
        }
        ConnectError::Device(error) => Some(Errno::from_raw(error.errno())),
        // The queue pair is connected, or the private data too long.
        _ => Some(Errno::EINVAL),
    }
}

/// Takes requests from now on.
pub(crate) fn listen(id: &Arc<Id>, backlog: c_int) -> Result<(), Errno> {
    /// As many as the kernel lets wait by default; it may allow fewer.
    const BACKLOG: c_int = 1024;
    let mut inner = id.lock();
    let options = inner.options;
    if inner.state == State::Idle {
        let any = SocketAddr::from(([0, 0, 0, 0], 0));
        inner.local = Some(tcp(&mut inner)?.bind(any, options)?);
        inner.state = State::Bound;
    }
    if inner.state != State::Bound {
        return Err(Errno::EINVAL);
    }
    let device = device::device()?;
    let tcp = tcp(&mut inner)?;
    let port = tcp.port.take().ok_or(Errno::EINVAL)?;
    // rdma_listen(3): a hint. Clients of a short TCP backlog would wait for whole seconds.
    let backlog = if backlog > 0 {
        backlog.max(128)
    } else {
        BACKLOG
    };
    let listener = device
        .connections
        .listen_on(port, listener_config(&device), backlog, id.key())
        .map_err(errno::of)?;
    let local = address::from_socket(listener.local_addr(), device.port_offset);
    tcp.listener = Some(listener);
    inner.local = Some(local);
    inner.state = State::Listening;
    id.show(&inner);
    Ok(())
}

/// What a listener wants. Whoever asks for peer-to-peer mode gets it, whatever this end would ask for itself.
fn listener_config(device: &Device) -> MpaConfig {
    let any = MpaConfig::default();
    let rtr = if device.mpa.rtr.is_empty() {
        any.rtr
    } else {
        device.mpa.rtr
    };
    MpaConfig {
        crc: device.mpa.crc,
        markers: device.mpa.markers,
        rtr,
        ..any
    }
}

/// Whether a listener takes another request; the stack asks before it is queued.
pub(crate) fn has_room(id: &Arc<Id>) -> bool {
    let is_request = |what: &super::event::What| {
        matches!(
            what,
            super::event::What::Connection(ConnectionEvent::Request { .. })
        )
    };
    id.count(is_request) < MAX_PENDING
}

/// Answers a request with yes.
pub(crate) fn accept(id: &Arc<Id>, parameters: &Parameters) -> Result<(), Errno> {
    let mut inner = id.lock();
    if inner.state != State::Requested {
        return Err(Errno::EINVAL);
    }
    let device = device::device()?;
    let timeout = inner.options.timeout();
    let tcp = tcp(&mut inner)?;
    let depths = Depths::of(parameters, tcp.asked)?;
    let end = End::choose(id, &device, parameters.qp_num())?;
    let request = tcp.request.take().ok_or(Errno::EINVAL)?;
    let peer = request.peer();
    // From here on posting is for the program to do: what it posts leaves when the peer has sent something.
    end.follow(QpState::ReadyToSend, depths, timeout);
    let accepted = end
        .with_rc(|rc| {
            rc.open();
            device.connections.accept_and_tell(
                request,
                rc,
                depths.to_mpa(),
                &parameters.private_data,
                id.key(),
            )
        })
        .ok_or(Errno::EINVAL)?;
    tcp.end = end;
    inner.state = State::Accepted;
    match accepted {
        Ok(_) => Ok(()),
        // The peer is gone, which is no mistake of the program's.
        Err(error @ ConnectError::Tcp(_)) => {
            let context = id.key();
            id.push(super::event::What::Connection(ConnectionEvent::Failed {
                context,
                peer,
                error,
            }));
            Ok(())
        }
        Err(ConnectError::Device(error)) => Err(errno::of(error)),
        Err(_) => Err(Errno::EINVAL),
    }
}

/// Answers a request with no, or a response that the program does not want.
pub(crate) fn reject(id: &Arc<Id>, private_data: &[u8]) -> Result<(), Errno> {
    let mut inner = id.lock();
    let moved_by_program = matches!(tcp(&mut inner)?.end, End::Named(_) | End::StandIn(_));
    match inner.state {
        State::Requested => {
            let request = tcp(&mut inner)?.request.take().ok_or(Errno::EINVAL)?;
            inner.state = State::Over;
            drop(inner);
            // If the peer is gone, it need not be told.
            match device::device()?.connections.reject(request, private_data) {
                Err(ConnectError::Config(_)) => Err(Errno::EINVAL),
                Ok(()) | Err(_) => Ok(()),
            }
        }
        State::Connected if moved_by_program => {
            inner.state = State::Over;
            let end = std::mem::take(&mut tcp(&mut inner)?.end);
            drop(inner);
            let _ = end.with_rc(RcQp::disconnect);
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

/// The last step of a program that moved its queue pair itself. The connection is there already.
pub(crate) fn establish(id: &Arc<Id>) -> Result<(), Errno> {
    let mut inner = id.lock();
    let connected = inner.state == State::Connected;
    match tcp(&mut inner)?.end {
        End::Named(_) | End::StandIn(_) if connected => Ok(()),
        End::None | End::Own(_) | End::Named(_) | End::StandIn(_) => Err(Errno::EINVAL),
    }
}

/// Ends the connection: everything posted is flushed. Returns whether an event tells of it, or has.
pub(crate) fn disconnect(id: &Arc<Id>) -> Result<bool, Errno> {
    let mut inner = id.lock();
    let was = inner.state;
    if !matches!(was, State::Accepted | State::Connected | State::Over) {
        return Err(Errno::EINVAL);
    }
    let timeout = inner.options.timeout();
    let tcp = tcp(&mut inner)?;
    if matches!(tcp.end, End::None) {
        return Err(Errno::EINVAL);
    }
    let end = std::mem::take(&mut tcp.end);
    let depths = tcp.asked;
    drop(inner);
    let there = end.with_rc(RcQp::disconnect).is_some();
    end.follow(QpState::Error, depths, timeout);
    let mut inner = id.lock();
    if let Transport::Tcp(tcp) = &mut inner.transport {
        tcp.end = end;
    }
    if !there && was != State::Over {
        // The queue pair is destroyed, and the connection with it.
        id.push_plain(EventType::Disconnected, 0);
        inner.state = State::Over;
    }
    Ok(was != State::Over)
}

/// What the program is told of a connection or listener.
pub(crate) fn tell(id: &Arc<Id>, event: ConnectionEvent) -> Option<Told> {
    match event {
        ConnectionEvent::Request { request, .. } => request::tell(id, request),
        ConnectionEvent::Established { established, .. } => begun(id, established),
        ConnectionEvent::Rejected { rejection, .. } => Some(rejected(id, rejection)),
        ConnectionEvent::Failed { error, .. } => failed(id, &error),
        ConnectionEvent::Disconnected { .. } => {
            id.lock().state = State::Over;
            Some(Told::new(EventType::Disconnected, 0))
        }
        // The stack may learn to tell more before this crate does.
        _ => None,
    }
}

fn begun(id: &Arc<Id>, established: Established) -> Option<Told> {
    let mut inner = id.lock();
    inner.state = State::Connected;
    let offset = device::device().map_or(0, |device| device.port_offset);
    let timeout = inner.options.timeout();
    let tcp = tcp(&mut inner).ok()?;
    tcp.calling = false;
    let local = tcp.end.with_rc(RcQp::local_addr).flatten();
    let depths = Depths::of_mpa(established.negotiation.depths);
    tcp.end.follow(QpState::ReadyToSend, depths, timeout);
    let event = match (&tcp.end, established.negotiation.role) {
        // The program moves its queue pair itself, and says when it has.
        (End::Named(_) | End::StandIn(_), dgiwarp::MpaRole::Initiator) => {
            EventType::ConnectResponse
        }
        _ => EventType::Established,
    };
    if let Some(local) = local {
        inner.local = Some(address::canonical(address::from_socket(local, offset)));
        id.show(&inner);
    }
    Some(Told {
        param: depths.to_c(),
        private_data: established.private_data,
        ..Told::new(event, 0)
    })
}

/// The attempt is over, and another may be made.
fn give_up(id: &Arc<Id>) {
    let mut inner = id.lock();
    inner.state = State::RouteResolved;
    if let Ok(tcp) = tcp(&mut inner) {
        tcp.calling = false;
    }
}

fn rejected(id: &Arc<Id>, rejection: Rejection) -> Told {
    give_up(id);
    let status = match persona::present() {
        Persona::Roce => CONSUMER_DEFINED,
        Persona::Iwarp => -libc::ECONNREFUSED,
    };
    Told {
        private_data: rejection.private_data,
        ..Told::new(EventType::Rejected, status)
    }
}

fn failed(id: &Arc<Id>, error: &ConnectError) -> Option<Told> {
    let state = id.lock().state;
    match state {
        // Somebody connected and said nothing sensible.
        State::Listening => return None,
        State::Accepted => id.lock().state = State::Over,
        State::Idle
        | State::Bound
        | State::AddressResolved
        | State::RouteResolved
        | State::Connecting
        | State::Requested
        | State::Connected
        | State::Over => give_up(id),
    }
    let (event, status) = explain(error, persona::present(), state == State::Accepted);
    Some(Told::new(event, status))
}

/// What programs are told of a failure: those for InfiniBand know its reasons for rejection, those for iWARP errno values.
fn explain(error: &ConnectError, persona: Persona, accepted: bool) -> (EventType, c_int) {
    let rejected = |reason: c_int, errno: Errno| match persona {
        Persona::Roce => (EventType::Rejected, reason),
        Persona::Iwarp => (EventType::Rejected, -(errno as c_int)),
    };
    match error {
        _ if accepted => (EventType::ConnectError, -libc::ECONNRESET),
        ConnectError::Tcp(error) => match errno::of_io(error) {
            Errno::ECONNREFUSED => rejected(INVALID_SERVICE_ID, Errno::ECONNREFUSED),
            Errno::ECONNRESET => (EventType::ConnectError, -libc::ECONNRESET),
            errno => (EventType::Unreachable, -(errno as c_int)),
        },
        ConnectError::Mpa(MpaError::StartupTimeout(_)) => {
            (EventType::Unreachable, -libc::ETIMEDOUT)
        }
        // What a listener that goes away, or its process, leaves behind.
        ConnectError::Mpa(MpaError::ClosedInStartup | MpaError::TcpLost) => {
            rejected(CONSUMER_DEFINED, Errno::ECONNRESET)
        }
        ConnectError::State => (EventType::ConnectError, -libc::EINVAL),
        _ => (EventType::ConnectError, -libc::EPROTO),
    }
}

/// What the program is told of a request, and what is kept of it.
pub(crate) fn take_request(tcp: &mut Tcp, request: RcRequest) -> (Param, Vec<u8>) {
    let depth = |said: Option<dgiwarp::MpaReadDepth>| match said {
        Some(dgiwarp::MpaReadDepth::Limit(n)) => {
            u8::try_from(n).unwrap_or(u8::MAX).min(MAX_RD_ATOMIC)
        }
        // Nothing is said, so everything is possible.
        Some(dgiwarp::MpaReadDepth::LeftToUlp) | None => MAX_RD_ATOMIC,
    };
    let said = request.request();
    // rdma_get_cm_event(3): what one side wants outstanding the other has to serve.
    let depths = Depths {
        responder_resources: depth(said.enhanced.map(|it| it.ord)),
        initiator_depth: depth(said.enhanced.map(|it| it.ird)),
    };
    let private_data = said.private_data.clone();
    tcp.asked = depths;
    tcp.request = Some(request);
    (depths.to_c(), private_data)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn failures_are_told_as_each_persona_has_them() {
        let tcp = |errno| ConnectError::Tcp(io::Error::from_raw_os_error(errno));
        let explain = |error, persona| explain(&error, persona, false);
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

    #[test]
    fn depths_beyond_the_device_are_refused_and_all_ones_is_the_most() {
        let of = |responder_resources, initiator_depth| {
            let c = rdma_conn_param {
                responder_resources,
                initiator_depth,
                ..NO_CONNECTION
            };
            let parameters = Parameters {
                c: Some(c),
                private_data: Vec::new(),
            };
            Depths::of(&parameters, Depths::default())
        };
        assert_eq!(of(255, 255), Ok(Depths::MOST));
        assert_eq!(of(129, 1), Err(Errno::EINVAL));
        let few = of(1, 3).unwrap();
        assert_eq!(few.to_mpa(), ReadDepths { ird: 1, ord: 3 });
        assert_eq!(Depths::of_mpa(few.to_mpa()), few);
    }
}

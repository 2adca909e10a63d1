//! Stream sockets: from `rsocket(3)` to a connection, and their options.

use crate::cm::addr::address;
use crate::ffi::{check_memory, errno};
use crate::rsocket::device::{Device, device};
use crate::rsocket::edges::{Edges, Interest};
use crate::rsocket::events::{Mailbox, cause};
use crate::rsocket::settings::Settings;
use crate::rsocket::stream::connection::{Connection, Data};
use crate::rsocket::stream::keepalive;
use crate::rsocket::wait::{Waiting, now, readable, sleep, waker};
use dgiwarp::{ChannelListener, ConnectionPort, MpaConfig, PortOptions, RcRequest, ReadDepths};
use dgiwarp_sockets::{Config, Shutdown};
use libc::{POLLERR, POLLHUP, POLLIN, POLLOUT, c_int, c_short, pollfd};
use nix::errno::Errno;
use parking_lot::{Mutex, MutexGuard};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// Longest time from a request to the peer's answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Longest wait for what was sent to leave, when a socket is shut down or closed.
const LINGER: Duration = Duration::from_secs(5);

/// Reads of the peer that this end serves, and its own. Rsockets has none; MPA's startup may.
const DEPTHS: ReadDepths = ReadDepths { ird: 1, ord: 1 };

/// A stream socket.
pub(in crate::rsocket) struct StreamSocket {
    pub(in crate::rsocket) mailbox: Arc<Mailbox>,
    pub(in crate::rsocket) nonblocking: AtomicBool,
    /// `SO_RCVTIMEO` and `SO_SNDTIMEO` in milliseconds; 0 is none.
    pub(in crate::rsocket) receive_millis: AtomicU32,
    pub(in crate::rsocket) send_millis: AtomicU32,
    /// Checks by poll sets without an index.
    pub(in crate::rsocket) checks: AtomicU32,
    state: Mutex<State>,
}

impl Drop for StreamSocket {
    fn drop(&mut self) {
        self.mailbox.close();
    }
}

/// State of a stream socket.
pub(in crate::rsocket) struct State {
    phase: Phase,
    pub(in crate::rsocket) options: Options,
    pub(in crate::rsocket) local: Option<SocketAddr>,
    pub(in crate::rsocket) peer: Option<SocketAddr>,
    /// `SO_ERROR`.
    pub(in crate::rsocket) error: Option<Errno>,
}

/// Options that new connections of a listener inherit, and others.
#[derive(Clone)]
pub(in crate::rsocket) struct Options {
    pub(in crate::rsocket) sizes: Config,
    pub(in crate::rsocket) v6: bool,
    pub(in crate::rsocket) only_v6: bool,
    pub(in crate::rsocket) reuse: bool,
    pub(in crate::rsocket) no_delay: bool,
    pub(in crate::rsocket) oob_inline: bool,
    pub(in crate::rsocket) keep_alive: bool,
    /// Seconds; 0 is the system's.
    pub(in crate::rsocket) keep_alive_seconds: u32,
    pub(in crate::rsocket) lingers: bool,
    pub(in crate::rsocket) file_flags: c_int,
}

enum Phase {
    Idle,
    Bound(ConnectionPort),
    Listening(ChannelListener),
    /// Begun by `rconnect(3)`; the result comes into the mailbox.
    Connecting(Arc<Connection>),
    Connected(Arc<Connection>),
    Failed,
}

impl StreamSocket {
    pub(in crate::rsocket) fn new(v6: bool) -> Result<Arc<Self>, Errno> {
        // Errors of the device come with the first call.
        device()?;
        let options = Options {
            sizes: Settings::get().sizes,
            v6,
            only_v6: false,
            reuse: false,
            no_delay: false,
            oob_inline: false,
            keep_alive: false,
            keep_alive_seconds: 0,
            lingers: true,
            file_flags: 0,
        };
        Ok(Self::with(Mailbox::new()?, Phase::Idle, options))
    }

    fn with(mailbox: Arc<Mailbox>, phase: Phase, options: Options) -> Arc<Self> {
        Arc::new(Self {
            mailbox,
            nonblocking: AtomicBool::new(false),
            receive_millis: AtomicU32::new(0),
            send_millis: AtomicU32::new(0),
            checks: AtomicU32::new(0),
            state: Mutex::new(State {
                phase,
                options,
                local: None,
                peer: None,
                error: None,
            }),
        })
    }

    pub(in crate::rsocket) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn waiting(&self, flags: c_int, millis: &AtomicU32) -> Waiting {
        let blocks = !self.nonblocking.load(Ordering::Relaxed) && flags & libc::MSG_DONTWAIT == 0;
        let time = u64::from(millis.load(Ordering::Relaxed));
        Waiting {
            blocks,
            deadline: (blocks && time > 0).then(|| now() + Duration::from_millis(time)),
        }
    }

    /// How a call waits that receives.
    pub(in crate::rsocket) fn receiving(&self, flags: c_int) -> Waiting {
        self.waiting(flags, &self.receive_millis)
    }

    /// How a call waits that sends.
    pub(in crate::rsocket) fn sending(&self, flags: c_int) -> Waiting {
        self.waiting(flags, &self.send_millis)
    }

    pub(in crate::rsocket) fn bind(&self, to: SocketAddr) -> Result<(), Errno> {
        let device = device()?;
        let mut state = self.lock();
        if !matches!(state.phase, Phase::Idle) {
            return Err(Errno::EINVAL);
        }
        let port = bind(&device, &state.options, to, true)?;
        state.local = Some(address::from_socket(port.local_addr(), device.port_offset));
        state.phase = Phase::Bound(port);
        Ok(())
    }

    pub(in crate::rsocket) fn listen(&self, backlog: c_int) -> Result<(), Errno> {
        let device = device()?;
        let mut state = self.lock();
        let port = match std::mem::replace(&mut state.phase, Phase::Idle) {
            Phase::Bound(port) => port,
            Phase::Idle => bind(&device, &state.options, any(state.options.v6), true)?,
            other => {
                let listens = matches!(other, Phase::Listening(_));
                state.phase = other;
                return if listens { Ok(()) } else { Err(Errno::EINVAL) };
            }
        };
        // A hint, as for listen(2). With a short backlog of TCP, SYNs are lost and repeated after whole seconds.
        let backlog = backlog.max(128);
        let mpa = device.mpa.for_responder();
        let listener = device
            .connections
            .listen_on(port, mpa, backlog, self.mailbox.key)
            .map_err(errno::of)?;
        state.local = Some(address::from_socket(
            listener.local_addr(),
            device.port_offset,
        ));
        state.phase = Phase::Listening(listener);
        Ok(())
    }

    /// Gives a TCP port up for a socket of the program.
    pub(in crate::rsocket) fn yield_port(&self, port: u16) -> bool {
        let has_it = |local: SocketAddr| local.port() == port;
        match &mut self.lock().phase {
            Phase::Bound(bound) if has_it(bound.local_addr()) => bound.move_away().is_ok(),
            Phase::Listening(listener) if has_it(listener.local_addr()) => {
                listener.move_away().is_ok()
            }
            _ => false,
        }
    }

    fn listens(&self) -> bool {
        matches!(self.lock().phase, Phase::Listening(_))
    }

    /// Accepts the next request that begins a stream; others are rejected.
    pub(in crate::rsocket) fn accept(&self) -> Result<Arc<Self>, Errno> {
        if !self.listens() {
            return Err(Errno::EINVAL);
        }
        loop {
            let Some(request) = self.mailbox.take_request() else {
                if self.nonblocking.load(Ordering::Relaxed) {
                    return Err(Errno::EAGAIN);
                }
                self.wait_for_mail(Mailbox::has_request)?;
                if !self.listens() {
                    return Err(Errno::EINVAL);
                }
                continue;
            };
            match self.answer(request) {
                Ok(accepted) => return Ok(accepted),
                // A peer that is gone, or no peer of rsockets.
                Err(Errno::ENOTSUP | Errno::ECONNABORTED) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    fn answer(&self, request: RcRequest) -> Result<Arc<Self>, Errno> {
        let device = device()?;
        check_memory()?;
        let (options, known_by) = {
            let state = self.lock();
            (state.options.clone(), state.local)
        };
        let made = Mailbox::new().and_then(|mailbox| {
            let made = Connection::new(&device, &mailbox, request.peer(), options.sizes)?;
            made.introduce(&request.request().private_data)?;
            Ok((mailbox, Arc::new(made)))
        });
        let (mailbox, connection) = match made {
            Ok(made) => made,
            Err(errno) => {
                // The peer may be gone.
                let _ = device.connections.reject(request, &[]);
                return Err(errno);
            }
        };
        let options = Options {
            file_flags: 0,
            keep_alive: false,
            ..options
        };
        let accepted = Self::with(mailbox, Phase::Connected(Arc::clone(&connection)), options);
        {
            let mut state = accepted.lock();
            // A listener that has moved is known by another port number than its socket's.
            let program = |mut it: SocketAddr| {
                it.set_port(known_by.map_or_else(|| it.port(), |known_by| known_by.port()));
                it
            };
            let v6 = state.options.v6;
            state.local = request.local_addr().map(program).map(|it| mapped(it, v6));
            state.peer = Some(mapped(request.peer(), v6));
        }
        // Sends leave after the peer's first FPDU.
        connection.qp.open();
        let data = connection.introduction();
        let answered = device.connections.accept_and_tell(
            request,
            &connection.qp,
            DEPTHS,
            &data,
            accepted.mailbox.key,
        );
        match answered {
            Ok(_) => Ok(accepted),
            Err(_) => Err(Errno::ECONNABORTED),
        }
    }

    /// Sleeps until the mailbox has something, or a signal handler has run.
    fn wait_for_mail(&self, has: impl Fn(&Mailbox) -> bool) -> Result<(), Errno> {
        let settings = Settings::get();
        let waker = waker()?;
        while !has(&self.mailbox) {
            let mut descriptors = [readable(self.mailbox.fd()), readable(waker)];
            sleep(&mut descriptors, None, &settings)?;
            if self.mailbox.is_closed() {
                return Err(Errno::EBADF);
            }
        }
        Ok(())
    }

    /// Begins to connect, and waits for the result unless the socket does not wait.
    pub(in crate::rsocket) fn connect(&self, to: SocketAddr) -> Result<(), Errno> {
        {
            let mut state = self.lock();
            match state.phase {
                Phase::Idle | Phase::Bound(_) => self.begin_connect(&mut state, to)?,
                Phase::Connecting(_) => {}
                Phase::Connected(_) => return Err(Errno::EISCONN),
                Phase::Listening(_) | Phase::Failed => return Err(Errno::EINVAL),
            }
        }
        let nonblocking = self.nonblocking.load(Ordering::Relaxed);
        if !nonblocking {
            self.wait_for_mail(Mailbox::has_outcome)?;
        }
        match self.finish_connect() {
            Err(Errno::EAGAIN) => Err(Errno::EINPROGRESS),
            result => result,
        }
    }

    fn begin_connect(&self, state: &mut State, mut to: SocketAddr) -> Result<(), Errno> {
        let device = device()?;
        if to.ip().is_unspecified() {
            to.set_ip(match to {
                SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            });
        }
        let sizes = state.options.sizes;
        let connection = Arc::new(Connection::new(&device, &self.mailbox, to, sizes)?);
        let port = match std::mem::replace(&mut state.phase, Phase::Failed) {
            Phase::Bound(port) => port,
            _ => {
                let local = address::towards(None, to).inspect_err(|errno| {
                    state.error = Some(*errno);
                })?;
                bind(&device, &state.options, local, false)?
            }
        };
        let mpa = MpaConfig {
            depths: DEPTHS,
            startup_timeout: ANSWER_TIMEOUT,
            ..device.mpa.for_initiator()
        };
        let begun = device.connections.connect_from(
            port,
            &connection.qp,
            address::to_socket(to, device.port_offset),
            &mpa,
            &connection.introduction(),
            self.mailbox.key,
        );
        begun.map_err(|error| cause(&error))?;
        state.peer = Some(to);
        state.phase = Phase::Connecting(connection);
        Ok(())
    }

    /// Takes the result of an attempt to connect: `EAGAIN` while there is none.
    pub(in crate::rsocket) fn finish_connect(&self) -> Result<(), Errno> {
        let mut state = self.lock();
        let Phase::Connecting(connection) = &state.phase else {
            return match state.phase {
                Phase::Connected(_) => Ok(()),
                _ => Err(state.error.unwrap_or(Errno::EINVAL)),
            };
        };
        let connection = Arc::clone(connection);
        let Some(outcome) = self.mailbox.take_outcome() else {
            return Err(Errno::EAGAIN);
        };
        let introduced = outcome.and_then(|data| connection.introduce(&data));
        if let Err(errno) = introduced {
            connection.qp.disconnect();
            state.phase = Phase::Failed;
            state.error = Some(errno);
            return Err(errno);
        }
        let offset = device().map_or(0, |device| device.port_offset);
        let v6 = state.options.v6;
        let local = connection.qp.local_addr();
        state.local = local.map(|it| mapped(address::from_socket(it, offset), v6));
        state.phase = Phase::Connected(connection);
        Ok(())
    }

    /// The connection, for calls that send and receive.
    pub(in crate::rsocket) fn connection(&self) -> Result<Arc<Connection>, Errno> {
        {
            let state = self.lock();
            match &state.phase {
                Phase::Connected(connection) => return Ok(Arc::clone(connection)),
                Phase::Connecting(_) => {}
                Phase::Failed => return Err(state.error.unwrap_or(Errno::ENOTCONN)),
                Phase::Idle | Phase::Bound(_) | Phase::Listening(_) => {
                    return Err(Errno::ENOTCONN);
                }
            }
        }
        if !self.nonblocking.load(Ordering::Relaxed) {
            self.wait_for_mail(Mailbox::has_outcome)?;
        }
        self.finish_connect()?;
        self.connection()
    }

    /// The connection, if there is one.
    pub(in crate::rsocket) fn connected(&self) -> Option<Arc<Connection>> {
        match &self.lock().phase {
            Phase::Connected(connection) => Some(Arc::clone(connection)),
            _ => None,
        }
    }

    /// Sizes as the connection has them, or as it is going to ask for them.
    pub(in crate::rsocket) fn sizes(&self) -> Config {
        let state = self.lock();
        match &state.phase {
            Phase::Connecting(connection) | Phase::Connected(connection) => connection.config,
            Phase::Idle | Phase::Bound(_) | Phase::Listening(_) | Phase::Failed => {
                state.options.sizes
            }
        }
    }

    pub(in crate::rsocket) fn shut_down(&self, how: Shutdown) -> Result<(), Errno> {
        let connection = match self.connection() {
            Ok(connection) => connection,
            Err(Errno::EAGAIN) => return Err(Errno::ENOTCONN),
            Err(errno) => return Err(errno),
        };
        if connection.is_closed() {
            return Err(Errno::ENOTCONN);
        }
        connection.shut_down(how, now() + LINGER);
        Ok(())
    }

    /// From now on ends and errors are those of TCP.
    pub(in crate::rsocket) fn be_tcp(&self) -> Result<(), Errno> {
        let connection = self.connection()?;
        connection.lock().tcp.get_or_insert_default();
        Ok(())
    }

    /// Disconnects at the end of the process, without waiting for anything.
    pub(in crate::rsocket) fn leave(&self) {
        if let Some(state) = self.state.try_lock()
            && let Phase::Connected(connection) = &state.phase
        {
            connection.leave();
        }
    }

    /// Ends everything.
    pub(in crate::rsocket) fn close(self: &Arc<Self>) {
        keepalive::end(self.mailbox.key);
        if let Some(connection) = self.connected() {
            connection.shut_down(Shutdown::Both, now() + LINGER);
            let mut data = connection.lock();
            // Threads that still wait for it.
            connection.lose(&mut data, Errno::EBADF);
        }
        if let (Phase::Connecting(_), Ok(device)) = (&self.lock().phase, device()) {
            device.connections.cancel(self.mailbox.key);
        }
        self.mailbox.close();
        let phase = std::mem::replace(&mut self.lock().phase, Phase::Failed);
        // Without the lock: the port and the connection close here, unless another thread uses them still.
        drop(phase);
    }

    /// The socket's address; the unspecified one before it has any.
    pub(in crate::rsocket) fn local_addr(&self) -> SocketAddr {
        let state = self.lock();
        state.local.unwrap_or_else(|| any(state.options.v6))
    }

    /// The peer's address, if there is one.
    pub(in crate::rsocket) fn peer_addr(&self) -> Option<SocketAddr> {
        if self.connected().is_some_and(|it| it.is_closed()) {
            return None;
        }
        self.lock().peer
    }

    /// Begins keep-alives, or changes when the next is due.
    pub(in crate::rsocket) fn keep_alive(self: &Arc<Self>) -> Result<(), Errno> {
        let weak = Arc::downgrade(self);
        let send = move || {
            let socket = weak.upgrade()?;
            let options = socket.lock().options.clone();
            if let Some(connection) = socket.connected()
                && connection.lock().is_connected()
            {
                connection.keep_alive();
            }
            options.keep_alive.then_some(options.keep_alive_seconds)
        };
        let seconds = self.lock().options.keep_alive_seconds;
        keepalive::begin(self.mailbox.key, seconds, Box::new(send))
    }

    /// Events of poll(2) that the socket has now, and the changes of a connection until then.
    pub(in crate::rsocket) fn check(&self, events: c_short) -> (c_short, Option<Edges>) {
        if matches!(self.lock().phase, Phase::Connecting(_)) {
            let _ = self.finish_connect();
        }
        let connection = {
            let state = self.lock();
            match &state.phase {
                Phase::Connected(connection) => Arc::clone(connection),
                Phase::Listening(_) if self.mailbox.has_request() => {
                    return (events & POLLIN, None);
                }
                Phase::Failed => return (events & (POLLIN | POLLOUT) | POLLERR, None),
                // As a socket of TCP that was never connected.
                Phase::Idle | Phase::Bound(_) => return (events & POLLOUT | POLLHUP, None),
                Phase::Connecting(_) | Phase::Listening(_) => return (0, None),
            }
        };
        let mut data = connection.lock();
        connection.advance(&mut data);
        (data.readiness(events), Some(data.edges))
    }

    /// Prepares the calling thread to sleep, unless an event is there. The descriptor to sleep at.
    pub(in crate::rsocket) fn arm(
        &self,
        interest: Interest,
        waker: c_int,
    ) -> Result<pollfd, c_short> {
        let events = interest.events;
        match self.connected() {
            Some(connection) => {
                let ready = |data: &Data| interest.is_met(data.readiness(events), Some(data.edges));
                if connection.arm(waker, ready) {
                    return Err(connection.lock().readiness(events));
                }
                Ok(readable(connection.wait_fd()))
            }
            None => match self.check(events).0 {
                0 => Ok(readable(self.mailbox.fd())),
                found => Err(found),
            },
        }
    }

    /// Ends what [`arm`](Self::arm) began.
    pub(in crate::rsocket) fn disarm(&self, waker: c_int) {
        if let Some(connection) = self.connected() {
            connection.disarm(waker);
        }
    }
}

impl State {
    /// Whether sizes can be changed no more.
    pub(in crate::rsocket) fn has_memory(&self) -> bool {
        matches!(self.phase, Phase::Connecting(_) | Phase::Connected(_))
    }

    pub(in crate::rsocket) fn is_bound(&self) -> bool {
        !matches!(self.phase, Phase::Idle)
    }

    pub(in crate::rsocket) fn listens(&self) -> bool {
        matches!(self.phase, Phase::Listening(_))
    }
}

fn any(v6: bool) -> SocketAddr {
    if v6 {
        (Ipv6Addr::UNSPECIFIED, 0).into()
    } else {
        (Ipv4Addr::UNSPECIFIED, 0).into()
    }
}

/// An address as sockets of a family have it.
fn mapped(address: SocketAddr, v6: bool) -> SocketAddr {
    match (address, v6) {
        (SocketAddr::V4(v4), true) => (v4.ip().to_ipv6_mapped(), v4.port()).into(),
        (_, true) => address,
        (_, false) => address::canonical(address),
    }
}

fn bind(
    device: &Device,
    options: &Options,
    to: SocketAddr,
    listens: bool,
) -> Result<ConnectionPort, Errno> {
    let port = PortOptions {
        only_v6: options.only_v6,
        tos: None,
        port_when_connected: !listens,
        may_move: listens,
    };
    let to = address::to_socket(to, device.port_offset);
    ConnectionPort::bind(to, port).map_err(errno::of)
}

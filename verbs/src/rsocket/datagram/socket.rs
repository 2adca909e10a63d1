//! Datagram sockets: a UDP socket of the system, and a UD queue pair beside it.

use crate::cm::addr::address;
use crate::ffi::errno;
use crate::rsocket::datagram::queues::{HEADERS, Queues, RECEIVE, SLOT};
use crate::rsocket::iovec::Vectors;
use crate::rsocket::settings::Settings;
use crate::rsocket::wait::Waiting;
use crate::rsocket::wait::{Waiters, now, readable, sleep, waker};
use dgiwarp::{AddressHandle, Wc, WcStatus};
use dgiwarp_sockets::wire::{Operation, UdpHeader};
use dgiwarp_sockets::{Config, Destinations, Route};
use libc::{POLLIN, POLLOUT, c_int, c_short, pollfd};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Datagrams that came in plain UDP and wait.
const MAX_WAITING: usize = 1024;
/// A datagram socket.
pub(in crate::rsocket) struct DatagramSocket {
    udp: UdpSocket,
    pub(in crate::rsocket) nonblocking: AtomicBool,
    settings: Settings,
    state: Mutex<State>,
}

pub(in crate::rsocket) struct State {
    pub(in crate::rsocket) sizes: Config,
    pub(in crate::rsocket) file_flags: c_int,
    v6: bool,
    queues: Option<Queues>,
    destinations: Destinations,
    handles: HashMap<IpAddr, AddressHandle>,
    peer: Option<SocketAddr>,
    waiting: VecDeque<Datagram>,
    /// Room for a datagram in plain UDP.
    scratch: Vec<u8>,
    waiters: Waiters,
    closed: bool,
}

/// A datagram that waits for the program.
enum Datagram {
    /// In a slot of the receive memory.
    Slot { slot: usize, octets: usize },
    /// From plain UDP.
    Plain { source: SocketAddr, octets: Vec<u8> },
}

impl DatagramSocket {
    pub(in crate::rsocket) fn new(v6: bool) -> Result<Arc<Self>, Errno> {
        let domain = if v6 {
            AddressFamily::Inet6
        } else {
            AddressFamily::Inet
        };
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let udp = socket(domain, SockType::Datagram, flags, None)?;
        let settings = Settings::get();
        Ok(Arc::new(Self {
            udp: udp.into(),
            nonblocking: AtomicBool::new(false),
            settings,
            state: Mutex::new(State {
                sizes: settings.sizes.in_range(),
                file_flags: 0,
                v6,
                queues: None,
                destinations: Destinations::default(),
                handles: HashMap::new(),
                peer: None,
                waiting: VecDeque::new(),
                scratch: Vec::new(),
                waiters: Waiters::default(),
                closed: false,
            }),
        }))
    }

    pub(in crate::rsocket) fn fd(&self) -> RawFd {
        self.udp.as_raw_fd()
    }

    pub(in crate::rsocket) fn udp(&self) -> &UdpSocket {
        &self.udp
    }

    pub(in crate::rsocket) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(in crate::rsocket) fn waiting(&self, flags: c_int) -> Waiting {
        Waiting {
            blocks: !self.nonblocking.load(Ordering::Relaxed) && flags & libc::MSG_DONTWAIT == 0,
            deadline: None,
        }
    }

    pub(in crate::rsocket) fn has_memory(&self) -> bool {
        self.lock().queues.is_some()
    }

    /// Makes the queue pair.
    pub(in crate::rsocket) fn begin(&self) -> Result<(), Errno> {
        let mut state = self.lock();
        if state.queues.is_none() {
            state.queues = Some(Queues::new(&state.sizes, state.v6)?);
            // Sleepers have another descriptor to wait at.
            state.waiters.wake();
        }
        Ok(())
    }

    pub(in crate::rsocket) fn connect(&self, to: SocketAddr) -> Result<(), Errno> {
        self.begin()?;
        self.udp.connect(to).map_err(|error| errno::of_io(&error))?;
        self.lock().peer = Some(to);
        Ok(())
    }

    /// Sends one datagram, to the peer of the connection without an address.
    pub(in crate::rsocket) fn send(
        &self,
        from: &mut Vectors<'_>,
        to: Option<SocketAddr>,
        waiting: Waiting,
    ) -> Result<usize, Errno> {
        self.begin()?;
        let octets = from.left();
        if octets > SLOT - HEADERS - 1 {
            return Err(Errno::EMSGSIZE);
        }
        loop {
            let mut state = self.lock();
            if state.closed {
                return Err(Errno::EBADF);
            }
            let to = to.or(state.peer).ok_or(Errno::EDESTADDRREQ)?;
            let mut route = state.destinations.route(to);
            if route == Route::Udp || !state.can_send() {
                self.progress(&mut state);
                route = state.destinations.route(to);
            }
            match route {
                Route::Udp => {
                    let mut payload = vec![0; octets];
                    from.copy_to(&mut payload);
                    self.send_plain(&state, Operation::Data, to, &payload)?;
                    return Ok(octets);
                }
                Route::Qp(qpn) if state.can_send() => {
                    self.send_ud(&mut state, from, to, qpn)?;
                    return Ok(octets);
                }
                Route::Qp(_) => {}
            }
            drop(state);
            self.wait(State::can_send, waiting)?;
        }
    }

    /// Address of the socket towards a peer.
    fn source(&self, to: SocketAddr) -> Result<SocketAddr, Errno> {
        let mut local = self
            .udp
            .local_addr()
            .map_err(|error| errno::of_io(&error))?;
        if local.ip().is_unspecified() {
            local.set_ip(address::towards(None, to)?.ip());
        }
        Ok(local)
    }

    /// Sends a datagram in plain UDP.
    fn send_plain(
        &self,
        state: &State,
        operation: Operation,
        to: SocketAddr,
        payload: &[u8],
    ) -> Result<(), Errno> {
        let queues = state.queues.as_ref().ok_or(Errno::EINVAL)?;
        let header = UdpHeader {
            operation,
            qpn: queues.qp.qpn().into(),
            address: self.source(to)?.ip(),
        };
        let mut octets = [0; UdpHeader::MAX_LEN];
        let len = header.emit(&mut octets);
        let datagram = [&octets[..len], payload].concat();
        let sent = match state.peer {
            Some(peer) if peer == to => self.udp.send(&datagram),
            _ => self.udp.send_to(&datagram, to),
        };
        match sent.map_err(|error| errno::of_io(&error)) {
            // Datagrams are lost where nobody receives them, and where there is no room.
            Ok(_) | Err(Errno::EAGAIN | Errno::ECONNREFUSED) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Sends a datagram to the peer's queue pair.
    fn send_ud(
        &self,
        state: &mut State,
        from: &mut Vectors<'_>,
        to: SocketAddr,
        qpn: u32,
    ) -> Result<(), Errno> {
        let source = self.source(to)?;
        let State {
            queues, handles, ..
        } = state;
        let queues = queues.as_mut().ok_or(Errno::EINVAL)?;
        let ah = match handles.get(&to.ip()) {
            Some(ah) => ah.clone(),
            None => {
                let ah = queues.qp.pd().create_ah(to.ip()).map_err(errno::of)?;
                if handles.len() >= dgiwarp_sockets::MAX_DESTINATIONS {
                    handles.clear();
                }
                handles.insert(to.ip(), ah.clone());
                ah
            }
        };
        let qpn = u16::try_from(qpn).map_err(|_| Errno::EHOSTUNREACH)?;
        let slot = queues.free.pop().ok_or(Errno::EAGAIN)?;
        queues.send(slot, source, from, (ah, qpn))
    }

    /// Receives one datagram. Returns its length, before it was cut to the program's memory, and its source.
    pub(in crate::rsocket) fn receive(
        &self,
        to: &mut Vectors<'_>,
        flags: c_int,
        waiting: Waiting,
    ) -> Result<(usize, SocketAddr), Errno> {
        self.begin()?;
        let peeks = flags & libc::MSG_PEEK != 0;
        loop {
            let mut state = self.lock();
            if state.closed {
                return Err(Errno::EBADF);
            }
            if state.waiting.is_empty() {
                self.progress(&mut state);
            }
            if let Some(taken) = state.take(to, peeks) {
                return Ok(taken);
            }
            if state.waiting.is_empty() {
                drop(state);
                self.wait(State::can_read, waiting)?;
            }
        }
    }

    /// Takes completions, and datagrams in plain UDP.
    fn progress(&self, state: &mut State) {
        let before = state.waiting.len();
        let mut completions = [Wc::default(); 16];
        let mut came = false;
        while let Some(queues) = &mut state.queues {
            let count = queues.cq.poll(&mut completions).unwrap_or(0);
            came |= count > 0;
            for wc in completions.iter().take(count) {
                let slot = usize::try_from(wc.wr_id & !RECEIVE).unwrap_or(0);
                if wc.wr_id & RECEIVE == 0 {
                    queues.free.push(slot);
                    continue;
                }
                let octets = usize::try_from(wc.byte_len).unwrap_or(0);
                let valid = wc.status == WcStatus::Success && queues.header(slot, octets).is_some();
                if valid {
                    state.waiting.push_back(Datagram::Slot { slot, octets });
                } else if wc.status != WcStatus::Flushed {
                    let _ = queues.post_receive(slot);
                }
            }
            if count < completions.len() {
                break;
            }
        }
        self.receive_plain(state);
        if came || state.waiting.len() > before {
            state.waiters.wake();
        }
    }

    /// Takes datagrams in plain UDP, and answers them.
    fn receive_plain(&self, state: &mut State) {
        let mut buffer = std::mem::take(&mut state.scratch);
        buffer.resize(SLOT, 0);
        self.receive_plain_into(state, &mut buffer);
        state.scratch = buffer;
    }

    fn receive_plain_into(&self, state: &mut State, buffer: &mut [u8]) {
        // Bounded, so that a flood leaves time for the program.
        for _ in 0..64 {
            let Ok((len, source)) = self.udp.recv_from(buffer) else {
                return;
            };
            let Some(datagram) = buffer.get(..len) else {
                return;
            };
            let Ok(arrived) = state.destinations.handle_udp(source, datagram) else {
                continue;
            };
            let payload = arrived.payload.map(<[u8]>::to_vec);
            if arrived.answer && state.queues.is_some() {
                let _ = self.send_plain(state, Operation::Control, source, &[]);
            }
            if let Some(octets) = payload
                && state.waiting.len() < MAX_WAITING
            {
                state.waiting.push_back(Datagram::Plain { source, octets });
            }
        }
    }

    fn wait(&self, ready: impl Fn(&State) -> bool, waiting: Waiting) -> Result<(), Errno> {
        if !waiting.blocks {
            return Err(Errno::EAGAIN);
        }
        let spin_until = now() + self.settings.polling_time;
        loop {
            let mut state = self.lock();
            self.progress(&mut state);
            if ready(&state) {
                return Ok(());
            }
            drop(state);
            if now() >= spin_until {
                break;
            }
        }
        let waker = waker()?;
        loop {
            let Some([first, second]) = self.arm_for(waker, &ready) else {
                return Ok(());
            };
            let mut descriptors = [first, second, readable(waker)];
            let slept = sleep(&mut descriptors, None, &self.settings);
            self.disarm(waker);
            let mut state = self.lock();
            self.progress(&mut state);
            if ready(&state) || state.closed {
                return Ok(());
            }
            slept?;
        }
    }

    fn arm_for(&self, waker: RawFd, ready: impl Fn(&State) -> bool) -> Option<[pollfd; 2]> {
        let mut state = self.lock();
        if let Some(queues) = &state.queues {
            queues.cq.request_notification(false);
        }
        self.progress(&mut state);
        if ready(&state) {
            return None;
        }
        state.waiters.add(waker);
        let queues = state.queues.as_ref();
        let fd = queues.map_or(-1, |it| it.channel.begin_wait().as_fd().as_raw_fd());
        Some([readable(fd), readable(self.fd())])
    }

    /// Events of poll(2) that the socket has now.
    pub(in crate::rsocket) fn check(&self, events: c_short) -> c_short {
        let mut state = self.lock();
        self.progress(&mut state);
        state.readiness(events)
    }

    pub(in crate::rsocket) fn arm(
        &self,
        events: c_short,
        waker: RawFd,
    ) -> Result<[pollfd; 2], c_short> {
        self.arm_for(waker, |state| state.readiness(events) != 0)
            .ok_or_else(|| self.lock().readiness(events))
    }

    pub(in crate::rsocket) fn disarm(&self, waker: RawFd) {
        let mut state = self.lock();
        state.waiters.remove(waker);
        if let Some(queues) = state.queues.as_ref().filter(|_| state.waiters.are_none()) {
            queues.cq.cancel_notification();
        }
        if state.queues.as_ref().is_some_and(Queues::take_events) {
            self.progress(&mut state);
        }
    }

    /// Ends the socket. Datagrams that were sent leave.
    pub(in crate::rsocket) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.waiters.wake();
        state.queues = None;
    }
}

impl State {
    fn can_read(&self) -> bool {
        !self.waiting.is_empty() || self.closed
    }

    fn can_send(&self) -> bool {
        self.queues.as_ref().is_none_or(|it| !it.free.is_empty()) || self.closed
    }

    fn readiness(&self, events: c_short) -> c_short {
        let mut found = 0;
        if self.can_read() {
            found |= events & POLLIN;
        }
        if self.can_send() {
            found |= events & POLLOUT;
        }
        found
    }

    /// Copies the first datagram that waits. Where the socket is connected, datagrams of strangers are dropped.
    fn take(&mut self, to: &mut Vectors<'_>, peeks: bool) -> Option<(usize, SocketAddr)> {
        loop {
            let queues = self.queues.as_ref();
            let (source, octets) = match self.waiting.front()? {
                Datagram::Plain { source, octets } => (*source, octets.len()),
                Datagram::Slot { slot, octets } => {
                    let (source, head) = queues?.header(*slot, *octets)?;
                    (source, octets - head)
                }
            };
            let is_expected = self.peer.is_none_or(|peer| same(peer, source));
            if is_expected {
                match self.waiting.front()? {
                    Datagram::Plain { octets, .. } => {
                        let some = octets.len().min(to.left());
                        to.fill(octets.get(..some)?);
                    }
                    Datagram::Slot { slot, octets: all } => {
                        let at = slot * SLOT + (all - octets);
                        let some = octets.min(to.left());
                        to.fill_from(&queues?.receive, at, some);
                    }
                }
            }
            if !(is_expected && peeks)
                && let Some(Datagram::Slot { slot, .. }) = self.waiting.pop_front()
            {
                let _ = queues?.post_receive(slot);
            }
            if is_expected {
                return Some((octets, source));
            }
        }
    }
}

/// Whether two addresses are one socket's; headers have no scopes.
fn same(one: SocketAddr, other: SocketAddr) -> bool {
    one.port() == other.port() && one.ip().to_canonical() == other.ip().to_canonical()
}

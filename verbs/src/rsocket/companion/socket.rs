//! The companion of one UDP socket.

use crate::cm::addr::address;
use crate::ffi::{errno, poll};
use crate::rsocket::companion::exchange::{Exchange, exchange};
use crate::rsocket::companion::host::{has_port_alone, is_own};
use crate::rsocket::companion::routes::{NewRoute, Routes};
use crate::rsocket::datagram::queues::{Queues, RECEIVE, SLOT};
use crate::rsocket::edges::{Edges, Interest};
use crate::rsocket::iovec::Vectors;
use crate::rsocket::wait::{Waiters, now, readable};
use dgiwarp::{Wc, WcStatus};
use dgiwarp_memory::socket::NoCancellation;
use dgiwarp_sockets::wire::{RouteRequest, mark_name, mark_names};
use libc::{POLLIN, c_int, c_short, pollfd};
use nix::errno::Errno;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::Ipv6V6Only;
use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Slots of either direction: about as many short datagrams as the kernel's buffer has room for by default.
const SENDS: usize = 64;
const RECEIVES: usize = 256;
/// Longest datagram of UDP.
const LONGEST: usize = 65_507;
/// Time for which a datagram waits for a slot.
const MAX_STALL: Duration = Duration::from_secs(1);
/// Datagrams of the kernel's that are taken before one of the queue pair.
const MAX_TAKEN: usize = 256;

/// Result of a call that is the kernel's to do.
pub(in crate::rsocket) const KERNELS: Errno = Errno::ENOTCONN;
/// As [`KERNELS`], and the destination may have a companion, which [`Companion::ask`] looks for.
pub(in crate::rsocket) const ASKS: Errno = Errno::EINPROGRESS;

/// A companion.
pub(in crate::rsocket) struct Companion {
    me: Weak<Self>,
    /// Another descriptor of the program's socket.
    udp: UdpSocket,
    is_v6: bool,
    /// A datagram may be there: it is looked for without a lock.
    is_used: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    queues: Option<Queues>,
    routes: Routes,
    /// Came by the queue pair, and wait for what came by the kernel before.
    arrived: VecDeque<Datagram>,
    waiting: VecDeque<Datagram>,
    /// Number of the mark in the exchange.
    mark: Option<u64>,
    /// Peer of a connected socket.
    peer: Option<SocketAddr>,
    edges: Edges,
    waiters: Waiters,
    /// Socket and peers are the kernel's from now on.
    retired: bool,
    scratch: Vec<u8>,
}

enum Datagram {
    Slot {
        slot: usize,
        head: usize,
        octets: usize,
        source: SocketAddr,
    },
    Kernels {
        source: SocketAddr,
        octets: Vec<u8>,
    },
    /// Error that the kernel's socket has reported meanwhile.
    Error(Errno),
}

/// A datagram that was taken.
pub(in crate::rsocket) struct Taken {
    /// Octets that it had.
    pub(in crate::rsocket) octets: usize,
    pub(in crate::rsocket) source: SocketAddr,
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The destination of a datagram: the kernel takes no address for this host.
fn destination(to: SocketAddr) -> SocketAddr {
    let to = canonical(to);
    match to.ip() {
        IpAddr::V4(v4) if v4.is_unspecified() => (Ipv4Addr::LOCALHOST, to.port()).into(),
        IpAddr::V6(v6) if v6.is_unspecified() => (Ipv6Addr::LOCALHOST, to.port()).into(),
        _ => to,
    }
}

fn unspecified(like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// Whether a destination can be this host, by its address alone.
fn is_eligible(to: SocketAddr) -> bool {
    let ip = to.ip();
    let is_link_local = match ip {
        IpAddr::V4(v4) => v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    to.port() != 0 && !ip.is_multicast() && !is_link_local
}

impl Companion {
    /// A companion of the UDP socket with descriptor `fd`.
    pub(in crate::rsocket) fn new(fd: BorrowedFd<'_>) -> Result<Arc<Self>, Errno> {
        // The preload library would take a duplicate for one of the program's.
        // SAFETY: fcntl(2), numbers only.
        let copy =
            unsafe { libc::syscall(libc::SYS_fcntl, fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 0) };
        let copy = RawFd::try_from(copy).ok().filter(|it| *it >= 0);
        // SAFETY: just made, and nobody else's.
        let udp = unsafe { OwnedFd::from_raw_fd(copy.ok_or_else(Errno::last)?) };
        let udp = UdpSocket::from(dgiwarp::adopt_socket(udp));
        let local = udp.local_addr().map_err(|error| errno::of_io(&error))?;
        let state = State {
            peer: udp.peer_addr().ok().map(canonical),
            ..State::default()
        };
        Ok(Arc::new_cyclic(|me| Self {
            me: me.clone(),
            udp,
            is_v6: local.is_ipv6(),
            is_used: AtomicBool::new(false),
            state: Mutex::new(state),
        }))
    }

    pub(in crate::rsocket) fn fd(&self) -> RawFd {
        self.udp.as_raw_fd()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn local(&self) -> Result<SocketAddr, Errno> {
        let local = self.udp.local_addr();
        local.map_err(|error| errno::of_io(&error))
    }

    /// The address that the kernel gives datagrams to a peer.
    fn source(&self, to: SocketAddr) -> Result<SocketAddr, Errno> {
        let mut local = canonical(self.local()?);
        if local.ip().is_unspecified() {
            local.set_ip(address::towards(None, to)?.ip());
        }
        Ok(canonical(local))
    }

    /// Marks the socket, so that companions of others find it.
    pub(in crate::rsocket) fn offer(&self) -> Result<(), Errno> {
        let mut state = self.lock();
        if state.retired {
            return Err(Errno::EPERM);
        }
        if state.mark.is_some() {
            return Ok(());
        }
        let local = self.local()?;
        if local.port() == 0 {
            return Err(Errno::EINVAL);
        }
        let name = mark_name(local, state.peer);
        state.mark = Some(exchange()?.mark(&name, self.me.clone())?);
        Ok(())
    }

    /// The program has connected the socket, or ended that. Routes to others end.
    pub(in crate::rsocket) fn connected(&self) {
        let peer = self.udp.peer_addr().ok().map(canonical);
        let mut state = self.lock();
        state.peer = peer;
        self.collect(&mut state);
        let mark = state.mark.take();
        let ended = match peer {
            Some(_) => state.routes.clear_but(peer, now()),
            None => Vec::new(),
        };
        drop(state);
        leave_exchange(mark.into_iter().chain(ended));
        if mark.is_some() {
            // The address may be another one now.
            let _ = self.offer();
        }
    }

    /// Socket and peers are the kernel's from now on. Datagrams that have come stay.
    pub(in crate::rsocket) fn retire(&self) {
        let mut state = self.lock();
        state.retired = true;
        let mark = state.mark.take();
        let ended = state.routes.clear_but(None, now());
        drop(state);
        leave_exchange(mark.into_iter().chain(ended));
    }

    /// Ends the companion. Datagrams that were sent leave.
    pub(in crate::rsocket) fn close(&self) {
        self.retire();
        let mut state = self.lock();
        state.waiters.wake();
        state.arrived.clear();
        state.waiting.clear();
        state.queues = None;
    }

    fn begin(&self, state: &mut State) -> Result<u16, Errno> {
        if state.queues.is_none() {
            let mut at = canonical(self.local()?);
            at.set_port(0);
            if state.peer.is_some() {
                // Another peer may give the socket another address.
                at.set_ip(unspecified(at.ip()));
            }
            let queues = Queues::with(SENDS, RECEIVES, at)?;
            state.queues = Some(queues);
            self.is_used.store(true, Ordering::Release);
            // Sleepers have another descriptor to wait at.
            state.waiters.wake();
        }
        let queues = state.queues.as_ref().ok_or(Errno::EINVAL)?;
        Ok(queues.qp.qpn())
    }

    fn new_route(
        &self,
        state: &State,
        to: SocketAddr,
        takes_from: Option<u16>,
    ) -> Result<NewRoute, Errno> {
        let queues = state.queues.as_ref().ok_or(Errno::EINVAL)?;
        let pd = queues.qp.pd();
        Ok(NewRoute {
            key: 0,
            source: self.source(to)?,
            handle: pd.create_ah(to.ip()).map_err(errno::of)?,
            takes_from,
        })
    }

    /// Looks for a companion of a destination, and asks it for a route.
    pub(in crate::rsocket) fn ask(&self, to: Option<SocketAddr>) -> Result<(), Errno> {
        let mut state = self.lock();
        let to = destination(to.or(state.peer).ok_or(Errno::EDESTADDRREQ)?);
        if state.retired || !is_eligible(to) {
            return Err(Errno::EPERM);
        }
        let from = self.source(to)?;
        let Some(connection) = Exchange::connect(&mark_names(from, to))? else {
            return Err(Errno::ECONNREFUSED);
        };
        // Sockets at all addresses have the name whoever the destination is.
        if !is_own(to.ip()) {
            return Err(Errno::EHOSTUNREACH);
        }
        let qpn = self.begin(&mut state)?;
        let now = now();
        let room = state.routes.make_room(now).map_err(|_| Errno::ENOBUFS)?;
        let route = self.new_route(&state, to, None)?;
        let request = RouteRequest { to, from, qpn };
        // The answer is taken behind this lock.
        let exchange = exchange()?;
        let key = exchange.ask(connection, self.me.clone(), &request)?;
        let replaced = state.routes.enter(to, NewRoute { key, ..route }, now);
        drop(state);
        leave_exchange(room.into_iter().chain(replaced));
        Ok(())
    }

    /// Gives a peer the queue pair and the source of its datagrams, if datagrams to the address are this socket's.
    pub(super) fn admit(
        &self,
        request: &RouteRequest,
        key: u64,
    ) -> Result<(u16, SocketAddr), Errno> {
        let local = self.local()?;
        let mut state = self.lock();
        if state.retired || state.mark.is_none() || !self.takes(&state, local, request) {
            return Err(Errno::ECONNREFUSED);
        }
        let qpn = self.begin(&mut state)?;
        let now = now();
        let room = state.routes.make_room(now).map_err(|_| Errno::ENOBUFS)?;
        let from = canonical(request.from);
        let route = self.new_route(&state, from, Some(request.qpn))?;
        let source = route.source;
        let replaced = state.routes.enter(from, NewRoute { key, ..route }, now);
        drop(state);
        leave_exchange(room.into_iter().chain(replaced));
        Ok((qpn, source))
    }

    /// Whether the kernel gives this socket datagrams from one address to the other.
    fn takes(&self, state: &State, local: SocketAddr, request: &RouteRequest) -> bool {
        let only_v6 = self.is_v6 && getsockopt(&self.udp, Ipv6V6Only).unwrap_or(true);
        let to = canonical(request.to);
        let ip = local.ip().to_canonical();
        let is_family = to.is_ipv4() == ip.is_ipv4() || (ip.is_unspecified() && !only_v6);
        let is_at = to.port() == local.port() && (ip == to.ip() || ip.is_unspecified());
        is_family
            && is_at
            && is_own(to.ip())
            && is_eligible(request.from)
            && match state.peer {
                Some(peer) => peer == canonical(request.from),
                None => has_port_alone(local.port()),
            }
    }

    /// A peer takes datagrams: at this queue pair, whose datagrams have this source, or at the one that it has named before.
    pub(super) fn open(&self, peer: SocketAddr, key: u64, at: Option<(u16, SocketAddr)>) -> bool {
        let mut state = self.lock();
        !state.retired && state.routes.open(canonical(peer), key, at)
    }

    /// A route has ended.
    pub(super) fn lose(&self, peer: SocketAddr, key: u64, refused: bool) {
        let mut state = self.lock();
        self.collect(&mut state);
        state.routes.lose(canonical(peer), key, refused, now());
    }

    /// Whether datagrams can come by the queue pair.
    pub(in crate::rsocket) fn has_routes(&self) -> bool {
        self.is_used.load(Ordering::Acquire) && !self.lock().routes.is_empty()
    }

    /// Whether any went through shared memory.
    pub(in crate::rsocket) fn is_lane(&self) -> bool {
        let state = self.lock();
        state.queues.as_ref().is_some_and(|it| {
            let counters = it.qp.counters();
            counters.lane_octets_sent | counters.lane_octets_received != 0
        })
    }

    /// Sends a datagram by the queue pair, or returns [`KERNELS`] or [`ASKS`].
    pub(in crate::rsocket) fn send(
        &self,
        from: &mut Vectors<'_>,
        to: Option<SocketAddr>,
    ) -> Result<usize, Errno> {
        let octets = from.left();
        let mut state = self.lock();
        let to = destination(to.or(state.peer).ok_or(KERNELS)?);
        let mut stalled = None;
        loop {
            if state.retired || octets > LONGEST {
                return Err(KERNELS);
            }
            let now = now();
            let State { queues, routes, .. } = &mut *state;
            let (Some(route), Some(queues)) = (routes.get(to, now), queues.as_mut()) else {
                return Err(if is_eligible(to) && routes.count(to, now) {
                    ASKS
                } else {
                    KERNELS
                });
            };
            let qpn = route.qpn.ok_or(KERNELS)?;
            if let Some(slot) = queues.free.pop() {
                let (source, ah) = (route.source, route.handle.clone());
                let sent = queues.send(slot, source, from, (ah, qpn));
                return sent.map(|()| octets).map_err(|_| KERNELS);
            }
            self.collect(&mut state);
            if state.queues.as_ref().is_some_and(|it| it.free.is_empty()) {
                let since = *stalled.get_or_insert(now);
                if now.saturating_duration_since(since) >= MAX_STALL {
                    return Err(KERNELS);
                }
                // By the kernel it would overtake those that another thread is about to send.
                MutexGuard::unlocked(&mut state, || {
                    let _guard = NoCancellation::begin();
                    poll(&mut [], 1)
                });
            }
        }
    }

    /// Takes a datagram that came by the queue pair, or by the kernel before one of these; [`KERNELS`] where there is none.
    pub(in crate::rsocket) fn receive(
        &self,
        to: &mut Vectors<'_>,
        flags: c_int,
    ) -> Result<Taken, Errno> {
        if !self.is_used.load(Ordering::Acquire) {
            return Err(KERNELS);
        }
        let mut state = self.lock();
        if state.waiting.is_empty() {
            self.collect(&mut state);
            if !state.arrived.is_empty() {
                self.take_kernels(&mut state);
                let State {
                    arrived, waiting, ..
                } = &mut *state;
                waiting.append(arrived);
            }
        }
        state.take(to, flags & libc::MSG_PEEK != 0, self.is_v6)
    }

    /// Takes completions.
    fn collect(&self, state: &mut State) {
        let mut completions = [Wc::default(); 16];
        let mut came = false;
        let State {
            queues: Some(queues),
            routes,
            arrived,
            peer,
            ..
        } = state
        else {
            return;
        };
        loop {
            let count = queues.cq.poll(&mut completions).unwrap_or(0);
            for wc in completions.iter().take(count) {
                let slot = usize::try_from(wc.wr_id & !RECEIVE).unwrap_or(0);
                if wc.wr_id & RECEIVE == 0 {
                    queues.free.push(slot);
                    continue;
                }
                let all = usize::try_from(wc.byte_len).unwrap_or(0);
                let header = (wc.status == WcStatus::Success)
                    .then(|| queues.header(slot, all))
                    .flatten();
                let is_peers = |source: &SocketAddr| {
                    wc.source.is_some_and(|from| routes.is_peers(from, *source))
                        && peer.is_none_or(|peer| peer == canonical(*source))
                };
                match header.filter(|(source, _)| is_peers(source)) {
                    Some((source, head)) => {
                        came = true;
                        arrived.push_back(Datagram::Slot {
                            slot,
                            head,
                            octets: all - head,
                            source: canonical(source),
                        });
                    }
                    None if wc.status != WcStatus::Flushed => {
                        let _ = queues.post_receive(slot);
                    }
                    None => {}
                }
            }
            if count < completions.len() {
                break;
            }
        }
        if came {
            state.edges.came();
            state.waiters.wake();
        }
    }

    /// Takes the datagrams that the kernel's socket has now: those that a peer has sent before it had a route are among them.
    fn take_kernels(&self, state: &mut State) {
        let mut scratch = std::mem::take(&mut state.scratch);
        scratch.resize(SLOT, 0);
        for _ in 0..MAX_TAKEN {
            match self.receive_kernels(&mut scratch) {
                Ok((source, len)) => state.waiting.push_back(Datagram::Kernels {
                    source,
                    octets: scratch.get(..len).unwrap_or_default().to_vec(),
                }),
                Err(Errno::EAGAIN) => break,
                Err(Errno::EINTR) => {}
                Err(errno) => {
                    state.waiting.push_back(Datagram::Error(errno));
                    break;
                }
            }
        }
        state.scratch = scratch;
    }

    fn receive_kernels(&self, room: &mut [u8]) -> Result<(SocketAddr, usize), Errno> {
        let mut storage = address::none();
        let mut length = libc::socklen_t::try_from(size_of_val(&storage)).unwrap_or(0);
        let at = (&raw mut storage).cast();
        let (fd, to) = (self.fd(), room.as_mut_ptr().cast());
        // SAFETY: room for as many octets, and for any address.
        let len =
            unsafe { libc::recvfrom(fd, to, room.len(), libc::MSG_DONTWAIT, at, &raw mut length) };
        let len = usize::try_from(len).map_err(|_| Errno::last())?;
        // SAFETY: an address that the kernel has written.
        let source = unsafe { address::read((&raw const storage).cast()) }?;
        Ok((source, len))
    }

    /// Events of poll(2) that datagrams of the queue pair make.
    pub(in crate::rsocket) fn check(&self, events: c_short) -> (c_short, Edges) {
        let mut state = self.lock();
        self.collect(&mut state);
        (state.readiness(events), state.edges)
    }

    pub(in crate::rsocket) fn arm(
        &self,
        interest: Interest,
        waker: RawFd,
    ) -> Result<pollfd, c_short> {
        let mut state = self.lock();
        if let Some(queues) = &state.queues {
            queues.cq.request_notification(false);
        }
        self.collect(&mut state);
        let found = state.readiness(interest.events);
        if interest.is_met(found, Some(state.edges)) {
            return Err(found);
        }
        state.waiters.add(waker);
        let queues = state.queues.as_ref();
        let fd = queues.map_or(-1, |it| it.channel.begin_wait().as_fd().as_raw_fd());
        Ok(readable(fd))
    }

    pub(in crate::rsocket) fn disarm(&self, waker: RawFd) {
        let mut state = self.lock();
        state.waiters.remove(waker);
        if let Some(queues) = state.queues.as_ref().filter(|_| state.waiters.are_none()) {
            queues.cq.cancel_notification();
        }
        if state.queues.as_ref().is_some_and(Queues::take_events) {
            self.collect(&mut state);
        }
    }
}

/// Ends marks and connections, outside of all locks of companions.
fn leave_exchange(keys: impl Iterator<Item = u64>) {
    let Ok(exchange) = exchange() else { return };
    keys.for_each(|key| exchange.remove(key));
}

impl State {
    fn readiness(&self, events: c_short) -> c_short {
        if self.arrived.is_empty() && self.waiting.is_empty() {
            0
        } else {
            events & POLLIN
        }
    }

    fn take(&mut self, to: &mut Vectors<'_>, peeks: bool, is_v6: bool) -> Result<Taken, Errno> {
        let queues = self.queues.as_ref();
        let taken = match self.waiting.front().ok_or(KERNELS)? {
            Datagram::Kernels { source, octets } => {
                let some = octets.len().min(to.left());
                to.fill(octets.get(..some).unwrap_or_default());
                Ok(Taken {
                    octets: octets.len(),
                    source: *source,
                })
            }
            Datagram::Slot {
                slot,
                head,
                octets,
                source,
            } => {
                let queues = queues.ok_or(KERNELS)?;
                let some = (*octets).min(to.left());
                to.fill_from(&queues.receive, slot * SLOT + head, some);
                Ok(Taken {
                    octets: *octets,
                    source: as_family(*source, is_v6),
                })
            }
            Datagram::Error(errno) => Err(*errno),
        };
        if (!peeks || taken.is_err())
            && let Some(Datagram::Slot { slot, .. }) = self.waiting.pop_front()
            && let Some(queues) = queues
        {
            let _ = queues.post_receive(slot);
        }
        taken
    }
}

/// An address as a socket of this family reports it.
fn as_family(address: SocketAddr, is_v6: bool) -> SocketAddr {
    match address {
        SocketAddr::V4(v4) if is_v6 => {
            SocketAddrV6::new(v4.ip().to_ipv6_mapped(), v4.port(), 0, 0).into()
        }
        other => other,
    }
}

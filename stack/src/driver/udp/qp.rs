//! A datagram QP: its engine with its ports, shared by posting and polling threads.

mod lanes;
mod member;
mod transmit_sink;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use dgiwarp_llp_udp::Peer;
use dgiwarp_memory::socket::NoCancellation;
use dgiwarp_rdmap::datagram::{Cookie, DropReason};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::driver::debug::instruments::Instruments;
use crate::driver::device::clock;
use crate::driver::qp::core::{QpCore, QpParts, QpState};
use crate::driver::qp::cork::Cork;
use crate::driver::reactor::member::{Received, SocketIndex};
use crate::driver::reactor::poll_set::By;
use crate::driver::udp::icmp_errors::IcmpErrors;
use crate::driver::udp::multicast::{GroupError, Membership};
use crate::driver::udp::path_cache::PathCache;
use crate::driver::udp::peer_ports::PortState;
use crate::driver::udp::peer_ports::meetings::Meetings;
use crate::driver::udp::port::Port;
use crate::driver::udp::ports::{Advice, Ports};
use crate::driver::udp::socket::{self, ReceiveBuffer};
use crate::{Config, Error, ErrorEntry, ErrorReason, QpCounters};
use dgiwarp_engine::datagram::{Arrival, Random, SendWqe, Transmitted, UdEngine};
use dgiwarp_engine::sq_drain::SqDrain;
use dgiwarp_engine::types::earliest;
use transmit_sink::PortSink;

/// Trains that one QP sends before others are served.
const SEND_BUDGET: usize = 32;
/// Trains sent at once while the QP is taken out of service, so that the deadline is kept.
const CLOSING_BUDGET: usize = 2;
/// Receives of a port that leaves its place: more than its buffer holds.
const MAX_DRAIN: usize = 1 << 16;
/// Poll interval, in milliseconds, of a wait for a cookie that another thread may receive.
const COOKIE_POLL_INTERVAL: u8 = 2;
/// Time limit of destruction for the network to take posted Sends.
const FLUSH_FOR: Duration = Duration::from_secs(1);

/// State behind the exclusive lock.
#[derive(Debug)]
pub(crate) struct UdInner {
    pub(crate) engine: UdEngine,
    pub(crate) ports: Ports,
    path_cache: PathCache,
    /// Stages between ports and engine; `None` unless settings ask for them.
    instruments: Option<Box<Instruments>>,
    deadline: Option<Instant>,
    /// Datagrams that arrive are dropped: the program's QP is not ready to receive.
    is_unready: bool,
    cork: Cork,
}

/// A datagram QP, shared by its handle, its completion queues and the background thread.
pub(crate) type UdShared = QpCore<UdInner>;

impl UdInner {
    fn poll_timeout(&self) -> Option<Instant> {
        let instruments = self.instruments.as_ref();
        let of_instruments = instruments.and_then(|instruments| instruments.poll_timeout());
        let both = [self.engine.poll_timeout(), of_instruments];
        earliest(both)
    }
}

impl QpState for UdInner {
    type Wqe = SendWqe;
    type Unlocked = Meetings;

    #[inline]
    fn accept(&mut self, wqe: SendWqe) {
        self.cork.add(wqe.length, Some(wqe.peer));
        self.engine.accept(wqe);
    }

    #[inline(always)]
    fn work(qp: &UdShared, inner: &mut Self) {
        if qp.closing.load(Ordering::Acquire) {
            return;
        }
        let _guard = NoCancellation::begin();
        qp.posting.empty(|wqe| inner.engine.accept(wqe));
        inner.cork.release(clock::now);
        qp.send_output(inner);
    }

    #[inline]
    fn cork(&mut self) -> Option<&mut Cork> {
        Some(&mut self.cork)
    }

    fn flush_overrun(qp: &UdShared, inner: &mut Self) {
        // Nothing posted from now on leaves, until the QP is reset.
        let error = SqDrain::Drained;
        inner.engine.set_sq_drain(error, &mut qp.completions());
        inner.engine.flush(qp.tables(), &mut qp.completions());
        qp.raise_last_wqe();
    }

    fn set_sq_drain(qp: &UdShared, inner: &mut Self, drain: SqDrain) {
        inner.engine.set_sq_drain(drain, &mut qp.completions());
        qp.work(inner);
        qp.note_deadline(inner);
    }

    fn counters(&self) -> QpCounters {
        let mut counters = self.engine.counters();
        Instruments::count(self.instruments.as_deref(), &mut counters);
        self.ports.add_lane_counters(&mut counters);
        counters
    }
}

impl PortState for UdInner {
    fn ports(&mut self) -> &mut Ports {
        &mut self.ports
    }

    fn meetings(unlocked: &Meetings) -> &Meetings {
        unlocked
    }

    fn invite(&mut self, peer: Peer, token: u128) -> bool {
        self.engine.invite(peer, token)
    }

    fn receive(
        qp: &UdShared,
        inner: &mut Self,
        index: SocketIndex,
        buffer: &mut ReceiveBuffer,
    ) -> Received {
        qp.receive_locked(inner, index, buffer)
    }

    fn drain(qp: &UdShared, inner: &mut Self, now: Instant, index: SocketIndex) {
        qp.drain(inner, now, index);
    }
}

impl UdShared {
    /// Puts a QP together and lets its completion queue receive for it.
    pub(crate) fn start(
        parts: QpParts,
        engine: UdEngine,
        ports: Ports,
        instruments: Option<Box<Instruments>>,
    ) -> Result<Arc<Self>, Error> {
        let inner = UdInner {
            engine,
            ports,
            path_cache: PathCache::default(),
            instruments,
            deadline: None,
            is_unready: false,
            cork: parts.cork(),
        };
        let this = Self::new(parts, inner, Meetings::default(), true)?;
        this.be_guest();
        let member = this.attach();
        this.run(|inner| this.poll_set.watch(member, 0, inner.ports.main().as_fd()))
            .map_err(Error::system("cannot watch a socket"))?;
        Ok(this)
    }

    #[inline(always)]
    fn send_output(&self, inner: &mut UdInner) {
        if inner.engine.responses_have_output() {
            self.respond(inner);
        } else {
            self.transmit(inner, SEND_BUDGET);
        }
    }

    /// Answers peers, as far as their share of the time allows, and sends posted work requests.
    #[inline(never)]
    fn respond(&self, inner: &mut UdInner) {
        let mut round = UdEngine::begin_round(self.poll_set.is_busy());
        let mut now = clock::now();
        while let Some(budget) = inner.engine.next_turn(&mut round, now) {
            self.transmit(inner, budget);
            let ended = clock::now();
            inner.engine.end_turn(now, ended);
            now = ended;
        }
        if inner.engine.has_timers() {
            self.note_deadline(inner);
        }
    }

    #[inline(never)]
    fn transmit(&self, inner: &mut UdInner, budget: usize) {
        if !inner.engine.has_unsent() {
            self.unsent.store(false, Ordering::Release);
            return;
        }
        // A rate is kept, and a Read's time begins, to the microsecond.
        let now = if inner.engine.is_paced() || inner.engine.has_output() {
            clock::now()
        } else {
            clock::coarse()
        };
        inner.ports.resume_icmp_errors(now);
        let mut icmp_errors = IcmpErrors::default();
        let mut sink = PortSink {
            qp: self,
            ports: &mut inner.ports,
            path_cache: &mut inner.path_cache,
            now,
            connect: None,
            icmp_errors: &mut icmp_errors,
            tap: inner.instruments.as_mut().and_then(|it| it.tap()),
        };
        let mut completions = self.completions();
        let sent =
            inner
                .engine
                .transmit(now, budget, self.tables().mrs, &mut sink, &mut completions);
        if let Some((index, peer, local)) = sink.connect {
            self.connect(inner, now, index, peer, local);
        }
        if !icmp_errors.is_empty() {
            self.report(inner, now, &icmp_errors);
        }
        if let Some(instruments) = &mut inner.instruments {
            instruments.warn_of_failure();
        }
        self.blocked
            .store(sent == Transmitted::Blocked, Ordering::Release);
        if inner.engine.has_timers() {
            self.note_deadline(inner);
        }
        match sent {
            // Read Responses wait.
            Transmitted::All if inner.engine.has_unsent() => self.remember_unsent(),
            Transmitted::All => self.unsent.store(false, Ordering::Release),
            Transmitted::Budget => self.remember_unsent(),
            // The timer continues sending.
            Transmitted::Paused(_) => {
                self.unsent.store(false, Ordering::Release);
                self.note_deadline(inner);
            }
            Transmitted::Blocked => {
                self.remember_unsent();
                self.background()
                    .waker()
                    .watch_writable(inner.ports.main().as_fd());
            }
        }
    }

    /// Changes the rate; trains that waited for the old one may leave.
    pub(crate) fn set_max_rate(&self, octets_per_second: u64) {
        self.run(|inner| {
            inner.engine.set_max_rate(octets_per_second);
            self.work(inner);
        });
    }

    fn read_error_queue_locked(&self, inner: &mut UdInner, index: SocketIndex) {
        if let Some(port) = inner.ports.get(index) {
            let mut icmp_errors = IcmpErrors::default();
            icmp_errors.read(port);
            self.report(inner, clock::coarse(), &icmp_errors);
        }
    }

    /// Reports ICMP errors to the program.
    fn report(&self, inner: &mut UdInner, now: Instant, icmp_errors: &IcmpErrors) {
        inner.ports.note_icmp_errors(now, icmp_errors);
        for icmp_error in icmp_errors.kept() {
            if let Some(peer) = icmp_error.destination.socket_addr() {
                let entry = ErrorEntry {
                    peer,
                    message: None,
                    reason: ErrorReason::Network {
                        errno: icmp_error.errno,
                    },
                };
                inner.engine.report_error(entry, &mut self.completions());
            }
        }
        inner.engine.lose_errors(icmp_errors.lost());
    }

    #[inline]
    fn receive_locked(
        &self,
        inner: &mut UdInner,
        index: SocketIndex,
        buffer: &mut ReceiveBuffer,
    ) -> Received {
        if !self.open.load(Ordering::Relaxed) {
            return Received::Nothing;
        }
        if inner.ports.takes_older(index) {
            let received = self.receive_from(inner, 0, buffer);
            if received != Received::Nothing {
                return received;
            }
        }
        self.receive_from(inner, index, buffer)
    }

    /// Receives once from the port at a place.
    #[inline(always)]
    fn receive_from(
        &self,
        inner: &mut UdInner,
        index: SocketIndex,
        buffer: &mut ReceiveBuffer,
    ) -> Received {
        match inner.ports.receive(index, buffer) {
            // A bell of lanes whose socket has no peer any more.
            Some(Ok(received)) if received.len == 0 && self.has_any_lanes() => {
                let received = self.receive_unannounced(inner, buffer);
                received.max(Received::Bells)
            }
            Some(received) => self.took(inner, index, buffer, received),
            None => Received::Nothing,
        }
    }

    /// Handles the result of a receive call.
    #[inline(always)]
    fn took(
        &self,
        inner: &mut UdInner,
        index: SocketIndex,
        buffer: &ReceiveBuffer,
        received: io::Result<socket::Received>,
    ) -> Received {
        self.announce(inner);
        match received {
            Ok(received) => self.handle_received(inner, index, buffer, received),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if index == 0 {
                    inner.ports.note_empty_main();
                }
                self.forget_ended_lanes(inner, index);
                return Received::Nothing;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                return Received::Bells;
            }
            // An ICMP error about an earlier datagram; the port goes on.
            Err(_) => self.read_error_queue_locked(inner, index),
        }
        Received::Something
    }

    /// Gives the engine what a receive call put into the buffer.
    #[inline(always)]
    fn handle_received(
        &self,
        inner: &mut UdInner,
        index: SocketIndex,
        buffer: &ReceiveBuffer,
        received: socket::Received,
    ) {
        let now = clock::coarse();
        let to_group = inner.ports.is_to_group(index, received.to);
        let arrival = Arrival {
            by_memory: false,
            from: received.from,
            to: received.to,
            to_group,
            octets: buffer.octets(received.len),
            stride: received.stride,
        };
        if received.len == 0 {
            inner.engine.count_drop(DropReason::Malformed);
            return;
        }
        self.work_around(inner, (now, index), received, |inner| {
            self.take_in(inner, now, arrival);
        });
    }

    /// Handles received datagrams with `handle`, and does the work that follows.
    #[inline(always)]
    fn work_around(
        &self,
        inner: &mut UdInner,
        (now, index): (Instant, SocketIndex),
        received: socket::Received,
        handle: impl FnOnce(&mut UdInner),
    ) {
        let behind = inner.engine.has_output();
        handle(inner);
        if behind {
            // The next poll transmits.
            self.remember_unsent();
        } else if inner.engine.has_output() {
            self.send_output(inner);
        }
        self.note_deadline(inner);
        match inner.ports.note(now, index, received.from, received.len) {
            Advice::Stay => {}
            Advice::Connect(place) => {
                if let Some(local) = received.to
                    && !inner.ports.is_to_group(index, received.to)
                {
                    self.connect(inner, now, place, received.from, local);
                }
            }
            Advice::Invite(place) => self.invite_peer(inner, place),
        }
        if let Some(invited) = inner.engine.take_invitation() {
            self.answer_invitation(inner, now, invited);
        }
    }

    /// Gives the engine arrived datagrams, through the instruments if there are any.
    #[inline(always)]
    fn take_in(&self, inner: &mut UdInner, now: Instant, arrival: Arrival<'_>) {
        let UdInner {
            engine,
            instruments,
            is_unready,
            ..
        } = inner;
        if *is_unready {
            return engine.drop_unready(arrival);
        }
        let mut handle = |now, arrival: Arrival<'_>| {
            engine.handle_input(now, arrival, self.tables(), &mut self.completions())
        };
        match instruments {
            None => {
                handle(now, arrival);
            }
            Some(instruments) => {
                // Timers of waiting Reads and rates are kept to the microsecond.
                let now = clock::now();
                instruments.take(now, arrival, |arrival| handle(now, arrival));
            }
        }
    }

    #[inline]
    fn note_deadline(&self, inner: &mut UdInner) {
        let may_time_out = inner.engine.may_time_out() || inner.instruments.is_some();
        if may_time_out || inner.deadline.is_some() {
            self.set_deadline(inner);
        }
    }

    fn set_deadline(&self, inner: &mut UdInner) {
        let deadline = inner.poll_timeout();
        self.set_timer(&mut inner.deadline, deadline);
    }

    /// Gives a UC QP its peer, and the peer a port of its own at once. Returns whether it had none. Where the kernel refuses such
    /// a port, the main one serves.
    pub(crate) fn connect_sole(&self, peer: Peer, local: IpAddr) -> bool {
        self.run(|inner| {
            let connects = inner.engine.connect(peer);
            if connects {
                inner.ports.stay();
                self.connect(inner, clock::now(), 1, peer, local);
            }
            connects
        })
    }

    /// Gives a busy peer a port of its own.
    fn connect(
        &self,
        inner: &mut UdInner,
        now: Instant,
        index: SocketIndex,
        peer: Peer,
        local: IpAddr,
    ) {
        self.connect_port(inner, now, index, (peer, local));
        if inner.engine.has_output() {
            self.remember_unsent();
        }
    }

    /// Receives the queued datagrams of a port.
    fn drain(&self, inner: &mut UdInner, now: Instant, index: SocketIndex) {
        let mut buffer = ReceiveBuffer::new();
        for _ in 0..MAX_DRAIN {
            let Some(received) = inner.ports.receive(index, &mut buffer) else {
                return;
            };
            match received {
                Ok(received) => {
                    let arrival = Arrival {
                        by_memory: false,
                        from: received.from,
                        to: received.to,
                        to_group: false,
                        octets: buffer.octets(received.len),
                        stride: received.stride,
                    };
                    self.take_in(inner, now, arrival);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.read_error_queue_locked(inner, index),
            }
        }
    }

    /// Gets a new cookie of a peer that is reached from our address `via`, unless it takes longer than until `deadline`.
    pub(crate) fn fetch_cookie(
        &self,
        peer: Peer,
        via: Option<IpAddr>,
        deadline: Instant,
    ) -> Option<Cookie> {
        self.run(|inner| {
            let associations = inner.engine.associations();
            associations.begin_validation(clock::now(), peer, via);
            self.work(inner);
            self.note_deadline(inner);
        });
        loop {
            self.poll_set.progress(By::Poller);
            let found = self.run(|inner| inner.engine.associations().cookie(peer, via));
            let left = deadline.saturating_duration_since(clock::now());
            if found.is_some() || left.is_zero() {
                self.run(|inner| inner.engine.associations().stop_validation(peer, via));
                return found;
            }
            // Another thread may receive the answer, so this one checks again soon.
            let mut fds = [PollFd::new(self.poll_set.sockets_fd(), PollFlags::POLLIN)];
            let _ = poll(&mut fds, PollTimeout::from(COOKIE_POLL_INTERVAL));
        }
    }

    /// Resets the QP: posted work requests are discarded without completions. The QP stays in its groups.
    pub(crate) fn reset(&self, random: Random) {
        self.renew(|inner| {
            inner.engine.reset(random, self.tables());
            self.forget_peer_ports(inner);
        });
    }

    /// Whether the first segment of the peer raises an event.
    pub(crate) fn await_first_message(&self, awaits: bool) {
        self.run(|inner| inner.engine.await_first_message(awaits));
    }

    /// Whether work requests are outstanding that had begun when the drain began.
    pub(crate) fn is_draining(&self) -> bool {
        self.run(|inner| inner.engine.sq_drain().is_draining())
    }

    /// Drops datagrams that arrive from now on, and those that a fault delays.
    pub(crate) fn stop_receiving(&self) {
        self.run(Self::stop_receiving_locked);
    }

    fn stop_receiving_locked(inner: &mut UdInner) {
        inner.is_unready = true;
        if let Some(instruments) = &mut inner.instruments {
            instruments.forget();
        }
    }

    /// Handles datagrams that arrive from now on, and drops those that came before.
    pub(crate) fn start_receiving(&self) {
        self.run(|inner| {
            if inner.is_unready {
                self.drain(inner, clock::coarse(), 0);
                inner.is_unready = false;
            }
        });
    }

    /// Receives from a group through `port` from now on.
    pub(crate) fn attach_group(
        &self,
        membership: Membership,
        port: Port,
    ) -> Result<(), GroupError> {
        self.run(|inner| {
            let members = &mut inner.ports.members;
            if members.find(membership).is_some() {
                return Err(GroupError::Attached);
            }
            let index = members.add(membership, port).ok_or(GroupError::TooMany)?;
            let member = self.member.get().copied();
            let watched = member
                .zip(members.get(index))
                .map(|(member, port)| self.poll_set.watch(member, index, port.as_fd()));
            if let Some(Err(error)) = watched {
                members.remove(index);
                return Err(GroupError::System(error));
            }
            Ok(())
        })
    }

    /// Stops receiving from a group. Returns whether the QP did.
    pub(crate) fn detach_group(&self, membership: Membership) -> bool {
        self.run(|inner| {
            let members = &mut inner.ports.members;
            let Some(index) = members.find(membership) else {
                return false;
            };
            if let Some(port) = members.get(index) {
                self.poll_set.unwatch(port.as_fd());
            }
            members.remove(index);
            true
        })
    }

    /// Takes the QP out of service. Sends that the network has not taken yet get a bounded time.
    pub(crate) fn close(&self) {
        let deadline = clock::now() + FLUSH_FOR;
        // From now on only this thread sends: another one would hold the engine while the time runs out.
        self.closing.store(true, Ordering::Release);
        self.run(|inner| {
            // Work requests left to the lock's holder, which may have released it just now: a Read accepted later would never complete.
            self.posting.empty(|wqe| inner.engine.accept(wqe));
            inner
                .engine
                .close_reads(self.tables(), &mut self.completions());
            inner.engine.release_responses();
        });
        while self.run(|inner| {
            self.posting.empty(|wqe| inner.engine.accept(wqe));
            self.transmit(inner, CLOSING_BUDGET);
            inner.engine.has_unsent()
        }) && clock::now() < deadline
        {
            self.run(|inner| {
                if inner.engine.paused_until().is_some() {
                    let _ = poll(&mut [], PollTimeout::from(1u8));
                    return;
                }
                let mut fds = [PollFd::new(inner.ports.main().as_fd(), PollFlags::POLLOUT)];
                let _ = poll(&mut fds, PollTimeout::from(10u8));
            });
        }
        self.open.store(false, Ordering::Release);
        // A queue that others share goes on without this QP. Another thread may be about to run the QP's timers.
        self.run(|inner| {
            Self::stop_receiving_locked(inner);
            inner
                .engine
                .abandon_sends(self.tables(), &mut self.completions());
        });
        self.run(|inner| {
            self.poll_set.unwatch(inner.ports.main().as_fd());
            for other in inner.ports.siblings().chain(inner.ports.members.iter()) {
                self.poll_set.unwatch(other.as_fd());
            }
            self.leave_meetings(None);
            inner.ports.end_all_lanes();
        });
        self.detach();
    }

    pub(crate) fn granted_receive_buffer(&self) -> io::Result<usize> {
        self.run(|inner| inner.ports.main().granted_receive_buffer())
    }

    pub(crate) fn set_multicast_loop(&self, on: bool) -> io::Result<()> {
        self.run(|inner| inner.ports.main().set_multicast_loop(on))
    }
}

/// Opens the ports of a QP.
pub(crate) fn bind(address: SocketAddr, config: &Config) -> Result<Ports, Error> {
    let mut ports = Ports::bind(address, config.receive_buffer)?;
    ports.limit_places(config.peer_sockets);
    Ok(ports)
}

#[cfg(test)]
mod tests;

//! A reliable datagram QP: its engine with its ports, shared by posting and polling threads.

mod connection;
mod leaving;
pub(crate) mod paired;
mod transmit_sink;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use dgiwarp_llp_udp::Peer;
use dgiwarp_memory::socket::NoCancellation;
use dgiwarp_rdmap::datagram::DropReason;

use crate::driver::cm::event_connections::EndSignal;
use crate::driver::cq::direct::DirectCompletions;
use crate::driver::debug::instruments::Instruments;
use crate::driver::debug::tap::Fate;
use crate::driver::device::clock;
use crate::driver::qp::core::{QpCore, QpParts, QpState};
use crate::driver::qp::cork::Cork;
use crate::driver::reactor::member::{Member, NextReceive, Received, SocketIndex};
use crate::driver::udp::icmp_errors::{IcmpError, IcmpErrors};
use crate::driver::udp::path_cache::PathCache;
use crate::driver::udp::peer_ports::PortState;
use crate::driver::udp::peer_ports::meetings::Meetings;
use crate::driver::udp::ports::{Advice, Ports};
use crate::driver::udp::socket::{self, ReceiveBuffer};
use crate::{Error, PostFailure, QpCounters, RecvWr};
use dgiwarp_engine::datagram::{Arrival, Transmitted};
use dgiwarp_engine::recv_queue::{Waiter, WeakWaiter};
use dgiwarp_engine::reliable::{RdEngine, RdSendWqe};
use dgiwarp_engine::sq_drain::SqDrain;
use dgiwarp_engine::types::earliest;
use transmit_sink::RdSink;

/// Datagrams that one QP sends before others are served.
const SEND_BUDGET: usize = 64;
/// State behind the exclusive lock.
#[derive(Debug)]
pub(crate) struct RdInner {
    pub(crate) engine: RdEngine,
    ports: Ports,
    /// Stages between ports and engine; `None` unless settings ask for them.
    instruments: Option<Box<Instruments>>,
    deadline: Option<Instant>,
    /// Datagrams that arrive are dropped: the QP is not ready to receive.
    is_unready: bool,
    /// The last call to receive from a socket found something.
    comes_on: bool,
    /// Datagrams of trains go one by one: the network refused a train.
    singly: bool,
    /// For receives that are posted to a shared queue.
    waiter: Option<WeakWaiter>,
    /// Paths back to requesters.
    path_cache: PathCache,
    cork: Cork,
    /// The end of an RC QP's connection was taken note of.
    ended: bool,
    /// The process ends.
    leaving_since: Option<Instant>,
}

/// State beside the lock.
#[derive(Debug, Default)]
pub(crate) struct Unlocked {
    /// Peers wait for receives to be posted.
    peers_wait: AtomicBool,
    meetings: Meetings,
    /// Error state of an RC QP; `None` for others, which outlive errors.
    over: Option<AtomicBool>,
    /// Follower of the end of an RC QP.
    end_signal: OnceLock<Arc<EndSignal>>,
}

/// A reliable datagram QP, shared by its handle, its completion queues and the background thread.
pub(crate) type RdShared = QpCore<RdInner>;

impl QpState for RdInner {
    type Wqe = RdSendWqe;
    type Unlocked = Unlocked;

    fn accept(&mut self, wqe: RdSendWqe) {
        self.cork.add(wqe.send.length, Some(wqe.peer));
        self.engine.accept(wqe);
    }

    fn work(qp: &RdShared, inner: &mut Self) {
        if qp.closing.load(Ordering::Acquire) {
            return;
        }
        let _guard = NoCancellation::begin();
        qp.posting.empty(|wqe| inner.engine.accept(wqe));
        inner.cork.release(clock::now);
        qp.transmit(inner);
    }

    #[inline]
    fn cork(&mut self) -> Option<&mut Cork> {
        Some(&mut self.cork)
    }

    fn flush_overrun(qp: &RdShared, inner: &mut Self) {
        // Nothing posted from now on leaves, until the QP is reset.
        let error = SqDrain::Drained;
        inner.engine.set_sq_drain(error, &mut qp.completions());
        inner
            .engine
            .flush(clock::now(), qp.tables(), &mut qp.completions());
        qp.raise_last_wqe();
    }

    fn set_sq_drain(qp: &RdShared, inner: &mut Self, drain: SqDrain) {
        inner.engine.set_sq_drain(drain, &mut qp.completions());
        qp.work(inner);
    }

    #[inline]
    fn over(unlocked: &Unlocked) -> Option<&AtomicBool> {
        unlocked.over.as_ref()
    }

    fn counters(&self) -> QpCounters {
        let mut counters = self.engine.counters();
        Instruments::count(self.instruments.as_deref(), &mut counters);
        self.ports.add_lane_counters(&mut counters);
        counters
    }
}

impl PortState for RdInner {
    fn ports(&mut self) -> &mut Ports {
        &mut self.ports
    }

    fn meetings(unlocked: &Unlocked) -> &Meetings {
        &unlocked.meetings
    }

    fn invite(&mut self, peer: Peer, token: u128) -> bool {
        self.engine.invite(peer, token)
    }

    fn receive(
        qp: &RdShared,
        inner: &mut Self,
        index: SocketIndex,
        buffer: &mut ReceiveBuffer,
    ) -> Received {
        qp.receive_locked(inner, index, buffer, true)
    }

    /// Peers send again what was lost.
    fn drain(_: &RdShared, _: &mut Self, _: Instant, _: SocketIndex) {}
}

impl RdShared {
    /// Puts a QP together and lets its completion queue receive for it.
    pub(crate) fn start(
        parts: QpParts,
        engine: RdEngine,
        ports: Ports,
        instruments: Option<Box<Instruments>>,
    ) -> Result<Arc<Self>, Error> {
        let inner = RdInner {
            engine,
            ports,
            instruments,
            deadline: None,
            is_unready: false,
            comes_on: false,
            singly: false,
            waiter: None,
            path_cache: PathCache::default(),
            cork: parts.cork(),
            ended: false,
            leaving_since: None,
        };
        let unlocked = Unlocked {
            over: inner.engine.is_connection().then(AtomicBool::default),
            ..Unlocked::default()
        };
        let this = Self::new(parts, inner, unlocked, true)?;
        if this.recv_queue.is_shared() {
            let waiter: WeakWaiter = Arc::<Self>::downgrade(&this);
            this.run(|inner| inner.waiter = Some(waiter));
        }
        this.be_guest();
        let member = this.attach();
        this.run(|inner| this.poll_set.watch(member, 0, inner.ports.main().as_fd()))
            .map_err(Error::system("cannot watch a socket"))?;
        Ok(this)
    }

    /// Posts receives, and has credit granted if peers wait for it.
    pub(crate) fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostFailure> {
        let result = self.recv_queue.post_own(wrs);
        self.receive_posted();
        result
    }

    fn transmit(&self, inner: &mut RdInner) {
        let sent = self.transmit_some(inner, SEND_BUDGET);
        self.note_deadline(inner);
        self.blocked
            .store(sent == Transmitted::Blocked, Ordering::Release);
        match sent {
            // Timers continue.
            Transmitted::All | Transmitted::Paused(_) => {
                self.unsent.store(false, Ordering::Release);
            }
            Transmitted::Budget => self.remember_unsent(),
            Transmitted::Blocked => {
                self.remember_unsent();
                self.background()
                    .waker()
                    .watch_writable(inner.ports.main().as_fd());
            }
        }
    }

    fn transmit_some(&self, inner: &mut RdInner, budget: usize) -> Transmitted {
        let now = clock::now();
        inner.ports.resume_icmp_errors(now);
        let mut icmp_errors = IcmpErrors::default();
        let sent = self.transmit_to_ports(inner, now, budget, &mut icmp_errors);
        if icmp_errors.is_empty() {
            return sent;
        }
        // A probe leaves at once. Its own errors are met by the next one.
        Self::note_icmp_errors(inner, now, &icmp_errors);
        let mut more = IcmpErrors::default();
        self.transmit_to_ports(inner, now, budget, &mut more)
    }

    /// Has the engine take note of the ports that nobody has. Other ICMP errors are about paths, which may recover (§4.6).
    fn note_icmp_errors(inner: &mut RdInner, now: Instant, icmp_errors: &IcmpErrors) {
        inner.ports.note_icmp_errors(now, icmp_errors);
        let unreachable = |it: &&IcmpError| it.errno == nix::libc::ECONNREFUSED;
        for error in icmp_errors.kept().iter().filter(unreachable) {
            let (to, quoted) = (error.destination, error.quoted());
            inner.engine.handle_port_unreachable(now, to, quoted);
        }
    }

    /// Reads the error queue of a socket. The work that follows is the caller's.
    fn read_error_queue_locked(inner: &mut RdInner, index: SocketIndex) {
        let mut icmp_errors = IcmpErrors::default();
        if let Some(port) = inner.ports.get(index) {
            icmp_errors.read(port);
            Self::note_icmp_errors(inner, clock::now(), &icmp_errors);
        }
    }

    fn transmit_to_ports(
        &self,
        inner: &mut RdInner,
        now: Instant,
        budget: usize,
        icmp_errors: &mut IcmpErrors,
    ) -> Transmitted {
        let RdInner {
            engine,
            ports,
            instruments,
            waiter,
            singly,
            path_cache,
            ..
        } = inner;
        // Before the engine looks at the queue: a receive that is posted later has the engine look again.
        if engine.wants_receives()
            && !self.unlocked.peers_wait.swap(true, Ordering::AcqRel)
            && let Some(waiter) = waiter
        {
            self.recv_queue.wait(waiter);
        }
        let mut sink = RdSink {
            ports,
            now,
            tap: instruments.as_mut().and_then(|it| it.tap()),
            singly,
            connect: None,
            path_cache,
            background: self.background(),
            icmp_errors,
        };
        let sent = engine.transmit(
            now,
            budget,
            self.tables(),
            &mut sink,
            &mut self.completions(),
        );
        let connect = sink.connect;
        self.note_end(&inner.engine, &mut inner.ended);
        if let Some(instruments) = instruments {
            instruments.warn_of_failure();
        }
        if let Some((index, peer, local)) = connect {
            self.connect_port(inner, now, index, (peer, local));
        }
        sent
    }

    /// Receives once, for a caller that polls `again` soon or does not.
    fn receive_locked(
        &self,
        inner: &mut RdInner,
        index: SocketIndex,
        buffer: &mut ReceiveBuffer,
        again: bool,
    ) -> Received {
        if !self.open.load(Ordering::Relaxed) {
            return Received::Nothing;
        }
        match inner.ports.receive(index, buffer) {
            // A bell of lanes whose socket has no peer any more.
            Some(Ok(received)) if received.len == 0 && self.has_any_lanes() => {
                let received = self.receive_unannounced(inner, buffer);
                received.max(Received::Bells)
            }
            Some(received) => self.took(inner, index, buffer, received, again),
            None => Received::Nothing,
        }
    }

    /// Receives from the lane of a socket alone.
    #[inline]
    fn receive_from_lane(
        &self,
        inner: &mut RdInner,
        index: SocketIndex,
        buffer: &mut ReceiveBuffer,
        again: bool,
    ) -> Received {
        let Some(received) = inner.ports.poll_lane(index, buffer) else {
            return Received::Nothing;
        };
        self.took(inner, index, buffer, received, again)
    }

    /// Handles the result of a receive call.
    fn took(
        &self,
        inner: &mut RdInner,
        index: SocketIndex,
        buffer: &ReceiveBuffer,
        received: io::Result<socket::Received>,
        again: bool,
    ) -> Received {
        self.announce(inner);
        let received = match received {
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.forget_ended_lanes(inner, index);
                return Received::Nothing;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Received::Bells,
            // An ICMP error about an earlier datagram.
            Err(_) => {
                Self::read_error_queue_locked(inner, index);
                return Received::Something;
            }
        };
        if received.len == 0 {
            inner.engine.count_drop(DropReason::Malformed);
            return Received::Something;
        }
        if inner.is_unready {
            inner.engine.count_drop(DropReason::NoReceive);
            return Received::Something;
        }
        let arrival = Arrival {
            by_memory: false,
            from: received.from,
            to: received.to,
            to_group: received.to.is_some_and(|to| to.is_multicast()),
            octets: buffer.octets(received.len),
            stride: received.stride,
        };
        let now = clock::now();
        let RdInner {
            engine,
            instruments,
            ..
        } = inner;
        // Acknowledgements wait for the message that the program posts when it has polled.
        engine.note_poll(true, again);
        match instruments {
            None => {
                engine.handle_input(now, arrival, self.tables(), &mut self.completions());
            }
            Some(instruments) => {
                instruments.take(now, arrival, |arrival| {
                    self.handle_observed(engine, now, arrival)
                });
            }
        }
        match inner.ports.note(now, index, received.from, received.len) {
            Advice::Stay => {}
            Advice::Connect(place) => {
                if let Some(local) = received.to.filter(|to| !to.is_multicast()) {
                    self.connect_port(inner, now, place, (received.from, local));
                }
            }
            Advice::Invite(place) => self.invite_peer(inner, place),
        }
        if let Some(invited) = inner.engine.take_invitation() {
            self.answer_invitation(inner, now, invited);
        }
        Received::Something
    }

    /// Handles a datagram, and returns what its capture file says of it.
    #[cold]
    fn handle_observed(&self, engine: &mut RdEngine, now: Instant, arrival: Arrival<'_>) -> Fate {
        let from = arrival.from;
        let dropped = engine.handle_input(now, arrival, self.tables(), &mut self.completions());
        match dropped {
            Some(reason) => Fate::Dropped(reason),
            None => Fate::Used(engine.path_state(from)),
        }
    }

    /// Receives for a poll, and does the work that follows.
    #[inline]
    fn receive_with(
        &self,
        next: NextReceive,
        receive: impl FnOnce(&mut RdInner, bool) -> Received,
    ) -> Option<Received> {
        self.try_run(|inner| {
            let again = next != NextReceive::Unknown;
            let received = receive(inner, again);
            let came = received > Received::Bells;
            // With no more input they leave.
            let released = !came && inner.engine.note_poll(false, again);
            // Answers to input that comes datagram by datagram leave together.
            if (came && received != Received::Held) || released {
                self.work(inner);
            }
            received
        })
    }

    fn note_deadline(&self, inner: &mut RdInner) {
        let deadline = Self::poll_timeout(inner);
        self.set_timer(&mut inner.deadline, deadline);
    }

    fn poll_timeout(inner: &RdInner) -> Option<Instant> {
        let of_instruments = inner.instruments.as_ref().and_then(|it| it.poll_timeout());
        earliest([inner.engine.poll_timeout(), of_instruments])
    }

    fn handle_timeout_locked(&self, inner: &mut RdInner, now: Instant) {
        let RdInner {
            engine,
            instruments,
            ..
        } = inner;
        if let Some(instruments) = instruments {
            instruments.handle_timeout(now, |arrival| self.handle_observed(engine, now, arrival));
        }
        engine.handle_timeout(now, self.tables(), &mut self.completions());
        self.note_end(engine, &mut inner.ended);
    }

    /// Resets the QP: posted work requests are discarded without completions. Associations with peers are closed.
    pub(crate) fn reset(&self, epoch: u32, key: [u64; 2]) {
        self.renew(|inner| {
            inner.engine.reset(clock::now(), epoch, key, self.tables());
            self.forget_end(inner);
            self.transmit_some(inner, usize::MAX);
            self.forget_peer_ports(inner);
            self.note_deadline(inner);
        });
    }

    /// Drops datagrams that arrive from now on.
    pub(crate) fn stop_receiving(&self) {
        self.run(|inner| {
            inner.is_unready = true;
            if let Some(instruments) = &mut inner.instruments {
                instruments.forget();
            }
        });
    }

    /// Handles datagrams that arrive from now on. Peers send again what was dropped.
    pub(crate) fn start_receiving(&self) {
        self.run(|inner| inner.is_unready = false);
    }

    /// Ends everything posted with `Flushed`, and closes the associations.
    pub(crate) fn flush(&self) {
        self.run(|inner| {
            self.posting.empty(|wqe| inner.engine.accept(wqe));
            inner
                .engine
                .flush(clock::now(), self.tables(), &mut self.completions());
            self.work(inner);
        });
    }

    pub(crate) fn granted_receive_buffer(&self) -> io::Result<usize> {
        self.run(|inner| inner.ports.main().granted_receive_buffer())
    }
}

impl Waiter for RdShared {
    fn receive_posted(&self) {
        if self.unlocked.peers_wait.swap(false, Ordering::AcqRel) {
            self.exclusive.run_or_mark(|inner| self.work(inner));
        }
    }
}

impl Member for RdShared {
    fn receive(
        &self,
        socket: SocketIndex,
        buffer: &mut ReceiveBuffer,
        next: NextReceive,
    ) -> Option<Received> {
        self.receive_with(next, |inner, again| {
            let received = self.receive_locked(inner, socket, buffer, again);
            if received <= Received::Bells && socket == 0 && self.has_any_lanes() {
                return received.max(self.receive_unannounced(inner, buffer));
            }
            let came = received == Received::Something;
            let comes_on = std::mem::replace(&mut inner.comes_on, came);
            // The burst is over once completions are there.
            if came && comes_on && !self.has_completions() {
                return Received::Held;
            }
            received
        })
    }

    #[inline]
    fn receive_hot(
        &self,
        socket: SocketIndex,
        buffer: &mut ReceiveBuffer,
        next: NextReceive,
        _direct: &mut DirectCompletions<'_>,
    ) -> Option<Received> {
        let _guard = NoCancellation::begin();
        if !self.has_lanes(socket) {
            return self.receive(socket, buffer, next);
        }
        self.receive_with(next, |inner, again| {
            self.receive_from_lane(inner, socket, buffer, again)
        })
    }

    fn end_burst(&self) {
        self.exclusive.run_or_mark(|inner| self.work(inner));
    }

    fn want_bells(&self, socket: SocketIndex, wanted: bool) -> bool {
        self.want_bells_at(socket, wanted)
    }

    fn has_completions(&self) -> bool {
        self.recv_cq.has_completions()
    }

    fn read_error_queue(&self, socket: SocketIndex) -> Option<()> {
        self.try_run(|inner| {
            Self::read_error_queue_locked(inner, socket);
            self.work(inner);
        })
    }

    fn with_socket(&self, socket: SocketIndex, with: &mut dyn FnMut(BorrowedFd<'_>)) -> bool {
        self.run(|inner| {
            let port = inner.ports.get(socket);
            port.inspect(|port| with(port.as_fd())).is_some()
        })
    }

    fn flush_unsent(&self) -> Option<bool> {
        self.continue_sending()
    }

    fn release_acks(&self) {
        self.try_run(|inner| {
            if inner.engine.note_poll(false, false) {
                self.work(inner);
            }
        });
    }

    /// No kernel repeats what is lost.
    fn leaves_by_process(&self) -> Option<bool> {
        self.try_run(|inner| {
            self.work(inner);
            inner.engine.is_sending()
        })
    }

    fn leave_process(&self, at_last: bool) -> bool {
        let left = |inner: &mut RdInner| self.leave(inner, at_last);
        at_last | (self.try_run(left) == Some(true))
    }

    fn fail_overrun(&self) {
        self.flush_overrun();
    }

    fn handle_timeout(&self, now: Instant) -> Option<Instant> {
        self.run(|inner| {
            self.handle_timeout_locked(inner, now);
            self.work(inner);
            inner.deadline = Self::poll_timeout(inner);
            inner.deadline
        })
    }
}

#[cfg(test)]
mod tests;

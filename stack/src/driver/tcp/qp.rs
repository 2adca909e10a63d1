//! A connected QP: its engine with its TCP connection, shared by posting and polling threads.

mod coming_up;
mod deferred_disconnect;
mod ending;
mod establishment;
mod lanes;
mod member;
mod one_sided;
mod send_state;

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use dgiwarp_llp_tcp_mpa::{Connection, Rtr, TcpEnd};
use dgiwarp_memory::socket::NoCancellation;
use parking_lot::Mutex;

use crate::driver::cm::events::{CmQueue, PendingEstablished};
use crate::driver::device::clock;
use crate::driver::qp::core::{QpCore, QpParts, QpState};
use crate::driver::qp::cork::Cork;
use crate::driver::qp::staging;
use crate::driver::qp::staging::RxBuffer;
use crate::driver::reactor::member::{NextReceive, Received};
use crate::driver::same_host::meeting::Refused;
use crate::driver::same_host::names::Reach;
use crate::driver::tcp::lanes::Lanes;
use crate::driver::tcp::liveness::Liveness;
use crate::driver::tcp::pipe::Pipe;
use crate::{Access, ConnectError, Error, QpCounters, RcOptions, RnrLimits, WcStatus};
use dgiwarp_engine::connected::{
    CheckedEngine, DeferredDisconnect, GracefulClose, RcConfig, RcEngine, RcSendWqe, Taken,
    TcpClose, flush_receives,
};
use dgiwarp_engine::recv_queue::{Waiter, WeakWaiter};
use dgiwarp_engine::sq_drain::SqDrain;
use dgiwarp_engine::types::earliest;
use dgiwarp_engine::xrc::XrcRole;

/// Octets for TCP in one go, before other QPs get their turn.
const TURN: usize = 1 << 20;

/// How long TCP's maximum segment size is taken for what it was.
const PATH_LASTS: Duration = Duration::from_millis(100);

/// A connection in full operation.
#[derive(Debug)]
struct Link {
    engine: CheckedEngine,
    pipe: Pipe,
    /// Address of the peer's host.
    peer: IpAddr,
    tcp_close: TcpClose,
    liveness: Liveness,
    /// Set while a disconnect of this end's program is under way.
    graceful_close: Option<GracefulClose>,
    /// Set while the peer's disconnect has not been reported.
    deferred_disconnect: DeferredDisconnect,
    /// Nothing is read: the RNR queue is full. Only the end of the stream is checked for.
    paused: bool,
    cork: Cork,
    /// Timer set at the poll set.
    deadline: Option<Instant>,
    /// Time of the next check of TCP's maximum segment size.
    path_check_due: Instant,
    /// Where the ends may meet to share memory, until they begin to.
    reach: Option<Reach>,
    /// This end, an Initiator, waits for its peer's offer.
    invites: bool,
    /// Reason for staying on TCP.
    lane_refusal: Option<Refused>,
}

/// Source of input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum From {
    /// Whatever carries the stream.
    All,
    /// Memory, if it carries the stream: without a system call.
    Memory,
}

/// State behind the exclusive lock.
#[derive(Debug, Default)]
pub(crate) struct RcInner {
    /// `None` before the QP is connected.
    link: Option<Link>,
    /// Work requests that wait for the connection.
    waiting: VecDeque<RcSendWqe>,
    /// No connection will come.
    given_up: bool,
    /// Queue that takes the events of the connection, and their context.
    listener: Option<(Arc<CmQueue>, u64)>,
    /// Reported to `listener` once the peer has sent something.
    pending_established: Option<Box<PendingEstablished>>,
    /// Rights that peers lack, whatever keys they have.
    denied: Access,
    /// Limits of messages that wait for a receive.
    rnr_limits: RnrLimits,
    /// Drain of the send queue, while there is no connection.
    sq_drain: SqDrain,
    /// The first message of the peer raises an event.
    awaits_first_message: bool,
    /// Counters of connections that are gone, if there are any.
    past: Option<Box<QpCounters>>,
    /// Check whether messages that the host at an address has sent to other QPs are still to be taken: the disconnect event comes behind them.
    follows: Option<fn(IpAddr) -> bool>,
}

impl RcInner {
    /// Keeps a work request until the connection is there.
    #[inline]
    fn wait(&mut self, wqe: RcSendWqe) {
        self.waiting.push_back(wqe);
    }
}

impl QpState for RcInner {
    type Wqe = RcSendWqe;
    type Unlocked = RcUnlocked;

    #[inline]
    fn accept(&mut self, wqe: RcSendWqe) {
        match &mut self.link {
            Some(link) => {
                link.cork.add(wqe.length, None);
                link.engine.accept(wqe);
            }
            None => self.wait(wqe),
        }
    }

    // Inlined into its callers: after a system call the processor cannot predict returns.
    #[inline(always)]
    fn work(qp: &RcShared, inner: &mut Self) {
        let Some(link) = &mut inner.link else {
            qp.posting.empty(|wqe| inner.waiting.push_back(wqe));
            if inner.given_up {
                qp.flush_waiting(inner, WcStatus::Flushed);
            }
            return;
        };
        link.cork.release(clock::now);
        // Checked first: a thread that posts a receive sets it, then marks the engine's work as pending.
        let receive_posted = qp.unlocked.receive_posted.load(Ordering::Acquire);
        if qp.posting.is_handed_over() {
            qp.copy_alone(link);
        }
        if !receive_posted && qp.posting.is_handed_over() && qp.send_short(link) {
            return;
        }
        let _guard = NoCancellation::begin();
        if receive_posted && qp.unlocked.receive_posted.swap(false, Ordering::AcqRel) {
            let mut completions = qp.completions();
            link.engine
                .receive_posted(clock::now(), qp.tables(), &mut completions);
            qp.exchange_placed(link);
            qp.pause_or_go_on(link);
        }
        let refuses = link.engine.peer_refuses_immediates();
        qp.unlocked
            .refuses_immediates
            .store(refuses, Ordering::Relaxed);
        qp.posting.empty(|wqe| link.engine.accept(wqe));
        if !link.engine.is_idle() {
            qp.transmit(link);
            qp.wind_down(inner);
        }
        if let Some(link) = &inner.link
            && link.graceful_close.is_some()
        {
            qp.continue_graceful_close(inner);
        }
        qp.note_deadline(inner);
    }

    #[inline]
    fn cork(&mut self) -> Option<&mut Cork> {
        let link = self.link.as_mut()?;
        (!link.pipe.sends_by_lane()).then_some(&mut link.cork)
    }

    #[inline]
    fn over(unlocked: &RcUnlocked) -> Option<&AtomicBool> {
        Some(&unlocked.over)
    }

    fn flush_overrun(qp: &RcShared, inner: &mut Self) {
        qp.flush_locked(inner);
    }

    fn set_sq_drain(qp: &RcShared, inner: &mut Self, drain: SqDrain) {
        Self::set_sq_drain_locked(qp, inner, drain);
    }

    fn counters(&self) -> QpCounters {
        let mut counters = self.past.as_deref().cloned().unwrap_or_default();
        if let Some(link) = &self.link {
            counters.add(&link.counters());
        }
        counters
    }
}

/// Remainder of the MPA startup, done with the first FPDUs.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Startup<'a> {
    /// The RTR indication that is due.
    pub(crate) send_rtr: Option<Rtr>,
    /// Octets that arrived behind the startup frames.
    pub(crate) rest: &'a [u8],
}

/// A connected QP, shared by its handle, its completion queues and the background thread.
pub(crate) type RcShared = QpCore<RcInner>;

/// State of a connected QP outside of the exclusive lock.
#[derive(Debug)]
pub(crate) struct RcUnlocked {
    pub(crate) options: RcOptions,
    pub(crate) xrc: XrcRole,
    /// How long a silent peer is waited for.
    patience: Duration,
    /// A receive was posted, and the engine's RNR queue waits for one.
    receive_posted: AtomicBool,
    /// The peer takes no Sends with immediate.
    refuses_immediates: AtomicBool,
    /// The poll set flushes the acknowledgement that the peer waits for.
    has_pending_acks: AtomicBool,
    /// The connection is over, or will not come.
    over: AtomicBool,
    /// A connection is there, or on its way.
    claimed: AtomicBool,
    /// How often the QP was reset.
    life: AtomicU32,
    /// The queue pair itself, once it may get lanes.
    guest: OnceLock<Weak<RcShared>>,
    /// The stream arrives by a lane.
    in_lane: AtomicBool,
    /// The peer has grants, and asks whether the program polls.
    has_grants: AtomicBool,
    /// The place of the socket to come.
    place: Mutex<Option<OwnedFd>>,
}

/// Right to connect one QP, held by one connection attempt. A reset of the QP ends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConnectTicket {
    life: u32,
}

impl RcShared {
    pub(crate) fn create(
        parts: QpParts,
        patience: Duration,
        options: RcOptions,
        xrc: XrcRole,
    ) -> Result<Arc<Self>, Error> {
        let unlocked = RcUnlocked {
            options,
            xrc,
            patience,
            receive_posted: AtomicBool::new(false),
            refuses_immediates: AtomicBool::new(false),
            has_pending_acks: AtomicBool::new(false),
            over: AtomicBool::new(false),
            claimed: AtomicBool::new(false),
            life: AtomicU32::new(0),
            guest: OnceLock::new(),
            in_lane: AtomicBool::new(false),
            has_grants: AtomicBool::new(false),
            place: Mutex::new(None),
        };
        Self::new(parts, RcInner::default(), unlocked, false)
    }

    /// Whether the peer takes no Sends with immediate.
    pub(crate) fn peer_refuses_immediates(&self) -> bool {
        self.unlocked.refuses_immediates.load(Ordering::Relaxed)
    }

    /// Claims the QP for a connection, if it is free.
    pub(crate) fn claim(&self) -> Option<ConnectTicket> {
        let free = !self.unlocked.claimed.swap(true, Ordering::AcqRel);
        free.then(|| {
            // The connection takes it.
            drop(self.unlocked.place.lock().take());
            let life = self.unlocked.life.load(Ordering::Acquire);
            ConnectTicket { life }
        })
    }

    /// Keeps a descriptor for the connection, so that a program with more QPs than the process may have sockets gets an error.
    pub(crate) fn keep_place(&self) -> io::Result<()> {
        *self.unlocked.place.lock() = Some(self.background().hold_descriptor()?);
        Ok(())
    }

    /// Whether the QP is claimed for a connection.
    pub(crate) fn is_claimed(&self) -> bool {
        self.unlocked.claimed.load(Ordering::Acquire)
    }

    /// There will be no connection: the QP may be claimed again.
    pub(crate) fn unclaim(&self, ticket: ConnectTicket) {
        if ticket.life == self.unlocked.life.load(Ordering::Acquire) {
            self.unlocked.claimed.store(false, Ordering::Release);
        }
    }

    /// Takes over a connection whose startup is over, and lets the completion queue
    /// receive for it.
    pub(crate) fn link(
        self: &Arc<Self>,
        ticket: ConnectTicket,
        config: RcConfig,
        mpa: Connection,
        mut pipe: Pipe,
        startup: Startup<'_>,
    ) -> Result<(), ConnectError> {
        pipe.keep_alive(self.unlocked.patience)?;
        let member = self.attach();
        let watched = self.run(|inner| {
            let meant = ticket.life == self.unlocked.life.load(Ordering::Acquire);
            if self.closing.load(Ordering::Acquire) || inner.given_up || !meant {
                return None;
            }
            let config = RcConfig {
                denied: inner.denied,
                ..config
            };
            let peer = config.peer.ip().to_canonical();
            let waiter: WeakWaiter = Arc::<Self>::downgrade(self);
            let engine = CheckedEngine::from(RcEngine::new(config, mpa, waiter));
            let mut engine = engine.with_xrc(self.unlocked.xrc.clone());
            engine.limit_sends(self.posting.max());
            engine.set_sq_drain(inner.sq_drain, &mut self.completions());
            inner.set_up(&mut engine);
            let reach = (pipe.has_local_peer()).and_then(|local| self.background().reach(local));
            if reach.is_some() {
                self.be_guest();
                engine.share_host();
            }
            pipe.note_received(startup.rest.len());
            if let Some(rtr) = startup.send_rtr {
                engine.send_rtr(clock::now(), rtr);
            }
            engine.handle_input(
                clock::now(),
                startup.rest,
                self.tables(),
                &mut self.completions(),
            );
            let watched = self.poll_set.watch(member, 0, pipe.as_fd());
            for wqe in inner.waiting.drain(..) {
                engine.accept(wqe);
            }
            inner.link = Some(Link {
                engine,
                pipe,
                peer,
                tcp_close: TcpClose::default(),
                liveness: Liveness::new(self.unlocked.patience),
                graceful_close: None,
                deferred_disconnect: DeferredDisconnect::default(),
                paused: false,
                cork: Cork::new(self.background().autocorks(), self.posting.max()),
                deadline: None,
                path_check_due: clock::now(),
                reach,
                invites: false,
                lane_refusal: None,
            });
            self.open.store(true, Ordering::Release);
            // The RTR indication and the greeting leave now.
            self.work(inner);
            Some(watched)
        });
        watched
            .ok_or(ConnectError::State)?
            .map_err(|source| ConnectError::Device(Error::system("cannot watch a socket")(source)))
    }

    /// Whether work requests wait for a connection, and for nothing else.
    pub(crate) fn has_waiting(&self) -> bool {
        self.run(|inner| !inner.waiting.is_empty() && !inner.sq_drain.holds())
    }

    /// Whether the connection is over, or will not come.
    pub(crate) fn is_over(&self) -> bool {
        self.unlocked.over.load(Ordering::Acquire)
    }

    #[inline]
    fn note_deadline(&self, inner: &mut RcInner) {
        let Some(link) = &mut inner.link else {
            return;
        };
        let first_fpdu = inner.pending_established.as_ref().map(|it| it.until);
        let [second, third] = if link.tcp_close.has_begun() {
            let deferred = link.deferred_disconnect.deadline();
            [link.tcp_close.deadline(), deferred]
        } else {
            let graceful = link.graceful_close.map(GracefulClose::deadline);
            let second = graceful.into_iter().chain(first_fpdu).min();
            [link.liveness.deadline(), second]
        };
        let timers = [link.engine.poll_timeout(), second, third];
        self.set_timer(&mut link.deadline, earliest(timers));
    }

    /// Ends a connection whose peer's host is gone, or whose Initiator sends no RTR indication.
    fn look_after(&self, inner: &mut RcInner, now: Instant) {
        let Some(link) = &mut inner.link else {
            return;
        };
        let overdue = inner
            .pending_established
            .as_ref()
            .is_some_and(|it| it.until <= now);
        let look = || link.pipe.progress();
        if !link.tcp_close.has_begun() && (overdue || link.liveness.check(now, look)) {
            link.tcp_close.lost();
            self.end_stream(link, TcpEnd::Lost);
        }
    }

    #[inline(never)]
    fn transmit(&self, link: &mut Link) {
        if link.engine.can_make() {
            link.engine.copy_all(self.background().copies_all());
            staging::put_back_of_stream(link.engine.lend(staging::take_for_stream()));
        }
        self.transmit_staged(link);
        if let Some(room) = link.engine.reclaim() {
            staging::put_back_of_stream(room);
        }
    }

    fn transmit_staged(&self, link: &mut Link) {
        let mut completions = self.completions();
        let mut taken = 0;
        let now = clock::now();
        if link.path_check_due <= now && link.engine.may_cut() {
            link.path_check_due = now + PATH_LASTS;
            if let Ok(emss) = link.pipe.emss() {
                link.engine.follow_path(emss, self.background().mulpdu());
            }
        }
        loop {
            let Link {
                engine,
                pipe,
                tcp_close,
                liveness,
                ..
            } = link;
            lanes::follow_output(pipe, engine);
            if tcp_close.may_send() && engine.waits_for_room(now) {
                let mut is_blocked = pipe.is_blocked();
                if !is_blocked && pipe.lanes().is_some_and(Lanes::are_polled) {
                    if engine.send_short(self.tables(), pipe) {
                        self.unsent.store(false, Ordering::Release);
                        return;
                    }
                    is_blocked = pipe.is_blocked();
                }
                if is_blocked {
                    self.wait_for_room(link);
                    return;
                }
            }
            engine.make_fpdus(now, self.tables(), &mut completions);
            if !tcp_close.may_send() || !engine.has_octets(now) {
                self.unsent.store(false, Ordering::Release);
                return;
            }
            if taken >= TURN {
                self.blocked.store(false, Ordering::Release);
                self.remember_unsent();
                return;
            }
            let uncopied = engine.send_zero_copy(now, self.tables(), pipe, &mut completions);
            if uncopied.is_none() && engine.poll_transmit(now).is_empty() {
                continue;
            }
            let outcome = uncopied.unwrap_or_else(|| {
                let outcome = pipe.send(engine.poll_transmit(now));
                if let Taken::Octets(octets) = outcome {
                    engine.transmitted(now, octets, &mut completions);
                }
                outcome
            });
            match outcome {
                Taken::Octets(octets) => {
                    // A lane's peer is on this host, and TCP's end reports that it is gone.
                    if !pipe.sends_by_lane() {
                        liveness.sent(now);
                    }
                    taken += octets;
                    if engine.is_idle() {
                        self.unsent.store(false, Ordering::Release);
                        return;
                    }
                }
                Taken::WouldBlock => {
                    // A lane's wish for room comes before this thread may sleep.
                    if !pipe.sends_by_lane() || pipe.is_blocked() {
                        self.wait_for_room(link);
                        return;
                    }
                }
                Taken::Lost => {
                    self.receive_before_loss(link);
                    if !link.paused {
                        link.tcp_close.lost();
                    }
                    self.end_stream(link, TcpEnd::Lost);
                }
            }
        }
    }

    /// Once the engine is over, goes on with closing the connection.
    fn wind_down(&self, inner: &mut RcInner) {
        let Some(link) = &mut inner.link else {
            return;
        };
        let Some(end) = link.engine.end() else {
            return;
        };
        if !link.engine.is_dormant() && !self.unlocked.over.swap(true, Ordering::AcqRel) {
            // Receives that were posted behind the engine's flush; those that follow see that it is over.
            flush_receives(&self.recv_queue, self.qpn, &mut self.completions());
        }
        self.end_one_sided(link);
        if !link.tcp_close.has_begun() && link.engine.had_bad_crc() {
            self.background().copy_all();
        }
        let now = clock::now();
        self.raise_disconnect(inner, end, now);
        let Some(link) = &mut inner.link else {
            return;
        };
        link.choose_close();
        let flushed = link.engine.poll_transmit(now).is_empty();
        let pipe = &link.pipe;
        let step = (link.tcp_close).advance(now, flushed, || pipe.is_acknowledged());
        if step.shut_down {
            link.pipe.shut_down();
        }
        if step.unpoll {
            self.poll_set.unwatch(link.pipe.as_fd());
        }
    }

    /// Has the poll set flush the acknowledgement that the peer waits for, even if the program neither posts nor polls any more.
    #[inline]
    fn remember_pending_ack(&self) {
        if let Some(member) = self.member.get()
            && !self.unlocked.has_pending_acks.load(Ordering::Relaxed)
        {
            self.unlocked
                .has_pending_acks
                .store(true, Ordering::Relaxed);
            self.poll_set.add_pending_ack(*member);
        }
    }

    /// Receives once, and does the work that follows.
    // Inlined into its callers: after a system call the processor cannot predict returns.
    #[inline(always)]
    fn receive_once(&self, inner: &mut RcInner, next: NextReceive, from: From) -> Received {
        let Some(link) = &mut inner.link else {
            return Received::Nothing;
        };
        let got = self.receive_locked(link, from);
        let came = got > Received::Bells;
        if link.reach.is_some() && came {
            self.meet(link);
        }
        let flush = link.engine.flush_acks_after(came, next, clock::now);
        if came && !flush && link.engine.is_ack_awaited() {
            self.remember_pending_ack();
        }
        let is_end_due = link.engine.is_end_due();
        if inner.pending_established.is_some() {
            Self::begin(inner);
        }
        if came || flush || is_end_due {
            // Work requests that waited for the peer's first FPDU can leave now.
            self.work(inner);
        }
        got
    }

    fn receive_locked(&self, link: &mut Link, from: From) -> Received {
        if link.tcp_close.peer_is_done() {
            return Received::Nothing;
        }
        if link.paused {
            return self.look_for_end(link);
        }
        let mut rx_buffer = RxBuffer::take();
        let got = self.receive_into(link, &mut rx_buffer, from);
        rx_buffer.put_back();
        self.note_lane(link);
        got
    }

    /// The stream has ended. Where messages of before wait for a receive, the engine's end comes later, and the socket is not polled meanwhile.
    fn end_stream(&self, link: &mut Link, end: TcpEnd) {
        let (tables, mut completions) = (self.tables(), self.completions());
        link.engine
            .handle_end(clock::now(), end, tables, &mut completions);
        if link.engine.end().is_none() {
            link.tcp_close.stop_polling();
            self.poll_set.unwatch(link.pipe.as_fd());
        }
    }

    fn receive_into(&self, link: &mut Link, rx_buffer: &mut RxBuffer, from: From) -> Received {
        let engine = &mut link.engine;
        let most = rx_buffer.octets.len().min(engine.rnr_room());
        let (room, most) = engine.input_room(most);
        let placed = room.len();
        let wanted = placed + most;
        let behind = &mut rx_buffer.octets[..most];
        let received = match from {
            From::All => link.pipe.receive(room, behind),
            From::Memory => link.pipe.poll(room, behind),
        };
        lanes::follow_input(&link.pipe, engine, &mut self.completions());
        let end = match received {
            Ok(0) => {
                link.tcp_close.peer_closed();
                link.tcp_close.end_of_stream()
            }
            Ok(len) => {
                let placed = placed.min(len);
                engine.input_placed(placed);
                let unneeded = engine.lend_input(rx_buffer.spare());
                rx_buffer.give_spare(unneeded);
                // After the engine's end the octets are nobody's.
                engine.handle_input(
                    clock::now(),
                    &rx_buffer.octets[..len - placed],
                    self.tables(),
                    &mut self.completions(),
                );
                if let Some(memory) = engine.reclaim_input() {
                    rx_buffer.give_spare(memory);
                }
                self.exchange_placed(link);
                self.grant_used(link);
                self.pause_or_go_on(link);
                return if len < wanted {
                    Received::Everything
                } else {
                    Received::Something
                };
            }
            Err(error) if error.raw_os_error() == Some(nix::libc::EAGAIN) => {
                return Received::Nothing;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Received::Bells,
            Err(_) => {
                link.tcp_close.lost();
                TcpEnd::Lost
            }
        };
        self.end_stream(link, end);
        Received::Everything
    }

    /// Stops polling for input while the RNR queue is full, or resumes it.
    #[inline]
    fn pause_or_go_on(&self, link: &mut Link) {
        let pause = link.engine.rnr_room() == 0;
        if pause != link.paused
            && let Some(member) = self.member.get()
        {
            link.paused = pause;
            if !pause {
                link.engine.resume_input();
                link.tcp_close.resume_polling();
                link.pipe.want_bells(true, false);
                self.note_lane(link);
            }
            // Bells for room come all the time.
            let polled = !pause || link.pipe.receives_by_lane();
            self.poll_set
                .watch_input(*member, link.pipe.as_fd(), polled);
        }
    }

    /// Our address and port, once connected.
    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        self.run(|inner| inner.link.as_ref()?.pipe.local_addr().ok())
    }
}

impl Waiter for RcShared {
    fn receive_posted(&self) {
        self.unlocked.receive_posted.store(true, Ordering::Release);
        self.exclusive.run_or_mark(|inner| self.work(inner));
    }
}

#[cfg(test)]
mod tests;

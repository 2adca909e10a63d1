//! The background thread: progress while nobody polls.
//!
//! One per device, started with the first QP, all signals blocked, never spinning. It sleeps on the epoll sets of the completion
//! queues (armed for one event at a time), runs timers, and goes on with what a full socket did not take.
//!
//! A thread that sleeps on a socket costs every arriving datagram a wake-up, so the thread *learns* which queues are polled: see
//! [`watch`](crate::driver::reactor::adaptive_arming). Those it looks at only now and then, to find out whether their program stopped polling.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::thread::JoinHandleExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::pthread::pthread_self;
use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};
use parking_lot::Mutex;

use crate::api::device::events::Events;
use crate::driver::cq::{By, CqShared};
use crate::driver::device::clock;
use crate::driver::tcp::lingering::{Departure, Departures};
use crate::{Config, Error};
use dgiwarp_engine::connected::LATE;

/// Event of the thread's own eventfd.
const WAKE: u64 = u64::MAX;
/// Event of a socket that can take more.
const WRITABLE: u64 = u64::MAX - 1;
/// Event of a connection on its way up.
const CONNECTIONS: u64 = u64::MAX - 2;
/// How often queues that are polled are looked at, at first and after a while.
const TICK: Duration = Duration::from_millis(1);
const SLOW_TICK: Duration = Duration::from_millis(4);
/// Ticks until the slow one.
const TICKS: u32 = 32;
/// Turns for one queue before the next one.
const TURNS: usize = 16;
/// Ticks without a poll and without data until a queue is watched again.
const IDLE_TICKS: u32 = 64;

/// How long the end of a process, or of a device, waits for connections to be closed on both sides.
const AT_END: Duration = Duration::from_millis(200);

/// Connections on their way up or down, which somebody has to move on.
pub(crate) trait Connecting: std::fmt::Debug + Send + Sync {
    /// Readable when [`progress`](Self::progress) has something to do.
    fn work_fd(&self) -> BorrowedFd<'_>;
    /// When to call it even if nothing arrives.
    fn poll_timeout(&self) -> Option<Instant>;
    /// Does what can be done now.
    fn progress(&self);
}

/// The thread and what it shares with the others.
#[derive(Debug)]
pub(crate) struct Background {
    epoll: Epoll,
    wake: EventFd,
    queues: Mutex<Vec<Weak<CqShared>>>,
    connections: Mutex<Vec<Weak<dyn Connecting>>>,
    departures: Arc<Departures>,
    thread: Mutex<Option<JoinHandle<()>>>,
    stop: AtomicBool,
    /// A completion queue lost a completion, and its queue pairs do not know.
    overruns: AtomicBool,
    next_id: AtomicU64,
    /// When the thread will look next, in nanoseconds of the driver's clock.
    next_look: AtomicU64,
    spinning_allowed: bool,
    max_mtu: u32,
    /// Longest ULPDU of connected QPs, if it was chosen.
    mulpdu: Option<u16>,
    /// Connected QPs copy all that they send.
    copies: AtomicBool,
    events: Arc<Events>,
}

/// What the thread remembers of a queue between its looks.
struct Seen {
    id: u64,
    polls: u64,
    idle_ticks: u32,
    lying: bool,
}

impl Background {
    pub(crate) fn new(config: &Config, events: Arc<Events>) -> Result<Arc<Self>, Error> {
        let make = || -> Result<(Epoll, EventFd), Errno> {
            let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
            let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
            epoll.add(&wake, EpollEvent::new(EpollFlags::EPOLLIN, WAKE))?;
            Ok((epoll, wake))
        };
        let (epoll, wake) =
            make().map_err(|errno| Error::system("cannot make an epoll set")(errno.into()))?;
        let departures = Departures::new()?;
        let event = EpollEvent::new(EpollFlags::EPOLLIN, CONNECTIONS);
        epoll
            .add(departures.work_fd(), event)
            .map_err(|errno| Error::system("cannot watch connections")(errno.into()))?;
        let departing: Weak<Departures> = Arc::downgrade(&departures);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Arc::new(Self {
            epoll,
            wake,
            queues: Mutex::new(Vec::new()),
            connections: Mutex::new(vec![departing]),
            departures,
            thread: Mutex::new(None),
            stop: AtomicBool::new(false),
            overruns: AtomicBool::new(false),
            next_id: AtomicU64::new(0),
            next_look: AtomicU64::new(0),
            spinning_allowed: cores > 1,
            max_mtu: config.max_mtu,
            mulpdu: (config.mulpdu > 0).then_some(config.mulpdu),
            copies: AtomicBool::new(config.send_copy),
            events,
        }))
    }

    /// The device's asynchronous events.
    pub(crate) fn events(&self) -> &Events {
        &self.events
    }

    pub(crate) fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether there is a core to spin on.
    pub(crate) fn may_spin(&self) -> bool {
        self.spinning_allowed
    }

    /// The MULPDU of connected QPs, where the device's settings choose it.
    pub(crate) fn mulpdu(&self) -> Option<u16> {
        self.mulpdu
    }

    /// Whether connected QPs copy all that they send, and its CRC is that of the copy.
    #[inline]
    pub(crate) fn copies_all(&self) -> bool {
        self.copies.load(Ordering::Relaxed)
    }

    /// Lets them do that from now on.
    pub(crate) fn copy_all(&self) {
        self.copies.store(true, Ordering::Relaxed);
    }

    /// The MTU that the device's settings leave of a route's.
    pub(crate) fn limit_mtu(&self, of_route: u32) -> u32 {
        if self.max_mtu == 0 {
            of_route
        } else {
            of_route.min(self.max_mtu)
        }
    }

    /// Looks after a completion queue from now on.
    pub(crate) fn serve(self: &Arc<Self>, cq: &Arc<CqShared>) {
        let mut queues = self.queues.lock();
        let known = queues
            .iter()
            .any(|it| std::ptr::eq(it.as_ptr(), Arc::as_ptr(cq)));
        if !known {
            queues.retain(|it| it.strong_count() > 0);
            queues.push(Arc::downgrade(cq));
            let event = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLONESHOT, cq.id());
            cq.watch_state()
                .turn(self.epoll.add(cq.sockets_fd(), event).is_ok());
        }
        drop(queues);
        self.start();
    }

    /// Looks after connections on their way up from now on.
    pub(crate) fn serve_connections<C: Connecting + 'static>(
        self: &Arc<Self>,
        them: &Arc<C>,
    ) -> Result<(), Error> {
        let event = EpollEvent::new(EpollFlags::EPOLLIN, CONNECTIONS);
        self.epoll
            .add(them.work_fd(), event)
            .map_err(|errno| Error::system("cannot watch connections")(errno.into()))?;
        let mut connections = self.connections.lock();
        connections.retain(|it| it.strong_count() > 0);
        let weak: Weak<C> = Arc::downgrade(them);
        connections.push(weak);
        drop(connections);
        self.start();
        Ok(())
    }

    fn live_connections(&self) -> Vec<Arc<dyn Connecting>> {
        let connections = self.connections.lock();
        connections.iter().filter_map(Weak::upgrade).collect()
    }

    fn start(self: &Arc<Self>) {
        let mut thread = self.thread.lock();
        if thread.is_some() {
            return;
        }
        let this = Arc::clone(self);
        // Signals are for the program's own threads; a new thread inherits the mask.
        let mut before = SigSet::empty();
        let blocked = pthread_sigmask(
            SigmaskHow::SIG_SETMASK,
            Some(&SigSet::all()),
            Some(&mut before),
        );
        let started = std::thread::Builder::new()
            .name("dgiwarp".to_owned())
            .spawn(move || this.run());
        if blocked.is_ok() {
            let _ = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None);
        }
        match started {
            Ok(handle) => *thread = Some(handle),
            Err(error) => {
                tracing::warn!(%error, "no background thread: progress only while a program polls");
            }
        }
    }

    /// Closes a connection whose QP is gone.
    pub(crate) fn depart(&self, departure: Departure) {
        if let Some(deadline) = self.departures.add(departure) {
            self.wake_before(clock::to_nanos(Some(deadline)));
        }
    }

    /// Ends the thread. Called when the last handle of the device goes. Connections whose QPs are gone get a moment to be closed on both sides, for
    /// the process may end now; if it does not, the thread stays for those that need longer.
    pub(crate) fn stop(&self) {
        let closed = self.departures.wait(clock::now() + AT_END);
        self.stop.store(true, Ordering::Release);
        self.wake();
        if let Some(handle) = self.thread.lock().take()
            // Not by `thread::current()`, which leaves memory to the program's thread.
            && handle.as_pthread_t() != pthread_self()
            && closed
        {
            let _ = handle.join();
        }
    }

    /// The process ends: what connected QPs accepted gets a moment to leave. Nothing can be posted to them any more.
    pub(crate) fn leave_process(&self) {
        let deadline = clock::now() + AT_END;
        let mut left: Vec<_> = self
            .live_queues()
            .iter()
            .flat_map(|cq| cq.rc_qps())
            .collect();
        loop {
            let at_last = clock::now() >= deadline;
            left.retain(|qp| !qp.leave_process(at_last));
            if left.is_empty() || at_last {
                break;
            }
            // TCP is full, or another thread is posting or polling.
            let _ = poll(&mut [], PollTimeout::from(1u8));
        }
        self.departures.wait(deadline);
    }

    /// A descriptor that is held for somebody who will need one.
    pub(crate) fn hold_descriptor(&self) -> io::Result<OwnedFd> {
        self.wake.as_fd().try_clone_to_owned()
    }

    /// A completion queue lost a completion: its queue pairs end, which whoever holds one of them now cannot see to.
    pub(crate) fn end_overrun(&self) {
        self.overruns.store(true, Ordering::Release);
        self.wake();
    }

    /// Makes the thread look now.
    pub(crate) fn wake(&self) {
        let _ = self.wake.write(1);
    }

    /// Makes the thread look if it would else look later than `nanos`.
    pub(crate) fn wake_before(&self, nanos: u64) {
        if self.next_look.load(Ordering::Acquire) > nanos {
            self.wake();
        }
    }

    /// Stops watching a queue's sockets.
    pub(crate) fn disarm(&self, cq: &CqShared) {
        let mut event = EpollEvent::new(EpollFlags::empty(), cq.id());
        let _ = self.epoll.modify(cq.sockets_fd(), &mut event);
        // It may sleep without a tick: queues that are not watched need one.
        self.wake_before(clock::to_nanos(Some(clock::now() + SLOW_TICK)));
    }

    /// Watches a queue's sockets from now on.
    fn arm(&self, cq: &CqShared) {
        cq.watch_state().turn(true);
        self.rearm(cq);
    }

    /// Goes on watching after an event, unless a poller said meanwhile that it need not: that one often comes at the very
    /// moment, with the same datagram.
    fn rearm(&self, cq: &CqShared) {
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLONESHOT;
        let mut event = EpollEvent::new(flags, cq.id());
        let _ = self.epoll.modify(cq.sockets_fd(), &mut event);
        if !cq.watch_state().is_on() {
            let mut event = EpollEvent::new(EpollFlags::empty(), cq.id());
            let _ = self.epoll.modify(cq.sockets_fd(), &mut event);
        }
    }

    /// Wakes the thread when a socket can take more.
    pub(crate) fn watch_writable(&self, fd: BorrowedFd<'_>) {
        let flags = EpollFlags::EPOLLOUT | EpollFlags::EPOLLONESHOT;
        let mut event = EpollEvent::new(flags, WRITABLE);
        if self.epoll.modify(fd, &mut event) == Err(Errno::ENOENT) {
            let _ = self.epoll.add(fd, event);
        }
    }

    fn run(&self) {
        let mut seen: Vec<Seen> = Vec::new();
        let mut ticks = 0;
        let mut at_once = false;
        let mut events = [EpollEvent::empty(); 32];
        while !(self.stop.load(Ordering::Acquire) && self.departures.is_empty()) {
            let queues = self.live_queues();
            let timeout = if at_once {
                EpollTimeout::ZERO
            } else {
                self.plan(&queues, ticks)
            };
            at_once = false;
            drop(queues);
            let ready = self.epoll.wait(&mut events, timeout).unwrap_or(0);
            self.next_look.store(0, Ordering::Release);
            let mut tick = true;
            let mut writable = false;
            let queues = self.live_queues();
            for event in &events[..ready] {
                match event.data() {
                    WAKE => {
                        let _ = self.wake.read();
                    }
                    WRITABLE => writable = true,
                    CONNECTIONS => {}
                    id => {
                        tick = false;
                        if let Some(cq) = queues.iter().find(|cq| cq.id() == id) {
                            self.serve_event(cq);
                        }
                    }
                }
            }
            for connections in self.live_connections() {
                connections.progress();
            }
            if self.overruns.swap(false, Ordering::AcqRel) {
                queues.iter().for_each(|cq| cq.fail_overrun());
            }
            for cq in &queues {
                if writable || cq.has_unsent() {
                    // A queue that is polled needs help only now and then, and this thread would take a core from its poller.
                    at_once |= cq.flush_unsent() && cq.watch_state().is_on();
                }
                cq.run_timers();
                cq.settle(true);
                cq.settle_late();
            }
            if tick {
                ticks = self.tick(&queues, &mut seen, ticks);
            }
        }
    }

    fn live_queues(&self) -> Vec<Arc<CqShared>> {
        self.queues
            .lock()
            .iter()
            .filter_map(Weak::upgrade)
            .collect()
    }

    /// How long to sleep, and tells the others until when.
    fn plan(&self, queues: &[Arc<CqShared>], ticks: u32) -> EpollTimeout {
        let now = clock::to_nanos(Some(clock::now()));
        let unwatched = queues.iter().any(|cq| !cq.watch_state().is_on());
        let tick = if ticks < TICKS { TICK } else { SLOW_TICK };
        let by_tick = if unwatched {
            now + u64::try_from(tick.as_nanos()).unwrap_or(0)
        } else {
            u64::MAX
        };
        // Published before the deadlines are read: whoever sets an earlier one afterwards sees it and wakes us.
        self.next_look.store(by_tick, Ordering::SeqCst);
        let by_timer = queues.iter().map(|cq| cq.deadline()).min();
        let late = queues.iter().any(|cq| cq.owes_late());
        let by_owing = if late {
            now + u64::try_from(LATE.as_nanos()).unwrap_or(0)
        } else {
            u64::MAX
        };
        let connections = self.live_connections();
        let by_connection = connections
            .iter()
            .map(|them| clock::to_nanos(them.poll_timeout()))
            .min();
        let next = by_tick
            .min(by_timer.unwrap_or(u64::MAX))
            .min(by_owing)
            .min(by_connection.unwrap_or(u64::MAX));
        self.next_look.store(next, Ordering::SeqCst);
        if next == u64::MAX {
            return EpollTimeout::NONE;
        }
        let millis = next.saturating_sub(now).div_ceil(1_000_000);
        EpollTimeout::try_from(millis).unwrap_or(EpollTimeout::MAX)
    }

    /// A watched queue has data.
    fn serve_event(&self, cq: &Arc<CqShared>) {
        let mut found = false;
        for _ in 0..TURNS {
            match cq.progress(By::Background) {
                Some(true) => found = true,
                Some(false) => break,
                // A poller is at it: step aside until the next tick.
                None => {
                    cq.woken(found);
                    cq.watch_state().turn(false);
                    return;
                }
            }
        }
        cq.woken(found);
        if cq.watch_state().is_on() {
            self.rearm(cq);
        }
    }

    /// Looks at the queues that are not watched. Returns how many ticks there were in a row.
    fn tick(&self, queues: &[Arc<CqShared>], seen: &mut Vec<Seen>, ticks: u32) -> u32 {
        let mut unwatched = 0;
        for cq in queues.iter().filter(|cq| !cq.watch_state().is_on()) {
            unwatched += 1;
            let polls = cq.watch_state().polls();
            let position = seen.iter().position(|it| it.id == cq.id());
            let Some(known) = position.map(|position| &mut seen[position]) else {
                seen.push(Seen {
                    id: cq.id(),
                    polls,
                    idle_ticks: 0,
                    lying: false,
                });
                continue;
            };
            if known.polls != polls {
                known.polls = polls;
                known.idle_ticks = 0;
                known.lying = false;
                continue;
            }
            known.idle_ticks += 1;
            cq.try_unpark();
            let data = cq.has_data();
            // A sleeping program is given the time to wake up by itself.
            let lying = data && (known.lying || !cq.has_sleepers());
            known.lying = data;
            if lying {
                cq.watch_state().data_lay_there();
                self.arm(cq);
                cq.progress(By::Background);
            } else if known.idle_ticks >= IDLE_TICKS && !cq.has_sleepers() {
                self.arm(cq);
            }
        }
        seen.retain(|it| queues.iter().any(|cq| cq.id() == it.id));
        if unwatched == 0 {
            0
        } else {
            ticks.saturating_add(1)
        }
    }
}

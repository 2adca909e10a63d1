//! The background thread: progress while nobody polls.
//!
//! One per device, started with the first QP, all signals blocked, never spinning. It sleeps on the epoll sets of the completion
//! queues (armed for one event at a time), runs timers, and continues transmission where a socket was full.
//!
//! A thread that sleeps on a socket costs every arriving datagram a wake-up, so the thread *learns* which queues are polled: see
//! [`adaptive_arming`](crate::driver::reactor::adaptive_arming). It checks polled queues only now and then, to find out whether their program stopped polling.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::thread::JoinHandleExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use dgiwarp_memory::{allow_tracing, enter_background};
use nix::poll::{PollTimeout, poll};
use nix::sys::epoll::{EpollEvent, EpollTimeout};
use nix::sys::pthread::pthread_self;
use parking_lot::Mutex;

use crate::api::device::events::Events;
use crate::driver::device::agenda::{Agenda, PollSets};
use crate::driver::device::clock;
use crate::driver::device::library_thread::start_library_thread;
use crate::driver::reactor::poll_set::{By, PollSet};
use crate::driver::reactor::waker::{TASK, TIMER, Task, WAKE, WRITABLE, Waker};
use crate::driver::same_host::meeting::SameHost;
use crate::driver::same_host::names::{Names, Reach};
use crate::driver::tcp::lingering::{LingeringSocket, LingeringSockets};
use crate::{Config, Error, SameHostMode};

/// Times to a deadline, in nanoseconds, for which a timer of a set that nobody polls expires when it is due, and not at the millisecond after. Nearer ones
/// are delays of acknowledgements, which cost more in wakeups than they are worth.
const FINE: Range<u64> = 100_000..10_000_000;
/// Calls of one queue's progress before the next queue's.
const TURNS: usize = 16;
/// How long the end of a process, or of a device, waits for connections to be closed on both sides.
const AT_END: Duration = Duration::from_millis(200);
/// As [`AT_END`], for QPs of which nothing leaves without their process.
const AT_END_OF_PROCESS: Duration = Duration::from_secs(3);

/// The thread and its state that other threads use.
#[derive(Debug)]
pub(crate) struct Background {
    waker: Arc<Waker>,
    sets: PollSets,
    tasks: Mutex<Vec<Weak<dyn Task>>>,
    lingering: Arc<LingeringSockets>,
    thread: Mutex<Option<JoinHandle<()>>>,
    stop: AtomicBool,
    /// A completion queue lost a completion, and its queue pairs have not ended yet.
    overruns: AtomicBool,
    next_id: AtomicU64,
    spinning_allowed: bool,
    max_mtu: u32,
    /// Longest ULPDU of connected QPs, if it was chosen.
    mulpdu: Option<u16>,
    /// Connections within this host go through shared memory once TCP has carried this many octets of them.
    shares_host_after: Option<u64>,
    /// Their ends copy alone, where the kernel lets them.
    copies_one_sided: bool,
    /// Names at which their ends meet.
    names: Names,
    /// Meetings of such connections, from the first one on.
    same_host: OnceLock<Arc<SameHost>>,
    /// Messages that are posted back to back leave together.
    autocorks: bool,
    /// Connected QPs copy all payload that they send.
    copies: AtomicBool,
    events: Arc<Events>,
}

impl Background {
    pub(crate) fn new(config: &Config, events: Arc<Events>) -> Result<Arc<Self>, Error> {
        if config.same_host == SameHostMode::Direct
            && let Err(error) = allow_tracing()
        {
            // Kernels without Yama have no such call, and need none.
            tracing::debug!(%error, "processes of this user may trace this one as the system has it");
        }
        let waker = Waker::new()?;
        let lingering = LingeringSockets::new()?;
        waker.add_task(lingering.work_fd())?;
        let weak: Weak<LingeringSockets> = Arc::downgrade(&lingering);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Arc::new(Self {
            waker: Arc::new(waker),
            sets: PollSets::default(),
            tasks: Mutex::new(vec![weak]),
            lingering,
            thread: Mutex::new(None),
            stop: AtomicBool::new(false),
            overruns: AtomicBool::new(false),
            next_id: AtomicU64::new(0),
            spinning_allowed: cores > 1,
            max_mtu: config.max_mtu,
            mulpdu: (config.mulpdu > 0).then_some(config.mulpdu),
            shares_host_after: config.shares_host().then_some(config.same_host_after),
            copies_one_sided: config.copies_one_sided(),
            names: Names::new(config.host_dir.as_deref().filter(|_| config.shares_host())),
            same_host: OnceLock::new(),
            autocorks: config.autocork,
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

    /// Whether messages that are posted back to back leave together.
    pub(crate) fn autocorks(&self) -> bool {
        self.autocorks
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

    /// Octets of a connection within this host that TCP carries before shared memory does. `None` where TCP carries all.
    pub(crate) fn shares_host_after(&self) -> Option<u64> {
        self.shares_host_after
    }

    /// Whether ends of connections within this host copy from and to each other's memory alone.
    pub(crate) fn copies_one_sided(&self) -> bool {
        self.copies_one_sided
    }

    /// How a peer may be reached to share memory with it, whose address is one of this network namespace or not. `None` where sockets carry all.
    pub(crate) fn reach(&self, is_local: bool) -> Option<Reach> {
        self.shares_host_after?;
        self.names.reach(is_local)
    }

    /// The meetings within this host, if there were any.
    pub(crate) fn meetings(&self) -> Option<&SameHost> {
        self.same_host.get().map(|it| &**it)
    }

    /// The meetings within this host. `None` where descriptors are missing.
    pub(crate) fn same_host(&self) -> Option<&SameHost> {
        if let Some(same_host) = self.same_host.get() {
            return Some(same_host);
        }
        let made = SameHost::new(Arc::clone(&self.waker), self.names.clone()).ok()?;
        let same_host = self.same_host.get_or_init(|| Arc::clone(&made));
        // Another thread may have made one.
        if Arc::ptr_eq(same_host, &made) {
            self.waker.add_task(made.work_fd()).ok()?;
            let weak: Weak<SameHost> = Arc::downgrade(&made);
            self.tasks.lock().push(weak);
        }
        Some(same_host)
    }

    /// The MTU that the device's settings leave of a route's.
    pub(crate) fn limit_mtu(&self, of_route: u32) -> u32 {
        if self.max_mtu == 0 {
            of_route
        } else {
            of_route.min(self.max_mtu)
        }
    }

    /// The descriptors on which the thread sleeps.
    pub(crate) fn waker(&self) -> &Arc<Waker> {
        &self.waker
    }

    /// Serves a poll set from now on.
    pub(crate) fn serve(self: &Arc<Self>, set: &Arc<PollSet>) {
        if self.sets.add(set) {
            set.start_watching();
        }
        if let Err(error) = self.start() {
            tracing::warn!(%error, "no background thread: progress only while a program polls");
        }
    }

    /// Serves a task from now on. Nobody else would, so a thread that cannot be started is an error.
    pub(crate) fn serve_task<T: Task + 'static>(
        self: &Arc<Self>,
        task: &Arc<T>,
    ) -> Result<(), Error> {
        self.waker.add_task(task.work_fd())?;
        let mut tasks = self.tasks.lock();
        tasks.retain(|it| it.strong_count() > 0);
        let weak: Weak<T> = Arc::downgrade(task);
        tasks.push(weak);
        drop(tasks);
        let started = self.start();
        started.map_err(Error::system("cannot start the background thread"))
    }

    fn live_tasks(&self) -> Vec<Arc<dyn Task>> {
        let tasks = self.tasks.lock();
        tasks.iter().filter_map(Weak::upgrade).collect()
    }

    fn start(self: &Arc<Self>) -> io::Result<()> {
        let mut thread = self.thread.lock();
        if thread.is_some() {
            return Ok(());
        }
        let this = Arc::clone(self);
        *thread = Some(start_library_thread("dgiwarp", move || this.run())?);
        Ok(())
    }

    /// Closes a connection whose QP is gone.
    pub(crate) fn linger(&self, socket: LingeringSocket) {
        if let Some(deadline) = self.lingering.add(socket) {
            self.waker.wake_before(clock::to_nanos(Some(deadline)));
        }
    }

    /// Ends the thread. Called when the last handle of the device goes. Connections whose QPs are gone get a moment to be closed on both sides, for
    /// the process may end now; if it does not, the thread stays for those that need longer.
    pub(crate) fn stop(&self) {
        let closed = self.lingering.wait(clock::now() + AT_END);
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

    /// The process ends: octets that connected QPs accepted get a moment to leave. Nothing can be posted to them any more.
    pub(crate) fn leave_process(&self) {
        let began = clock::now();
        let members = self.sets.live();
        let members = members.iter().flat_map(|set| set.live_members());
        let mut left: Vec<_> = members.map(|member| (member, None)).collect();
        loop {
            let now = clock::now();
            left.retain_mut(|(member, longer)| {
                // A thread that polls meanwhile may be at work on it.
                *longer = longer.or_else(|| member.leaves_by_process());
                let limit = if *longer == Some(true) {
                    AT_END_OF_PROCESS
                } else {
                    AT_END
                };
                let at_last = now >= began + limit;
                !member.leave_process(at_last) && !at_last
            });
            if left.is_empty() {
                break;
            }
            // TCP is full, or another thread is posting or polling.
            let _ = poll(&mut [], PollTimeout::from(1u8));
        }
        self.lingering.wait(began + AT_END);
    }

    /// A descriptor that is held in place of a later socket.
    pub(crate) fn hold_descriptor(&self) -> io::Result<OwnedFd> {
        self.waker.hold_descriptor()
    }

    /// A completion queue lost a completion: its queue pairs end in the background, as the caller may hold the lock of one.
    pub(crate) fn end_overrun(&self) {
        self.overruns.store(true, Ordering::Release);
        self.wake();
    }

    /// Wakes the thread.
    pub(crate) fn wake(&self) {
        self.waker.wake();
    }

    fn run(&self) {
        enter_background();
        let mut agenda = Agenda::new();
        let mut at_once = false;
        let mut events = [EpollEvent::empty(); 32];
        while !(self.stop.load(Ordering::Acquire) && self.lingering.is_empty()) {
            let timeout = if at_once {
                EpollTimeout::ZERO
            } else {
                self.plan(&mut agenda)
            };
            let Some(ready) = self.waker.wait(&mut events, timeout) else {
                tracing::error!(
                    "the program closed the device's descriptors: nothing more is done in the background"
                );
                return;
            };
            let mut for_tasks = false;
            for event in ready {
                match event.data() {
                    WAKE => {
                        self.waker.acknowledge();
                        for_tasks = true;
                    }
                    TASK => for_tasks = true,
                    // A socket can take more: its set has unsent messages.
                    WRITABLE | TIMER => {}
                    id => {
                        if let Some(set) = self.sets.get(id) {
                            serve_event(&set);
                        }
                    }
                }
            }
            // Each asks the kernel for what there is, which no datagram needs.
            for task in self.live_tasks() {
                if for_tasks || task.poll_timeout().is_some_and(|it| it <= clock::now()) {
                    task.progress();
                }
            }
            if self.overruns.swap(false, Ordering::AcqRel) {
                self.sets.live().iter().for_each(|set| set.fail_overrun());
            }
            let now = clock::to_nanos(Some(clock::now()));
            at_once = agenda.serve(&self.sets, &self.waker, now);
        }
    }

    /// Computes the time to sleep, and publishes its end.
    fn plan(&self, agenda: &mut Agenda) -> EpollTimeout {
        let now = clock::to_nanos(Some(clock::now()));
        // Published before the notes are taken: a thread that sets an earlier deadline afterwards reads this and wakes us.
        self.waker.set_wakes_at(agenda.next_tick());
        agenda.take_notes(&self.sets, &self.waker, now);
        let timer = agenda.first_timer(&self.sets);
        let by_timer = timer.map_or(u64::MAX, |(time, _)| time);
        let tasks = self.live_tasks();
        let by_task = tasks
            .iter()
            .map(|task| clock::to_nanos(task.poll_timeout()))
            .min();
        let next = agenda
            .next_tick()
            .min(by_timer)
            .min(by_task.unwrap_or(u64::MAX));
        self.waker.set_wakes_at(next);
        if next == u64::MAX {
            return EpollTimeout::NONE;
        }
        let is_of_sleeper = timer == Some((next, true));
        if is_of_sleeper && FINE.contains(&next.saturating_sub(now)) {
            self.waker.expire_at(next, now);
        }
        let millis = next.saturating_sub(now).div_ceil(1_000_000);
        EpollTimeout::try_from(millis).unwrap_or(EpollTimeout::MAX)
    }
}

/// A watched queue has data.
fn serve_event(set: &PollSet) {
    let mut found = false;
    for _ in 0..TURNS {
        match set.progress(By::Background) {
            Some(true) => found = true,
            Some(false) => break,
            // A poller is at it.
            None => {
                set.woken(found);
                if set.arming().is_on() {
                    set.step_aside();
                }
                return;
            }
        }
    }
    set.woken(found);
    if set.arming().is_on() {
        set.rearm();
    }
}

//! Threads and turns: who polls the completion queue, and who is woken.
//!
//! One thread polls at a time. A thread that waits for something polls itself where nobody does, so that a reply wakes no second thread. A helper polls while no
//! program's thread does, and takes over where the last one has been away for a millisecond: with its result, or in a handler.
//!
//! An event loop of the program may drive the endpoint ([`Driver`](super::driver::Driver)): the helper and the threads that execute calls then poll only where it is late.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

use dgiwarp::{Buffer, Cq, Mr, RecvWr, Wc, WcStatus};
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::driver::Driving;
use super::inbound::Clock;
use super::service::{Executor, Handler, Job, Reply};
use super::state::State;
use super::stream::StreamId;
use super::work_id::WorkId;
use crate::memory::Pool;
use crate::payload::Payload;
use crate::status::{Code, Status};
use crate::system::now;

/// Receives that are posted, for all peers.
pub(crate) const RECEIVES: usize = 256;
/// Completions taken at a time.
pub(super) const BATCH: usize = 32;
/// Longest time in which a thread does not check whether the endpoint is closed.
pub(super) const NAP: Duration = Duration::from_millis(250);
/// Time after which the helper polls where nobody else does.
pub(super) const TICK: Duration = Duration::from_millis(1);
/// Time between the helper's checks of the event loop that drives the endpoint: after two in which something waited, threads take its place.
const DRIVER_TICK: Duration = Duration::from_millis(5);
/// Time between checks where nothing has happened for some ticks.
const QUIET_DRIVER_TICK: Duration = Duration::from_millis(50);
/// Ticks in which one thread has polled, after which the helper sleeps until it is woken.
const QUIET_TICKS: u32 = 10;

/// Thread that polls, and threads that wait for it.
#[derive(Debug, Default)]
pub(super) struct Turn {
    pub(super) polling: bool,
    /// Counts the times that a thread of the program began to poll.
    epoch: u64,
    /// Threads that wait for `changed`.
    pub(super) waiters: usize,
    /// Threads that wait for `work`.
    workers: usize,
    helper_sleeps: bool,
    /// Event loop of the program that polls in place of all threads that wait for nothing of their own.
    pub(super) driving: Option<Driving>,
}

impl Turn {
    /// Whether an event loop drives the endpoint, as far as is known.
    pub(super) fn is_driven(&self) -> bool {
        self.driving.as_ref().is_some_and(|it| !it.late)
    }
}

/// State of the driver at the helper's last check.
#[derive(Debug, Default)]
struct Seen {
    turns: u64,
    /// Checks since the last turn.
    quiet: u32,
    /// Something waited for the driver.
    waiting: bool,
}

/// Everything behind the lock.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) state: State,
    pub(super) turn: Turn,
    message: Vec<u8>,
}

/// An endpoint as its threads have it.
#[derive(Debug)]
pub(crate) struct Shared {
    inner: Mutex<Inner>,
    changed: Condvar,
    /// For threads that execute calls.
    work: Condvar,
    helper: Condvar,
    /// There is an event loop that drives the endpoint.
    driven: AtomicBool,
    pool: Arc<Pool>,
    pub(super) cq: Cq,
    receives: Receives,
    start: Instant,
}

/// Registered memory of the receives.
#[derive(Debug)]
pub(crate) struct Receives {
    pub(crate) buffer: Buffer,
    pub(crate) mr: Mr,
    pub(crate) length: usize,
}

impl Shared {
    pub(crate) fn new(state: State, receives: Receives) -> Arc<Self> {
        let cq = state.device.cq.clone();
        let pool = Arc::clone(&state.pool);
        let shared = Self {
            inner: Mutex::new(Inner {
                state,
                turn: Turn::default(),
                message: Vec::new(),
            }),
            changed: Condvar::new(),
            work: Condvar::new(),
            helper: Condvar::new(),
            driven: AtomicBool::new(false),
            pool,
            cq,
            receives,
            start: now(),
        };
        {
            let inner = shared.inner.lock();
            for slot in 0..RECEIVES {
                shared.post_receive(&inner, u32::try_from(slot).unwrap_or(u32::MAX));
            }
        }
        Arc::new(shared)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    pub(crate) fn clock(&self) -> Clock {
        let start = self.start;
        Clock {
            start,
            now: now().saturating_duration_since(start),
        }
    }

    fn post_receive(&self, inner: &Inner, slot: u32) {
        let length = self.receives.length;
        let at = usize::try_from(slot)
            .unwrap_or(usize::MAX)
            .saturating_mul(length);
        let sges = [self.receives.mr.sge(at..at.saturating_add(length))];
        let wr_id = WorkId::Receive { slot }.number();
        let wr = RecvWr { wr_id, sges: &sges };
        if let Err(error) = inner.state.device.srq.post_recv(&[wr]) {
            tracing::error!(%error, "a receive was not posted");
        }
    }

    /// Waits until `done` yields something, and makes progress meanwhile. `None` at the deadline, or when the endpoint is closed.
    pub(crate) fn wait_until<T>(
        &self,
        deadline: Option<Instant>,
        mut done: impl FnMut(&mut State, Clock) -> Option<T>,
    ) -> Option<T> {
        let mut inner = self.lock();
        let mut polled = false;
        let found = loop {
            let clock = self.clock();
            if let Some(found) = done(&mut inner.state, clock) {
                break Some(found);
            }
            let time = clock.start + clock.now;
            let left = deadline.map_or(NAP, |at| at.saturating_duration_since(time));
            if left.is_zero() || inner.state.closed {
                break None;
            }
            polled |= self.turn(&mut inner, left.min(NAP));
        };
        if polled {
            self.leave(&mut inner.turn);
        }
        found
    }

    /// One turn: polls, or waits for the thread that does. Returns whether it polled.
    fn turn(&self, inner: &mut MutexGuard<'_, Inner>, timeout: Duration) -> bool {
        if inner.turn.polling {
            inner.turn.waiters += 1;
            self.changed.wait_for(inner, timeout);
            inner.turn.waiters -= 1;
            return false;
        }
        inner.turn.epoch += 1;
        self.poll(inner, timeout);
        self.wake(inner);
        true
    }

    fn poll(&self, inner: &mut MutexGuard<'_, Inner>, timeout: Duration) {
        inner.turn.polling = true;
        let mut wcs = [Wc::default(); BATCH];
        let count = MutexGuard::unlocked(inner, || match self.cq.wait(timeout) {
            Ok(Some(wc)) => {
                wcs[0] = wc;
                1 + self.cq.poll(&mut wcs[1..]).unwrap_or(0)
            }
            Ok(None) => 0,
            Err(error) => {
                tracing::error!(%error, "the completion queue failed");
                self.lock().state.closed = true;
                0
            }
        });
        inner.turn.polling = false;
        self.process(inner, &wcs[..count]);
    }

    pub(super) fn process(&self, inner: &mut Inner, wcs: &[Wc]) {
        if wcs.is_empty() {
            return;
        }
        let clock = self.clock();
        for wc in wcs {
            let Some(WorkId::Receive { slot }) = WorkId::parse(wc.wr_id) else {
                inner.state.complete(wc, clock);
                continue;
            };
            let length = usize::try_from(wc.byte_len).unwrap_or(0);
            let fits = wc.status == WcStatus::Success && length <= self.receives.length;
            let mut message = std::mem::take(&mut inner.message);
            message.resize(if fits { length } else { 0 }, 0);
            let at = usize::try_from(slot).unwrap_or(0) * self.receives.length;
            self.receives.buffer.read(at, &mut message);
            self.post_receive(inner, slot);
            if fits {
                inner.state.receive(wc.qpn, &message, clock);
            }
            inner.message = message;
        }
    }

    /// Wakes threads and tasks that wait, where something happened that may be theirs. The lock is free while tasks are woken: a waker may do anything.
    pub(crate) fn wake(&self, inner: &mut MutexGuard<'_, Inner>) {
        let woken = std::mem::take(&mut inner.state.woken);
        if !woken.is_empty() {
            MutexGuard::unlocked(inner, || woken.into_iter().for_each(Waker::wake));
        }
        if std::mem::take(&mut inner.state.stirred) && inner.turn.waiters > 0 {
            self.changed.notify_all();
        }
        if inner.state.jobs.take_added() {
            self.wake_for_jobs(inner);
        }
    }

    /// As [`wake`](Self::wake), for the event loop, which executes calls of handlers that return at once itself.
    pub(super) fn wake_from_driver(&self, inner: &mut MutexGuard<'_, Inner>) {
        if inner.state.jobs.take_added()
            && inner.state.jobs.has_blocking()
            && inner.turn.workers > 0
        {
            self.work.notify_one();
        }
        self.wake(inner);
    }

    /// Wakes those that execute calls, one thread at first.
    fn wake_for_jobs(&self, inner: &Inner) {
        let jobs = &inner.state.jobs;
        let driving = inner.turn.driving.as_ref().filter(|it| !it.late);
        if let Some(driving) = driving.filter(|_| jobs.has_deferred()) {
            driving.watch.ring();
        }
        let is_for_threads = jobs.has_blocking() || (driving.is_none() && jobs.has_deferred());
        if is_for_threads && inner.turn.workers > 0 {
            self.work.notify_one();
        }
    }

    /// Leaves the turn to others.
    pub(super) fn leave(&self, turn: &mut Turn) {
        if turn.polling {
            return;
        }
        if turn.waiters > 0 {
            self.changed.notify_one();
            return;
        }
        // The loop sleeps, and found that another thread polled when it was woken last.
        if let Some(driving) = &mut turn.driving
            && std::mem::take(&mut driving.excluded)
        {
            driving.watch.ring();
        }
        if turn.is_driven() {
            return;
        }
        if turn.workers > 0 {
            self.work.notify_one();
        } else if turn.helper_sleeps {
            self.helper.notify_one();
        }
    }

    /// Wakes all threads, which see that the endpoint is closed.
    pub(crate) fn wake_all(&self) {
        self.changed.notify_all();
        self.work.notify_all();
        self.helper.notify_all();
        if let Some(driving) = &self.lock().turn.driving {
            driving.watch.ring();
        }
    }

    /// An event loop drives the endpoint from its first turn on. Returns false where another does.
    pub(super) fn begin_driving(&self, driving: Driving) -> bool {
        let mut inner = self.lock();
        let is_first = inner.turn.driving.is_none();
        if is_first {
            inner.turn.driving = Some(driving);
            self.driven.store(true, Ordering::Release);
        }
        is_first
    }

    pub(super) fn is_driving(&self) -> bool {
        self.driven.load(Ordering::Acquire)
    }

    /// No event loop drives the endpoint any more: threads go on.
    pub(super) fn end_driving(&self) {
        let mut inner = self.lock();
        let driving = inner.turn.driving.take();
        self.driven.store(false, Ordering::Release);
        self.wake_for_jobs(&inner);
        self.leave(&mut inner.turn);
        self.helper.notify_one();
        drop(inner);
        drop(driving);
    }

    /// Body of the helper.
    pub(crate) fn help(self: &Arc<Self>) {
        let mut inner = self.lock();
        let (mut epoch, mut quiet) = (inner.turn.epoch, 0);
        let mut seen = Seen::default();
        while !inner.state.closed {
            if let Some(time) = self.check_driver(&mut inner, &mut seen) {
                self.helper.wait_for(&mut inner, time);
                continue;
            }
            let moved = inner.turn.epoch != epoch;
            epoch = inner.turn.epoch;
            if inner.turn.polling {
                quiet = if moved { 0 } else { quiet + 1 };
                if quiet > QUIET_TICKS {
                    inner.turn.helper_sleeps = true;
                    self.helper.wait(&mut inner);
                    inner.turn.helper_sleeps = false;
                    quiet = 0;
                } else {
                    self.helper.wait_for(&mut inner, TICK);
                }
            } else if moved {
                self.helper.wait_for(&mut inner, TICK);
            } else {
                self.poll(&mut inner, NAP);
                self.wake(&mut inner);
                if inner.turn.waiters > 0 || inner.turn.is_driven() {
                    self.leave(&mut inner.turn);
                    // Somebody else polls from now on.
                    self.helper.wait_for(&mut inner, TICK);
                }
            }
        }
    }

    /// Time after which the helper checks the event loop again that drives the endpoint; `None` where there is none, or it is late.
    fn check_driver(&self, inner: &mut Inner, seen: &mut Seen) -> Option<Duration> {
        let waiting = inner.state.jobs.has_deferred();
        let turn = &mut inner.turn;
        let driving = turn.driving.as_mut().filter(|it| !it.late)?;
        if driving.turns != seen.turns {
            *seen = Seen {
                turns: driving.turns,
                ..Seen::default()
            };
            return Some(DRIVER_TICK);
        }
        let waiting = waiting || (!turn.polling && driving.watch.is_ready());
        if waiting && seen.waiting {
            tracing::debug!(
                "the event loop of an endpoint is late: threads make progress in its place"
            );
            driving.late = true;
            self.work.notify_one();
            return None;
        }
        seen.waiting = waiting;
        seen.quiet = seen.quiet.saturating_add(1);
        let is_quiet = seen.quiet > QUIET_TICKS && !waiting;
        Some(if is_quiet {
            QUIET_DRIVER_TICK
        } else {
            DRIVER_TICK
        })
    }

    /// Body of a thread that executes calls.
    pub(crate) fn work(self: &Arc<Self>) {
        let mut inner = self.lock();
        while !inner.state.closed {
            let is_driven = inner.turn.is_driven();
            let jobs = &mut inner.state.jobs;
            // Handlers that return at once come first.
            let job = if is_driven {
                None
            } else {
                jobs.next_deferred()
            };
            let Some(job) = job.or_else(|| jobs.next_blocking()) else {
                if inner.turn.polling || is_driven {
                    inner.turn.workers += 1;
                    self.work.wait_for(&mut inner, NAP);
                    inner.turn.workers -= 1;
                } else {
                    inner.turn.epoch += 1;
                    self.poll(&mut inner, NAP);
                    if inner.turn.is_driven() {
                        self.wake(&mut inner);
                        self.leave(&mut inner.turn);
                    } else {
                        // This thread takes a call itself, and wakes others for more.
                        let _ = inner.state.jobs.take_added();
                        self.wake(&mut inner);
                    }
                }
                continue;
            };
            if !inner.state.jobs.is_empty() {
                self.wake_for_jobs(&inner);
            } else if !inner.turn.polling && !is_driven && inner.turn.helper_sleeps {
                self.helper.notify_one();
            }
            self.execute(&mut inner, job);
        }
    }

    /// Executes a call, or begins to.
    pub(super) fn execute(self: &Arc<Self>, inner: &mut MutexGuard<'_, Inner>, job: Job) {
        let Job {
            caller,
            number,
            service,
            request,
        } = job;
        inner.state.running += 1;
        let deferred = matches!(service.handler, Handler::Deferred(_));
        inner.state.deferred += usize::from(deferred);
        let stream = inner.state.streams.get(&StreamId { caller, number });
        let streams = stream.map_or((false, false), |it| {
            (it.of_call.outgoing.is_some(), it.of_call.incoming.is_some())
        });
        let executor: Arc<dyn Executor> = Arc::<Self>::clone(self);
        let result = MutexGuard::unlocked(inner, move || {
            let late = request.deadline.is_some_and(|at| at <= now()).then(|| {
                let text = "the time was over before it began";
                Status::new(Code::DeadlineExceeded, text)
            });
            let panicked = || Status::new(Code::Internal, "the handler panicked");
            match service.handler {
                Handler::Blocking(handler) => {
                    let run = std::panic::AssertUnwindSafe(|| handler(request));
                    let result =
                        late.map_or_else(|| std::panic::catch_unwind(run), |late| Ok(Err(late)));
                    Some(result.unwrap_or_else(|_| Err(panicked())))
                }
                Handler::Deferred(handler) => {
                    let reply = Reply {
                        streams,
                        executor,
                        caller,
                        number,
                        cancelled: Arc::clone(&request.cancelled),
                        sent: false,
                    };
                    if let Some(late) = late {
                        reply.send(Err(late));
                    } else {
                        let run = std::panic::AssertUnwindSafe(|| handler(request, reply));
                        // The reply was dropped, and has ended the call.
                        let _ = std::panic::catch_unwind(run);
                    }
                    None
                }
            }
        });
        inner.state.running -= 1;
        if let Some(result) = result {
            let clock = self.clock();
            inner.state.answer(caller, number, result, clock);
            inner.state.stirred = true;
        }
        self.wake(inner);
    }
}

impl Executor for Shared {
    fn reply(&self, caller: u64, number: u64, result: Result<Payload, Status>) {
        let mut inner = self.lock();
        inner.state.deferred -= 1;
        let clock = self.clock();
        inner.state.answer(caller, number, result, clock);
        inner.state.stirred = true;
        self.wake(&mut inner);
    }

    fn pool(&self) -> Arc<Pool> {
        Arc::clone(&self.pool)
    }
}

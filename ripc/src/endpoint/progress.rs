//! Threads and turns: who polls the completion queue, and who is woken.
//!
//! One thread polls at a time. A thread that waits for something polls itself where nobody does, so that a reply wakes no second thread. A helper polls while no
//! program's thread does, and takes over where the last one has been away for a millisecond: with its result, or in a handler.

use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use dgiwarp::{Buffer, ConnectionEvent, Cq, Mr, RcRequest, ReadDepths, RecvWr, Wc, WcStatus};
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::inbound::Clock;
use super::peer::Phase;
use super::service::{Executor, Handler, Job, Reply};
use super::state::State;
use super::stream::StreamId;
use super::work_id::WorkId;
use crate::memory::Pool;
use crate::payload::Payload;
use crate::status::{Code, Status};
use crate::system::now;
use crate::wire::VERSION;
use crate::wire::hello::{Hello, Refusal};
use crate::wire::message::Kind;

/// Receives that are posted, for all peers.
pub(crate) const RECEIVES: usize = 256;
/// Completions taken at a time.
const BATCH: usize = 32;
/// Longest time in which a thread does not check whether the endpoint is closed.
const NAP: Duration = Duration::from_millis(250);
/// Time after which the helper polls where nobody else does.
const TICK: Duration = Duration::from_millis(1);
/// Ticks in which one thread has polled, after which the helper sleeps until it is woken.
const QUIET_TICKS: u32 = 10;
/// Silence after which a peer with calls pending is asked for a sign of life.
const PING: Duration = Duration::from_secs(1);
/// Reads and atomics under way in either direction.
const DEPTHS: ReadDepths = ReadDepths { ird: 16, ord: 16 };

/// Thread that polls, and threads that wait for it.
#[derive(Debug, Default)]
struct Turn {
    polling: bool,
    /// Counts the times that a thread of the program began to poll.
    epoch: u64,
    /// Threads that wait for `changed`.
    waiters: usize,
    helper_sleeps: bool,
}

/// Everything behind the lock.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) state: State,
    turn: Turn,
    message: Vec<u8>,
}

/// An endpoint as its threads have it.
#[derive(Debug)]
pub(crate) struct Shared {
    inner: Mutex<Inner>,
    changed: Condvar,
    helper: Condvar,
    cq: Cq,
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
        let shared = Self {
            inner: Mutex::new(Inner {
                state,
                turn: Turn::default(),
                message: Vec::new(),
            }),
            changed: Condvar::new(),
            helper: Condvar::new(),
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
            self.leave(&inner.turn);
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
        self.wake(inner);
    }

    fn process(&self, inner: &mut Inner, wcs: &[Wc]) {
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
    }

    /// Leaves the turn to others.
    fn leave(&self, turn: &Turn) {
        if turn.polling {
            return;
        }
        if turn.waiters > 0 {
            self.changed.notify_one();
        } else if turn.helper_sleeps {
            self.helper.notify_one();
        }
    }

    /// Wakes all threads, which see that the endpoint is closed.
    pub(crate) fn wake_all(&self) {
        self.changed.notify_all();
        self.helper.notify_all();
    }

    /// Body of the helper.
    pub(crate) fn help(self: &Arc<Self>) {
        let mut inner = self.lock();
        let (mut epoch, mut quiet) = (inner.turn.epoch, 0);
        while !inner.state.closed {
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
                if inner.turn.waiters > 0 {
                    self.changed.notify_one();
                    // Somebody else polls from now on.
                    self.helper.wait_for(&mut inner, TICK);
                }
            }
        }
    }

    /// Body of a thread that executes calls.
    pub(crate) fn work(self: &Arc<Self>) {
        let mut inner = self.lock();
        while !inner.state.closed {
            let Some(job) = inner.state.jobs.pop_front() else {
                self.turn(&mut inner, NAP);
                continue;
            };
            inner.state.running += 1;
            if !inner.state.jobs.is_empty() && inner.turn.waiters > 0 {
                self.changed.notify_one();
            } else if inner.turn.helper_sleeps && !inner.turn.polling {
                self.helper.notify_one();
            }
            let Job {
                caller,
                number,
                service,
                request,
            } = job;
            let deferred = matches!(service.handler, Handler::Deferred(_));
            inner.state.deferred += usize::from(deferred);
            let executor: Arc<dyn Executor> = Arc::<Self>::clone(self);
            let result = MutexGuard::unlocked(&mut inner, move || {
                let late = request.deadline.is_some_and(|at| at <= now()).then(|| {
                    let text = "the time was over before it began";
                    Status::new(Code::DeadlineExceeded, text)
                });
                let panicked = || Status::new(Code::Internal, "the handler panicked");
                match service.handler {
                    Handler::Blocking(handler) => {
                        let run = std::panic::AssertUnwindSafe(|| handler(request));
                        let result = late
                            .map_or_else(|| std::panic::catch_unwind(run), |late| Ok(Err(late)));
                        Some(result.unwrap_or_else(|_| Err(panicked())))
                    }
                    Handler::Deferred(handler) => {
                        let streams = executor.streams(StreamId { caller, number });
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
            self.wake(&mut inner);
        }
    }

    /// Body of the thread that makes and takes connections, and keeps the time.
    pub(crate) fn connect(self: &Arc<Self>) {
        let channel = self.lock().state.device.channel.clone();
        while !self.lock().state.closed {
            let due = self.lock().state.calls.poll_timeout();
            let left = due.map(|at| at.saturating_sub(self.clock().now));
            let event = channel.next_event(left.map_or(NAP, |left| left.clamp(TICK, NAP)));
            let mut inner = self.lock();
            let clock = self.clock();
            if let Some(event) = event {
                inner.state.event(event, clock);
            }
            inner.state.expire(clock.now);
            inner.state.check_life(clock.now);
            self.wake(&mut inner);
        }
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
        Arc::clone(&self.lock().state.pool)
    }

    fn streams(&self, id: StreamId) -> (bool, bool) {
        let inner = self.lock();
        let stream = inner.state.streams.get(&id);
        stream.map_or((false, false), |it| {
            (it.outgoing.is_some(), it.incoming.is_some())
        })
    }
}

impl State {
    fn event(&mut self, event: ConnectionEvent, clock: Clock) {
        let now = clock.now;
        match event {
            ConnectionEvent::Request { request, .. } => self.requested(request, now),
            ConnectionEvent::Established {
                context,
                established,
            } => {
                let Some(peer) = self.peers.get_mut(&context) else {
                    return;
                };
                if peer.target.is_some() {
                    match Hello::parse(&established.private_data) {
                        Ok(hello) if hello.version == VERSION => {
                            peer.greet(&hello, self.limits.longest);
                        }
                        Ok(_) | Err(_) => {
                            let reason = "the peer does not speak RIPC";
                            return self.close(context, false, reason, now);
                        }
                    }
                }
                peer.phase = Phase::Up;
                peer.last_heard = now;
                peer.post_pieces();
                self.flush(context, now);
            }
            ConnectionEvent::Rejected { context, rejection } => {
                let reason = match Refusal::parse(&rejection.private_data) {
                    Ok((version, Refusal::Version)) => {
                        format!("the peer speaks version {version} only")
                    }
                    Ok((_, Refusal::Malformed)) => "the peer does not take our hello".to_owned(),
                    Ok((_, Refusal::NoRoom)) => "the peer has no room for another".to_owned(),
                    Err(_) => "the peer does not speak RIPC".to_owned(),
                };
                self.close(context, false, &reason, now);
            }
            ConnectionEvent::Failed {
                context,
                peer,
                error,
            } => {
                let reason = format!("no connection to {peer}: {error}");
                self.close(context, false, &reason, now);
            }
            ConnectionEvent::Disconnected { context, end } => {
                let reason = format!("the connection ended ({end:?})");
                self.close(context, true, &reason, now);
            }
            _ => {}
        }
    }

    fn requested(&mut self, request: RcRequest, now: Duration) {
        let hello = Hello::parse(&request.request().private_data);
        let channel = self.device.channel.clone();
        let refuse = |request, refusal: Refusal| {
            // The peer sees the end of TCP where even this fails.
            let _ = channel.reject(request, &refusal.emit());
        };
        let hello = match hello {
            Ok(hello) => hello,
            Err(crate::wire::FormatError::Version(_)) => return refuse(request, Refusal::Version),
            Err(_) => return refuse(request, Refusal::Malformed),
        };
        let known = !self.going_away && self.executions.connected(hello.instance, now);
        let key = self.new_peer(request.peer(), now);
        let (true, Ok(key)) = (known, key) else {
            if known {
                self.executions.disconnected(hello.instance, now);
            }
            return refuse(request, Refusal::NoRoom);
        };
        let Some(peer) = self.peers.get_mut(&key) else {
            return;
        };
        peer.greet(&hello, self.limits.longest);
        let answer = self.device.hello.emit();
        if let Err(error) = channel.accept_and_tell(request, &peer.qp, DEPTHS, &answer, key) {
            let reason = format!("not accepted: {error}");
            self.close(key, false, &reason, now);
        }
    }

    /// Asks silent peers with calls pending for a sign of life, and gives up those that are silent for too long.
    fn check_life(&mut self, now: Duration) {
        let pending = self.pending.values();
        let waited_for = pending.filter(|it| it.result.is_none() && !it.detached);
        let mut keys: Vec<_> = waited_for.map(|it| it.connection).collect();
        let streams = self
            .streams
            .iter()
            .filter(|(id, it)| it.is_waited_for(**id));
        keys.extend(streams.map(|(_, it)| it.connection));
        keys.sort_unstable();
        keys.dedup();
        for key in keys {
            let Some(peer) = self.peers.get_mut(&key) else {
                continue;
            };
            if peer.phase != Phase::Up {
                continue;
            }
            match peer.pinged {
                Some(since)
                    if now.saturating_sub(since) + PING + 2 * NAP >= self.limits.silence =>
                {
                    self.close(key, false, "the peer is silent", now);
                }
                Some(_) => {}
                None if now.saturating_sub(peer.last_heard) >= PING => {
                    peer.pinged = Some(now);
                    peer.control(0, Kind::Ping);
                    self.flush(key, now);
                }
                None => {}
            }
        }
    }
}

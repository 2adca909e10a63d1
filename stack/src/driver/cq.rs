//! A completion queue: its ring, the sockets that fill it, and progress on behalf of whoever polls it.

mod linked_cqs;
mod pending_acks;
mod sleep;

pub(crate) use sleep::Slept;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::{Mutex, RwLock};
use slab::Slab;

use crate::api::cq::queue::ChannelShared;
use crate::driver::cq::linked_cqs::Partners;
use crate::driver::device::clock;
use crate::driver::device::thread::Background;
use crate::driver::reactor::adaptive_arming::Watch;
use crate::driver::reactor::hot_sockets::{Hot, HotSet};
use crate::driver::reactor::member::{Got, Qp, WeakQp};
use crate::driver::reactor::run_queue::Turns;
use crate::driver::reactor::timers::Timers;
use crate::driver::tcp::qp::RcShared;
use crate::driver::udp::socket::ReceiveBuffer;
use crate::driver::udp::sockets::SocketIndex;
use crate::{AsyncEvent, CqError, Error, Wc};
use dgiwarp_engine::cq_ring::{CqRing, Pushed};

/// Receive calls on one socket before the next one gets its turn.
const BURST: usize = 8;
/// An empty poll in this many looks at all sockets.
const LOOK_EVERY: u32 = 8;
/// A poll in this many whose hot sockets had something looks at all sockets too: what is hot may never be empty.
const LOOK_WHEN_BUSY: u32 = 32;
/// A poll that found completions in this many receives too.
const RECEIVE_EVERY: u32 = 16;
/// Sockets found by one look.
const EVENTS: usize = 16;

/// A QP among those that a completion queue receives for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct MemberId {
    key: u32,
    generation: u32,
}

impl MemberId {
    fn token(self, socket: SocketIndex) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.key) << 8 | u64::from(socket)
    }

    pub(crate) fn from_token(token: u64) -> (Self, SocketIndex) {
        let [g0, g1, g2, g3, k0, k1, k2, socket] = token.to_be_bytes();
        let member = Self {
            key: u32::from_be_bytes([0, k0, k1, k2]),
            generation: u32::from_be_bytes([g0, g1, g2, g3]),
        };
        (member, socket)
    }
}

#[derive(Debug)]
struct Member {
    qp: WeakQp,
    generation: u32,
}

/// What a poller works with.
#[derive(Debug)]
struct Poller {
    hot: HotSet,
    buffer: ReceiveBuffer,
    empty_polls: u32,
    busy_polls: u32,
    first: usize,
}

/// Who makes progress, as seen from a completion queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    Poller,
    Background,
}

/// When the caller of a receive will come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Maybe not: nothing is to be left for later.
    Once,
    /// Soon, and the program had a chance to post since it was here last.
    First,
    /// Soon, and it has only just been here.
    Again,
}

/// A completion queue.
#[derive(Debug)]
pub(crate) struct CqShared {
    ring: Mutex<CqRing>,
    /// Whether the ring has something to take, to look at without the lock.
    filled: AtomicBool,
    /// The ring keeps the times of completions.
    stamped: AtomicBool,
    /// Level-triggered, all sockets of the QPs that receive here.
    sockets: Epoll,
    members: RwLock<Slab<Member>>,
    generation: AtomicU32,
    poller: Mutex<Poller>,
    polls_with_completions: AtomicU32,
    /// Those with something left to send, in the order of their turns.
    unsent: Turns<MemberId>,
    /// QPs whose peers may wait to be told something.
    owing: Turns<MemberId>,
    /// Those whose peers do not wait for it, and since when.
    owing_late: Turns<(MemberId, Instant)>,
    /// The last look at the sockets found something.
    busy: AtomicBool,
    timers: Timers,
    watch: Watch,
    /// Threads that sleep until there is a completion.
    sleepers: AtomicU32,
    wake: EventFd,
    pub(crate) channel: OnceLock<Arc<ChannelShared>>,
    /// Sockets of members are looked at on behalf of this queue; a queue of sends may have none.
    pub(crate) receives: AtomicBool,
    /// Whose sockets bring completions too.
    pub(crate) partners: OnceLock<Partners>,
    /// Somebody may sleep on the sockets for the sake of another queue.
    pub(crate) slept_on: AtomicBool,
    background: Arc<Background>,
    id: u64,
}

impl CqShared {
    pub(crate) fn new(depth: usize, background: Arc<Background>) -> Result<Arc<Self>, Error> {
        let sockets = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)
            .map_err(|errno| Error::system("cannot make an epoll set")(errno.into()))?;
        let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|errno| Error::system("cannot make an eventfd")(errno.into()))?;
        let this = Arc::new(Self {
            ring: Mutex::new(CqRing::new(depth)),
            filled: AtomicBool::new(false),
            stamped: AtomicBool::new(false),
            sockets,
            members: RwLock::new(Slab::new()),
            generation: AtomicU32::new(0),
            poller: Mutex::new(Poller {
                hot: HotSet::default(),
                buffer: ReceiveBuffer::new(),
                empty_polls: 0,
                busy_polls: 0,
                first: 0,
            }),
            polls_with_completions: AtomicU32::new(0),
            unsent: Turns::new(),
            owing: Turns::new(),
            owing_late: Turns::new(),
            busy: AtomicBool::new(false),
            timers: Timers::new(),
            watch: Watch::new(),
            sleepers: AtomicU32::new(0),
            wake,
            channel: OnceLock::new(),
            receives: AtomicBool::new(false),
            partners: OnceLock::new(),
            slept_on: AtomicBool::new(false),
            id: background.next_id(),
            background,
        });
        Ok(this)
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn background(&self) -> &Background {
        &self.background
    }

    /// The epoll set, for those who sleep on it.
    pub(crate) fn sockets_fd(&self) -> BorrowedFd<'_> {
        self.sockets.0.as_fd()
    }

    pub(crate) fn set_channel(&self, channel: Arc<ChannelShared>) {
        let _ = self.channel.set(channel);
    }

    // Members.

    pub(crate) fn attach(self: &Arc<Self>, qp: &Qp) -> MemberId {
        let generation = self.generation.fetch_add(1, Ordering::Relaxed);
        let key = self.members.write().insert(Member {
            qp: qp.downgrade(),
            generation,
        });
        self.receives.store(true, Ordering::Release);
        self.background.serve(self);
        MemberId {
            key: u32::try_from(key).expect("fewer than 2^24 QPs fit the descriptors of a process"),
            generation,
        }
    }

    pub(crate) fn detach(&self, member: MemberId) {
        self.timers.forget(member);
        self.poller.lock().hot.forget(member);
        let mut members = self.members.write();
        let key = member.key as usize;
        if members
            .get(key)
            .is_some_and(|it| it.generation == member.generation)
        {
            members.remove(key);
        }
    }

    /// A member's sockets are not what they were.
    pub(crate) fn cool(&self, member: MemberId) {
        let mut poller = self.poller.lock();
        self.unpark_locked(&mut poller);
        poller.hot.forget(member);
    }

    pub(crate) fn watch(
        &self,
        member: MemberId,
        socket: SocketIndex,
        fd: BorrowedFd<'_>,
    ) -> io::Result<()> {
        let event = EpollEvent::new(EpollFlags::EPOLLIN, member.token(socket));
        Ok(self.sockets.add(fd, event)?)
    }

    /// Looks for input on a socket, or only for its end.
    pub(crate) fn watch_input(&self, member: MemberId, fd: BorrowedFd<'_>, input: bool) {
        let flags = if input {
            EpollFlags::EPOLLIN
        } else {
            EpollFlags::EPOLLRDHUP
        };
        let mut event = EpollEvent::new(flags, member.token(0));
        // A hot socket may be outside of the set.
        if self.sockets.modify(fd, &mut event).is_err() {
            let _ = self.sockets.add(fd, event);
        }
    }

    pub(crate) fn unwatch(&self, fd: BorrowedFd<'_>) {
        let _ = self.sockets.delete(fd);
    }

    /// The connected QPs among the members.
    pub(crate) fn rc_qps(&self) -> Vec<Arc<RcShared>> {
        let members = self.members.read();
        let rc = |qp| match qp {
            Qp::Rc(qp) => Some(qp),
            Qp::Ud(_) => None,
        };
        let live = members.iter().filter_map(|(_, it)| it.qp.upgrade());
        live.filter_map(rc).collect()
    }

    fn member(&self, member: MemberId) -> Option<Qp> {
        let members = self.members.read();
        let found = members.get(member.key as usize)?;
        (found.generation == member.generation)
            .then(|| found.qp.upgrade())
            .flatten()
    }

    // Completions.

    pub(crate) fn reserve(&self, records: usize, segments: usize) {
        self.ring.lock().reserve(records, segments);
    }

    pub(crate) fn unreserve(&self, records: usize, segments: usize) {
        self.ring.lock().unreserve(records, segments);
    }

    /// Takes completions of a QP out.
    pub(crate) fn forget(&self, qpn: u32) {
        let mut ring = self.ring.lock();
        ring.forget(qpn);
        let filled = !ring.is_empty() || ring.is_overrun();
        self.filled.store(filled, Ordering::Release);
    }

    /// Whether a completion of a QP that succeeded was not taken yet.
    pub(crate) fn has_good_of(&self, qpn: u32) -> bool {
        self.ring.lock().has_good_of(qpn)
    }

    /// Adds a completion. Returns whether it had a place.
    #[inline]
    pub(crate) fn push(&self, wc: Wc) -> bool {
        let mut ring = self.ring.lock();
        if self.stamped.load(Ordering::Relaxed) {
            ring.set_time(clock::to_nanos(Some(clock::now())));
        }
        let pushed = ring.push(wc);
        self.filled.store(true, Ordering::SeqCst);
        drop(ring);
        match pushed {
            Pushed::Quiet => {}
            Pushed::Tell => {
                if let Some(channel) = self.channel.get() {
                    channel.tell(self.id);
                }
            }
            Pushed::Overrun => {
                let event = AsyncEvent::CqOverrun { cq: self.id };
                self.background.events().raise(event);
                self.background.end_overrun();
            }
            Pushed::NoSlot => return false,
        }
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            let _ = self.wake.write(1);
        }
        true
    }

    /// Whether a completion was lost.
    pub(crate) fn is_overrun(&self) -> bool {
        self.ring.lock().is_overrun()
    }

    /// Ends those of the members whose completions are lost, here or in their queue of sends.
    pub(crate) fn fail_overrun(&self) {
        let members = self.members.read();
        let live: Vec<_> = members
            .iter()
            .filter_map(|(_, member)| member.qp.upgrade())
            .collect();
        drop(members);
        for qp in live {
            qp.fail_overrun();
        }
    }

    pub(crate) fn arm(&self, solicited_only: bool) {
        self.ring.lock().arm(solicited_only);
        // The program will sleep on the sockets itself; two sleepers would both be woken by each datagram.
        for it in self.live_partners() {
            it.stop_watching();
            it.unpark();
        }
        self.stop_watching();
        self.unpark();
    }

    #[inline]
    pub(crate) fn poll(&self, out: &mut [Wc]) -> Result<usize, CqError> {
        let count = self.take(out)?;
        if count > 0 {
            let polls = self.polls_with_completions.fetch_add(1, Ordering::Relaxed);
            if polls % RECEIVE_EVERY == RECEIVE_EVERY - 1 {
                self.progress_all();
            }
            return Ok(count);
        }
        self.progress_all();
        self.take(out)
    }

    #[inline]
    fn take(&self, out: &mut [Wc]) -> Result<usize, CqError> {
        if self.has_completions() {
            self.take_some(out)
        } else {
            Ok(0)
        }
    }

    fn take_some(&self, out: &mut [Wc]) -> Result<usize, CqError> {
        let mut ring = self.ring.lock();
        let count = ring.poll(out);
        if count == 0 && ring.is_overrun() {
            return Err(CqError::Overrun);
        }
        let filled = !ring.is_empty() || ring.is_overrun();
        self.filled.store(filled, Ordering::Release);
        Ok(count)
    }

    /// The next completion, and when it came.
    pub(crate) fn poll_stamped(&self) -> Result<Option<(Wc, u64)>, CqError> {
        if !self.has_completions() {
            self.progress_all();
        }
        let mut out = [Wc::default()];
        let mut ring = self.ring.lock();
        if ring.poll(&mut out) == 0 {
            return if ring.is_overrun() {
                Err(CqError::Overrun)
            } else {
                Ok(None)
            };
        }
        let filled = !ring.is_empty() || ring.is_overrun();
        self.filled.store(filled, Ordering::Release);
        Ok(Some((out[0], ring.stamp_of_last_taken().unwrap_or(0))))
    }

    pub(crate) fn keep_stamps(&self) {
        self.ring.lock().keep_stamps();
        self.stamped.store(true, Ordering::Relaxed);
    }

    pub(crate) fn be_lossy(&self) {
        self.ring.lock().be_lossy();
    }

    pub(crate) fn resize(&self, depth: usize) -> bool {
        self.ring.lock().resize(depth)
    }

    #[inline]
    pub(crate) fn has_completions(&self) -> bool {
        self.filled.load(Ordering::SeqCst)
    }

    // Progress.

    /// Receives what is there, sends what was left, runs timers that are due; a bounded amount. Returns whether
    /// anything was received, or `None` if another thread is at it.
    #[inline]
    pub(crate) fn progress(&self, by: By) -> Option<bool> {
        let mut poller = self.poller.try_lock()?;
        if by == By::Poller {
            self.watch.polled();
        }
        if self.unsent.any() {
            self.flush_unsent();
        }
        let pace = self.pace(by);
        let mut got = self.receive_hot(&mut poller, pace);
        if got {
            poller.empty_polls = 0;
            poller.busy_polls += 1;
            if poller.busy_polls >= LOOK_WHEN_BUSY {
                poller.busy_polls = 0;
                self.look(&mut poller, pace);
                self.run_timers();
            }
        } else {
            poller.empty_polls += 1;
            let look = poller.empty_polls % LOOK_EVERY == 0
                || poller.hot.len() == 0
                || by == By::Background;
            if look {
                let found = self.look(&mut poller, pace);
                self.run_timers();
                // Data is there, but its QP is being posted to: whoever sleeps on it would only wake up again at once.
                if found.is_none() && by == By::Background {
                    return None;
                }
                got = found == Some(true);
                // Hot sockets see to it themselves when they are empty.
                if !got && poller.hot.len() == 0 {
                    self.settle(false);
                }
            }
        }
        self.busy.store(got, Ordering::Relaxed);
        drop(poller);
        if got && by == By::Poller {
            self.found_by_poller();
        }
        Some(got)
    }

    /// Whether the caller comes back soon. Where the background thread watches, there may be nobody else.
    #[inline]
    fn pace(&self, by: By) -> Pace {
        match by {
            By::Poller if !self.watch.is_on() => Pace::First,
            By::Poller | By::Background => Pace::Once,
        }
    }

    #[inline]
    fn receive_hot(&self, poller: &mut Poller, pace: Pace) -> bool {
        let mut got = false;
        let count = poller.hot.len();
        poller.first = poller.first.wrapping_add(1);
        let mut position = if count > 1 { poller.first % count } else { 0 };
        for _ in 0..count {
            let Some(hot) = poller.hot.get(position) else {
                break;
            };
            if self.receive_burst(&hot.qp, hot.socket, &mut poller.buffer, pace) {
                got = true;
                if poller.hot.hit(position) && self.nobody_sleeps() {
                    self.park(poller, position);
                }
                position += 1;
            } else if let Some(gone) = poller.hot.miss(position) {
                self.put_back(&gone);
            } else {
                position += 1;
            }
            if position >= poller.hot.len() {
                position = 0;
            }
        }
        got
    }

    /// Receives on a socket until it is empty, a completion is there, or its turn is over.
    #[inline]
    fn receive_burst(
        &self,
        qp: &Qp,
        socket: SocketIndex,
        buffer: &mut ReceiveBuffer,
        mut pace: Pace,
    ) -> bool {
        let mut got = false;
        for _ in 0..BURST {
            match qp.receive(socket, buffer, pace) {
                None | Some(Got::Nothing) => break,
                Some(Got::Something) => got = true,
                Some(Got::Everything) => return true,
            }
            if pace == Pace::First {
                pace = Pace::Again;
            }
            if self.has_completions() {
                break;
            }
        }
        got
    }

    /// Finds sockets with data among all, receives from them and makes those hot that it finds again. Returns whether something was received,
    /// or `None` if there is something that could not be received now.
    fn look(&self, poller: &mut Poller, pace: Pace) -> Option<bool> {
        let mut events = [EpollEvent::empty(); EVENTS];
        let ready = self
            .sockets
            .wait(&mut events, EpollTimeout::ZERO)
            .unwrap_or(0);
        let mut got = false;
        // Where more sockets have data than can be hot, those that are would get more than the others: all take turns then.
        let crowded = ready > HotSet::SIZE;
        if crowded {
            self.unpark_locked(poller);
            poller.hot.clear();
        }
        // Who is not hot is not tried on the next poll.
        let pace = if crowded { Pace::Once } else { pace };
        for event in &events[..ready] {
            let (member, socket) = MemberId::from_token(event.data());
            let Some(qp) = self.member(member) else {
                continue;
            };
            // Unread, they would wake up every sleeper again and again.
            if event.events().contains(EpollFlags::EPOLLERR) {
                got |= qp.read_notices(socket).is_some();
            }
            if self.receive_burst(&qp, socket, &mut poller.buffer, pace) {
                got = true;
                if crowded {
                    continue;
                }
                if let Some(gone) = poller.hot.found(member, qp, socket) {
                    self.put_back(&gone);
                }
            }
        }
        (got || ready == 0).then_some(got)
    }

    /// Whether nobody, now or at any time soon, sleeps on the epoll set.
    fn nobody_sleeps(&self) -> bool {
        !self.watch.is_on()
            && !self.has_sleepers()
            && self.channel.get().is_none()
            && !self.slept_on.load(Ordering::SeqCst)
    }

    /// Takes a busy socket out of the epoll set: it is tried on every poll, and its place in the set would cost
    /// each of its datagrams.
    fn park(&self, poller: &mut Poller, position: usize) {
        let Some(hot) = poller.hot.get(position) else {
            return;
        };
        let parked = hot
            .qp
            .with_socket(hot.socket, |fd| self.sockets.delete(fd).is_ok());
        if parked == Some(true) {
            poller.hot.park(position);
        }
    }

    fn put_back(&self, hot: &Hot) {
        if hot.is_parked() {
            let event = EpollEvent::new(EpollFlags::EPOLLIN, hot.member.token(hot.socket));
            hot.qp
                .with_socket(hot.socket, |fd| self.sockets.add(fd, event));
        }
    }

    /// Puts all sockets into the epoll set, for those who sleep on it.
    pub(crate) fn unpark(&self) {
        self.unpark_locked(&mut self.poller.lock());
    }

    /// The same, unless a thread is polling: then nobody needs to sleep.
    pub(crate) fn try_unpark(&self) {
        if let Some(mut poller) = self.poller.try_lock() {
            self.unpark_locked(&mut poller);
        }
    }

    fn unpark_locked(&self, poller: &mut Poller) {
        for hot in poller.hot.unpark() {
            let event = EpollEvent::new(EpollFlags::EPOLLIN, hot.member.token(hot.socket));
            hot.qp
                .with_socket(hot.socket, |fd| self.sockets.add(fd, event));
        }
    }

    /// Whether a socket has data, without receiving it.
    pub(crate) fn has_data(&self) -> bool {
        let mut fds = [PollFd::new(self.sockets_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }

    // Unsent messages.

    pub(crate) fn add_unsent(&self, member: MemberId) {
        self.unsent.add(member);
        // Whoever polls goes on with it. Should that end, the thread's next tick sees to it.
        if self.watch.is_on() {
            self.background.wake();
        }
    }

    /// Whether more arrives than is taken, as far as is known.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed)
    }

    pub(crate) fn has_unsent(&self) -> bool {
        self.unsent.any()
    }

    /// Gives every member with something left to send one turn. Returns whether some of it may go on at once: a socket whose buffer is
    /// full may not.
    ///
    /// Several threads may be at it. Each takes the next member in turn: had one of them a list of its own, those at its front would come
    /// back to the others again and again before those at its end had their first turn.
    pub(crate) fn flush_unsent(&self) -> bool {
        let turns = self.unsent.len();
        let mut at_once = false;
        for _ in 0..turns {
            let Some(member) = self.unsent.next() else {
                break;
            };
            let Some(qp) = self.member(member) else {
                continue;
            };
            if let Some(blocked) = qp.flush_unsent() {
                at_once |= !blocked;
                self.unsent.add(member);
            }
        }
        at_once
    }

    // Timers.

    /// A member wants to be looked at then, or never.
    pub(crate) fn note_deadline(&self, member: MemberId, deadline: Option<Instant>) {
        let nanos = clock::to_nanos(deadline);
        if self.timers.note(member, nanos) {
            self.background.wake_before(nanos);
        }
    }

    pub(crate) fn deadline(&self) -> u64 {
        self.timers.next()
    }

    pub(crate) fn run_timers(&self) {
        if self.deadline() == u64::MAX {
            return;
        }
        let now = clock::now();
        let nanos = clock::to_nanos(Some(now));
        if nanos < self.deadline() {
            return;
        }
        for member in self.timers.take_due(nanos) {
            if let Some(qp) = self.member(member) {
                let next = qp.handle_timeout(now);
                self.timers.note(member, clock::to_nanos(next));
            }
        }
        // The background thread may have planned its sleep meanwhile, when there seemed to be none.
        let next = self.deadline();
        if next != u64::MAX {
            self.background.wake_before(next);
        }
    }

    // Who watches the sockets while nobody polls.

    /// Takes note of a batch that a poller found.
    #[inline]
    fn found_by_poller(&self) {
        if self.watch.found_by_poller() {
            self.stop_watching();
        }
    }

    /// The background thread was woken by data, and `found` it still there.
    pub(crate) fn woken(&self, found: bool) {
        if self.watch.woken(found) {
            self.stop_watching();
        }
    }

    fn stop_watching(&self) {
        if self.watch.turn_off() {
            self.background.disarm(self);
        }
    }

    pub(crate) fn watch_state(&self) -> &Watch {
        &self.watch
    }

    pub(crate) fn has_sleepers(&self) -> bool {
        self.sleepers.load(Ordering::SeqCst) > 0
    }
}

impl Drop for CqShared {
    fn drop(&mut self) {
        let gone = AsyncEvent::CqOverrun { cq: self.id };
        self.background.events().forget(|event| event == gone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_keep_all_their_parts() {
        let member = MemberId {
            key: 0x00ab_cdef,
            generation: 0x0123_4567,
        };
        assert_eq!(MemberId::from_token(member.token(4)), (member, 4));
    }
}

//! A poll set: the sockets of some queue pairs, the rules of polling them, and progress on behalf of the poller.
//!
//! A queue pair belongs to one poll set; both of its completion queues refer to it. Members of the set are of a trait only, and may be
//! anything that yields input.

mod arming;
mod memory_input;
mod timers;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use dgiwarp_memory::socket::NoCancellation;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use parking_lot::{Mutex, RwLock};
use slab::Slab;

use crate::Error;
use crate::driver::cq::direct::DirectCompletions;
use crate::driver::device::event::Event;
use crate::driver::device::fds::leave_low_numbers;
use crate::driver::reactor::adaptive_arming::AdaptiveArming;
use crate::driver::reactor::hot_sockets::{HotSocket, HotSockets};
use crate::driver::reactor::member::{Member, MemberId, NextReceive, Received, SocketIndex};
use crate::driver::reactor::poll_set::memory_input::Changed;
use crate::driver::reactor::run_queue::RunQueue;
use crate::driver::reactor::timers::Timers;
use crate::driver::reactor::waker::Waker;
use crate::driver::udp::socket::ReceiveBuffer;

/// Receive calls on one socket before the next one gets its turn.
const BURST: usize = 8;
/// Of so many empty polls one checks all sockets.
const CHECK_EVERY: u32 = 8;
/// Of so many polls whose hot sockets delivered one checks all sockets too: hot sockets may never be empty.
const CHECK_WHEN_BUSY: u32 = 32;
/// Sockets found by one call of epoll.
const EVENTS: usize = 16;

/// Ticks of the background thread are at most this far apart while a set is not armed.
pub(crate) const SLOW_TICK: std::time::Duration = std::time::Duration::from_millis(4);

#[derive(Debug)]
struct Entry {
    member: Weak<dyn Member>,
    generation: u32,
}

/// The result of a receive that began a burst.
#[derive(Debug, Clone, Copy)]
struct Begun(Option<Received>);

/// The state of the thread that polls.
#[derive(Debug)]
struct Poller {
    hot: HotSockets,
    buffer: ReceiveBuffer,
    empty_polls: u32,
    busy_polls: u32,
    first: usize,
}

/// The kind of thread that makes progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    Poller,
    /// One that sleeps next, and so checks all sockets.
    Sleeper,
    Background,
}

/// A poll set.
#[derive(Debug)]
pub(crate) struct PollSet {
    /// Level-triggered: all sockets of the members but the hot ones that are taken out.
    sockets: Epoll,
    members: RwLock<Slab<Entry>>,
    generation: AtomicU32,
    poller: Mutex<Poller>,
    /// Members with unsent messages, in the order in which they are served.
    unsent: RunQueue<MemberId>,
    /// Members with input that no descriptor announces.
    ready: RunQueue<MemberId>,
    /// Readable while `ready` has any. Made for the first one.
    ready_fd: OnceLock<Event>,
    /// Members that are to be found elsewhere, or tried on every poll, from the next poll on.
    changed: RunQueue<Changed>,
    /// Members whose peers may wait for an acknowledgement.
    pub(super) pending_acks: RunQueue<MemberId>,
    /// Hot sockets are parked, or may be. A thread that arms the set loads it afterwards, and one that parks looks for watchers afterwards: one of both sees the other.
    has_parked: AtomicBool,
    /// The last poll received something.
    busy: AtomicBool,
    timers: Timers<MemberId>,
    arming: AdaptiveArming,
    /// Threads that sleep on the sockets.
    sleepers: AtomicU32,
    /// Armed completion queues, of which a thread may sleep on the sockets at any time.
    awaited: AtomicU32,
    /// Threads that wait for a channel's events do so in its calls and receive for themselves, as far as the set has learnt.
    waiters_receive: AtomicBool,
    /// Polls until a thread that polls went to sleep.
    polls_at_sleep: AtomicU64,
    /// A program may sleep on a channel's descriptor until the background thread has raised an event: it does not step aside.
    event_wanted: AtomicBool,
    /// Input of a member comes through memory, or did.
    has_memory_input: AtomicBool,
    /// A member was attached.
    in_use: AtomicBool,
    /// The background thread has yet to see what there is to do.
    is_noted: AtomicBool,
    waker: Arc<Waker>,
    id: u64,
}

impl PollSet {
    /// An empty set. `id` is unique in the device, and the token of the set in the waker.
    pub(crate) fn new(id: u64, waker: Arc<Waker>) -> Result<Arc<Self>, Error> {
        let sockets = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)
            .map_err(|errno| Error::system("cannot make an epoll set")(errno.into()))?;
        Ok(Arc::new(Self {
            sockets: Epoll(leave_low_numbers(sockets.0)),
            members: RwLock::new(Slab::new()),
            generation: AtomicU32::new(0),
            poller: Mutex::new(Poller {
                hot: HotSockets::default(),
                buffer: ReceiveBuffer::new(),
                empty_polls: 0,
                busy_polls: 0,
                first: 0,
            }),
            unsent: RunQueue::new(),
            ready: RunQueue::new(),
            ready_fd: OnceLock::new(),
            changed: RunQueue::new(),
            pending_acks: RunQueue::new(),
            has_parked: AtomicBool::new(false),
            busy: AtomicBool::new(false),
            timers: Timers::new(),
            arming: AdaptiveArming::new(),
            sleepers: AtomicU32::new(0),
            awaited: AtomicU32::new(0),
            waiters_receive: AtomicBool::new(false),
            polls_at_sleep: AtomicU64::new(u64::MAX),
            event_wanted: AtomicBool::new(false),
            has_memory_input: AtomicBool::new(false),
            in_use: AtomicBool::new(false),
            is_noted: AtomicBool::new(false),
            waker,
            id,
        }))
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// The epoll set, for threads that sleep on it.
    pub(crate) fn sockets_fd(&self) -> BorrowedFd<'_> {
        self.sockets.0.as_fd()
    }

    /// Whether the set ever had a member.
    pub(crate) fn is_in_use(&self) -> bool {
        self.in_use.load(Ordering::Acquire)
    }

    // Members.

    pub(crate) fn attach(&self, member: Weak<dyn Member>) -> MemberId {
        let generation = self.generation.fetch_add(1, Ordering::Relaxed);
        let key = self.members.write().insert(Entry { member, generation });
        self.in_use.store(true, Ordering::Release);
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

    /// Records that a member's sockets have changed.
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

    /// Polls a socket for input, or only for its end.
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

    /// The live members.
    pub(crate) fn live_members(&self) -> Vec<Arc<dyn Member>> {
        let members = self.members.read();
        members
            .iter()
            .filter_map(|(_, entry)| entry.member.upgrade())
            .collect()
    }

    pub(super) fn member(&self, member: MemberId) -> Option<Arc<dyn Member>> {
        let members = self.members.read();
        let found = members.get(member.key as usize)?;
        (found.generation == member.generation)
            .then(|| found.member.upgrade())
            .flatten()
    }

    /// Ends the members of which completions were lost.
    pub(crate) fn fail_overrun(&self) {
        for member in self.live_members() {
            member.fail_overrun();
        }
    }

    // Work of the background thread.

    /// Lets the background thread see, when it is awake next, what there is to do: messages and acknowledgements to be sent, timers, a set that it watches no more.
    pub(super) fn note(&self) {
        if !self.is_noted.swap(true, Ordering::AcqRel) {
            self.waker.note(self.id);
        }
    }

    /// The background thread looks now.
    pub(crate) fn take_note(&self) {
        self.is_noted.swap(false, Ordering::AcqRel);
    }

    // Progress.

    /// Receives input, continues sending, runs timers that are due; a bounded amount. Returns whether
    /// anything was received, or `None` while another thread polls.
    pub(crate) fn progress(&self, by: By) -> Option<bool> {
        self.progress_with(by, &mut DirectCompletions::default())
    }

    /// As [`progress`](Self::progress); a completion may go to `direct`.
    #[inline]
    pub(crate) fn progress_with(&self, by: By, direct: &mut DirectCompletions<'_>) -> Option<bool> {
        let mut poller = self.poller.try_lock()?;
        if by != By::Background {
            self.arming.polled();
        }
        if self.unsent.any() || self.changed.any() {
            self.catch_up(&mut poller);
        }
        let next = self.next_receive(by);
        let mut got = self.receive_hot(&mut poller, by, next, direct);
        if got {
            poller.empty_polls = 0;
            poller.busy_polls += 1;
            if poller.busy_polls >= CHECK_WHEN_BUSY {
                poller.busy_polls = 0;
                self.look(&mut poller, next);
                self.run_timers();
            }
        } else {
            poller.empty_polls += 1;
            let look =
                poller.empty_polls % CHECK_EVERY == 0 || poller.hot.len() == 0 || by != By::Poller;
            if look {
                let found = self.look(&mut poller, next);
                self.run_timers();
                // Data is there, but its QP is being posted to: a sleep on the socket would end at once.
                if found.is_none() && by != By::Poller {
                    return None;
                }
                got = found == Some(true);
                // Hot sockets do this themselves when they are empty.
                if !got && poller.hot.len() == 0 {
                    self.flush_acks(false);
                }
            }
        }
        self.busy.store(got, Ordering::Relaxed);
        drop(poller);
        if got && by != By::Background {
            self.found_by_poller();
        }
        Some(got)
    }

    /// Whether the caller polls again soon. Where the background thread watches, there may be nobody else.
    #[inline]
    fn next_receive(&self, by: By) -> NextReceive {
        match by {
            By::Poller if !self.arming.is_on() => NextReceive::Soon,
            By::Poller | By::Sleeper | By::Background => NextReceive::Unknown,
        }
    }

    /// Does what was left to the next poll.
    #[cold]
    fn catch_up(&self, poller: &mut Poller) {
        if self.unsent.any() {
            self.flush_unsent();
        }
        if self.changed.any() {
            self.take_changes(poller);
        }
    }

    /// Receives on the hot sockets. Returns whether something was received.
    #[inline]
    fn receive_hot(
        &self,
        poller: &mut Poller,
        by: By,
        next: NextReceive,
        direct: &mut DirectCompletions<'_>,
    ) -> bool {
        let Poller { hot, buffer, .. } = poller;
        let Some(sole) = hot.sole() else {
            return self.receive_bursts(poller, by, next, direct, None);
        };
        let first = (sole.member).receive_hot(sole.socket, buffer, next, direct);
        // The usual case: the burst is over.
        if first == Some(Received::Something) && direct.are_taken() {
            if hot.hit(0) {
                self.park_unless_watched(poller, 0);
            }
            return true;
        }
        if matches!(first, None | Some(Received::Nothing)) {
            if by != By::Background && sole.counts_polls() {
                sole.member.polled_in_vain();
            }
            hot.miss_sole();
            return false;
        }
        self.receive_bursts(poller, by, next, direct, Some(Begun(first)))
    }

    /// As [`receive_hot`](Self::receive_hot), in bursts, of which the first may have `begun`.
    #[inline(never)]
    fn receive_bursts(
        &self,
        poller: &mut Poller,
        by: By,
        next: NextReceive,
        direct: &mut DirectCompletions<'_>,
        mut begun: Option<Begun>,
    ) -> bool {
        let mut got = false;
        let count = poller.hot.len();
        poller.first = poller.first.wrapping_add(1);
        let mut position = if count > 1 { poller.first % count } else { 0 };
        for _ in 0..count {
            let Some(hot) = poller.hot.get(position) else {
                break;
            };
            let received = self.receive_burst(
                &*hot.member,
                Some(&mut *direct),
                hot.socket,
                &mut poller.buffer,
                next,
                begun.take(),
            );
            if received == Received::Something {
                got = true;
                if poller.hot.hit(position) {
                    self.park_unless_watched(poller, position);
                }
                position += 1;
            } else {
                if by != By::Background && hot.counts_polls() {
                    hot.member.polled_in_vain();
                }
                match poller.hot.miss(position) {
                    Some(gone) => self.put_back(&gone),
                    None => position += 1,
                }
            }
            if position >= poller.hot.len() {
                position = 0;
            }
        }
        got
    }

    /// Receives on a socket, one that is tried on every poll if `direct` is some, until it is empty, a completion is there, or its turn is over. Its
    /// first receive may have `begun` it. Returns the best of all.
    #[inline(always)]
    fn receive_burst(
        &self,
        member: &dyn Member,
        mut direct: Option<&mut DirectCompletions<'_>>,
        socket: SocketIndex,
        buffer: &mut ReceiveBuffer,
        mut next: NextReceive,
        mut begun: Option<Begun>,
    ) -> Received {
        let (mut got, mut held) = (Received::Nothing, false);
        for _ in 0..BURST {
            let received = match (begun.take(), &mut direct) {
                (Some(Begun(first)), _) => first,
                (None, Some(direct)) => member.receive_hot(socket, buffer, next, direct),
                (None, None) => member.receive(socket, buffer, next),
            };
            match received {
                None | Some(Received::Nothing) => break,
                Some(Received::Bells) => {
                    got = got.max(Received::Bells);
                    continue;
                }
                Some(Received::Something) => got = Received::Something,
                Some(Received::Held) => (got, held) = (Received::Something, true),
                Some(Received::Everything) => {
                    got = Received::Something;
                    break;
                }
            }
            if next == NextReceive::Soon {
                next = NextReceive::SoonAgain;
            }
            if direct.as_ref().is_some_and(|it| it.are_taken()) || member.has_completions() {
                break;
            }
        }
        if held {
            member.end_burst();
        }
        got
    }

    /// Finds sockets with data among all, receives from them and makes those hot that it finds again. Returns whether something was received,
    /// or `None` if there is something that could not be received now.
    #[inline(never)]
    fn look(&self, poller: &mut Poller, next: NextReceive) -> Option<bool> {
        let _guard = NoCancellation::begin();
        let mut events = [EpollEvent::empty(); EVENTS];
        let ready = self
            .sockets
            .wait(&mut events, EpollTimeout::ZERO)
            .unwrap_or(0);
        let mut got = false;
        let mut left = false;
        // Where more sockets have data than can be hot, those that are would get more than the others: all take turns then.
        let crowded = ready > HotSockets::SIZE;
        if crowded {
            self.unpark_locked(poller);
            poller.hot.clear();
        }
        for event in &events[..ready] {
            if event.data() == memory_input::READY {
                let next = if crowded { NextReceive::Unknown } else { next };
                match self.receive_ready(poller, next) {
                    Some(received) => got |= received,
                    None => left = true,
                }
                continue;
            }
            let (id, socket) = MemberId::from_token(event.data());
            let Some(member) = self.member(id) else {
                left = true;
                continue;
            };
            // Unread, they would wake up every sleeper again and again.
            if event.events().contains(EpollFlags::EPOLLERR) {
                got |= member.read_error_queue(socket).is_some();
            }
            // A socket that is not hot is not tried on the next poll.
            let next = if !crowded && poller.hot.is_known(id, socket) {
                next
            } else {
                NextReceive::Unknown
            };
            match self.receive_burst(&*member, None, socket, &mut poller.buffer, next, None) {
                Received::Nothing => left = true,
                Received::Bells => {}
                Received::Something | Received::Held | Received::Everything => {
                    got = true;
                    if crowded {
                        continue;
                    }
                    if let Some(gone) = poller.hot.found(id, member, socket) {
                        self.put_back(&gone);
                    }
                }
            }
        }
        (got || !left).then_some(got)
    }

    /// Acknowledgements that wait for a message of the calling thread, which is about to sleep, leave.
    pub(super) fn release_acks(&self) {
        let Some(poller) = self.poller.try_lock() else {
            return;
        };
        let _guard = NoCancellation::begin();
        // Acknowledgements of other sockets do not wait.
        for hot in poller.hot.iter() {
            hot.member.release_acks();
        }
    }

    /// Whether nobody, now or until an event of a completion channel, sleeps on the epoll set.
    fn nobody_sleeps(&self) -> bool {
        !self.arming.is_on() && !self.has_sleepers() && self.awaited.load(Ordering::SeqCst) == 0
    }

    /// [Parks](Self::park) a busy socket, unless somebody sleeps.
    #[cold]
    fn park_unless_watched(&self, poller: &mut Poller, position: usize) {
        if self.nobody_sleeps() {
            self.park(poller, position);
        }
    }

    /// Takes a busy socket out of the epoll set: it is tried on every poll, and its place in the set would cost
    /// each of its datagrams.
    fn park(&self, poller: &mut Poller, position: usize) {
        let Some(hot) = poller.hot.get(position) else {
            return;
        };
        let _guard = NoCancellation::begin();
        self.has_parked.store(true, Ordering::SeqCst);
        // A descriptor that is readable at an end alone costs nothing.
        let mut taken_out = hot.member.want_bells(hot.socket, false);
        if !taken_out {
            hot.member.with_socket(hot.socket, &mut |fd| {
                taken_out = self.sockets.delete(fd).is_ok();
            });
        }
        if taken_out {
            poller.hot.park(position);
        }
        // The set may have been armed in between, by a thread that found nothing parked.
        if !self.nobody_sleeps() {
            self.unpark_locked(poller);
        }
    }

    fn put_back(&self, hot: &HotSocket) {
        if hot.is_parked() {
            self.add(hot);
        }
    }

    fn add(&self, hot: &HotSocket) {
        let _guard = NoCancellation::begin();
        let event = EpollEvent::new(EpollFlags::EPOLLIN, hot.id.token(hot.socket));
        hot.member.with_socket(hot.socket, &mut |fd| {
            let _ = self.sockets.add(fd, event);
        });
        hot.member.want_bells(hot.socket, true);
    }

    /// Puts all sockets into the epoll set, for those who sleep on it.
    pub(crate) fn unpark(&self) {
        self.unpark_locked(&mut self.poller.lock());
    }

    /// Puts all sockets into the epoll set, unless a thread is polling: then nobody needs to sleep.
    pub(crate) fn try_unpark(&self) {
        if let Some(mut poller) = self.poller.try_lock() {
            self.unpark_locked(&mut poller);
        }
    }

    /// Puts all sockets into the epoll set, once a poll that is under way is over: the set is armed now.
    fn unpark_armed(&self) {
        if self.has_parked.load(Ordering::SeqCst) {
            self.unpark();
        }
    }

    fn unpark_locked(&self, poller: &mut Poller) {
        self.has_parked.store(false, Ordering::SeqCst);
        for hot in poller.hot.unpark() {
            self.add(hot);
        }
    }

    /// Whether a socket has data, without receiving it.
    pub(crate) fn has_data(&self) -> bool {
        let mut fds = [PollFd::new(self.sockets_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }

    // Unsent messages.

    pub(crate) fn add_unsent(&self, member: MemberId) {
        self.keep_unsent(member);
        // The poller goes on with this. Should the polling end, the background thread's next tick does.
        if self.arming.is_on() {
            self.waker.wake();
        }
    }

    fn keep_unsent(&self, member: MemberId) {
        self.unsent.add(member);
        self.note();
    }

    /// Whether the last poll found input, so that more may wait.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed)
    }

    pub(crate) fn has_unsent(&self) -> bool {
        self.unsent.any()
    }

    /// Gives every member with something left to send one turn. Returns whether some of it may go on at once: a socket whose buffer is
    /// full may not.
    ///
    /// Several threads may do so. Each takes the next member in turn: had one of them a list of its own, those at its front would come
    /// back to the others again and again before those at its end had their first turn.
    pub(crate) fn flush_unsent(&self) -> bool {
        let _guard = NoCancellation::begin();
        let turns = self.unsent.len();
        let mut at_once = false;
        for _ in 0..turns {
            let Some(member) = self.unsent.next() else {
                break;
            };
            let Some(live) = self.member(member) else {
                continue;
            };
            if let Some(blocked) = live.flush_unsent() {
                at_once |= !blocked;
                self.keep_unsent(member);
            }
        }
        at_once
    }
}

#[cfg(test)]
pub(crate) mod tests;

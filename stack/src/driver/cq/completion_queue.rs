//! A completion queue: its ring, arming, and the threads that wait for it.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use dgiwarp_memory::socket::NoCancellation;
use parking_lot::{Mutex, RwLock};
use smallvec::SmallVec;

use crate::driver::cq::awaited::Awaited;
use crate::driver::cq::channel::ChannelShared;
use crate::driver::cq::direct::DirectCompletions;
use crate::driver::cq::watch::Watches;
use crate::driver::device::clock;
use crate::driver::device::event::Event;
use crate::driver::device::thread::Background;
use crate::driver::reactor::member::{Member, MemberId};
use crate::driver::reactor::poll_set::{By, PollSet};
use crate::{AsyncEvent, CqError, Error, Wc};
use dgiwarp_engine::cq_ring::{CqRing, Pushed};

/// A poll that found completions in this many receives too.
const RECEIVE_EVERY: u32 = 16;

/// A completion queue.
///
/// Its sources are poll sets: its own, of the queue pairs that complete their receives here, and linked ones, of queue pairs that complete only
/// their sends here. Completions of sends come of what arrives, too: acknowledgements and responses.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    ring: Mutex<CqRing>,
    /// The ring is not empty, or overran; for a check without the lock.
    filled: AtomicBool,
    /// The ring is armed; set and reset under its lock.
    armed: AtomicBool,
    /// The ring keeps the times of completions.
    stamped: AtomicBool,
    polls_with_completions: AtomicU32,
    /// Threads that sleep until there is a completion.
    sleepers: AtomicU32,
    wake: Event,
    /// Event loops that sleep until there is a completion.
    watches: Watches,
    awaited: Awaited,
    channel: OnceLock<Arc<ChannelShared>>,
    poll_set: Arc<PollSet>,
    /// Once linked, a set stays linked until it is gone.
    linked: OnceLock<RwLock<Vec<Weak<PollSet>>>>,
    background: Arc<Background>,
    id: u64,
}

impl CompletionQueue {
    pub(crate) fn new(depth: usize, background: Arc<Background>) -> Result<Arc<Self>, Error> {
        let ring = CqRing::new(depth).map_err(|_| Error::no_memory("completion queue"))?;
        let id = background.next_id();
        let poll_set = PollSet::new(id, Arc::clone(background.waker()))?;
        let wake =
            Event::new().map_err(|errno| Error::system("cannot make an eventfd")(errno.into()))?;
        Ok(Arc::new(Self {
            ring: Mutex::new(ring),
            filled: AtomicBool::new(false),
            armed: AtomicBool::new(false),
            stamped: AtomicBool::new(false),
            polls_with_completions: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
            wake,
            watches: Watches::default(),
            awaited: Awaited::default(),
            channel: OnceLock::new(),
            poll_set,
            linked: OnceLock::new(),
            background,
            id,
        }))
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn background(&self) -> &Background {
        &self.background
    }

    /// The poll set of the queue pairs that complete their receives here.
    pub(crate) fn poll_set(&self) -> &Arc<PollSet> {
        &self.poll_set
    }

    pub(crate) fn set_channel(&self, channel: Arc<ChannelShared>) {
        let _ = self.channel.set(channel);
    }

    /// Makes a queue pair a member of the poll set, and has the background thread serve the set.
    pub(crate) fn attach(&self, member: Weak<dyn Member>) -> MemberId {
        let member = self.poll_set.attach(member);
        self.background.serve(&self.poll_set);
        member
    }

    // Sources.

    /// Links the poll set of `recv_cq`: completions come here of what arrives there.
    pub(crate) fn link(&self, recv_cq: &Arc<Self>) -> Result<(), Error> {
        if std::ptr::eq(self, Arc::as_ptr(recv_cq)) {
            return Ok(());
        }
        let set = &recv_cq.poll_set;
        let mut linked = self.linked.get_or_init(RwLock::default).write();
        let known = linked
            .iter()
            .any(|it| std::ptr::eq(it.as_ptr(), Arc::as_ptr(set)));
        if !known {
            linked.retain(|it| it.strong_count() > 0);
            linked.push(Arc::downgrade(set));
        }
        drop(linked);
        if let Some(channel) = self.channel.get() {
            {
                let _ring = self.ring.lock();
                if self.awaited.is_any() {
                    self.awaited.begin(set);
                }
            }
            channel
                .watch(set)
                .map_err(Error::system("cannot watch a completion queue"))?;
            // The queue may be armed already.
            set.want_event();
        }
        Ok(())
    }

    /// The linked poll sets.
    pub(super) fn linked_sets(&self) -> SmallVec<[Arc<PollSet>; 2]> {
        self.linked.get().map_or_else(SmallVec::new, |linked| {
            linked.read().iter().filter_map(Weak::upgrade).collect()
        })
    }

    /// Makes progress at all sources. As [`PollSet::progress`] otherwise.
    #[inline]
    pub(crate) fn progress(&self) -> Option<bool> {
        self.progress_with(&mut DirectCompletions::default())
    }

    #[inline]
    fn progress_with(&self, direct: &mut DirectCompletions<'_>) -> Option<bool> {
        match self.linked.get() {
            None => self.poll_set.progress_with(By::Poller, direct),
            Some(_) => self.progress_at_all(By::Poller, direct),
        }
    }

    /// Makes progress at all sources, those without members left out.
    pub(super) fn progress_at_all(
        &self,
        by: By,
        direct: &mut DirectCompletions<'_>,
    ) -> Option<bool> {
        let mut got = self.progress_own(by, direct);
        if let Some(linked) = self.linked.get() {
            for set in linked.read().iter().filter_map(Weak::upgrade) {
                got = both(got, set.progress_with(by, direct));
            }
        }
        got
    }

    /// Progress at the set of this queue; without members there is none to make.
    pub(super) fn progress_own(&self, by: By, direct: &mut DirectCompletions<'_>) -> Option<bool> {
        if self.poll_set.is_in_use() {
            self.poll_set.progress_with(by, direct)
        } else {
            Some(false)
        }
    }

    // Completions.

    pub(crate) fn reserve(&self, records: usize, segments: usize) -> Result<(), Error> {
        let room = self.ring.lock().reserve(records, segments);
        room.map_err(|_| Error::no_memory("slots for records"))
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
    pub(crate) fn has_success_of(&self, qpn: u32) -> bool {
        self.ring.lock().has_success_of(qpn)
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
        if pushed == Pushed::Event {
            self.armed.store(false, Ordering::Release);
            self.awaited.end();
        }
        drop(ring);
        match pushed {
            Pushed::Quiet => {}
            Pushed::Event => {
                let _guard = NoCancellation::begin();
                if let Some(channel) = self.channel.get() {
                    channel.raise(self.id);
                }
            }
            Pushed::Overrun => {
                let _guard = NoCancellation::begin();
                let event = AsyncEvent::CqOverrun { cq: self.id };
                self.background.events().raise(event);
                self.background.end_overrun();
            }
            Pushed::NoSlot => return false,
        }
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            let _guard = NoCancellation::begin();
            self.wake.ring();
        }
        self.watches.wake();
        true
    }

    /// Whether a completion may go to the thread that polls this queue, past the ring.
    #[inline(always)]
    pub(crate) fn gives_directly(&self, direct: &DirectCompletions<'_>) -> bool {
        // Behind those of the ring, and with an event or a wakeup where one is due.
        let is_plain = !self.has_completions()
            && !self.armed.load(Ordering::Acquire)
            && !self.stamped.load(Ordering::Relaxed)
            && !self.watches.are_armed();
        is_plain && direct.are_free_for(self.id)
    }

    /// Event loops that sleep until there is a completion.
    pub(super) fn watches(&self) -> &Watches {
        &self.watches
    }

    /// Whether a completion was lost.
    pub(crate) fn is_overrun(&self) -> bool {
        self.ring.lock().is_overrun()
    }

    pub(crate) fn arm(&self, solicited_only: bool) {
        let linked = self.linked_sets();
        let sets = || linked.iter().chain([&self.poll_set]);
        {
            let mut ring = self.ring.lock();
            ring.arm(solicited_only);
            self.armed.store(true, Ordering::Release);
            if self.channel.get().is_none() {
                return;
            }
            sets().for_each(|set| self.awaited.begin(set));
        }
        sets().for_each(|set| set.want_event());
    }

    /// Ends the arming: completions raise no event.
    pub(crate) fn disarm(&self) {
        if self.armed.load(Ordering::Acquire) {
            let mut ring = self.ring.lock();
            ring.disarm();
            self.armed.store(false, Ordering::Release);
            self.awaited.end();
        }
    }

    /// Moves completions to the front of `out`, as [`poll_each`](Self::poll_each) finds them. Returns how many.
    #[inline]
    pub(crate) fn poll(&self, out: &mut [Wc]) -> Result<usize, CqError> {
        if self.has_completions() {
            return self.take_waiting(out.len(), moves_to(out));
        }
        let mut direct = DirectCompletions::in_slots(self.id, out);
        if !direct.are_full() {
            self.progress_with(&mut direct);
        }
        let first = direct.count();
        if self.has_completions() {
            return self.take_behind(first, out.len() - first, moves_to(&mut out[first..]));
        }
        Ok(first)
    }

    /// Takes completions, at most so many, and calls `each` with every one, which must not use the queue. Where there are none, receives first. Returns
    /// how many.
    #[inline]
    pub(crate) fn poll_each(
        &self,
        most: usize,
        mut each: impl FnMut(&Wc),
    ) -> Result<usize, CqError> {
        if self.has_completions() {
            return self.take_waiting(most, each);
        }
        let mut direct = DirectCompletions::of(self.id, most);
        if most > 0 {
            self.progress_with(&mut direct);
        }
        let first = direct.count();
        direct.taken().iter().for_each(&mut each);
        if self.has_completions() {
            return self.take_behind(first, most - first, each);
        }
        Ok(first)
    }

    /// Takes completions that the ring had when it was polled, and receives too in some of such polls.
    #[inline(never)]
    fn take_waiting(&self, most: usize, each: impl FnMut(&Wc)) -> Result<usize, CqError> {
        let count = self.take(most, each)?;
        let polls = match count {
            // Another thread took them.
            0 => RECEIVE_EVERY - 1,
            _ => self.polls_with_completions.fetch_add(1, Ordering::Relaxed),
        };
        if polls % RECEIVE_EVERY == RECEIVE_EVERY - 1 {
            self.progress();
        }
        Ok(count)
    }

    /// Takes completions that the ring has behind the `first` ones, which did not pass through it. If there were such, an overrun is for the next poll.
    #[inline(never)]
    fn take_behind(
        &self,
        first: usize,
        most: usize,
        each: impl FnMut(&Wc),
    ) -> Result<usize, CqError> {
        if first == 0 {
            return self.take(most, each);
        }
        if most == 0 {
            return Ok(first);
        }
        Ok(first + self.take(most, each).unwrap_or(0))
    }

    /// How often a program has polled, found something or not.
    #[inline]
    pub(crate) fn polls(&self) -> u64 {
        let found = self.polls_with_completions.load(Ordering::Relaxed);
        self.poll_set.arming().polls().wrapping_add(found.into())
    }

    #[inline]
    fn take(&self, most: usize, each: impl FnMut(&Wc)) -> Result<usize, CqError> {
        let mut ring = self.ring.lock();
        let count = ring.poll_each(most, each);
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
            self.progress();
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

    pub(crate) fn keep_stamps(&self) -> Result<(), Error> {
        let room = self.ring.lock().keep_stamps();
        room.map_err(|_| Error::no_memory("times of completions"))?;
        self.stamped.store(true, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn ignore_overrun(&self) {
        self.ring.lock().ignore_overrun();
    }

    /// Returns whether the completions that wait fit.
    pub(crate) fn resize(&self, depth: usize) -> Result<bool, Error> {
        let resized = self.ring.lock().resize(depth);
        resized.map_err(|_| Error::no_memory("completion queue"))
    }

    #[inline]
    pub(crate) fn has_completions(&self) -> bool {
        self.filled.load(Ordering::SeqCst)
    }

    /// A thread is about to sleep until there is a completion.
    pub(super) fn begin_sleep(&self) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
    }

    /// The thread of [`begin_sleep`](Self::begin_sleep) is awake.
    pub(super) fn end_sleep(&self) {
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Readable when a completion came while a thread slept.
    pub(super) fn wake_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Resets [`wake_fd`](Self::wake_fd).
    pub(super) fn acknowledge_wake(&self) {
        self.wake.clear();
    }
}

/// Moves completions to the slots of `out`, in order.
#[inline]
fn moves_to(out: &mut [Wc]) -> impl FnMut(&Wc) {
    let mut slots = out.iter_mut();
    move |wc| {
        if let Some(slot) = slots.next() {
            *slot = *wc;
        }
    }
}

/// The outcome of progress at two sources: something, nothing, or `None` where another thread is at work.
pub(super) fn both(one: Option<bool>, other: Option<bool>) -> Option<bool> {
    match (one, other) {
        (Some(true), _) | (_, Some(true)) => Some(true),
        (Some(false), Some(false)) => Some(false),
        (None, _) | (_, None) => None,
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        let gone = AsyncEvent::CqOverrun { cq: self.id };
        self.background.events().forget(|event| event == gone);
        if let Some(channel) = self.channel.get() {
            channel.forget(self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::thread;
    use std::time::Duration;

    use super::{CompletionQueue, DirectCompletions};
    use crate::driver::device::clock;
    use crate::{
        Access, Buffer, Config, MpaConfig, RcListener, RcOperation, RcQpAttr, RcSendWr, ReadDepths,
        Rnic, Wc, WcStatus,
    };

    const LONG: Duration = Duration::from_secs(30);
    const DEPTHS: ReadDepths = ReadDepths { ird: 4, ord: 4 };

    #[test]
    fn a_completion_passes_by_the_ring_only_where_nobody_would_miss_it() {
        let rnic = Rnic::open(Config::default()).unwrap();
        let queue = || rnic.create_cq(4).unwrap().shared;
        let goes_direct = |cq: &CompletionQueue| {
            let mut direct = DirectCompletions::of(cq.id(), 4);
            push_direct(cq, Wc::default(), &mut direct);
            assert_ne!(direct.are_taken(), cq.has_completions());
            direct.are_taken()
        };
        let cq = queue();
        assert!(goes_direct(&cq));
        cq.arm(false);
        assert!(!goes_direct(&cq), "an event is due");
        assert_eq!(cq.poll(&mut [Wc::default(); 4]).unwrap(), 1);
        assert!(goes_direct(&cq), "the event was raised");
        assert!(cq.push(Wc::default()));
        let mut direct = DirectCompletions::of(cq.id(), 4);
        push_direct(&cq, Wc::default(), &mut direct);
        assert!(!direct.are_taken(), "another completion is before it");
        let mut elsewhere = DirectCompletions::of(queue().id(), 4);
        let cq = queue();
        push_direct(&cq, Wc::default(), &mut elsewhere);
        assert!(!elsewhere.are_taken(), "another queue is polled");
        let cq = queue();
        cq.keep_stamps().unwrap();
        assert!(!goes_direct(&cq), "its time is kept");
    }

    /// Gives a completion to the thread that polls the queue, or adds it.
    fn push_direct(cq: &CompletionQueue, wc: Wc, direct: &mut DirectCompletions<'_>) {
        if cq.gives_directly(direct) {
            direct.put(|| wc);
        } else {
            cq.push(wc);
        }
    }

    #[test]
    fn completions_pass_by_the_ring_in_order_as_far_as_they_are_wanted() {
        let rnic = Rnic::open(Config::default()).unwrap();
        for (wanted, places, in_slots) in [
            (0, 0, false),
            (2, 2, false),
            (usize::MAX, 16, false),
            (0, 0, true),
            (2, 2, true),
            (20, 16, true),
        ] {
            let cq = rnic.create_cq(32).unwrap().shared;
            let mut slots = [Wc::default(); 20];
            let mut direct = if in_slots {
                DirectCompletions::in_slots(cq.id(), &mut slots[..wanted])
            } else {
                DirectCompletions::of(cq.id(), wanted)
            };
            for wr_id in 0..20 {
                let wc = Wc::new(wr_id, crate::WcOpcode::Recv, 1);
                push_direct(&cq, wc, &mut direct);
            }
            let mut in_ring = [Wc::default(); 32];
            let found = cq.poll(&mut in_ring).unwrap();
            let taken = direct.taken().to_vec();
            assert_eq!(
                (taken.len(), direct.count(), found),
                (places, places, 20 - places)
            );
            let ids = taken.iter().chain(&in_ring[..found]).map(|wc| wc.wr_id);
            assert!(ids.eq(0..20), "{wanted} are wanted");
            if in_slots {
                assert_eq!(taken, slots[..places]);
            }
        }
    }

    /// Only the queue of sends is polled, and responses come to the sockets of the other one.
    #[test]
    fn whoever_polls_the_queue_of_sends_is_a_poller_of_the_other_one() {
        let [here, there] = [(); 2].map(|()| Rnic::open(Config::default()).unwrap());
        let (pd, peer_pd) = (here.alloc_pd(), there.alloc_pd());
        let [send_cq, recv_cq] = [16; 2].map(|depth| here.create_cq(depth).unwrap());
        let peer_cq = there.create_cq(16).unwrap();
        let qp = pd.create_rc_qp(&RcQpAttr::new(&send_cq, &recv_cq)).unwrap();
        let peer = RcQpAttr::new(&peer_cq, &peer_cq);
        let peer = peer_pd.create_rc_qp(&peer).unwrap();
        let memory = [64; 2].map(|len| Buffer::zeroed(len).unwrap());
        let sink = pd
            .register(memory[0].region(), Access::LOCAL_WRITE)
            .unwrap();
        let source = peer_pd
            .register(memory[1].region(), Access::REMOTE_READ)
            .unwrap();
        let any = (Ipv4Addr::LOCALHOST, 0).into();
        let listener = RcListener::bind(any, MpaConfig::default()).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let request = listener.accept(LONG).unwrap().unwrap();
                request.accept(&peer, DEPTHS, b"").unwrap();
            });
            let address = listener.local_addr();
            qp.connect(address, &MpaConfig::default(), b"").unwrap();
        });
        let read = RcOperation::Read {
            rkey: source.rkey(),
            remote_addr: source.addr(),
        };
        let deadline = clock::now() + LONG;
        while recv_cq.shared.poll_set().arming().is_on() {
            assert!(
                clock::now() < deadline,
                "the background thread watches for ever"
            );
            let sges = [sink.sge(..)];
            qp.post_send(&[RcSendWr::new(1, read, &sges)]).unwrap();
            let wc = loop {
                if let Some(wc) = send_cq.poll_one().unwrap() {
                    break wc;
                }
            };
            assert_eq!((wc.wr_id, wc.status), (1, WcStatus::Success));
        }
        assert!(
            !send_cq.shared.poll_set().is_in_use(),
            "no sockets of its own"
        );
    }
}

//! Watches of a completion queue: an event loop of the program sleeps, and receives for itself when it wakes.
//!
//! A watch registers as a sleeper of the poll sets for its whole life, so that their sockets announce all input. It is *armed* while the loop sleeps: a completion that another
//! thread makes meanwhile rings it, once.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use dgiwarp_memory::socket::NoCancellation;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use parking_lot::{Mutex, RwLock};
use smallvec::SmallVec;

use crate::Error;
use crate::driver::cq::completion_queue::CompletionQueue;
use crate::driver::cq::direct::DirectCompletions;
use crate::driver::device::event::Event;
use crate::driver::device::fds::leave_low_numbers;
use crate::driver::reactor::poll_set::{By, PollSet};

/// The watches of a completion queue.
#[derive(Debug, Default)]
pub(super) struct Watches {
    /// Watches that are armed; for a check without the lock.
    armed: AtomicUsize,
    all: RwLock<SmallVec<[Weak<Watch>; 1]>>,
}

impl Watches {
    /// There is a completion: wakes the loops that sleep.
    #[inline]
    pub(super) fn wake(&self) {
        // After the completion was published; `Watch::arm` does both the other way round.
        if self.are_armed() {
            self.wake_armed();
        }
    }

    /// Whether a loop sleeps.
    #[inline]
    pub(super) fn are_armed(&self) -> bool {
        self.armed.load(Ordering::SeqCst) > 0
    }

    #[cold]
    fn wake_armed(&self) {
        let _guard = NoCancellation::begin();
        for watch in self.all.read().iter().filter_map(Weak::upgrade) {
            if watch.bell.take_arming(self) {
                watch.bell.ring();
            }
        }
    }
}

/// Makes a watch readable.
#[derive(Debug)]
struct Bell {
    fd: Event,
    armed: AtomicBool,
    /// The descriptor was made readable. Set behind the write: were it set before, one could be hushed that is readable a moment later, and stays so.
    rung: AtomicBool,
}

impl Bell {
    /// Ends the arming. Returns whether it was armed.
    fn take_arming(&self, watches: &Watches) -> bool {
        let was_armed = self.armed.swap(false, Ordering::SeqCst);
        if was_armed {
            watches.armed.fetch_sub(1, Ordering::SeqCst);
        }
        was_armed
    }

    fn ring(&self) {
        self.fd.ring();
        self.rung.store(true, Ordering::SeqCst);
    }

    /// Takes the ringing back. A ring of another thread may come behind it: it then stays, and the loop wakes once for nothing.
    fn hush(&self) {
        if self.rung.swap(false, Ordering::SeqCst) {
            self.fd.clear();
        }
    }
}

/// A completion queue as an event loop has it.
#[derive(Debug)]
pub(crate) struct Watch {
    cq: Arc<CompletionQueue>,
    /// Readable when there is a completion, or data that may become one: the bell and the sockets of all poll sets.
    work: Epoll,
    bell: Bell,
    /// Poll sets of which it is a sleeper.
    sets: Mutex<SmallVec<[Arc<PollSet>; 2]>>,
}

impl Watch {
    pub(crate) fn new(cq: &Arc<CompletionQueue>) -> Result<Arc<Self>, Error> {
        let failed = |errno: Errno| Error::system("cannot watch a completion queue")(errno.into());
        let work = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(failed)?;
        let work = Epoll(leave_low_numbers(work.0));
        let bell = Bell {
            fd: Event::new().map_err(failed)?,
            armed: AtomicBool::new(false),
            rung: AtomicBool::new(false),
        };
        work.add(&bell.fd, EpollEvent::new(EpollFlags::EPOLLIN, 0))
            .map_err(failed)?;
        let watch = Arc::new(Self {
            cq: Arc::clone(cq),
            work,
            bell,
            sets: Mutex::default(),
        });
        watch.join_sets().map_err(failed)?;
        let mut all = cq.watches().all.write();
        all.retain(|it| it.strong_count() > 0);
        all.push(Arc::downgrade(&watch));
        drop(all);
        Ok(watch)
    }

    /// Becomes a sleeper of the poll sets that are new.
    fn join_sets(&self) -> Result<(), Errno> {
        let mut sets = self.sets.lock();
        let mut all = self.cq.linked_sets();
        all.push(Arc::clone(self.cq.poll_set()));
        for set in all {
            if sets.iter().any(|it| Arc::ptr_eq(it, &set)) {
                continue;
            }
            let event = EpollEvent::new(EpollFlags::EPOLLIN, 0);
            self.work.add(set.sockets_fd(), event)?;
            set.begin_sleep();
            sets.push(set);
        }
        Ok(())
    }

    /// The loop is about to sleep. Returns false where it may not: there are completions, or there is input that another thread is at work with.
    pub(crate) fn arm(&self) -> bool {
        self.arm_unless(|| !self.has_nothing())
    }

    /// As [`arm`](Self::arm), but receives nothing: the descriptor announces input that is there.
    pub(crate) fn arm_without_receive(&self) -> bool {
        self.arm_unless(|| self.cq.has_completions() || self.goes_on())
    }

    fn arm_unless(&self, is_busy: impl FnOnce() -> bool) -> bool {
        // Where descriptors are missing, the background thread receives and rings.
        let _ = self.join_sets();
        if !self.bell.armed.swap(true, Ordering::SeqCst) {
            self.cq.watches().armed.fetch_add(1, Ordering::SeqCst);
        }
        let may_sleep = !is_busy();
        if !may_sleep {
            self.disarm();
        }
        may_sleep
    }

    fn has_nothing(&self) -> bool {
        // Takes none: completions are for the loop's poll.
        let mut direct = DirectCompletions::default();
        loop {
            if self.cq.has_completions() {
                return false;
            }
            // To the end: input makes completions, and the call that finds no more flushes acknowledgements.
            match self.cq.progress_at_all(By::Sleeper, &mut direct) {
                Some(true) => {}
                Some(false) => break,
                None => return false,
            }
        }
        !self.cq.has_completions() && !self.goes_on()
    }

    /// Leaves the sets to the sleeper, and sends what was left for its next poll, which may be long in coming. Returns whether some of it goes on at once.
    fn goes_on(&self) -> bool {
        let sets = self.sets.lock();
        let mut goes_on = false;
        for set in sets.iter() {
            set.sleep_again();
            set.flush_acks(true);
            goes_on |= set.flush_before_sleep();
        }
        goes_on
    }

    /// The loop is awake: completions ring no more.
    pub(crate) fn disarm(&self) {
        self.bell.take_arming(self.cq.watches());
        self.bell.hush();
    }

    /// Makes the descriptor readable until the loop is awake: one that is awake already wakes once more.
    pub(crate) fn ring(&self) {
        self.bell.ring();
    }

    /// Whether there are completions, or data that may become some.
    pub(crate) fn is_ready(&self) -> bool {
        let mut fds = [PollFd::new(self.as_fd(), PollFlags::POLLIN)];
        self.cq.has_completions() || poll(&mut fds, PollTimeout::ZERO).is_ok_and(|it| it > 0)
    }
}

/// Readable when there is a completion, or data that may become one.
impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.work.0.as_fd()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.bell.take_arming(self.cq.watches());
        for set in self.sets.lock().iter() {
            set.end_sleep();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use nix::sys::epoll::EpollTimeout;

    use super::*;
    use crate::driver::reactor::poll_set::tests::{InMemory, join};
    use crate::{Config, Rnic, Wc};

    /// A loop that is woken by changes alone, as mio and tokio are.
    struct EdgeTriggered(Epoll);

    impl EdgeTriggered {
        fn new(watch: &Watch) -> Self {
            let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
            let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
            epoll.add(watch, EpollEvent::new(flags, 0)).unwrap();
            Self(epoll)
        }

        /// Whether it is woken in time.
        fn sleep(&self) -> bool {
            let mut events = [EpollEvent::empty()];
            let timeout = EpollTimeout::from(20_000_u16);
            self.0.wait(&mut events, timeout).unwrap() > 0
        }
    }

    fn watched() -> (Arc<CompletionQueue>, Arc<InMemory>, Arc<Watch>) {
        let rnic = Rnic::open(Config::default()).unwrap();
        let cq = rnic.create_cq(16).unwrap().shared;
        let member = InMemory::new(0);
        // Not served by the background thread, which would receive what the loop misses.
        join(cq.poll_set(), &member);
        let watch = Watch::new(&cq).unwrap();
        (cq, member, watch)
    }

    #[test]
    fn no_wakeup_is_lost_between_arming_and_sleep() {
        let (cq, member, watch) = watched();
        let epoll = EdgeTriggered::new(&watch);
        let (request, requests) = mpsc::channel::<usize>();
        let completes = Arc::clone(&cq);
        let input = Arc::clone(&member);
        let sender = thread::spawn(move || {
            for number in requests {
                for _ in 0..number * 7 % 300 {
                    std::hint::spin_loop();
                }
                if number % 3 == 0 {
                    assert!(completes.push(Wc::default()));
                } else {
                    input.deliver(1);
                }
            }
        });
        let mut completions = 0;
        for round in 0..3000 {
            request.send(round).unwrap();
            let expected = round + 1;
            while completions + member.received() < expected {
                completions += cq.poll_each(16, |_| {}).unwrap();
                if watch.arm() {
                    let is_there = completions + member.received() == expected;
                    assert!(is_there || epoll.sleep(), "round {round}");
                    watch.disarm();
                }
            }
        }
        drop(request);
        sender.join().unwrap();
    }

    #[test]
    fn a_loop_sleeps_only_where_nothing_is_there() {
        let (cq, member, watch) = watched();
        assert!(watch.arm() && !watch.is_ready());
        assert!(cq.push(Wc::default()));
        assert!(watch.is_ready());
        assert!(!watch.arm(), "a completion is there");
        assert_eq!(cq.poll_each(16, |_| {}).unwrap(), 1);
        assert!(!watch.is_ready(), "the ring is taken back");
        assert!(cq.push(Wc::default()));
        assert_eq!(cq.poll_each(16, |_| {}).unwrap(), 1);
        assert!(!watch.is_ready(), "nobody sleeps");
        member.deliver(20);
        assert!(watch.is_ready());
        assert!(watch.arm_without_receive() && watch.is_ready());
        assert_eq!(member.received(), 0, "announced, and left for the loop");
        assert!(cq.push(Wc::default()));
        assert!(!watch.arm_without_receive(), "a completion is there");
        assert_eq!(cq.poll_each(16, |_| {}).unwrap(), 1);
        assert!(watch.arm());
        assert_eq!(member.received(), 20, "received before the sleep");
        watch.disarm();
        watch.ring();
        assert!(watch.arm() && watch.is_ready(), "a ring stays");
        watch.disarm();
        assert!(!watch.is_ready());
    }

    #[test]
    fn busy_sockets_announce_their_input_while_there_is_a_watch() {
        let (cq, member, watch) = watched();
        let is_announced = || {
            for _ in 0..1000 {
                member.deliver(1);
                let _ = cq.progress();
            }
            member.deliver(1);
            let announced = cq.poll_set().has_data();
            let _ = cq.progress();
            announced
        };
        assert!(is_announced());
        drop(watch);
        assert!(!is_announced());
    }

    #[test]
    fn a_queue_that_is_linked_later_is_watched_too() {
        let rnic = Rnic::open(Config::default()).unwrap();
        let [one, other] = [(); 2].map(|()| rnic.create_cq(16).unwrap().shared);
        let watch = Watch::new(&one).unwrap();
        assert!(watch.arm());
        watch.disarm();
        one.link(&other).unwrap();
        let member = InMemory::new(0);
        join(other.poll_set(), &member);
        assert!(watch.arm());
        member.deliver(1);
        assert!(watch.is_ready());
        watch.disarm();
        assert!(watch.arm());
        assert_eq!(member.received(), 1);
    }
}

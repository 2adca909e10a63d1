//! The epoll set on which the background thread sleeps, and the eventfd by which other threads wake it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dgiwarp_memory::socket::NoCancellation;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use parking_lot::Mutex;

use crate::Error;
use crate::driver::device::clock;
use crate::driver::device::event::Event;
use crate::driver::device::fds::leave_low_numbers;

/// Token of the waker's own eventfd.
pub(crate) const WAKE: u64 = u64::MAX;
/// Token of a socket that can take more.
pub(crate) const WRITABLE: u64 = u64::MAX - 1;
/// Token of a task.
pub(crate) const TASK: u64 = u64::MAX - 2;
/// Token of the timer.
pub(crate) const TIMER: u64 = u64::MAX - 3;

/// A background task beside queue pairs: MPA startups, lingering sockets, service ID resolution.
pub(crate) trait Task: std::fmt::Debug + Send + Sync {
    /// Readable while [`progress`](Self::progress) has work.
    fn work_fd(&self) -> BorrowedFd<'_>;
    /// The time of the next call although nothing arrives.
    fn poll_timeout(&self) -> Option<Instant>;
    /// Does the work that is possible now.
    fn progress(&self);
}

/// The epoll set and the eventfd of the background thread.
#[derive(Debug)]
pub(crate) struct Waker {
    epoll: Epoll,
    wake: Event,
    /// End of the thread's sleep, in nanoseconds of the driver's clock; 0 while it is awake.
    wakes_at: AtomicU64,
    timer: FineTimer,
    /// Poll sets that have something to do in the background.
    noted: Mutex<Vec<u64>>,
}

/// Timer for sleeps that end between two milliseconds, in which `epoll_wait(2)` counts. Made with the device: later its descriptor could be the one that a
/// connection needs.
#[derive(Debug)]
struct FineTimer {
    fd: TimerFd,
    /// Time at which it expires, or has expired, in nanoseconds of the driver's clock.
    expires_at: AtomicU64,
}

impl Waker {
    pub(crate) fn new() -> Result<Self, Error> {
        let make = || -> Result<Self, Errno> {
            let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
            let epoll = Epoll(leave_low_numbers(epoll.0));
            let wake = Event::new()?;
            epoll.add(&wake, EpollEvent::new(EpollFlags::EPOLLIN, WAKE))?;
            let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
            let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?;
            // Edge-triggered: nobody has to read the expirations.
            let event = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, TIMER);
            epoll.add(&timer, event)?;
            Ok(Self {
                epoll,
                wake,
                wakes_at: AtomicU64::new(0),
                timer: FineTimer {
                    fd: timer,
                    expires_at: AtomicU64::new(u64::MAX),
                },
                noted: Mutex::default(),
            })
        };
        make().map_err(|errno| Error::system("cannot make an epoll set")(errno.into()))
    }

    /// Wakes the thread.
    pub(crate) fn wake(&self) {
        let _guard = NoCancellation::begin();
        self.wake.ring();
    }

    /// Wakes the thread if it would sleep beyond `nanos`.
    pub(crate) fn wake_before(&self, nanos: u64) {
        if self.wakes_at.load(Ordering::Acquire) > nanos {
            self.wake();
        }
    }

    /// Wakes the thread if it would sleep longer than `time` from now on.
    pub(crate) fn wake_within(&self, time: Duration) {
        self.wake_before(clock::to_nanos(Some(clock::now() + time)));
    }

    /// Notes that a poll set has something to do. The thread is not woken.
    pub(super) fn note(&self, set: u64) {
        self.noted.lock().push(set);
    }

    /// Moves the poll sets that were noted since the last call to the end of `sets`. A set that is noted after [`set_wakes_at`](Self::set_wakes_at) and that this call
    /// misses finds the time that was published there.
    pub(crate) fn take_noted(&self, sets: &mut Vec<u64>) {
        // The lock is taken although nothing may be noted: it orders the times that both sides read.
        sets.append(&mut self.noted.lock());
    }

    #[cfg(test)]
    pub(crate) fn noted(&self) -> Vec<u64> {
        self.noted.lock().clone()
    }

    /// Publishes the end of the next sleep. Deadlines that another thread sets afterwards and that are earlier wake the thread.
    pub(crate) fn set_wakes_at(&self, nanos: u64) {
        self.wakes_at.store(nanos, Ordering::SeqCst);
    }

    /// Ends the next sleep at `nanos` by the timer; `now` is the present time. One that expires before then is left: setting it costs more than the wakeup,
    /// since most deadlines are put off before they come.
    pub(crate) fn expire_at(&self, nanos: u64, now: u64) {
        let expires_at = self.timer.expires_at.load(Ordering::Relaxed);
        if (now..=nanos).contains(&expires_at) {
            return;
        }
        // Zero would disarm it.
        let left = Duration::from_nanos(nanos.saturating_sub(now).max(1));
        let expiration = Expiration::OneShot(TimeSpec::from_duration(left));
        let set = self.timer.fd.set(expiration, TimerSetTimeFlags::empty());
        if set.is_ok() {
            self.timer.expires_at.store(nanos, Ordering::Relaxed);
        }
    }

    /// Sleeps, and returns the events. `None` where the program closed the descriptor of the set.
    pub(crate) fn wait<'a>(
        &self,
        events: &'a mut [EpollEvent],
        timeout: EpollTimeout,
    ) -> Option<&'a [EpollEvent]> {
        let ready = match self.epoll.wait(events, timeout) {
            Ok(ready) => ready,
            Err(Errno::EBADF | Errno::EINVAL) => return None,
            Err(_) => 0,
        };
        self.wakes_at.store(0, Ordering::Release);
        Some(&events[..ready])
    }

    /// Resets the eventfd.
    pub(crate) fn acknowledge(&self) {
        self.wake.clear();
    }

    /// Adds the descriptor of a poll set, for one event. Returns whether that worked.
    pub(crate) fn add_once(&self, fd: BorrowedFd<'_>, token: u64) -> bool {
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLONESHOT;
        self.epoll.add(fd, EpollEvent::new(flags, token)).is_ok()
    }

    /// Waits for one more event of a poll set, or for none.
    pub(crate) fn modify(&self, fd: BorrowedFd<'_>, token: u64, armed: bool) {
        let flags = if armed {
            EpollFlags::EPOLLIN | EpollFlags::EPOLLONESHOT
        } else {
            EpollFlags::empty()
        };
        let _ = self.epoll.modify(fd, &mut EpollEvent::new(flags, token));
    }

    /// Adds the descriptor of a task.
    pub(crate) fn add_task(&self, fd: BorrowedFd<'_>) -> Result<(), Error> {
        self.epoll
            .add(fd, EpollEvent::new(EpollFlags::EPOLLIN, TASK))
            .map_err(|errno| Error::system("cannot watch connections")(errno.into()))
    }

    /// Wakes the thread once, when a socket can take more.
    pub(crate) fn watch_writable(&self, fd: BorrowedFd<'_>) {
        let flags = EpollFlags::EPOLLOUT | EpollFlags::EPOLLONESHOT;
        let mut event = EpollEvent::new(flags, WRITABLE);
        if self.epoll.modify(fd, &mut event) == Err(Errno::ENOENT) {
            let _ = self.epoll.add(fd, event);
        }
    }

    /// A descriptor that is held in reserve.
    pub(crate) fn hold_descriptor(&self) -> io::Result<OwnedFd> {
        self.wake.as_fd().try_clone_to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timer_ends_a_sleep_each_time_and_an_earlier_one_stays() {
        let waker = Waker::new().unwrap();
        let mut events = [EpollEvent::empty(); 4];
        let mut tokens = || {
            let timeout = EpollTimeout::from(60_000_u16);
            let events = waker.wait(&mut events, timeout).unwrap();
            events.iter().map(EpollEvent::data).collect::<Vec<_>>()
        };
        let now = || clock::to_nanos(Some(clock::now()));
        const HOUR: u64 = 3_600_000_000_000;
        for _ in 0..3 {
            let begin = now();
            waker.expire_at(begin + HOUR, begin);
            waker.expire_at(begin + 300_000, begin);
            waker.expire_at(begin + 2 * HOUR, begin);
            assert_eq!(tokens(), [TIMER]);
            assert!(now() >= begin + 300_000);
        }
    }
}

//! Waiting: at descriptors of sockets and of the program, and for other threads that took a completion.

use crate::ffi::fork::generation;
use crate::ffi::poll;
use crate::rsocket::cancellation;
use crate::rsocket::settings::Settings;
use libc::{POLLIN, c_int, pollfd};
use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::unistd;
use parking_lot::Mutex;
use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Descriptors below are the program's: some programs take low ones alone.
const LEAST: RawFd = 1024;

/// Gives a descriptor that programs do not see a high number, where that is allowed.
pub(super) fn leave_low_numbers(fd: OwnedFd) -> OwnedFd {
    dgiwarp_memory::move_up(fd, LEAST)
}

/// How a call waits.
#[derive(Clone, Copy)]
pub(super) struct Waiting {
    pub(super) blocks: bool,
    pub(super) deadline: Option<Instant>,
}

thread_local! {
    static WAKER: RefCell<Option<Waker>> = const { RefCell::new(None) };
}

/// Descriptor at which other threads wake this one.
struct Waker {
    fd: ManuallyDrop<OwnedFd>,
    generation: u32,
}

impl Drop for Waker {
    fn drop(&mut self) {
        // A child of fork(2) may have another file at the number.
        if self.generation == generation() {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.fd) };
        }
    }
}

impl Waker {
    fn new() -> Result<Self, Errno> {
        let fd = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Self {
            fd: ManuallyDrop::new(leave_low_numbers(fd.into())),
            generation: generation(),
        })
    }
}

/// The calling thread's waker. A child of fork(2) does not share its parent's.
pub(super) fn waker() -> Result<RawFd, Errno> {
    let of_thread = WAKER.try_with(|waker| {
        let mut waker = waker.try_borrow_mut().ok()?;
        if let Some(own) = waker.as_ref().filter(|it| it.generation == generation()) {
            return Some(Ok(own.fd.as_raw_fd()));
        }
        Some(Waker::new().map(|own| waker.insert(own).fd.as_raw_fd()))
    });
    match of_thread {
        Ok(Some(waker)) => waker,
        // A destructor of the thread or of the program, after ours, or a signal handler amid this function: the descriptor stays open.
        Ok(None) | Err(_) => Waker::new().map(|it| ManuallyDrop::new(it).fd.as_raw_fd()),
    }
}

/// Threads that sleep until a socket changes, and poll sets that are told.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    wakers: Vec<RawFd>,
    changes: Vec<Arc<Change>>,
}

/// Connections of a poll set that calls on them have changed.
#[derive(Debug)]
pub(super) struct Changes {
    noted: Mutex<Noted>,
    /// Readable while a connection has changed that a thread slept for.
    bell: OwnedFd,
}

#[derive(Debug, Default)]
struct Noted {
    keys: Vec<u64>,
    sleepers: usize,
}

/// A connection of a poll set.
#[derive(Debug)]
pub(super) struct Change {
    changes: Arc<Changes>,
    key: u64,
    /// The key is noted.
    noted: AtomicBool,
}

impl Changes {
    pub(super) fn new() -> Result<Arc<Self>, Errno> {
        let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Arc::new(Self {
            noted: Mutex::default(),
            bell: leave_low_numbers(bell.into()),
        }))
    }

    /// Moves the keys of the connections that have changed to `keys`.
    pub(super) fn take(&self, keys: &mut Vec<u64>) {
        keys.append(&mut self.noted.lock().keys);
    }

    /// The calling thread is about to sleep, and changes ring from now on. Returns whether there are none.
    pub(super) fn begin_sleep(&self) -> bool {
        let mut noted = self.noted.lock();
        noted.sleepers += 1;
        noted.keys.is_empty()
    }

    /// The thread of [`begin_sleep`](Self::begin_sleep) is awake.
    pub(super) fn end_sleep(&self) {
        let mut noted = self.noted.lock();
        noted.sleepers -= 1;
    }

    /// Ends the ringing.
    pub(super) fn settle(&self) {
        let _ = unistd::read(&self.bell, &mut [0; 8]);
    }
}

/// Readable while a connection has changed that a thread slept for.
impl AsFd for Changes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

impl Change {
    pub(super) fn new(changes: &Arc<Changes>, key: u64) -> Arc<Self> {
        Arc::new(Self {
            changes: Arc::clone(changes),
            key,
            noted: AtomicBool::new(false),
        })
    }

    fn note(&self) {
        if self.noted.swap(true, Ordering::SeqCst) {
            return;
        }
        let mut noted = self.changes.noted.lock();
        noted.keys.push(self.key);
        if noted.sleepers > 0 {
            let _ = unistd::write(&self.changes.bell, &1_u64.to_ne_bytes());
        }
    }

    /// The connection is checked next: changes from now on are noted again.
    pub(super) fn begin_check(&self) {
        self.noted.store(false, Ordering::SeqCst);
    }
}

impl Waiters {
    pub(super) fn add(&mut self, waker: RawFd) {
        self.wakers.push(waker);
    }

    pub(super) fn remove(&mut self, waker: RawFd) {
        if let Some(at) = self.wakers.iter().position(|it| *it == waker) {
            self.wakers.swap_remove(at);
        }
    }

    /// Whether no thread sleeps.
    pub(super) fn are_none(&self) -> bool {
        self.wakers.is_empty()
    }

    /// A poll set is told of changes.
    pub(super) fn tell(&mut self, change: &Arc<Change>) {
        self.changes.push(Arc::clone(change));
    }

    /// A poll set is told no more.
    pub(super) fn forget(&mut self, change: &Arc<Change>) {
        self.changes.retain(|it| !Arc::ptr_eq(it, change));
    }

    /// The socket has changed: wakes all threads, and tells all poll sets.
    pub(super) fn wake(&self) {
        self.changes.iter().for_each(|it| it.note());
        for waker in &self.wakers {
            let one = 1_u64.to_ne_bytes();
            // SAFETY: eight octets; the descriptor is open as long as its thread is registered.
            unsafe { libc::write(*waker, one.as_ptr().cast(), one.len()) };
        }
    }
}

/// Longest pause between two looks of a call that polls, in rounds of the processor's hint.
const LONGEST_PAUSE: u32 = 32;

/// A call that polls before it sleeps. It pauses between two looks for longer and longer, up to a microsecond or two: each look takes the lock of the kernel's socket, which then the kernel waits for
/// with what arrives.
pub(super) struct Polling {
    until: Instant,
    pause: u32,
}

impl Polling {
    pub(super) fn until(until: Instant) -> Self {
        Self { until, pause: 1 }
    }

    /// Pauses. Returns whether to look once more.
    pub(super) fn goes_on(&mut self) -> bool {
        if now() >= self.until {
            return false;
        }
        for _ in 0..self.pause {
            std::hint::spin_loop();
        }
        self.pause = (2 * self.pause).min(LONGEST_PAUSE);
        true
    }
}

/// A descriptor to wait at.
pub(super) fn readable(fd: RawFd) -> pollfd {
    pollfd {
        fd,
        events: POLLIN,
        revents: 0,
    }
}

/// Sleeps until one of the descriptors is ready or the waker, which is the last of them, was used; at most until the deadline and for the longest
/// sleep. The result is that of poll(2), or tells that the call is to begin again ([`cancellation`]).
pub(super) fn sleep(
    descriptors: &mut [pollfd],
    deadline: Option<Instant>,
    settings: &Settings,
) -> Result<(), Errno> {
    let longest = settings.wake_up_interval;
    let left = deadline.map_or(longest, |it| {
        it.saturating_duration_since(now()).min(longest)
    });
    let ready = poll(descriptors, millis(left));
    if ready < 0 {
        return Err(Errno::last());
    }
    if ready == 0 && left == longest {
        cancellation::slept_long()?;
    }
    if let Some(last) = descriptors.last()
        && last.revents != 0
    {
        let mut count = [0_u8; 8];
        // SAFETY: room for eight octets.
        unsafe { libc::read(last.fd, count.as_mut_ptr().cast(), count.len()) };
    }
    Ok(())
}

/// Milliseconds, rounded up so that a sleep does not end early.
fn millis(time: Duration) -> c_int {
    c_int::try_from(time.as_micros().div_ceil(1000)).unwrap_or(c_int::MAX)
}

#[expect(clippy::disallowed_methods, reason = "waiting calls have deadlines")]
pub(super) fn now() -> Instant {
    Instant::now()
}

//! Waiting: at descriptors of sockets and of the program, and for other threads that took a completion.

use crate::ffi::poll;
use crate::rsocket::settings::Settings;
use libc::{POLLIN, c_int, pollfd};
use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

/// How a call waits.
#[derive(Clone, Copy)]
pub(super) struct Waiting {
    pub(super) blocks: bool,
    pub(super) deadline: Option<Instant>,
}

thread_local! {
    /// Descriptor at which other threads wake this one.
    static WAKER: Option<EventFd> =
        EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).ok();
}

/// Threads that sleep until a socket changes.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    wakers: Vec<RawFd>,
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

    /// Wakes all of them.
    pub(super) fn wake(&self) {
        for waker in &self.wakers {
            let one = 1_u64.to_ne_bytes();
            // SAFETY: eight octets; the descriptor is open as long as its thread is registered.
            unsafe { libc::write(*waker, one.as_ptr().cast(), one.len()) };
        }
    }
}

/// The calling thread's waker.
pub(super) fn waker() -> Result<RawFd, Errno> {
    WAKER
        .with(|waker| waker.as_ref().map(AsRawFd::as_raw_fd))
        .ok_or(Errno::EMFILE)
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
/// sleep. The result is that of poll(2).
pub(super) fn sleep(
    descriptors: &mut [pollfd],
    deadline: Option<Instant>,
    settings: &Settings,
) -> Result<(), Errno> {
    let longest = settings.wake_up_interval;
    let left = deadline.map_or(longest, |it| {
        it.saturating_duration_since(now()).min(longest)
    });
    if poll(descriptors, millis(left)) < 0 {
        return Err(Errno::last());
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

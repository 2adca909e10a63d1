//! An event that other threads raise for the thread of a session.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

/// The session's end.
#[derive(Debug)]
pub(crate) struct Wake {
    event: Arc<EventFd>,
}

/// The other threads' end. Cloning shares it.
#[derive(Debug, Clone)]
pub(crate) struct Waker {
    event: Arc<EventFd>,
}

impl Wake {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let event = Arc::new(EventFd::from_flags(flags)?);
        Ok(Self { event })
    }

    pub(crate) fn waker(&self) -> Waker {
        let event = Arc::clone(&self.event);
        Waker { event }
    }

    /// Sleeps until the descriptor has one of `flags`, a waker was used, or the time is over.
    pub(crate) fn sleep(
        &self,
        fd: BorrowedFd<'_>,
        flags: PollFlags,
        timeout: Duration,
    ) -> io::Result<()> {
        self.sleep_on(&[(fd, flags)], timeout)
    }

    /// As [`sleep`](Self::sleep), with any number of descriptors.
    pub(crate) fn sleep_on(
        &self,
        waited: &[(BorrowedFd<'_>, PollFlags)],
        timeout: Duration,
    ) -> io::Result<()> {
        let waited = waited.iter().map(|(fd, flags)| PollFd::new(*fd, *flags));
        let event = PollFd::new(self.event.as_fd(), PollFlags::POLLIN);
        let mut fds: Vec<_> = waited.chain([event]).collect();
        // Rounded up, so that it is over when the time is.
        let millis = u16::try_from(timeout.as_millis().saturating_add(1)).unwrap_or(u16::MAX);
        match poll(&mut fds, PollTimeout::from(millis)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        match self.event.read() {
            Ok(_) | Err(Errno::EAGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Waker {
    pub(crate) fn wake(&self) {
        // A counter that is full wakes too.
        let _ = self.event.write(1);
    }
}

//! Counters that wake threads of this crate: eventfd(2) at numbers that are left to it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::unistd;

use crate::driver::device::fds::leave_low_numbers;

/// An eventfd(2) that no program sees: readable while its counter is not zero, and never blocks.
///
/// Some programs have tables as long as the number of their connections, by the numbers of descriptors: the low ones are theirs.
#[derive(Debug)]
pub(crate) struct Event(OwnedFd);

impl Event {
    /// An event that is not readable.
    pub(crate) fn new() -> nix::Result<Self> {
        let fd = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Self(leave_low_numbers(fd.into())))
    }

    /// Makes it readable; it is so already where the counter is full.
    pub(crate) fn ring(&self) {
        let _ = unistd::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Makes it unreadable.
    pub(crate) fn clear(&self) {
        let _ = unistd::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::os::fd::AsRawFd;

    fn is_readable(event: &Event) -> bool {
        let mut fds = [PollFd::new(event.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).unwrap() == 1
    }

    #[test]
    fn an_event_is_readable_until_it_is_cleared_and_leaves_low_numbers() {
        let event = Event::new().unwrap();
        assert!(!is_readable(&event));
        event.ring();
        event.ring();
        assert!(is_readable(&event));
        event.clear();
        assert!(!is_readable(&event));
        event.clear();
        let (soft, _) =
            nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap();
        assert_eq!(event.as_fd().as_raw_fd() >= 1024, soft > 1024);
    }
}

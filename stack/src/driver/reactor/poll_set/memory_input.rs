//! Members whose input is in memory: no descriptor is readable by it unless the sender rings.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

use dgiwarp_memory::socket::NoCancellation;
use nix::sys::epoll::{EpollEvent, EpollFlags};

use crate::driver::device::event::Event;
use crate::driver::reactor::member::{MemberId, NextReceive, Received};
use crate::driver::reactor::poll_set::{PollSet, Poller};

/// Token of the eventfd of members with input that no descriptor announces.
pub(super) const READY: u64 = u64::MAX;

/// Change of a member that the next poll takes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Changed {
    /// Its input comes from elsewhere.
    InputMoved(MemberId),
    /// Its peer asks how often it is polled.
    CountsPolls(MemberId),
}

impl PollSet {
    /// A member's input comes from elsewhere: its socket, in whatever state it was tried, is in the epoll set, and not tried until it is found again.
    pub(crate) fn move_input(&self, member: MemberId, fd: BorrowedFd<'_>) {
        // It may be there.
        let _ = self.watch(member, 0, fd);
        self.has_memory_input.store(true, Ordering::Relaxed);
        self.changed.add(Changed::InputMoved(member));
    }

    /// A member whose input comes through memory is tried on every poll, as long as it is one of few, and polls in vain are counted.
    pub(crate) fn count_polls(&self, member: MemberId) {
        self.changed.add(Changed::CountsPolls(member));
    }

    /// Members whose input comes from elsewhere are not hot any more, and those that count polls are.
    #[cold]
    pub(super) fn take_changes(&self, poller: &mut Poller) {
        let _guard = NoCancellation::begin();
        while let Some(changed) = self.changed.next() {
            match changed {
                Changed::InputMoved(id) => {
                    poller.hot.forget(id);
                    // It may have been parked since: it is not polled now, and has to announce its input.
                    if let Some(member) = self.member(id) {
                        member.want_bells(0, true);
                    }
                }
                Changed::CountsPolls(id) => {
                    if let Some(member) = self.member(id) {
                        poller.hot.warm(id, member);
                    }
                }
            }
        }
    }

    /// A member has input that no descriptor announces: the set is readable until it was received.
    pub(crate) fn add_ready(&self, member: MemberId) {
        self.ready.add(member);
        self.ring_ready();
    }

    /// Makes the set readable until the next poll.
    pub(super) fn ring_ready(&self) {
        let _guard = NoCancellation::begin();
        let make = || {
            let fd = Event::new()?;
            let event = EpollEvent::new(EpollFlags::EPOLLIN, READY);
            self.sockets.add(&fd, event)?;
            Ok::<_, nix::errno::Errno>(fd)
        };
        let fd = match self.ready_fd.get() {
            Some(fd) => Some(fd),
            // Without a descriptor the next poll finds it.
            None => make().ok().map(|fd| self.ready_fd.get_or_init(|| fd)),
        };
        if let Some(fd) = fd {
            fd.ring();
        }
    }

    /// Receives once from each member with input that no descriptor announces. Returns whether something was received, or `None` if there is
    /// something that could not be received now.
    pub(super) fn receive_ready(&self, poller: &mut Poller, next: NextReceive) -> Option<bool> {
        if let Some(fd) = self.ready_fd.get() {
            fd.clear();
        }
        let (mut got, mut left) = (false, false);
        for _ in 0..self.ready.len() {
            let Some(id) = self.ready.next() else {
                break;
            };
            let Some(member) = self.member(id) else {
                continue;
            };
            match member.receive(0, &mut poller.buffer, next) {
                Some(Received::Nothing | Received::Bells) => {}
                // Another thread is at work with it.
                None => {
                    left = true;
                    self.add_ready(id);
                }
                // There may be more.
                Some(received @ (Received::Something | Received::Held | Received::Everything)) => {
                    if received == Received::Held {
                        member.end_burst();
                    }
                    got = true;
                    self.add_ready(id);
                }
            }
        }
        (got || !left).then_some(got)
    }
}

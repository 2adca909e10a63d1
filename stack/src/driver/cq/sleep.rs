//! Waiting for a completion, asleep: the program's thread receives for itself when it wakes.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::driver::cq::CqShared;
use crate::driver::cq::linked_cqs::poll_fds;
use crate::driver::device::clock;

/// How long a waiting thread spins before it sleeps, where there is a core for it.
const SPIN_FOR: Duration = Duration::from_micros(30);

/// What ended a sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slept {
    /// A completion, or the deadline.
    Enough,
    /// A signal handler.
    Interrupted,
}

impl CqShared {
    /// Waits until there is something to take, until `deadline`, or until a signal handler has run.
    pub(crate) fn sleep(&self, deadline: Option<Instant>) -> Slept {
        let spin_until = clock::now() + SPIN_FOR;
        if self.background.may_spin() {
            while clock::now() < spin_until {
                self.progress_all();
                if self.has_completions() {
                    return Slept::Enough;
                }
            }
        }
        let partners = self.live_partners();
        let all = || std::iter::once(self).chain(partners.iter().map(AsRef::as_ref));
        for it in all() {
            it.stop_watching();
            it.sleepers.fetch_add(1, Ordering::SeqCst);
            it.unpark();
        }
        let slept = loop {
            // To the end: what is there makes completions, and the look that finds no more tells peers what they wait for.
            while self.progress_all() == Some(true) && !self.has_completions() {}
            if self.has_completions() {
                break Slept::Enough;
            }
            let timeout = match deadline {
                None => PollTimeout::NONE,
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(clock::now());
                    if left.is_zero() {
                        break Slept::Enough;
                    }
                    // Rounded up, so that the last wait does not end early.
                    let millis = left.as_micros().div_ceil(1000);
                    PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
                }
            };
            if self.poll_sockets(&partners, timeout) == Err(Errno::EINTR) {
                break Slept::Interrupted;
            }
        };
        for it in all() {
            it.sleepers.fetch_sub(1, Ordering::SeqCst);
        }
        slept
    }

    /// Sleeps until there may be something to do here or at a partner.
    fn poll_sockets(&self, partners: &[Arc<Self>], timeout: PollTimeout) -> Result<(), Errno> {
        let own = [
            PollFd::new(self.wake.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.sockets_fd(), PollFlags::POLLIN),
        ];
        let wait = |fds: &mut [PollFd<'_>]| {
            poll(fds, timeout)?;
            if fds.first().and_then(PollFd::any).unwrap_or(false) {
                let _ = self.wake.read();
            }
            Ok(())
        };
        if partners.is_empty() {
            wait(&mut { own })
        } else {
            let mut all: Vec<_> = own.into_iter().chain(poll_fds(partners)).collect();
            wait(&mut all)
        }
    }
}

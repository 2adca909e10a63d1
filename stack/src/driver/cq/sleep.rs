//! Waiting for a completion, asleep: the program's thread receives for itself when it wakes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use smallvec::SmallVec;

use crate::driver::cq::completion_queue::CompletionQueue;
use crate::driver::device::clock;
use crate::driver::reactor::poll_set::PollSet;

/// How long a waiting thread spins before it sleeps, where there is a core for it.
const SPIN_FOR: Duration = Duration::from_micros(30);

/// Reason for the end of a sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slept {
    /// A completion, or the deadline.
    Enough,
    /// A signal handler.
    Interrupted,
}

impl CompletionQueue {
    /// Waits until there is something to take, until `deadline`, or until a signal handler has run.
    pub(crate) fn sleep(&self, deadline: Option<Instant>) -> Slept {
        let spin_until = clock::now() + SPIN_FOR;
        if self.background().may_spin() {
            while clock::now() < spin_until {
                self.progress();
                if self.has_completions() {
                    return Slept::Enough;
                }
            }
        }
        let mut sets = self.linked_sets();
        sets.push(Arc::clone(self.poll_set()));
        self.begin_sleep();
        for set in &sets {
            set.begin_sleep();
        }
        let slept = loop {
            // To the end: input makes completions, and the call that finds no more flushes acknowledgements.
            while self.progress() == Some(true) && !self.has_completions() {}
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
            // Left for the next poll, which may be long in coming.
            let flushes = sets.iter().map(|set| set.flush_before_sleep());
            let goes_on = flushes.fold(false, |any, more| any | more);
            let timeout = if goes_on { PollTimeout::ZERO } else { timeout };
            sets.iter().for_each(|set| set.note_sleep());
            if self.poll_sockets(&sets, timeout) == Err(Errno::EINTR) {
                break Slept::Interrupted;
            }
        };
        for set in &sets {
            set.end_sleep();
        }
        self.end_sleep();
        slept
    }

    /// Sleeps until a completion comes or a socket of the sets is readable.
    fn poll_sockets(&self, sets: &[Arc<PollSet>], timeout: PollTimeout) -> Result<(), Errno> {
        let wake = PollFd::new(self.wake_fd(), PollFlags::POLLIN);
        let mut fds: SmallVec<[PollFd<'_>; 4]> = std::iter::once(wake)
            .chain(
                sets.iter()
                    .map(|set| PollFd::new(set.sockets_fd(), PollFlags::POLLIN)),
            )
            .collect();
        poll(&mut fds, timeout)?;
        if fds.first().and_then(PollFd::any).unwrap_or(false) {
            self.acknowledge_wake();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::reactor::poll_set::tests::{InMemory, join};
    use crate::{Config, Rnic};

    /// Nobody polls while the thread sleeps: output that could go on would wait for the background thread.
    #[test]
    fn all_output_leaves_before_the_thread_sleeps() {
        let rnic = Rnic::open(Config::default()).unwrap();
        let cq = rnic.create_cq(16).unwrap().shared;
        // More than leaves while the thread spins.
        let member = InMemory::new(5000);
        let set = cq.poll_set();
        set.add_unsent(join(set, &member));
        let deadline = clock::now() + Duration::from_secs(1);
        assert_eq!(cq.sleep(Some(deadline)), Slept::Enough);
        assert!(!set.has_unsent());
    }
}

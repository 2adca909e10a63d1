//! Timers of the members of a poll set, and who runs them.

use std::time::Instant;

use dgiwarp_memory::socket::NoCancellation;

use crate::driver::device::clock;
use crate::driver::reactor::member::MemberId;
use crate::driver::reactor::poll_set::PollSet;

/// Time, in nanoseconds, by which the background thread runs timers later than they are due while a program polls.
pub(super) const TIMER_GRACE: u64 = 1_000_000;

impl PollSet {
    /// Sets a member's timer, or clears it.
    pub(crate) fn note_deadline(&self, member: MemberId, deadline: Option<Instant>) {
        let nanos = clock::to_nanos(deadline);
        if self.timers.note(member, nanos) {
            self.note();
            self.waker.wake_before(self.in_background(nanos));
        }
    }

    /// When the first timer is due, or before; `u64::MAX` without any.
    pub(crate) fn deadline(&self) -> u64 {
        self.timers.next()
    }

    /// When the background thread has to run a timer that is due at `deadline`: where a program polls, and runs them itself, later than they are due, so that the thread does not take locks and a
    /// core from it.
    pub(crate) fn in_background(&self, deadline: u64) -> u64 {
        if self.is_polled() {
            deadline.saturating_add(TIMER_GRACE)
        } else {
            deadline
        }
    }

    /// Runs timers that are due in the background thread.
    pub(crate) fn run_timers_in_background(&self) {
        if self.in_background(self.deadline()) <= clock::to_nanos(Some(clock::now())) {
            self.run_timers();
        }
    }

    pub(super) fn run_timers(&self) {
        let deadline = self.timers.next();
        if deadline == u64::MAX {
            return;
        }
        let now = clock::now();
        let nanos = clock::to_nanos(Some(now));
        if nanos < deadline {
            return;
        }
        let _guard = NoCancellation::begin();
        for member in self.timers.take_due(nanos) {
            if let Some(qp) = self.member(member) {
                let next = qp.handle_timeout(now);
                self.timers.note(member, clock::to_nanos(next));
            }
        }
        // The background thread may have planned its sleep meanwhile, when there seemed to be none.
        let next = self.in_background(self.deadline());
        if next != u64::MAX {
            self.note();
            self.waker.wake_before(next);
        }
    }
}

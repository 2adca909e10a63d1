//! Members whose peers wait for an acknowledgement.

use dgiwarp_memory::socket::NoCancellation;

use crate::driver::reactor::member::MemberId;
use crate::driver::reactor::poll_set::PollSet;

impl PollSet {
    /// The peer of a member waits for an acknowledgement. The next message takes it along, or the next poll flushes it; where neither comes, the
    /// background thread does at its next tick.
    pub(crate) fn add_pending_ack(&self, member: MemberId) {
        self.pending_acks.add(member);
        self.note();
    }

    pub(crate) fn has_pending_acks(&self) -> bool {
        self.pending_acks.any()
    }

    /// Flushes acknowledgements: all of them `at_once`, or those that are overdue.
    pub(crate) fn flush_acks(&self, at_once: bool) {
        if !self.pending_acks.any() {
            return;
        }
        let _guard = NoCancellation::begin();
        let turns = self.pending_acks.len();
        for _ in 0..turns {
            let Some(member) = self.pending_acks.next() else {
                break;
            };
            if self
                .member(member)
                .is_some_and(|qp| !qp.flush_acks(at_once))
            {
                self.add_pending_ack(member);
            }
        }
    }
}

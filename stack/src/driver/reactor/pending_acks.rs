//! What peers are to be told that nothing may take along: how much was placed of what they sent.

use crate::driver::device::clock;
use crate::driver::reactor::member::MemberId;
use crate::driver::reactor::poll_set::PollSet;
use dgiwarp_engine::connected::LATE;

impl PollSet {
    /// A peer may wait to be told something that the next poll, or the program's next post, tells it. If neither comes, the background thread
    /// does, at its next tick.
    pub(crate) fn add_owing(&self, member: MemberId) {
        self.owing.add(member);
    }

    /// Tells the peers, all of them `at_once`, or those that have waited long enough.
    pub(crate) fn settle(&self, at_once: bool) {
        if !self.owing.any() {
            return;
        }
        let turns = self.owing.len();
        for _ in 0..turns {
            let Some(member) = self.owing.next() else {
                break;
            };
            if self.member(member).is_some_and(|qp| !qp.settle(at_once)) {
                self.add_owing(member);
            }
        }
    }

    /// A peer is to be told something that it does not wait for: if nothing that leaves takes it along, then much later.
    pub(crate) fn add_owing_late(&self, member: MemberId) {
        self.owing_late.add((member, clock::coarse()));
    }

    /// Tells the peers what has waited for so long.
    pub(crate) fn settle_late(&self) {
        if !self.owing_late.any() {
            return;
        }
        let now = clock::coarse();
        while let Some((member, _)) = self
            .owing_late
            .next_if(|(_, since)| now.saturating_duration_since(*since) >= LATE)
        {
            if let Some(qp) = self.member(member) {
                qp.settle_late();
            }
        }
    }

    /// Whether there is something of that kind.
    pub(crate) fn owes_late(&self) -> bool {
        self.owing_late.any()
    }
}

//! Rate limit of Terminates.

use std::hash::Hash;
use std::time::{Duration, Instant};

use dgiwarp_ddp::Msn;
use rustc_hash::FxHashMap;

/// Terminates to one peer within [`PERIOD`].
const MAX_REPORTS: u32 = 10;
const PERIOD: Duration = Duration::from_secs(1);
/// Peers with a count. A new peer gets no Terminate while the table is full.
const MAX_PEERS: usize = 1024;

/// Counts the Terminates of the last second.
#[derive(Debug)]
pub(super) struct Reports<K> {
    counted: FxHashMap<K, (Instant, u32)>,
    msn: Msn,
}

impl<K: Copy + Eq + Hash> Reports<K> {
    pub(super) fn new(msn: u32) -> Self {
        Self {
            counted: FxHashMap::default(),
            msn: Msn::new(msn),
        }
    }

    /// The MSN of the next Terminate.
    pub(super) fn msn(&self) -> Msn {
        self.msn
    }

    /// Counts a Terminate as queued.
    pub(super) fn sent(&mut self) {
        self.msn = self.msn.next();
    }

    /// Whether another Terminate may be sent to a peer now; it is counted then.
    pub(super) fn may_report(&mut self, now: Instant, peer: K) -> bool {
        if self.counted.len() >= MAX_PEERS && !self.counted.contains_key(&peer) {
            self.counted
                .retain(|_, (since, _)| now.saturating_duration_since(*since) < PERIOD);
            if self.counted.len() >= MAX_PEERS {
                return false;
            }
        }
        let (since, count) = self.counted.entry(peer).or_insert((now, 0));
        if now.saturating_duration_since(*since) >= PERIOD {
            *since = now;
            *count = 0;
        }
        *count += 1;
        *count <= MAX_REPORTS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_clock::origin;

    #[test]
    fn ten_a_second_and_a_bounded_number_of_peers() {
        let now = origin();
        let mut reports = Reports::new(7);
        let told = (0..100).filter(|_| reports.may_report(now, 0)).count();
        assert_eq!(told, 10);
        assert!(!reports.may_report(now + PERIOD / 2, 0));
        assert!(reports.may_report(now + PERIOD, 0));
        let told = (1..5000)
            .filter(|&peer| reports.may_report(now, peer))
            .count();
        assert_eq!(told, MAX_PEERS - 1);
        let just_before = now + PERIOD - Duration::from_millis(1);
        assert!(!reports.may_report(just_before, 4999));
        assert!(reports.may_report(just_before, 1), "it is counted");
        // All but the one that was told in the second period are forgotten with the first.
        let told = (5000..7000)
            .filter(|&peer| reports.may_report(now + PERIOD, peer))
            .count();
        assert_eq!(told, MAX_PEERS - 1);
        assert!(reports.may_report(now + PERIOD * 2, 4999));
    }

    #[test]
    fn each_terminate_has_the_next_msn() {
        let mut reports = Reports::<u8>::new(u32::MAX);
        assert_eq!(reports.msn(), Msn::new(u32::MAX));
        reports.sent();
        assert_eq!(reports.msn(), Msn::new(0));
    }
}

//! The choice between the lane and one-sided copies.

use std::time::{Duration, Instant};

/// Posts without a poll between that make a stream.
const STREAM: u32 = 4;
/// Time between polls of a peer that polls: about that of a copy.
const POLLS_EVERY: Duration = Duration::from_micros(2);
/// Time from when a peer was found not to poll until that is probed again: at first, and at most.
const PROBE_AFTER: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(10)];

/// Choice of an end between its lane and one-sided copies, for Writes and Reads of memory that the peer has granted.
///
/// A peer whose program polls takes what the lane brings in less time than a copy through the kernel takes; one that does not is better left alone. A lane that
/// nothing comes by is polled no more, so that a message that goes by it probes now and then. A program
/// that posts many Writes at one time is better served by the lane, where they go one behind the other while the peer wakes up.
#[derive(Debug)]
pub struct CopyChoice {
    /// Polls of the peer at the last check, and its time.
    seen: Option<(u32, Instant)>,
    /// Time of the next probe, while the peer does not poll.
    probe: Option<Instant>,
    /// Time to the probe behind that.
    probe_after: Duration,
    /// Polls of this end's program at the last post.
    own_polls: u64,
    /// Posts since that poll, and those between the two polls before.
    posts: u32,
    posts_before: u32,
}

impl Default for CopyChoice {
    fn default() -> Self {
        Self {
            seen: None,
            probe: None,
            probe_after: PROBE_AFTER[0],
            own_polls: 0,
            posts: 0,
            posts_before: 0,
        }
    }
}

impl CopyChoice {
    /// Whether the next Write, or Read if it is no `write`, is to be copied. `own_polls` and `peers_polls` count the polls of both programs, the peer's those of its
    /// lane in vain.
    #[inline]
    pub fn copies(
        &mut self,
        write: bool,
        own_polls: u64,
        peers_polls: u32,
        now: impl FnOnce() -> Instant,
    ) -> bool {
        if write && self.is_stream(own_polls) {
            return false;
        }
        let now = now();
        let Some((polls, at)) = self.seen.replace((peers_polls, now)) else {
            return false;
        };
        let polls = peers_polls.wrapping_sub(polls);
        if POLLS_EVERY.saturating_mul(polls) >= now.saturating_duration_since(at) {
            self.probe = None;
            self.probe_after = PROBE_AFTER[0];
            return false;
        }
        match self.probe {
            None => {
                self.probe = Some(now + self.probe_after);
                self.probe_after = (2 * self.probe_after).min(PROBE_AFTER[1]);
                true
            }
            Some(due) if due <= now => {
                self.probe = None;
                false
            }
            Some(_) => true,
        }
    }

    fn is_stream(&mut self, own_polls: u64) -> bool {
        if own_polls != self.own_polls {
            self.own_polls = own_polls;
            self.posts_before = self.posts;
            self.posts = 0;
        }
        self.posts = self.posts.saturating_add(1);
        self.posts >= STREAM || self.posts_before >= STREAM
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connected::tests::now;

    /// Writes of a program that polls between them.
    struct Writes {
        choice: CopyChoice,
        own_polls: u64,
        peers_polls: u32,
        now: Instant,
    }

    impl Writes {
        fn new() -> Self {
            Self {
                choice: CopyChoice::default(),
                own_polls: 0,
                peers_polls: u32::MAX - 2,
                now: now(),
            }
        }

        /// The next Write so many microseconds later, before which the peer has polled so often.
        fn next(&mut self, micros: u64, polls: u32) -> bool {
            self.own_polls += 1;
            self.peers_polls = self.peers_polls.wrapping_add(polls);
            self.now += Duration::from_micros(micros);
            let now = self.now;
            self.choice
                .copies(true, self.own_polls, self.peers_polls, || now)
        }
    }

    #[test]
    fn a_peer_that_polls_gets_all_by_the_lane_and_one_that_does_not_copies() {
        let mut writes = Writes::new();
        assert!(!writes.next(0, 0), "nothing is known before the first one");
        assert!((0..1000).all(|_| writes.next(6, 2)));
        assert!((0..1000).all(|_| !writes.next(6, 3)), "a poll each 2 µs");
        assert!((0..1000).all(|_| writes.next(6, 0)));
    }

    /// A peer that does not poll is probed later and later, and one that did in between as at first.
    #[test]
    fn a_peer_that_does_not_poll_is_probed_now_and_then() {
        let mut writes = Writes::new();
        let probes = |writes: &mut Writes, millis: u64| {
            let by_lane = (0..millis).filter(|_| !writes.next(1000, 0));
            by_lane.count()
        };
        assert_eq!(probes(&mut writes, 50), 1, "the first one");
        assert_eq!(probes(&mut writes, 100), 1);
        assert_eq!(probes(&mut writes, 100), 0);
        assert_eq!(probes(&mut writes, 100), 1);
        let later = probes(&mut writes, 60_000);
        assert!((6..=12).contains(&later), "{later}");
        assert!(!writes.next(6, 100));
        assert_eq!(probes(&mut writes, 150), 1);
    }

    /// Many Writes between two polls go by the lane, and so do the first ones of the next time; Reads do not.
    #[test]
    fn a_stream_of_writes_goes_by_the_lane() {
        let mut choice = CopyChoice::default();
        let mut now = now();
        let mut copies = |write: bool, own_polls: u64| {
            now += Duration::from_micros(3);
            choice.copies(write, own_polls, 0, || now)
        };
        assert!(!copies(true, 1));
        for polls in 2..10 {
            assert!((0..3).all(|_| copies(true, polls)));
        }
        assert!((0..3).all(|_| copies(true, 10)));
        assert!((0..50).all(|_| !copies(true, 10)));
        assert!(!copies(true, 11), "the last time it was a stream");
        assert!((0..50).all(|_| copies(false, 11)));
        assert!(copies(true, 12), "the last time there was one");
    }
}

//! Requests that a target has not answered whole, and what its responses reveal about them (§7.1).
//!
//! A target answers the requests of one requester in their order, and each in the order of its offsets. A response is evidence that whatever was
//! to be sent before it, and is missing, is lost.

use std::time::{Duration, Instant};

use dgiwarp_ddp::RangeMap;

use super::target::ReadKey;

/// Later responses after which what is missing before them counts as lost, as long as the network is found to keep the order.
const THRESHOLD: u8 = 3;
/// Threshold of a network that changes the order most.
const MAX_THRESHOLD: u8 = 64;
/// Responses that may be lost in a row between the last ones to earlier requests and the first one to a repeated request, for that one to be
/// recognized.
const MAX_OWED: u32 = 8;
/// Round-trip times after which the threshold is halved again.
const CALM: u32 = 16;

/// A request that the target has not answered whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ask {
    pub(super) key: ReadKey,
    /// Range of the message.
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) at: Instant,
    /// All octets before it are there, or are to be requested again; at least `start`.
    pub(super) front: u32,
    /// End of the last octets that are there, at least `front`.
    pub(super) reached: u32,
    /// Responses that left behind octets that are missing.
    pub(super) evidence: u8,
    /// The request carried a cookie: requests without one have a queue of their own at the target.
    pub(super) validated: bool,
    /// Octets of the range were requested before.
    pub(super) repeated: bool,
    /// Requested because nothing came for a while: nothing that left before its response is still on the way.
    pub(super) is_probe: bool,
    /// A response has come.
    pub(super) answered: bool,
    /// Answered whole, or given up.
    pub(super) is_over: bool,
}

impl Ask {
    /// An empty Read's.
    fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Whether octets that have left the target are missing.
    pub(super) fn misses_some(&self) -> bool {
        self.front < self.reached || self.is_empty()
    }

    fn covers(&self, key: ReadKey, start: u32, end: u32) -> bool {
        self.key == key && self.start <= start && end <= self.end
    }

    /// Octets that have not left the target, as far as responses show.
    fn owes(&self) -> u32 {
        self.end - self.reached
    }
}

/// Index of the request that a response answers: the latest one that it can.
///
/// The first answer to a range is unambiguous. A repeated request is not answered in far less than the shortest time seen (as RFC 8985 §6.2), nor
/// while much of earlier requests is owed: the response then is a late one to an earlier request.
pub(super) fn answered_by(
    asks: &[Ask],
    now: Instant,
    least: Duration,
    (key, start, end): (ReadKey, u32, u32),
) -> Option<usize> {
    let few = MAX_OWED * (end - start);
    (0..asks.len()).rev().find(|&at| {
        let ask = &asks[at];
        if !ask.covers(key, start, end) {
            return false;
        }
        if !ask.repeated {
            return true;
        }
        let in_time = now.saturating_duration_since(ask.at) >= least / 2;
        let earlier = asks[..at].iter().filter(|it| it.validated == ask.validated);
        let owed = earlier.map(Ask::owes).fold(0, u32::saturating_add);
        in_time && (ask.is_probe || owed <= few)
    })
}

/// Effect of a response on the request that it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answered {
    /// It was the next one.
    Next,
    /// Octets before it are missing.
    Ahead,
    /// It was given up: the network does not keep the order.
    Late,
}

impl Ask {
    /// Takes note of a response.
    pub(super) fn answer(&mut self, start: u32, end: u32, map: &RangeMap) -> Answered {
        self.reached = self.reached.max(end);
        if end <= self.front {
            return Answered::Late;
        }
        if start > self.front {
            self.evidence = self.evidence.saturating_add(1);
            return Answered::Ahead;
        }
        self.front = contiguous(map, self.front.max(end)).min(self.end);
        self.is_over = self.front == self.end;
        self.reached = self.reached.max(self.front);
        if self.front == self.reached {
            self.evidence = 0;
        }
        Answered::Next
    }
}

/// End of the octets that are there from `from` on.
fn contiguous(map: &RangeMap, from: u32) -> u32 {
    let ranges = map.ranges();
    let at = ranges.partition_point(|range| range.1 < from);
    match ranges.get(at) {
        Some(&(start, end)) if start <= from => end,
        Some(_) | None => from,
    }
}

/// Number of later responses that prove a loss. It adapts to networks that do not keep the order (as RFC 8985 §6.2).
#[derive(Debug, Clone, Copy)]
pub(super) struct Reordering {
    threshold: u8,
    /// Time of the latest adaptation.
    since: Option<Instant>,
}

impl Default for Reordering {
    fn default() -> Self {
        Self {
            threshold: THRESHOLD,
            since: None,
        }
    }
}

impl Reordering {
    /// The threshold at this time.
    pub(super) fn threshold(&mut self, now: Instant, round_trip: Duration) -> u8 {
        if let Some(since) = self.since
            && now.saturating_duration_since(since) > round_trip * CALM
        {
            self.threshold = (self.threshold / 2).max(THRESHOLD);
            self.since = (self.threshold > THRESHOLD).then_some(now);
        }
        self.threshold
    }

    /// Octets came that were given up. Once in a round-trip time, the threshold doubles.
    pub(super) fn found(&mut self, now: Instant, round_trip: Duration) {
        let recently = |since| now.saturating_duration_since(since) < round_trip;
        if !self.since.is_some_and(recently) {
            self.threshold = self.threshold.saturating_mul(2).min(MAX_THRESHOLD);
            self.since = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_clock::origin;

    const KEY: ReadKey = ReadKey {
        slot: 0,
        sink_stag: 1,
    };

    fn ask(start: u32, end: u32) -> Ask {
        Ask {
            key: KEY,
            start,
            end,
            at: origin(),
            front: start,
            reached: start,
            evidence: 0,
            validated: true,
            repeated: false,
            is_probe: false,
            answered: false,
            is_over: false,
        }
    }

    fn micros(count: u64) -> Duration {
        Duration::from_micros(count)
    }

    #[test]
    fn responses_in_order_leave_no_evidence() {
        let (mut one, mut map) = (ask(10, 40), RangeMap::new());
        for start in [10, 20, 30] {
            map.insert(start, start + 10).unwrap();
            assert_eq!(one.answer(start, start + 10, &map), Answered::Next);
            assert_eq!((one.front, one.evidence), (start + 10, 0));
        }
    }

    #[test]
    fn a_response_ahead_is_evidence_until_the_hole_is_filled() {
        let (mut one, mut map) = (ask(0, 60), RangeMap::new());
        for (start, answered) in [(10, Answered::Ahead), (20, Answered::Ahead)] {
            map.insert(start, start + 10).unwrap();
            assert_eq!(one.answer(start, start + 10, &map), answered);
        }
        assert_eq!((one.front, one.reached, one.evidence), (0, 30, 2));
        map.insert(40, 50).unwrap();
        assert_eq!(one.answer(40, 50, &map), Answered::Ahead);
        map.insert(0, 10).unwrap();
        assert_eq!(one.answer(0, 10, &map), Answered::Next);
        // The hole behind has its evidence still.
        assert_eq!((one.front, one.reached, one.evidence), (30, 50, 3));
        map.insert(30, 40).unwrap();
        assert_eq!(one.answer(30, 40, &map), Answered::Next);
        assert_eq!((one.front, one.reached, one.evidence), (50, 50, 0));
        assert_eq!(one.answer(20, 30, &map), Answered::Late);
    }

    #[test]
    fn the_latest_request_that_can_be_meant_is_answered() {
        let older = ask(0, 100);
        let now = older.at + micros(1000);
        let repeat = Ask {
            start: 10,
            end: 20,
            at: older.at + micros(990),
            repeated: true,
            ..older
        };
        let other_range = Ask {
            reached: 150,
            ..ask(100, 200)
        };
        let asks = [
            Ask {
                reached: 100,
                ..older
            },
            other_range,
            repeat,
        ];
        let by =
            |now, range: (u32, u32)| answered_by(&asks, now, micros(100), (KEY, range.0, range.1));
        assert_eq!(by(now, (0, 10)), Some(0));
        assert_eq!(by(now, (100, 110)), Some(1));
        assert_eq!(by(now, (10, 20)), Some(0), "too early for the repeat");
        assert_eq!(by(now + micros(40), (10, 20)), Some(2));
        assert_eq!(
            by(now + micros(40), (10, 15)),
            Some(0),
            "50 octets are owed"
        );
        assert_eq!(by(now, (190, 210)), None);
        let other = ReadKey { slot: 1, ..KEY };
        assert_eq!(answered_by(&asks, now, micros(100), (other, 0, 10)), None);
    }

    #[test]
    fn the_threshold_doubles_once_in_a_round_trip_and_halves_in_calm() {
        let (mut reordering, start, rtt) = (Reordering::default(), origin(), micros(100));
        assert_eq!(reordering.threshold(start, rtt), 3);
        for passed in [0, 50, 99, 100, 300] {
            reordering.found(start + micros(passed), rtt);
        }
        let at = start + micros(300);
        assert_eq!(reordering.threshold(at, rtt), 24);
        for round in 4..40 {
            reordering.found(start + micros(100 * round), rtt);
        }
        let at = start + micros(3900);
        assert_eq!(reordering.threshold(at, rtt), 64);
        let mut found = Vec::new();
        for round in 1..=8 {
            found.push(reordering.threshold(at + micros(1601 * round), rtt));
        }
        assert_eq!(found, [32, 16, 8, 4, 3, 3, 3, 3]);
    }
}

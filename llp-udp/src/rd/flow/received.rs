//! Packet numbers that arrived, and when they are acknowledged (§6.1).

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use crate::rd::frame::{Ack, EcnCounts, MAX_RANGES};

/// Ranges that are remembered.
const RANGES: usize = 64;
/// Numbers this far behind the largest count as received.
const NUMBERS: u64 = 65_536;
/// Datagrams that elicit an acknowledgement and may wait for one.
const WAITING: u32 = 32;

/// Numbers that arrived in one association.
#[derive(Debug, Default)]
pub(in crate::rd) struct Received {
    /// Smallest and largest number, ascending, with gaps between.
    ranges: VecDeque<(u64, u64)>,
    /// All numbers below count as received.
    floor: u64,
    /// Arrival and time field of the datagram with the largest number.
    largest: Option<(Instant, u32)>,
    /// Eliciting datagrams since the last acknowledgement.
    waiting: u32,
    /// When an acknowledgement is due; `None` while nothing waits.
    due: Option<Instant>,
    /// It is due as soon as the caller finds no input.
    held: bool,
    ecn: Option<EcnCounts>,
    /// The peer knows all ranges below.
    known: u64,
    /// An acknowledgement up to a number below this one may lack a number that arrived late.
    settled: u64,
}

/// Mark of a received datagram (RFC 3168).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ecn {
    /// The host does not report marks.
    #[default]
    Unknown,
    /// Not ECN-capable.
    NotEct,
    /// ECT(0).
    Ect0,
    /// ECT(1).
    Ect1,
    /// Congestion experienced.
    Ce,
}

/// Numbers of an association that rests: its peer sends no datagram again, so that those below the last range count as received.
#[derive(Debug, Clone, Copy)]
pub(in crate::rd) struct Rested {
    range: (u64, u64),
    largest: Option<(Instant, u32)>,
    ecn: Option<EcnCounts>,
    known: u64,
    settled: u64,
}

impl From<Rested> for Received {
    fn from(rested: Rested) -> Self {
        Self {
            ranges: VecDeque::from([rested.range]),
            floor: rested.range.0,
            largest: rested.largest,
            ecn: rested.ecn,
            known: rested.known,
            settled: rested.settled,
            ..Self::default()
        }
    }
}

impl Received {
    /// Numbers to go on from, with nothing to be acknowledged; `None` before the first.
    pub(in crate::rd) fn rest(&self) -> Option<Rested> {
        Some(Rested {
            range: *self.ranges.back()?,
            largest: self.largest,
            ecn: self.ecn,
            known: self.known,
            settled: self.settled,
        })
    }

    /// Whether the number arrived, or is too old to tell.
    pub(in crate::rd) fn contains(&self, number: u64) -> bool {
        let Some(&(first, largest)) = self.ranges.back() else {
            return false;
        };
        if number > largest {
            return false;
        }
        if number >= first || number < self.floor || largest - number > NUMBERS {
            return true;
        }
        let range = self.ranges.get(self.position(number));
        range.is_some_and(|range| range.0 <= number)
    }

    /// Position of the first range that does not end below the number.
    fn position(&self, number: u64) -> usize {
        self.ranges.partition_point(|range| range.1 < number)
    }

    /// The largest number.
    pub(in crate::rd) fn largest(&self) -> Option<u64> {
        self.ranges.back().map(|range| range.1)
    }

    /// When the datagram with the largest number arrived.
    pub(in crate::rd) fn arrived(&self) -> Option<Instant> {
        self.largest.map(|(arrived, _)| arrived)
    }

    /// Adds a number that is not contained. Returns whether it is the next after the largest.
    pub(in crate::rd) fn add(&mut self, now: Instant, number: u64, time: u32) -> bool {
        let next = match self.ranges.back_mut() {
            Some(last) if last.1 + 1 == number => {
                last.1 = number;
                self.largest = Some((now, time));
                return true;
            }
            Some(last) => last.1 + 1,
            None => 0,
        };
        if number >= next {
            self.largest = Some((now, time));
        } else {
            self.known = self.known.min(number);
            self.settled = next;
        }
        let at = self.position(number);
        let joins_below = at
            .checked_sub(1)
            .filter(|below| self.ranges.get(*below).is_some_and(|it| it.1 + 1 == number));
        let joins_above = self.ranges.get(at).is_some_and(|it| it.0 == number + 1);
        match (joins_below, joins_above) {
            (Some(below), true) => {
                let above = self.ranges.remove(at);
                if let (Some(range), Some((_, end))) = (self.ranges.get_mut(below), above) {
                    range.1 = end;
                }
            }
            (Some(below), false) => {
                if let Some(range) = self.ranges.get_mut(below) {
                    range.1 = number;
                }
            }
            (None, true) => {
                if let Some(range) = self.ranges.get_mut(at) {
                    range.0 = number;
                }
            }
            (None, false) => self.ranges.insert(at, (number, number)),
        }
        if self.ranges.len() > RANGES {
            self.ranges.pop_front();
            self.floor = self.ranges.front().map_or(0, |range| range.0);
        }
        number == next
    }

    /// Counts a mark.
    pub(in crate::rd) fn count(&mut self, ecn: Ecn) {
        let counts = match ecn {
            Ecn::Unknown => return,
            Ecn::NotEct | Ecn::Ect0 | Ecn::Ect1 | Ecn::Ce => self.ecn.get_or_insert_default(),
        };
        let count = match ecn {
            Ecn::Unknown | Ecn::NotEct => return,
            Ecn::Ect0 => &mut counts.ect0,
            Ecn::Ect1 => &mut counts.ect1,
            Ecn::Ce => &mut counts.ce,
        };
        *count = count.wrapping_add(1);
    }

    /// An eliciting datagram was accepted: it is acknowledged after `delay` or, with `at_once`, now. Where a delay is given instead, the acknowledgement that is due at
    /// once is [held](Self::is_held), at most for that time.
    pub(in crate::rd) fn elicited(
        &mut self,
        now: Instant,
        delay: Duration,
        (at_once, hold): (bool, Option<Duration>),
    ) {
        self.waiting += 1;
        let due = match (at_once, hold) {
            _ if self.waiting >= WAITING => now,
            (true, None) => now,
            (true, Some(hold)) => {
                self.held = true;
                now + hold
            }
            (false, _) => now + delay,
        };
        self.due = Some(self.due.map_or(due, |before| before.min(due)));
    }

    /// Holds what is due with an acknowledgement until the caller finds no input, at most until `latest`. `false` where more than one datagram waits for an
    /// acknowledgement, in a stream, whose sender must not wait for credit; or where nothing arrived.
    pub(in crate::rd) fn hold(&mut self, latest: Instant) -> bool {
        if self.waiting > 1 || self.largest.is_none() {
            return false;
        }
        self.held = true;
        self.due = Some(self.due.map_or(latest, |before| before.min(latest)));
        true
    }

    /// Whether the acknowledgement waits for the caller to find no input.
    pub(in crate::rd) const fn is_held(&self) -> bool {
        self.held
    }

    /// When an acknowledgement is due.
    pub(in crate::rd) const fn due(&self) -> Option<Instant> {
        self.due
    }

    /// The acknowledgement, of at most `ranges` ranges, and whether it has all that the peer may not know. Nothing waits for one afterwards.
    pub(in crate::rd) fn acknowledge(
        &mut self,
        now: Instant,
        ranges: usize,
    ) -> Option<(Ack, bool)> {
        let (arrived, echo) = self.largest?;
        let mut descending = self.ranges.iter().rev().map(|&(from, to)| from..=to);
        let first: RangeInclusive<u64> = descending.next()?;
        let delay = now.saturating_duration_since(arrived).as_micros();
        let mut ack = Ack::new(first, u32::try_from(delay).unwrap_or(u32::MAX), echo);
        let mut unknown = descending.take_while(|range| *range.end() >= self.known);
        for range in unknown.by_ref().take(ranges.min(MAX_RANGES) - 1) {
            ack.add(&range);
        }
        let whole = unknown.next().is_none();
        ack.ecn = self.ecn;
        self.waiting = 0;
        self.due = None;
        self.held = false;
        Some((ack, whole))
    }

    /// The peer got an acknowledgement with all ranges up to this number. They are not repeated (§6.1).
    pub(in crate::rd) fn on_known(&mut self, largest: u64) {
        if largest >= self.settled {
            self.known = self.known.max(largest + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[expect(
        clippy::disallowed_methods,
        reason = "any instant serves as the origin"
    )]
    fn origin() -> Instant {
        Instant::now()
    }

    proptest! {
        #[test]
        fn ranges_are_the_set_of_numbers(numbers in proptest::collection::vec(0u64..90, 1..80)) {
            let now = origin();
            let mut received = Received::default();
            let mut set = BTreeSet::new();
            for number in numbers {
                prop_assert_eq!(received.contains(number), set.contains(&number));
                if set.contains(&number) {
                    continue;
                }
                let next = set.last().map_or(0, |last| last + 1);
                prop_assert_eq!(received.add(now, number, 0), number == next);
                set.insert(number);
                prop_assert_eq!(received.largest(), set.last().copied());
            }
            let (ack, _) = received.acknowledge(now, 32).unwrap();
            let acked: BTreeSet<u64> = ack.ranges().flatten().collect();
            if received.ranges.len() <= 32 {
                prop_assert_eq!(&acked, &set);
            }
            prop_assert!(acked.is_subset(&set));
        }
    }

    #[test]
    fn memory_is_bounded_and_old_numbers_count_as_received() {
        let now = origin();
        let mut received = Received::default();
        for number in 0..200 {
            received.add(now, 2 * number, 0);
        }
        assert_eq!(received.ranges.len(), RANGES);
        assert!(received.contains(1) && received.contains(270));
        assert!(!received.contains(273) && received.contains(272));
        received.add(now, 100_000, 0);
        assert!(received.contains(100_000 - NUMBERS - 1));
        assert!(!received.contains(100_000 - NUMBERS));
    }

    #[test]
    fn acknowledgements_are_delayed_and_not_for_long() {
        let now = origin();
        let ms = Duration::from_millis(1);
        let mut received = Received::default();
        assert_eq!(received.acknowledge(now, 32), None);
        assert!(received.add(now, 0, 77));
        received.elicited(now, ms, (false, None));
        assert_eq!(received.due(), Some(now + ms));
        received.elicited(now + ms / 2, ms, (false, None));
        assert_eq!(received.due(), Some(now + ms), "the first one counts");
        let (ack, _) = received.acknowledge(now + ms, 32).unwrap();
        assert_eq!((ack.delay, ack.echo, ack.ecn), (1000, 77, None));
        assert_eq!(received.due(), None);
        received.elicited(now, ms, (true, None));
        assert_eq!(received.due(), Some(now));
        received.acknowledge(now, 32);
        for _ in 0..WAITING - 1 {
            received.elicited(now, ms, (false, None));
            assert_eq!(received.due(), Some(now + ms));
        }
        received.elicited(now, ms, (false, None));
        assert_eq!(received.due(), Some(now));
        for number in 1..40 {
            received.add(now, 3 * number, 5);
        }
        assert_eq!(received.acknowledge(now, 7).unwrap().0.ranges().count(), 7);
        received.add(now, 2, 9);
        assert_eq!(received.acknowledge(now, 7).unwrap().0.echo, 5);
    }

    #[test]
    fn an_acknowledgement_is_held_for_a_while_and_not_for_many() {
        let now = origin();
        let ms = Duration::from_millis(1);
        let mut received = Received::default();
        received.add(now, 0, 0);
        received.elicited(now, ms, (true, Some(2 * ms)));
        assert_eq!(
            (received.is_held(), received.due()),
            (true, Some(now + 2 * ms))
        );
        received.acknowledge(now, 1).unwrap();
        assert_eq!((received.is_held(), received.due()), (false, None));
        for number in 1..WAITING {
            received.add(now, number.into(), 0);
            received.elicited(now, ms, (true, Some(ms)));
            assert_eq!(received.due(), Some(now + ms));
        }
        received.elicited(now, ms, (true, Some(ms)));
        assert_eq!(received.due(), Some(now));
    }

    #[test]
    fn credit_is_held_beside_one_acknowledgement_and_not_in_a_stream() {
        let now = origin();
        let ms = Duration::from_millis(1);
        let mut received = Received::default();
        assert!(!received.hold(now + ms), "nothing arrived");
        received.add(now, 0, 0);
        assert!(received.hold(now + ms));
        assert_eq!((received.is_held(), received.due()), (true, Some(now + ms)));
        assert!(received.hold(now + 2 * ms));
        assert_eq!(received.due(), Some(now + ms), "the first one counts");
        received.acknowledge(now, 1).unwrap();
        for number in 1..=2 {
            assert!(received.hold(now + ms));
            received.add(now, number, 0);
            received.elicited(now, ms, (false, None));
        }
        assert!(!received.hold(now + ms), "two wait");
    }

    fn ranges(received: &mut Received, most: usize) -> (Vec<RangeInclusive<u64>>, bool) {
        let (ack, whole) = received.acknowledge(origin(), most).unwrap();
        (ack.ranges().collect(), whole)
    }

    #[test]
    fn ranges_that_the_peer_knows_are_not_repeated() {
        let now = origin();
        let mut received = Received::default();
        for number in [0, 2, 4, 6] {
            received.add(now, number, 0);
        }
        assert_eq!(ranges(&mut received, 3), (vec![6..=6, 4..=4, 2..=2], false));
        assert_eq!(
            ranges(&mut received, 4),
            (vec![6..=6, 4..=4, 2..=2, 0..=0], true)
        );
        received.on_known(4);
        received.add(now, 7, 0);
        assert_eq!(ranges(&mut received, 3), (vec![6..=7], true));
        received.on_known(7);
        received.add(now, 9, 0);
        // The largest range is always there, and those of an acknowledgement that was made before a late arrival.
        assert_eq!(ranges(&mut received, 3), (vec![9..=9], true));
        received.add(now, 3, 0);
        let all = vec![9..=9, 6..=7, 2..=4];
        assert_eq!(ranges(&mut received, 3), (all.clone(), true));
        received.on_known(9);
        assert_eq!(ranges(&mut received, 3), (all, true));
        received.add(now, 10, 0);
        received.on_known(10);
        assert_eq!(ranges(&mut received, 3), (vec![9..=10], true));
    }

    #[test]
    fn marks_are_counted() {
        let now = origin();
        let mut received = Received::default();
        received.add(now, 0, 0);
        received.count(Ecn::Unknown);
        assert_eq!(received.acknowledge(now, 1).unwrap().0.ecn, None);
        for ecn in [Ecn::NotEct, Ecn::Ect0, Ecn::Ce, Ecn::Ce, Ecn::Ect1] {
            received.count(ecn);
        }
        let counts = EcnCounts {
            ect0: 1,
            ect1: 1,
            ce: 2,
        };
        assert_eq!(received.acknowledge(now, 1).unwrap().0.ecn, Some(counts));
    }
}

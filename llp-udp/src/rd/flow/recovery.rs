//! Datagrams in flight, and which of them are lost (§6.2): RFC 9002 with the reordering window of RACK.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use super::rtt::Rtt;
use crate::rd::frame::Ack;

/// Distance in numbers at which a datagram is lost, until reordering was seen.
const PACKET_THRESHOLD: u64 = 3;
/// Lost datagrams that are remembered, to notice that they arrived after all.
const LOST: usize = 256;
/// Skipped numbers that are remembered.
const SKIPPED: usize = 64;
/// Largest factor of the reordering window, in quarters of the minimum round-trip time.
const MOST_REORDERING: u32 = 64;
/// Round trips after which the reordering window halves.
const CALM: u32 = 16;

/// A datagram that elicits an acknowledgement.
#[derive(Debug)]
pub(in crate::rd) struct Sent<C> {
    pub(in crate::rd) number: u64,
    pub(in crate::rd) at: Instant,
    pub(in crate::rd) octets: u32,
    /// Contents; taken when it is acknowledged or lost.
    contents: Option<C>,
}

/// A datagram that left flight.
#[derive(Debug)]
pub(in crate::rd) struct Left<C> {
    pub(in crate::rd) at: Instant,
    pub(in crate::rd) octets: u32,
    pub(in crate::rd) contents: C,
}

/// An acknowledgement of numbers that were never sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::rd) struct NeverSent;

/// Result of an acknowledgement beside the datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::rd) struct Acked {
    /// Time from sending the largest number, if it is newly acknowledged.
    pub(in crate::rd) sample: Option<Duration>,
    /// A round trip ended: a datagram of it is acknowledged that was sent behind its beginning.
    pub(in crate::rd) round: bool,
}

/// Datagrams of one association in flight.
#[derive(Debug)]
pub(in crate::rd) struct Recovery<C> {
    next: u64,
    skipped: VecDeque<u64>,
    /// In ascending order of number and time; the first is in flight.
    sent: VecDeque<Sent<C>>,
    /// Octets of datagrams in flight.
    in_flight: u64,
    largest_acked: Option<u64>,
    /// Lost numbers, ascending.
    lost: VecDeque<u64>,
    reordered: bool,
    /// Reordering window in quarters of the minimum round-trip time.
    reordering: u32,
    /// Round trips since the window grew.
    calm: u32,
    /// Number at which the present round trip ends, and datagrams acknowledged and lost in it.
    round: (u64, u32, u32),
    /// Datagrams acknowledged and lost in the round trip before.
    last_round: (u32, u32),
    last_sent: Option<Instant>,
}

/// Numbers of an association that rests, and the reordering of its path.
#[derive(Debug, Clone, Copy)]
pub(in crate::rd) struct Rested {
    next: u64,
    largest_acked: Option<u64>,
    reordered: bool,
    reordering: u32,
}

impl<C> From<Rested> for Recovery<C> {
    fn from(rested: Rested) -> Self {
        Self {
            next: rested.next,
            largest_acked: rested.largest_acked,
            reordered: rested.reordered,
            reordering: rested.reordering,
            round: (rested.next, 0, 0),
            ..Self::new()
        }
    }
}

impl<C> Recovery<C> {
    /// Numbers to go on from, with nothing in flight.
    pub(in crate::rd) const fn rest(&self) -> Rested {
        Rested {
            next: self.next,
            largest_acked: self.largest_acked,
            reordered: self.reordered,
            reordering: self.reordering,
        }
    }

    pub(in crate::rd) fn new() -> Self {
        Self {
            next: 0,
            skipped: VecDeque::new(),
            sent: VecDeque::new(),
            in_flight: 0,
            largest_acked: None,
            lost: VecDeque::new(),
            reordered: false,
            reordering: 1,
            calm: 0,
            round: (0, 0, 0),
            last_round: (0, 0),
            last_sent: None,
        }
    }

    /// Number of the next datagram.
    pub(in crate::rd) const fn next(&self) -> u64 {
        self.next
    }

    pub(in crate::rd) const fn in_flight(&self) -> u64 {
        self.in_flight
    }

    pub(in crate::rd) fn is_in_flight(&self, number: u64) -> bool {
        self.position(number)
            .and_then(|at| self.sent.get(at))
            .is_some_and(|sent| sent.contents.is_some())
    }

    /// When the last eliciting datagram left.
    pub(in crate::rd) const fn last_sent(&self) -> Option<Instant> {
        self.last_sent
    }

    /// Never uses the next number.
    pub(in crate::rd) fn skip(&mut self) {
        if self.skipped.len() == SKIPPED {
            self.skipped.pop_front();
        }
        self.skipped.push_back(self.next);
        self.next += 1;
    }

    /// Whether a number of the range was skipped, as far as that is remembered.
    fn has_skipped(&self, range: &RangeInclusive<u64>) -> bool {
        let at = self.skipped.partition_point(|it| it < range.start());
        self.skipped.get(at).is_some_and(|it| it <= range.end())
    }

    /// A datagram leaves with the next number; `contents` of one that elicits an acknowledgement.
    pub(in crate::rd) fn on_sent(&mut self, now: Instant, octets: u32, contents: Option<C>) {
        let number = self.next;
        self.next += 1;
        if contents.is_some() {
            self.in_flight += u64::from(octets);
            self.last_sent = Some(now);
            self.sent.push_back(Sent {
                number,
                at: now,
                octets,
                contents,
            });
        }
    }

    fn position(&self, number: u64) -> Option<usize> {
        self.sent
            .binary_search_by_key(&number, |sent| sent.number)
            .ok()
    }

    /// Takes a datagram out of flight that is neither acknowledged nor lost.
    pub(in crate::rd) fn withdraw(&mut self, number: u64) -> Option<C> {
        let at = self.position(number)?;
        let sent = self.sent.get_mut(at)?;
        let contents = sent.contents.take()?;
        self.in_flight -= u64::from(sent.octets);
        self.pop();
        Some(contents)
    }

    /// Takes all datagrams out of flight.
    pub(in crate::rd) fn withdraw_all(&mut self, mut each: impl FnMut(C)) {
        self.in_flight = 0;
        for sent in self.sent.drain(..) {
            sent.contents.into_iter().for_each(&mut each);
        }
    }

    fn pop(&mut self) {
        while self.sent.front().is_some_and(|it| it.contents.is_none()) {
            self.sent.pop_front();
        }
    }

    /// Handles an acknowledgement; `each` gets the datagrams that are acknowledged for the first time.
    ///
    /// # Errors
    /// [`NeverSent`]: nothing was changed.
    pub(in crate::rd) fn on_ack(
        &mut self,
        now: Instant,
        ack: &Ack,
        mut each: impl FnMut(Left<C>),
    ) -> Result<Acked, NeverSent> {
        if ack.largest() >= self.next || ack.ranges().any(|range| self.has_skipped(&range)) {
            return Err(NeverSent);
        }
        let mut outcome = Acked::default();
        for range in ack.ranges() {
            let (low, high) = (*range.start(), *range.end());
            let spurious = self.lost.iter().position(|lost| range.contains(lost));
            if spurious.is_some() {
                self.lost.retain(|lost| !range.contains(lost));
                self.reordered = true;
                self.reordering = (self.reordering * 2).min(MOST_REORDERING);
                self.calm = 0;
            }
            let start = self.sent.partition_point(|sent| sent.number < low);
            for sent in self.sent.range_mut(start..) {
                if sent.number > high {
                    break;
                }
                let Some(contents) = sent.contents.take() else {
                    continue;
                };
                self.in_flight -= u64::from(sent.octets);
                let number = Some(sent.number);
                if self.largest_acked.max(number) != number {
                    self.reordered = true;
                }
                if sent.number == ack.largest() {
                    outcome.sample = Some(now.saturating_duration_since(sent.at));
                }
                self.round.1 += 1;
                outcome.round |= sent.number >= self.round.0;
                each(Left {
                    at: sent.at,
                    octets: sent.octets,
                    contents,
                });
            }
        }
        self.largest_acked = self.largest_acked.max(Some(ack.largest()));
        self.pop();
        if outcome.round {
            self.last_round = (self.round.1, self.round.2);
            self.round = (self.next, 0, 0);
            self.calm += 1;
            if self.calm >= CALM {
                self.calm = 0;
                self.reordering = (self.reordering / 2).max(1);
            }
        }
        Ok(outcome)
    }

    fn loss_delay(&self, rtt: &Rtt, granularity: Duration) -> Duration {
        let window = (rtt.minimum() / 4 * self.reordering).min(rtt.smoothed());
        rtt.largest() + window.max(granularity)
    }

    /// When the next datagram will be lost, if no acknowledgement comes.
    pub(in crate::rd) fn loss_time(&self, rtt: &Rtt, granularity: Duration) -> Option<Instant> {
        let first = self.sent.front()?;
        (first.number < self.largest_acked?).then(|| first.at + self.loss_delay(rtt, granularity))
    }

    /// Takes the next lost datagram out of flight.
    pub(in crate::rd) fn next_lost(
        &mut self,
        now: Instant,
        rtt: &Rtt,
        granularity: Duration,
    ) -> Option<Left<C>> {
        let largest = self.largest_acked?;
        let delay = self.loss_delay(rtt, granularity);
        let reordered = self.reordered;
        let sent = self.sent.front_mut()?;
        let by_number = !reordered && sent.number + PACKET_THRESHOLD <= largest;
        let by_time = sent.number < largest && sent.at + delay <= now;
        if !by_number && !by_time {
            return None;
        }
        let left = Left {
            at: sent.at,
            octets: sent.octets,
            contents: sent.contents.take()?,
        };
        self.in_flight -= u64::from(left.octets);
        if self.lost.len() == LOST {
            self.lost.pop_front();
        }
        self.lost.push_back(sent.number);
        self.round.2 += 1;
        self.pop();
        Some(left)
    }

    /// The largest number of those that were lost of late.
    pub(in crate::rd) fn last_lost(&self) -> Option<u64> {
        self.lost.back().copied()
    }

    /// Whether at least one of ten datagrams of this or the last round trip was lost.
    pub(in crate::rd) const fn loses_much(&self) -> bool {
        let (acked, lost) = self.last_round;
        let (acked, lost) = (acked + self.round.1, lost + self.round.2);
        lost >= 4 && lost * 10 >= acked + lost
    }

    /// Contents of the oldest datagram in flight.
    pub(in crate::rd) fn oldest(&self) -> Option<&C> {
        self.sent.front()?.contents.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const GRANULARITY: Duration = Duration::from_micros(100);

    #[expect(
        clippy::disallowed_methods,
        reason = "any instant serves as the origin"
    )]
    fn origin() -> Instant {
        Instant::now()
    }

    struct Bench {
        now: Instant,
        rtt: Rtt,
        recovery: Recovery<u64>,
    }

    impl Bench {
        fn new() -> Self {
            let mut rtt = Rtt::new(MS);
            rtt.sample(8 * MS, Duration::ZERO);
            Self {
                now: origin(),
                rtt,
                recovery: Recovery::new(),
            }
        }

        fn send(&mut self, count: u64) {
            for _ in 0..count {
                let number = self.recovery.next();
                self.recovery.on_sent(self.now, 1000, Some(number));
            }
        }

        fn ack(&mut self, first: RangeInclusive<u64>) -> (Acked, Vec<u64>) {
            let mut acked = Vec::new();
            let outcome = self
                .recovery
                .on_ack(self.now, &Ack::new(first, 0, 0), |left| {
                    acked.push(left.contents);
                });
            (outcome.unwrap(), acked)
        }

        fn lost(&mut self) -> Vec<u64> {
            let mut lost = Vec::new();
            while let Some(left) = self.recovery.next_lost(self.now, &self.rtt, GRANULARITY) {
                lost.push(left.contents);
            }
            lost
        }
    }

    #[test]
    fn three_later_numbers_make_a_loss_while_nothing_is_reordered() {
        let mut bench = Bench::new();
        bench.send(5);
        assert_eq!(bench.recovery.in_flight(), 5000);
        assert_eq!(bench.recovery.last_sent(), Some(bench.now));
        assert!(bench.recovery.is_in_flight(4) && !bench.recovery.is_in_flight(5));
        assert_eq!(bench.recovery.loss_time(&bench.rtt, GRANULARITY), None);
        assert!(bench.lost().is_empty());
        assert_eq!(bench.ack(2..=2).1, [2]);
        assert!(bench.lost().is_empty());
        // A round trip and a quarter of the minimum.
        let loss_time = bench.recovery.loss_time(&bench.rtt, GRANULARITY);
        assert_eq!(loss_time, Some(bench.now + 10 * MS));
        assert_eq!(bench.ack(3..=3).1, [3]);
        assert_eq!(bench.lost(), [0]);
        assert_eq!(bench.recovery.in_flight(), 2000);
        assert_eq!(bench.recovery.oldest(), Some(&1));
        bench.now += 10 * MS - Duration::from_nanos(1);
        assert!(bench.lost().is_empty());
        bench.now += Duration::from_nanos(1);
        assert_eq!(bench.lost(), [1], "and 4 was sent behind the largest");
    }

    #[test]
    fn a_datagram_that_arrives_after_all_widens_the_window() {
        let mut bench = Bench::new();
        bench.send(4);
        bench.ack(3..=3);
        assert_eq!(bench.lost(), [0]);
        assert!(bench.ack(0..=0).1.is_empty());
        assert!(bench.lost().is_empty(), "numbers are no sign any more");
        let loss_time = bench.recovery.loss_time(&bench.rtt, GRANULARITY);
        assert_eq!(loss_time, Some(bench.now + 12 * MS), "half of the minimum");
        for _ in 0..10 {
            bench.recovery.lost.push_back(0);
            bench.ack(0..=0);
        }
        let loss_time = bench.recovery.loss_time(&bench.rtt, GRANULARITY);
        assert_eq!(loss_time, Some(bench.now + 16 * MS), "one round trip");
        assert_eq!(bench.recovery.reordering, MOST_REORDERING);
        for _ in 0..CALM {
            bench.send(1);
            let last = bench.recovery.next() - 1;
            assert!(bench.ack(last..=last).0.round);
        }
        assert_eq!(bench.recovery.reordering, MOST_REORDERING / 2);
    }

    #[test]
    fn reordering_without_loss_is_seen() {
        let mut bench = Bench::new();
        bench.send(6);
        bench.ack(2..=2);
        assert!(!bench.recovery.reordered);
        bench.ack(1..=1);
        bench.ack(5..=5);
        assert!(bench.lost().is_empty());
    }

    #[test]
    fn numbers_that_were_not_sent_are_a_violation() {
        let mut bench = Bench::new();
        bench.send(2);
        bench.recovery.skip();
        bench.send(1);
        assert_eq!(bench.recovery.next(), 4);
        let mut on_ack = |first| {
            let ack = Ack::new(first, 0, 0);
            bench.recovery.on_ack(bench.now, &ack, |_| ())
        };
        assert_eq!(on_ack(0..=4), Err(NeverSent));
        assert_eq!(on_ack(4..=4), Err(NeverSent));
        assert_eq!(on_ack(1..=3), Err(NeverSent));
        let outcome = on_ack(3..=3).unwrap();
        assert_eq!(outcome.sample, Some(Duration::ZERO));
        for _ in 0..100 {
            bench.recovery.skip();
        }
        assert_eq!(bench.recovery.skipped.len(), SKIPPED);
    }

    #[test]
    fn a_sample_is_of_the_largest_number_alone() {
        let mut bench = Bench::new();
        bench.send(2);
        bench.now += 3 * MS;
        assert_eq!(bench.ack(1..=1).0.sample, Some(3 * MS));
        assert_eq!(bench.ack(0..=1).0.sample, None);
        bench.recovery.on_sent(bench.now, 50, None);
        assert_eq!(bench.ack(2..=2).0, Acked::default());
        assert_eq!(bench.recovery.in_flight(), 0);
        assert_eq!(bench.recovery.oldest(), None);
    }

    /// RFC 9002: a sample needs the largest number, and a range may have one of several.
    #[test]
    fn a_range_is_acknowledged_from_its_first_number_to_its_last() {
        let mut bench = Bench::new();
        bench.send(6);
        assert_eq!(bench.ack(2..=4).1, [2, 3, 4]);
        assert_eq!(bench.ack(1..=5).1, [1, 5]);
        assert_eq!(bench.recovery.in_flight(), 1000);
    }

    #[test]
    fn a_range_that_begins_or_ends_with_a_skipped_number_is_a_violation() {
        for (range, possible) in [(0..=2, false), (2..=4, false), (3..=5, true), (0..=1, true)] {
            let mut bench = Bench::new();
            bench.send(2);
            bench.recovery.skip();
            bench.send(3);
            let ack = Ack::new(range, 0, 0);
            let acked = bench.recovery.on_ack(bench.now, &ack, |_| ());
            assert_eq!(acked.is_ok(), possible, "{ack}");
        }
    }

    #[test]
    fn lost_numbers_are_remembered_one_by_one_and_256_at_most() {
        let mut bench = Bench::new();
        assert_eq!(bench.recovery.last_lost(), None);
        bench.send(5);
        bench.ack(4..=4);
        assert_eq!(bench.lost(), [0, 1]);
        assert_eq!(bench.recovery.last_lost(), Some(1));
        // One that arrived after all is no loss, the other one is.
        bench.ack(1..=1);
        assert_eq!(bench.recovery.lost, [0]);
        let mut bench = Bench::new();
        bench.send(310);
        bench.ack(309..=309);
        assert_eq!(bench.lost().len(), 307);
        assert_eq!(bench.recovery.lost.len(), LOST);
        assert_eq!(bench.recovery.lost.front(), Some(&(307 - 256)));
    }

    /// Four at least, and a tenth of those of this round trip and the last.
    #[test]
    fn losses_of_two_round_trips_are_counted() {
        for (sent, much) in [(40, true), (41, false)] {
            let mut bench = Bench::new();
            bench.send(sent);
            bench.ack(4..=sent - 1);
            assert_eq!(bench.lost(), [0, 1, 2, 3]);
            assert_eq!(bench.recovery.loses_much(), much, "{sent}");
            for number in [sent, sent + 1] {
                bench.send(1);
                bench.ack(number..=number);
            }
            assert!(!bench.recovery.loses_much(), "two round trips ago");
        }
        let mut bench = Bench::new();
        bench.send(6);
        bench.ack(5..=5);
        assert_eq!(bench.lost(), [0, 1, 2]);
        assert!(!bench.recovery.loses_much(), "three");
    }

    #[test]
    fn withdrawn_datagrams_are_no_loss() {
        let mut bench = Bench::new();
        bench.send(3);
        assert_eq!(bench.recovery.withdraw(1), Some(1));
        assert_eq!(bench.recovery.withdraw(1), None);
        assert_eq!(bench.recovery.in_flight(), 2000);
        assert_eq!(bench.ack(0..=0).1, [0]);
        let mut all = Vec::new();
        bench.recovery.withdraw_all(|number| all.push(number));
        assert_eq!(all, [2]);
        assert_eq!(bench.recovery.in_flight(), 0);
    }

    #[test]
    fn much_loss_is_a_tenth() {
        let mut recovery = Recovery::<()>::new();
        for (last, present, much) in [
            ((36, 4), (0, 0), true),
            ((37, 4), (0, 0), false),
            ((0, 0), (36, 4), true),
            ((20, 2), (16, 2), true),
            ((1, 3), (0, 0), false),
        ] {
            recovery.last_round = last;
            recovery.round = (0, present.0, present.1);
            assert_eq!(recovery.loses_much(), much, "{last:?} {present:?}");
        }
    }
}

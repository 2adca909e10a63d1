//! Share of time for answering peers: Read Responses, cookies, Terminates.
//!
//! A requester that reads without end must not keep datagrams of others waiting, nor what the program itself posts. Requesters
//! are served in turn, a train each ([`Responder`](dgiwarp_rdmap::datagram::read::Responder)), and have turns by class. Validated ones
//! come first; while much arrives, all of them together get a quarter of the time. Unvalidated ones, whose requests cost nothing to forge,
//! share a quarter of the time, however little else there is to do: a flood of them leaves the time to others.
//! Once it is used up they wait on a timer, so that they keep no thread awake.

use std::time::{Duration, Instant};

use dgiwarp_rdmap::datagram::read::Class;

/// Most trains of one turn of validated requesters.
const VALIDATED_TRAINS: usize = 8;
/// Octets of responses after which such a turn ends where nothing else arrives: two of the longest trains.
const IDLE_OCTETS: usize = 65_536;
/// Limit of a turn while much arrives, octets: one of the longest trains.
const BUSY_OCTETS: usize = 32_768;
/// Pause after a turn while much arrives, in times of its duration.
const PAUSE: u32 = 3;
/// Most trains of one turn of unvalidated requesters.
const UNVALIDATED_TRAINS: usize = 8;
/// Inverse of the part of the time that unvalidated requesters share.
const PART: u32 = 4;
/// Time whose part unvalidated requesters may use at once.
const BURST: Duration = Duration::from_millis(8);
/// Shortest wait of unvalidated requesters once their part is used up.
const MIN_WAIT: Duration = Duration::from_micros(50);
/// Most trains of one turn without responses.
const OWN_TRAINS: usize = 32;
/// Longest time for which a train counts. A thread that was preempted spent the rest elsewhere.
const MAX_TRAIN_TIME: Duration = Duration::from_micros(100);

/// Output allowed in one turn.
#[derive(Debug, Clone, Copy)]
pub(super) struct Turn {
    /// Classes that are answered.
    pub(super) classes: &'static [Class],
    /// Most trains.
    pub(super) trains: usize,
    /// Octets of responses after which the turn ends.
    pub(super) octets: usize,
    /// Posted messages take turns with the responses.
    pub(super) with_posted: bool,
}

impl Turn {
    /// Everything, for a QP without regard to shares.
    pub(super) const OF_ALL: Self = Self {
        classes: &Class::ALL,
        ..Self::WITHOUT_RESPONSES
    };
    const OF_VALIDATED: Self = Self {
        classes: &[Class::Validated],
        trains: VALIDATED_TRAINS,
        octets: IDLE_OCTETS,
        with_posted: true,
    };
    const OF_UNVALIDATED: Self = Self {
        classes: &[Class::Unvalidated],
        trains: UNVALIDATED_TRAINS,
        octets: usize::MAX,
        with_posted: false,
    };
    pub(super) const WITHOUT_RESPONSES: Self = Self {
        classes: &[],
        trains: OWN_TRAINS,
        octets: usize::MAX,
        with_posted: true,
    };
}

/// The turns of one call of the driver: at most one of each class, and one of posted messages.
#[derive(Debug)]
pub struct Round {
    is_busy: bool,
    next: Option<Stage>,
    /// Posted messages had their turn.
    posted_served: bool,
}

#[derive(Debug, Clone, Copy)]
enum Stage {
    Validated,
    Unvalidated,
    Posted,
}

impl Round {
    pub(super) fn new(is_busy: bool) -> Self {
        Self {
            is_busy,
            next: Some(Stage::Validated),
            posted_served: false,
        }
    }
}

/// Decides when peers are answered, and how much at a time.
#[derive(Debug, Default)]
pub(super) struct ResponseShare {
    /// While much arrives, no response to a validated requester leaves before.
    next: Option<Instant>,
    /// When unvalidated requesters will have had exactly their part of the time.
    even: Option<Instant>,
    /// End of the wait of unvalidated requesters.
    waits: Option<Instant>,
}

impl ResponseShare {
    /// The next turn of a round, at `now`, if one is left. `has_output` returns whether a class has something to be answered.
    pub(super) fn next_turn(
        &mut self,
        round: &mut Round,
        now: Instant,
        has_output: impl Fn(Class) -> bool,
    ) -> Option<Turn> {
        loop {
            match round.next? {
                Stage::Validated => {
                    round.next = Some(Stage::Unvalidated);
                    let waits = round.is_busy && self.next.is_some_and(|next| now < next);
                    if !waits && has_output(Class::Validated) {
                        round.posted_served = true;
                        let octets = if round.is_busy {
                            BUSY_OCTETS
                        } else {
                            IDLE_OCTETS
                        };
                        return Some(Turn {
                            octets,
                            ..Turn::OF_VALIDATED
                        });
                    }
                }
                Stage::Unvalidated => {
                    round.next = Some(Stage::Posted);
                    if has_output(Class::Unvalidated) && self.admits_unvalidated(now) {
                        return Some(Turn::OF_UNVALIDATED);
                    }
                }
                Stage::Posted => {
                    round.next = None;
                    if !round.posted_served {
                        return Some(Turn::WITHOUT_RESPONSES);
                    }
                }
            }
        }
    }

    fn admits_unvalidated(&mut self, now: Instant) -> bool {
        self.handle_timeout(now);
        if self.waits.is_none()
            && let Some(even) = self.even.filter(|even| *even > now + BURST)
        {
            self.waits = Some((now + MIN_WAIT).max(even - BURST));
        }
        self.waits.is_none()
    }

    /// A turn is over.
    pub(super) fn spent(&mut self, turn: &Turn, began: Instant, ended: Instant) {
        let most = MAX_TRAIN_TIME * u32::try_from(turn.trains).unwrap_or(u32::MAX);
        let took = ended.saturating_duration_since(began).min(most);
        match turn.classes {
            [Class::Validated] => self.next = Some(ended + took * PAUSE),
            [Class::Unvalidated] => {
                let even = self.even.map_or(began, |even| even.max(began));
                self.even = Some(even + took * PART);
            }
            _ => {}
        }
    }

    /// Whether unvalidated requesters wait for time.
    pub(super) fn holds_unvalidated(&self) -> bool {
        self.waits.is_some()
    }

    /// When that wait ends.
    #[inline]
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.waits
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        self.waits = self.waits.filter(|until| now < *until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(
        clippy::disallowed_methods,
        reason = "any instant serves as the origin"
    )]
    fn origin() -> Instant {
        Instant::now()
    }

    /// Turns of one round in which both classes have output, each of `took`.
    fn round(
        share: &mut ResponseShare,
        now: &mut Instant,
        is_busy: bool,
        took: Duration,
    ) -> Vec<&'static [Class]> {
        let mut round = Round::new(is_busy);
        let mut turns = Vec::new();
        while let Some(turn) = share.next_turn(&mut round, *now, |_| true) {
            let began = *now;
            // Posted messages take no time here.
            *now += if turn.classes.is_empty() {
                Duration::ZERO
            } else {
                took
            };
            share.spent(&turn, began, *now);
            turns.push(turn.classes);
        }
        turns
    }

    const BOTH: [&[Class]; 2] = [&[Class::Validated], &[Class::Unvalidated]];

    #[test]
    fn responses_get_a_quarter_of_a_busy_time() {
        let mut share = ResponseShare::default();
        let start = origin();
        let (mut now, mut spent) = (start, Duration::ZERO);
        for turn in 0..10_000u64 {
            let took = Duration::from_micros(1 + turn % 40);
            let mut round = Round::new(true);
            let began = now;
            now += took;
            while let Some(turn) = share.next_turn(&mut round, began, |it| it == Class::Validated) {
                if turn.classes == [Class::Validated] {
                    share.spent(&turn, began, now);
                    spent += took;
                }
            }
        }
        let all = now - start;
        assert!(
            spent * 4 <= all + Duration::from_micros(40),
            "{spent:?} of {all:?}"
        );
        assert!(spent * 6 >= all, "{spent:?} of {all:?}");
    }

    #[test]
    fn validated_requesters_are_first_and_wait_only_while_much_arrives() {
        let mut share = ResponseShare::default();
        let mut now = origin();
        let took = Duration::from_micros(10);
        assert_eq!(round(&mut share, &mut now, false, took), BOTH);
        assert_eq!(round(&mut share, &mut now, false, took), BOTH);
        let posted: &[Class] = &[];
        let paused = round(&mut share, &mut now, true, took);
        assert_eq!(paused, [BOTH[1], posted], "and what is posted never waits");
        now += took * PAUSE;
        assert_eq!(round(&mut share, &mut now, true, took), BOTH);
    }

    /// A quarter of the time and no more, in whatever pieces it is spent.
    #[test]
    fn unvalidated_requesters_share_a_small_part() {
        for (is_busy, micros, pause) in [
            (false, 10, 3),
            (true, 10, 3),
            (true, 700, 50),
            (false, 700, 50),
        ] {
            let took = Duration::from_micros(micros);
            let mut share = ResponseShare::default();
            let start = origin();
            let (mut now, mut spent) = (start, Duration::ZERO);
            while now < start + Duration::from_secs(2) {
                let turns = round(&mut share, &mut now, is_busy, took);
                spent += took * u32::from(turns.contains(&BOTH[1]));
                now += Duration::from_micros(pause);
                share.handle_timeout(now);
            }
            let all = now - start;
            assert!(spent * PART <= all + BURST * 2, "{spent:?} of {all:?}");
            assert!(spent * (PART + PART / 2) >= all, "{spent:?} of {all:?}");
        }
    }

    #[test]
    fn unvalidated_requesters_wait_on_a_timer() {
        let mut share = ResponseShare::default();
        let mut now = origin();
        let took = Duration::from_micros(100);
        while !share.holds_unvalidated() {
            assert_eq!(share.poll_timeout(), None);
            round(&mut share, &mut now, false, took);
        }
        let until = share.poll_timeout().unwrap();
        assert!(until > now - took && until < now + took * PART);
        share.handle_timeout(until - Duration::from_nanos(1));
        assert!(share.holds_unvalidated());
        share.handle_timeout(until);
        assert!(!share.holds_unvalidated());
    }

    /// A thread that loses the processor in a turn has not answered all that time.
    #[test]
    fn a_turn_counts_for_no_longer_than_its_trains_may_take() {
        let mut share = ResponseShare::default();
        let mut now = origin();
        let preempted = Duration::from_secs(1);
        assert_eq!(round(&mut share, &mut now, false, preempted), BOTH);
        now += Duration::from_millis(10);
        assert_eq!(round(&mut share, &mut now, true, preempted), BOTH);
    }
}

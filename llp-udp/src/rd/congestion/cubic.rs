//! CUBIC (RFC 9438) with HyStart++ (RFC 9406), in octets and microseconds.

use std::time::{Duration, Instant};

use super::Delivered;
use crate::rd::flow::rtt::Rtt;

/// Round trips of conservative slow start before it ends.
const CONSERVATIVE_ROUNDS: u32 = 5;
/// Samples that a round trip needs before its smallest counts.
const SAMPLES: u32 = 8;

/// Share of the minimum round-trip time up to which a path has no queue, for a loss in slow start.
const EMPTY: u32 = 16;

/// Slow start that watches the round-trip time.
#[derive(Debug, Clone, Copy, Default)]
struct HyStart {
    last_minimum: Option<Duration>,
    minimum: Option<Duration>,
    samples: u32,
    /// Round trips left of conservative slow start, and the smallest sample at its beginning; `None` where a loss was.
    conservative: Option<(u32, Option<Duration>)>,
}

#[derive(Debug)]
pub(in crate::rd) struct Cubic {
    datagram: u64,
    minimum: u64,
    window: u64,
    /// Window at which slow start ends.
    threshold: u64,
    /// Window before the last reduction.
    largest: u64,
    /// When growth from the last reduction began; `None` until the first acknowledgement behind it.
    begin: Option<Instant>,
    /// Window at that time.
    first: u64,
    /// Window that Reno would have, in this period of growth.
    reno: u64,
    /// Octets acknowledged that did not make up a datagram of growth.
    spare: u64,
    reno_spare: u64,
    /// Datagrams that left up to here belong to the last reduction.
    reduced: Option<Instant>,
    hystart: HyStart,
}

impl Cubic {
    pub(super) const fn new(datagram: u64, initial: u64, minimum: u64) -> Self {
        Self {
            datagram,
            minimum,
            window: initial,
            threshold: u64::MAX,
            largest: 0,
            begin: None,
            first: 0,
            reno: 0,
            spare: 0,
            reno_spare: 0,
            reduced: None,
            hystart: HyStart {
                last_minimum: None,
                minimum: None,
                samples: 0,
                conservative: None,
            },
        }
    }

    pub(super) fn set_datagram(&mut self, datagram: u64, minimum: u64) {
        self.datagram = datagram;
        self.minimum = minimum;
        self.window = self.window.max(minimum);
    }

    pub(super) const fn window(&self) -> u64 {
        self.window
    }

    pub(super) const fn in_slow_start(&self) -> bool {
        self.window < self.threshold
    }

    pub(super) fn on_ack(&mut self, now: Instant, delivered: &Delivered, rtt: &Rtt) {
        if self.in_slow_start() {
            self.watch(delivered, rtt);
        }
        let recovering = self
            .reduced
            .is_some_and(|reduced| delivered.sent <= reduced);
        if !delivered.limited || recovering {
            return;
        }
        if self.in_slow_start() {
            let divisor = if self.hystart.conservative.is_some() {
                4
            } else {
                1
            };
            self.window += delivered.octets / divisor;
            return;
        }
        let begin = *self.begin.get_or_insert_with(|| {
            self.largest = self.largest.max(self.window);
            self.first = self.window;
            self.reno = self.window;
            now
        });
        let at = now.saturating_duration_since(begin) + rtt.smoothed();
        let target = self.target(at).min(self.window + self.window / 2);
        // Growth per window acknowledged: up to the target, and one datagram in Reno's pace at least.
        self.reno_spare += delivered.octets;
        while self.reno_spare >= self.reno {
            self.reno_spare -= self.reno;
            // 3 × (1 - 0.7) / (1 + 0.7) of a datagram until the window before is reached.
            self.reno += if self.reno < self.largest {
                self.datagram * 9 / 17
            } else {
                self.datagram
            };
        }
        if self.reno > target {
            self.window = self.window.max(self.reno);
        } else if let Some(more) = target.checked_sub(self.window) {
            self.spare += delivered.octets * more;
            self.window += self.spare / self.window;
            self.spare %= self.window;
        }
    }

    /// The cubic function: 0.4 × (t - K)³ datagrams above the largest window.
    fn target(&self, at: Duration) -> u64 {
        let micros = i128::try_from(at.as_micros()).unwrap_or(i128::MAX);
        let distance =
            (micros - i128::from(self.inflection())).clamp(-1_000_000_000, 1_000_000_000);
        let cube = distance * distance * distance;
        let above = cube * 2 * i128::from(self.datagram) / 5 / 1_000_000_000_000_000_000;
        let target = i128::from(self.largest) + above;
        u64::try_from(target.max(i128::from(self.minimum))).unwrap_or(u64::MAX)
    }

    /// K in microseconds: the cube root of what was given up, in datagrams, by 0.4. Measured from the window at the beginning.
    fn inflection(&self) -> u64 {
        // Nothing was, where slow start ended without a reduction.
        let given_up = u128::from(self.largest.saturating_sub(self.first));
        let cube = given_up * 5 * 1_000_000_000_000_000_000 / 2 / u128::from(self.datagram.max(1));
        cube_root(cube)
    }

    /// HyStart++: a smallest sample of a round trip above that of the one before ends slow start.
    fn watch(&mut self, delivered: &Delivered, rtt: &Rtt) {
        let hystart = &mut self.hystart;
        if let Some(sample) = delivered.sample {
            hystart.minimum = Some(hystart.minimum.map_or(sample, |it| it.min(sample)));
            hystart.samples += 1;
        }
        if let (Some(minimum), Some(last), true) = (
            hystart.minimum,
            hystart.last_minimum,
            hystart.samples >= SAMPLES,
        ) {
            let least = Duration::from_millis(4).min(last.max(Duration::from_micros(500)));
            let threshold = (last / 8).clamp(least, Duration::from_millis(16));
            match hystart.conservative {
                None if minimum >= last + threshold => {
                    hystart.conservative = Some((CONSERVATIVE_ROUNDS, Some(minimum)));
                }
                Some((_, Some(baseline))) if minimum < baseline => hystart.conservative = None,
                None | Some(_) => {}
            }
        }
        if delivered.round {
            hystart.last_minimum = hystart.minimum.take().or(hystart.last_minimum);
            hystart.samples = 0;
            // A loss was no sign of a queue if there is none a round trip later.
            let empty = !rtt.is_queueing(EMPTY, Duration::ZERO);
            hystart.conservative.take_if(|it| it.1.is_none() && empty);
            if let Some((rounds, _)) = &mut hystart.conservative {
                *rounds -= 1;
                if *rounds == 0 {
                    hystart.conservative = None;
                    self.threshold = self.window;
                }
            }
        }
    }

    /// A loss on a path without a queue: slow start goes on in its conservative form.
    pub(super) fn end_slow_start_after(&mut self, _sent: Instant, rtt: &Rtt) {
        if self.in_slow_start()
            && self.hystart.conservative.is_none()
            && rtt.is_queueing(EMPTY, Duration::ZERO)
        {
            self.hystart.conservative = Some((CONSERVATIVE_ROUNDS, None));
        }
    }

    pub(super) fn on_congestion(&mut self, now: Instant, sent: Instant) {
        if self.reduced.is_some_and(|reduced| sent <= reduced) {
            return;
        }
        self.reduced = Some(now);
        self.largest = if self.window < self.largest {
            // Fast convergence: other flows get room.
            self.window * 17 / 20
        } else {
            self.window
        };
        self.window = (self.window * 7 / 10).max(self.minimum);
        self.first = self.window;
        self.threshold = self.window;
        self.begin = None;
        self.spare = 0;
        self.reno_spare = 0;
    }

    pub(super) fn collapse(&mut self) {
        self.threshold = (self.window * 7 / 10).max(self.minimum);
        self.window = self.minimum;
        self.begin = None;
        self.reduced = None;
    }
}

/// The largest number whose cube is not above.
fn cube_root(cube: u128) -> u64 {
    let mut root: u128 = 0;
    for bit in (0..42).rev() {
        let next = root | 1 << bit;
        if next * next * next <= cube {
            root = next;
        }
    }
    u64::try_from(root).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::tests::origin;
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn delivered(octets: u64, sent: Instant) -> Delivered {
        Delivered {
            octets,
            sent,
            limited: true,
            round: false,
            sample: None,
        }
    }

    #[test]
    fn cube_roots() {
        for (cube, root) in [(0, 0), (1, 1), (7, 1), (8, 2), (26, 2), (27, 3)] {
            assert_eq!(cube_root(cube), root);
        }
        assert_eq!(cube_root(10u128.pow(30)), 10_000_000_000);
        assert_eq!(cube_root(u128::MAX), (1 << 42) - 1);
    }

    #[test]
    fn slow_start_doubles_and_a_reduction_takes_three_tenths_once_a_window() {
        let start = origin();
        let rtt = Rtt::new(10 * MS);
        let mut cubic = Cubic::new(1000, 10_000, 2000);
        assert!(cubic.in_slow_start());
        cubic.on_ack(start, &delivered(10_000, start), &rtt);
        assert_eq!(cubic.window(), 20_000);
        let unused = Delivered {
            limited: false,
            ..delivered(10_000, start)
        };
        cubic.on_ack(start, &unused, &rtt);
        assert_eq!(cubic.window(), 20_000, "the program was the limit");
        let now = start + MS;
        cubic.on_congestion(now, start);
        assert_eq!((cubic.window(), cubic.in_slow_start()), (14_000, false));
        cubic.on_congestion(now + MS, now);
        assert_eq!(cubic.window(), 14_000, "the same window of datagrams");
        cubic.on_ack(now + MS, &delivered(14_000, now), &rtt);
        assert_eq!(cubic.window(), 14_000, "still recovering");
        cubic.on_congestion(now + MS, now + MS);
        assert_eq!((cubic.window(), cubic.largest), (9800, 11_900));
        for _ in 0..20 {
            let now = cubic.reduced.unwrap() + MS;
            cubic.on_congestion(now, now);
        }
        assert_eq!(cubic.window(), 2000);
    }

    /// RFC 9438: after K seconds the window is where it was before the reduction, and grows beyond it afterwards.
    #[test]
    fn growth_is_cubic() {
        let start = origin();
        let mut rtt = Rtt::new(100 * MS);
        rtt.sample(100 * MS, Duration::ZERO);
        let mut cubic = Cubic::new(1000, 1_000_000, 2000);
        cubic.on_congestion(start, start);
        assert_eq!(cubic.window(), 700_000);
        // K³ = 300 / 0.4.
        assert_eq!(cubic.inflection() / 1000, 9085);
        let mut at = Vec::new();
        for step in 1..=150u32 {
            let now = start + step * 100 * MS;
            let window = cubic.window();
            cubic.on_ack(now, &delivered(window, now), &rtt);
            at.push(cubic.window());
        }
        assert!((870_000..910_000).contains(&at[29]), "{}", at[29]);
        assert!((985_000..1_001_000).contains(&at[79]), "{}", at[79]);
        assert!((995_000..1_005_000).contains(&at[89]), "{}", at[89]);
        assert!(at[149] > 1_060_000, "{}", at[149]);
        assert!(at.windows(2).all(|pair| pair[0] <= pair[1]));
    }

    /// On a short path Reno's growth is the larger.
    #[test]
    fn growth_is_no_slower_than_renos() {
        let start = origin();
        let mut rtt = Rtt::new(MS);
        rtt.sample(MS, Duration::ZERO);
        let mut cubic = Cubic::new(1000, 20_000, 2000);
        cubic.on_congestion(start, start);
        for step in 1..=40u32 {
            let now = start + step * MS;
            let window = cubic.window();
            cubic.on_ack(now, &delivered(window, now), &rtt);
        }
        // 11 round trips to 20,000 at 9/17 of a datagram, then one in each.
        assert!(
            (40_000..50_000).contains(&cubic.window()),
            "{}",
            cubic.window()
        );
    }

    #[test]
    fn a_growing_round_trip_ends_slow_start() {
        let start = origin();
        let rtt = Rtt::new(40 * MS);
        let mut cubic = Cubic::new(1000, 10_000, 2000);
        let round = |cubic: &mut Cubic, sample: Duration| {
            for last in 1..=8 {
                let delivered = Delivered {
                    sample: Some(sample),
                    round: last == 8,
                    ..delivered(1000, start)
                };
                cubic.on_ack(start, &delivered, &rtt);
            }
        };
        round(&mut cubic, 40 * MS);
        round(&mut cubic, 44 * MS);
        assert!(cubic.hystart.conservative.is_none(), "less than an eighth");
        round(&mut cubic, 50 * MS);
        assert!(cubic.hystart.conservative.is_some());
        let before = cubic.window();
        round(&mut cubic, 50 * MS);
        assert_eq!(cubic.window() - before, 2000, "a quarter");
        let mut resumed = Cubic::new(1000, 10_000, 2000);
        for sample in [40, 50, 45] {
            round(&mut resumed, sample * MS);
        }
        assert!(resumed.hystart.conservative.is_none());
        for _ in 0..3 {
            round(&mut cubic, 50 * MS);
            assert!(cubic.in_slow_start() || cubic.threshold == cubic.window());
        }
        round(&mut cubic, 50 * MS);
        assert!(!cubic.in_slow_start());
    }

    /// RFC 9438: Reno's window grows by 3 × (1 - 0.7) / (1 + 0.7) = 9/17 of a datagram per window up to the one before, by a whole one then.
    #[test]
    fn renos_window_grows_per_window_acknowledged() {
        let start = origin();
        let mut rtt = Rtt::new(MS);
        rtt.sample(MS, Duration::ZERO);
        let mut cubic = Cubic::new(1700, 10_000, 3400);
        cubic.on_congestion(start, start);
        assert_eq!(cubic.window(), 7000);
        cubic.largest = 8800;
        let now = start + MS;
        let mut windows = Vec::new();
        for octets in [7000, 7899, 1, 4400, 4400, 10_400, 9] {
            cubic.on_ack(now, &delivered(octets, now), &rtt);
            windows.push(cubic.reno);
        }
        // 7,000 + 900 + 900, which is the largest; one datagram more behind that.
        assert_eq!(windows, [7900, 7900, 8800, 8800, 10_500, 10_500, 10_500]);
        assert_eq!(cubic.window(), 10_500);
        cubic.on_ack(now, &delivered(91, now), &rtt);
        assert_eq!(cubic.window(), 12_200, "10,500 octets behind the last one");
    }

    /// RFC 9438: the target is 1.5 windows at most. Growth below it is in proportion to what is acknowledged, and no octet is lost.
    #[test]
    fn growth_is_by_half_a_window_per_round_trip_at_most() {
        let start = origin();
        let rtt = Rtt::new(MS);
        let begun = || {
            let mut cubic = Cubic::new(1000, 10_000, 2000);
            cubic.threshold = 10_000;
            cubic.largest = 20_000;
            cubic.begin = Some(start);
            cubic.first = 10_000;
            cubic.reno = 10_000;
            cubic
        };
        let now = start + Duration::from_secs(100);
        let mut cubic = begun();
        cubic.on_ack(now, &delivered(10_000, now), &rtt);
        assert_eq!(cubic.window(), 15_000);
        let mut cubic = begun();
        let mut windows = Vec::new();
        for octets in [1, 2, 1, 1] {
            cubic.on_ack(now, &delivered(octets, now), &rtt);
            windows.push(cubic.window());
        }
        assert_eq!(windows, [10_000, 10_001, 10_001, 10_002]);
        // Reno's window counts where it is above the target.
        for (reno, expected) in [(15_000, 10_000), (15_001, 15_001)] {
            let mut cubic = begun();
            cubic.reno = reno;
            cubic.on_ack(now, &delivered(1, now), &rtt);
            assert_eq!(cubic.window(), expected);
        }
    }

    /// RFC 9438: the window before is remembered smaller where it had not reached the one before that.
    #[test]
    fn fast_convergence_gives_way_where_the_window_was_smaller() {
        let now = origin();
        for (largest, expected) in [(10_001, 8500), (10_000, 10_000), (9999, 10_000)] {
            let mut cubic = Cubic::new(1000, 10_000, 2000);
            cubic.largest = largest;
            cubic.on_congestion(now, now);
            assert_eq!((cubic.largest, cubic.window()), (expected, 7000));
        }
    }

    /// RFC 9406: an eighth of the smallest sample of the round trip before, 4 ms to 16 ms; on shorter paths than 4 ms all of it, 500 µs at least.
    #[test]
    fn slow_start_ends_at_the_threshold_of_the_round_trip_and_of_eight_samples() {
        let start = origin();
        let us = Duration::from_micros(1);
        for (last, threshold) in [
            (200_000, 16_000),
            (40_000, 5000),
            (8000, 4000),
            (1000, 1000),
            (100, 500),
        ] {
            for (more, samples, ends) in [(0, 8, true), (1, 8, false), (0, 7, false)] {
                let mut cubic = Cubic::new(1000, 10_000, 2000);
                let rtt = Rtt::new(MS);
                let mut ack = |sample: u32, round| {
                    let delivered = Delivered {
                        sample: Some(sample * us),
                        round,
                        ..delivered(1000, start)
                    };
                    cubic.on_ack(start, &delivered, &rtt);
                };
                ack(last, true);
                for _ in 0..samples {
                    ack(last + threshold - more, false);
                }
                let ended = cubic.hystart.conservative.is_some();
                assert_eq!(ended, ends, "{last} {more} {samples}");
            }
        }
    }

    /// RFC 9406: conservative slow start ends slow start after five round trips, and is left where a sample is below its baseline.
    #[test]
    fn conservative_slow_start_has_five_round_trips() {
        let start = origin();
        let rtt = Rtt::new(40 * MS);
        let conservative = |samples: &[u32]| {
            let mut cubic = Cubic::new(1000, 10_000, 2000);
            cubic.hystart.conservative = Some((CONSERVATIVE_ROUNDS, Some(50 * MS)));
            cubic.hystart.last_minimum = Some(40 * MS);
            for sample in samples {
                for last in 1..=8 {
                    let delivered = Delivered {
                        sample: Some(*sample * MS),
                        round: last == 8,
                        ..delivered(1000, start)
                    };
                    cubic.on_ack(start, &delivered, &rtt);
                }
            }
            let rounds = cubic.hystart.conservative.map(|it| it.0);
            (rounds, cubic.in_slow_start())
        };
        assert_eq!(conservative(&[50]), (Some(4), true));
        assert_eq!(conservative(&[50; 4]), (Some(1), true));
        assert_eq!(conservative(&[50; 5]), (None, false));
        assert_eq!(conservative(&[49]), (None, true));
        assert_eq!(conservative(&[60]), (Some(4), true));
    }

    #[test]
    fn a_loss_is_a_sign_of_a_queue_in_slow_start_where_samples_show_one() {
        let start = origin();
        let mut queueing = Rtt::new(MS);
        queueing.sample(40 * MS, Duration::ZERO);
        let empty = queueing;
        queueing.sample(70 * MS, Duration::ZERO);
        let conservative = |change: fn(&mut Cubic), rtt: &Rtt| {
            let mut cubic = Cubic::new(1000, 10_000, 2000);
            change(&mut cubic);
            cubic.end_slow_start_after(start, rtt);
            cubic.hystart.conservative
        };
        let fresh = Some((CONSERVATIVE_ROUNDS, None));
        assert_eq!(conservative(|_| (), &queueing), fresh);
        assert_eq!(conservative(|_| (), &empty), None);
        assert_eq!(conservative(|it| it.threshold = 10_000, &queueing), None);
        let begun = Some((2, Some(50 * MS)));
        let begin = |it: &mut Cubic| it.hystart.conservative = Some((2, Some(50 * MS)));
        assert_eq!(conservative(begin, &queueing), begun);
    }

    /// RFC 9438: K is 0 where nothing was given up.
    #[test]
    fn slow_start_that_ends_without_a_reduction_is_followed_by_growth() {
        let start = origin();
        let mut rtt = Rtt::new(50 * MS);
        rtt.sample(50 * MS, Duration::ZERO);
        let mut cubic = Cubic::new(1000, 1_000_000, 2000);
        cubic.threshold = cubic.window;
        for step in 0..100u32 {
            let now = start + step * 50 * MS;
            cubic.on_ack(now, &delivered(cubic.window(), now), &rtt);
        }
        // 0.4 × 5³ = 50 datagrams, and Reno's 100.
        assert!(cubic.window() > 1_048_000, "{}", cubic.window());
        let mut cubic = Cubic::new(1000, 1_000_000, 2000);
        cubic.threshold = cubic.window;
        cubic.on_ack(start, &delivered(1000, start), &rtt);
        assert_eq!(cubic.inflection(), 0);
    }

    #[test]
    fn a_loss_without_a_queue_a_round_trip_later_ends_no_slow_start() {
        let start = origin();
        let mut rtt = Rtt::new(40 * MS);
        rtt.sample(40 * MS, Duration::ZERO);
        for (sample, goes_on) in [(40, true), (60, false)] {
            let mut rtt = rtt;
            rtt.sample(70 * MS, Duration::ZERO);
            let mut cubic = Cubic::new(1000, 10_000, 2000);
            cubic.end_slow_start_after(start, &rtt);
            assert!(cubic.hystart.conservative.is_some());
            for _ in 0..8 {
                rtt.sample(sample * MS, Duration::ZERO);
            }
            let delivered = Delivered {
                round: true,
                ..delivered(1000, start)
            };
            cubic.on_ack(start, &delivered, &rtt);
            assert_eq!(cubic.hystart.conservative.is_none(), goes_on);
        }
    }

    #[test]
    fn a_collapse_begins_slow_start_anew() {
        let mut cubic = Cubic::new(1000, 10_000, 2000);
        cubic.collapse();
        assert_eq!((cubic.window(), cubic.threshold), (2000, 7000));
        assert!(cubic.in_slow_start());
    }
}

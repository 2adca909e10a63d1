//! Percentiles, paired ratios and the drift of a baseline.

use hdrhistogram::Histogram;

/// Below this many samples a 99.9th percentile rests on fewer than ten values and is not given.
pub(crate) const MIN_SAMPLES_P999: u64 = 10_000;

/// Decimal digits of a recorded sample: 32,767 ns and less are exact.
const DIGITS: u8 = 4;

/// The raw p50 of a run may drift by this factor before the run is repeated.
pub(crate) const MAX_DRIFT: f64 = 1.5;

/// Median and quartiles of the ratios of paired rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ratio {
    /// The median over the rounds.
    pub(crate) median: f64,
    /// The lower quartile.
    pub(crate) q25: f64,
    /// The upper quartile.
    pub(crate) q75: f64,
    /// Rounds that it rests on.
    pub(crate) rounds: u32,
}

impl Ratio {
    /// Half of the interval that most probably has the median of endless rounds: 1.57 interquartile ranges over the root of the rounds (McGill,
    /// Tukey and Larsen, 1978).
    pub(crate) fn margin(&self) -> f64 {
        1.57 * (self.q75 - self.q25) / f64::from(self.rounds.max(1)).sqrt()
    }
}

/// Margin of a raw row compared with itself, each round with the one before: what the machine does to the median of as many rounds. `None` of
/// less than four rounds.
pub(crate) fn noise(baseline: &[f64]) -> Option<f64> {
    let (_, later) = baseline.split_first()?;
    let ratio = paired_ratio(later, baseline)?;
    (ratio.rounds >= 4).then(|| ratio.margin())
}

/// Latency of one row, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Latency {
    /// The smallest sample.
    pub(crate) min: f64,
    /// The median.
    pub(crate) p50: f64,
    /// The 99th percentile.
    pub(crate) p99: f64,
    /// The 99.9th percentile, with at least [`MIN_SAMPLES_P999`] samples.
    pub(crate) p999: Option<f64>,
}

/// Samples in nanoseconds.
pub(crate) fn histogram(samples: &[u64]) -> Histogram<u32> {
    let mut histogram =
        Histogram::new(DIGITS).expect("a histogram has up to five significant digits");
    for &sample in samples {
        // A histogram without a bound grows to any sample; one of centuries may be left out.
        histogram.record(sample).unwrap_or_default();
    }
    histogram
}

/// The nearest-rank percentile in microseconds, `q` in 0..=1; none without samples.
pub(crate) fn percentile(samples: &Histogram<u32>, q: f64) -> Option<f64> {
    (!samples.is_empty()).then(|| microseconds(samples.value_at_quantile(q)))
}

/// Summary of latency samples; none without samples.
pub(crate) fn latency(samples: &Histogram<u32>) -> Option<Latency> {
    Some(Latency {
        min: percentile(samples, 0.0)?,
        p50: percentile(samples, 0.5)?,
        p99: percentile(samples, 0.99)?,
        p999: percentile(samples, 0.999).filter(|_| samples.len() >= MIN_SAMPLES_P999),
    })
}

/// The quantile of sorted values with linear interpolation; none without values.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "q is in 0..=1 and the number of rounds is small"
)]
pub(crate) fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let position = q * last as f64;
    let low = sorted.get(position.floor() as usize)?;
    let high = sorted.get((position.ceil() as usize).min(last))?;
    Some(low + (high - low) * position.fract())
}

/// The median of values in any order; none without values.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    quantile(&sorted(values), 0.5)
}

/// Ratios of rounds that ran next to each other: value `i` of both lists is from round `i`.
///
/// Rounds in which either value is missing or not positive are left out.
pub(crate) fn paired_ratio(ours: &[f64], baseline: &[f64]) -> Option<Ratio> {
    let ratios: Vec<f64> = ours
        .iter()
        .zip(baseline)
        .filter(|(ours, baseline)| **ours > 0.0 && **baseline > 0.0)
        .map(|(ours, baseline)| ours / baseline)
        .collect();
    let ratios = sorted(&ratios);
    Some(Ratio {
        median: quantile(&ratios, 0.5)?,
        q25: quantile(&ratios, 0.25)?,
        q75: quantile(&ratios, 0.75)?,
        rounds: u32::try_from(ratios.len()).unwrap_or(u32::MAX),
    })
}

/// How far a baseline moved during a run: largest over smallest value of its rounds.
///
/// With eight rounds or more the largest and the smallest are left out first: one round that
/// another program disturbed leaves the median of the paired ratios alone and is no reason to
/// measure again, while a machine that changed its speed for longer shows in many rounds.
pub(crate) fn drift(baseline: &[f64]) -> f64 {
    let values = sorted(baseline);
    let kept = match values.as_slice() {
        [_, inner @ .., _] if values.len() >= 8 => inner,
        all => all,
    };
    match (kept.first(), kept.last()) {
        (Some(&low), Some(&high)) if low > 0.0 => high / low,
        _ => 1.0,
    }
}

/// Nanoseconds as microseconds.
#[expect(
    clippy::cast_precision_loss,
    reason = "a sample below 2^52 ns (52 days) is exact"
)]
pub(crate) fn microseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1000.0
}

/// A count as a number with a fraction.
#[expect(
    clippy::cast_precision_loss,
    reason = "counts of bytes and nanoseconds stay below 2^52"
)]
pub(crate) const fn float(count: u64) -> f64 {
    count as f64
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentile_is_the_nearest_rank() {
        let samples: Vec<u64> = (1..=100).collect();
        let samples = histogram(&samples);
        assert_eq!(percentile(&samples, 0.5), Some(0.050));
        assert_eq!(percentile(&samples, 0.99), Some(0.099));
        assert_eq!(percentile(&samples, 1.0), Some(0.100));
        assert_eq!(percentile(&samples, 0.0), Some(0.001));
        assert_eq!(percentile(&histogram(&[7]), 0.999), Some(0.007));
        assert_eq!(percentile(&histogram(&[]), 0.5), None);
        assert_eq!(percentile(&histogram(&[32_767; 3]), 0.5), Some(32.767));
        let long = percentile(&histogram(&[1_234_567]), 0.5).expect("a sample");
        assert!((long / 1234.567 - 1.0).abs() < 1e-4, "{long}");
    }

    #[test]
    fn latency_withholds_p999_below_ten_thousand_samples() {
        let few: Vec<u64> = (1..10_000).rev().collect();
        let summary = latency(&histogram(&few)).expect("samples");
        assert_eq!((summary.min, summary.p50), (0.001, 5.0));
        assert_eq!(summary.p999, None);

        let enough: Vec<u64> = (1..=10_000).rev().collect();
        let summary = latency(&histogram(&enough)).expect("samples");
        assert_eq!(summary.p99, 9.9);
        assert_eq!(summary.p999, Some(9.99));
        assert_eq!(latency(&histogram(&[])), None);
    }

    #[test]
    fn quantiles_interpolate() {
        let values = [1.0, 2.0, 3.0, 4.0];
        assert_eq!(quantile(&values, 0.5), Some(2.5));
        assert_eq!(quantile(&values, 0.25), Some(1.75));
        assert_eq!(quantile(&values, 1.0), Some(4.0));
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn a_ratio_is_taken_round_by_round_not_over_medians() {
        // The machine doubles its speed in the middle: both sides follow, every pair has 1.2.
        let raw = [2.0, 2.0, 4.0, 4.0];
        let ours = [2.4, 2.4, 4.8, 4.8];
        let ratio = paired_ratio(&ours, &raw).expect("pairs");
        for value in [ratio.q25, ratio.median, ratio.q75] {
            assert!((value - 1.2).abs() < 1e-9, "{value}");
        }
    }

    #[test]
    fn rounds_without_a_result_are_left_out_of_ratios() {
        assert_eq!(paired_ratio(&[0.0], &[1.0]), None);
        assert_eq!(paired_ratio(&[], &[]), None);
        let ratio = paired_ratio(&[0.0, 3.0], &[1.0, 2.0]).expect("one pair");
        assert_eq!(ratio.median, 1.5);
    }

    #[test]
    fn the_margin_shrinks_with_the_rounds_and_grows_with_their_spread() {
        let of = |spread: f64, rounds: usize| {
            let ours: Vec<f64> = (0..rounds)
                .map(|round| {
                    1.0 + spread * f64::from(u8::try_from(round % 5).expect("small")) / 4.0
                })
                .collect();
            let ratio = paired_ratio(&ours, &vec![1.0; rounds]).expect("pairs");
            ratio.margin()
        };
        assert!((of(0.1, 25) - 1.57 * 0.05 / 5.0).abs() < 1e-9);
        assert!((of(0.1, 100) - 1.57 * 0.05 / 10.0).abs() < 1e-9);
        assert!(of(0.2, 25) > 1.9 * of(0.1, 25));
        assert_eq!(of(0.0, 25), 0.0);
        assert!(of(0.1, 3) > 0.02);
    }

    #[test]
    fn a_machine_that_is_steady_has_no_noise() {
        assert_eq!(noise(&[2.0; 10]), Some(0.0));
        assert_eq!(noise(&[2.0; 4]), None);
        let restless: Vec<f64> = (0..20)
            .map(|round| if round % 3 == 0 { 3.0 } else { 2.0 })
            .collect();
        assert!(noise(&restless).expect("rounds") > 0.1);
        // A machine that becomes slower once does not matter between neighbours.
        let mut slower = vec![2.0; 20];
        slower[10..].fill(4.0);
        assert_eq!(noise(&slower), Some(0.0));
    }

    #[test]
    fn drift_forgives_one_disturbed_round_but_not_many() {
        let mut rounds = vec![2.7; 15];
        assert_eq!(drift(&rounds), 1.0);
        rounds[3] = 30.0;
        assert_eq!(drift(&rounds), 1.0);
        rounds[4] = 5.4;
        assert!(drift(&rounds) > MAX_DRIFT);
        // A short run has no round to spare.
        assert_eq!(drift(&[2.0, 4.0]), 2.0);
        assert_eq!(drift(&[]), 1.0);
    }
}

//! Percentiles, paired ratios and the drift of a baseline.

/// Below this many samples a 99.9th percentile rests on fewer than ten values and is not given.
pub(crate) const MIN_SAMPLES_P999: usize = 10_000;

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

/// The nearest-rank percentile of sorted samples, `q` in 0..=1; none without samples.
pub(crate) fn percentile(sorted: &[u64], q: f64) -> Option<u64> {
    let last = sorted.len().checked_sub(1)?;
    sorted.get(rank(q, sorted.len()).min(last)).copied()
}

/// Index of the nearest rank: ceil(q·n) − 1, at least 0.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "q is in 0..=1 and sample counts stay far below 2^52"
)]
fn rank(q: f64, samples: usize) -> usize {
    ((q * samples as f64).ceil() as usize).saturating_sub(1)
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

/// Summary of latency samples in nanoseconds, in any order; none without samples.
pub(crate) fn latency(samples: &mut [u64]) -> Option<Latency> {
    samples.sort_unstable();
    let p999 = if samples.len() >= MIN_SAMPLES_P999 {
        percentile(samples, 0.999).map(microseconds)
    } else {
        None
    };
    Some(Latency {
        min: microseconds(*samples.first()?),
        p50: microseconds(percentile(samples, 0.5)?),
        p99: microseconds(percentile(samples, 0.99)?),
        p999,
    })
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
        assert_eq!(percentile(&samples, 0.5), Some(50));
        assert_eq!(percentile(&samples, 0.99), Some(99));
        assert_eq!(percentile(&samples, 1.0), Some(100));
        assert_eq!(percentile(&samples, 0.0), Some(1));
        assert_eq!(percentile(&[7], 0.999), Some(7));
        assert_eq!(percentile(&[], 0.5), None);
    }

    #[test]
    fn latency_sorts_and_withholds_p999_below_ten_thousand_samples() {
        let mut few: Vec<u64> = (1..10_000).rev().map(|n| n * 1000).collect();
        let summary = latency(&mut few).expect("samples");
        assert_eq!((summary.min, summary.p50), (1.0, 5000.0));
        assert_eq!(summary.p999, None);

        let mut enough: Vec<u64> = (1..=10_000).rev().map(|n| n * 1000).collect();
        let summary = latency(&mut enough).expect("samples");
        assert_eq!(summary.p99, 9900.0);
        assert_eq!(summary.p999, Some(9990.0));
        assert_eq!(latency(&mut []), None);
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
        // The machine doubles its speed in the middle: both sides follow, every pair says 1.2.
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

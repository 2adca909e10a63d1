//! Axes with round ticks: 1, 2 or 5 times a power of ten, or powers of two for sizes.

use crate::report::size;

/// The unit of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Seconds.
    Time,
    /// Bytes per second.
    Goodput,
    /// Messages per second.
    Rate,
    /// KiB of memory.
    Memory,
    /// A share of 1, shown in per cent.
    Share,
    /// A plain number.
    Number,
}

/// Prefixes of units and their factors.
const PREFIXES: [(f64, &str); 6] = [
    (1e9, "G"),
    (1e6, "M"),
    (1e3, "k"),
    (1.0, ""),
    (1e-3, "m"),
    (1e-6, "µ"),
];

impl Unit {
    /// A value as text, with its unit, to three significant digits.
    pub(crate) fn show(self, value: f64) -> String {
        let (scaled, unit) = match self {
            Self::Share => (value * 100.0, "%".to_owned()),
            Self::Number => (value, String::new()),
            Self::Memory => (value, "KiB".to_owned()),
            Self::Time | Self::Goodput | Self::Rate if value == 0.0 => (0.0, String::new()),
            Self::Time | Self::Goodput | Self::Rate => {
                let fits = |(factor, _): &&(f64, &str)| value.abs() >= *factor * 0.9995;
                let found = PREFIXES.iter().find(fits);
                let (factor, prefix) = match found {
                    Some((factor, prefix)) => (*factor, *prefix),
                    None if self == Self::Time && value > 0.0 => (1e-9, "n"),
                    None => (1.0, ""),
                };
                let base = match self {
                    Self::Time => "s",
                    Self::Goodput => "B/s",
                    _ => "/s",
                };
                (value / factor, format!("{prefix}{base}"))
            }
        };
        format!("{} {unit}", digits(scaled)).trim_end().to_owned()
    }
}

/// A number to three significant digits, without zeros at its end.
fn digits(value: f64) -> String {
    let decimals = match value.abs() {
        large if large >= 99.95 => 0,
        middle if middle >= 9.995 => 1,
        one if one >= 0.9995 => 2,
        tenth if tenth >= 0.09995 => 3,
        small if small >= 0.009_995 => 4,
        _ => 6,
    };
    let text = format!("{value:.decimals$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// A range of values with its ticks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Axis {
    low: f64,
    high: f64,
    logarithmic: bool,
    /// Values with their labels, ascending; the first and the last are the ends of the range.
    pub(crate) ticks: Vec<(f64, String)>,
}

impl Axis {
    /// Equal distances for equal differences. The range covers `low` and `high`.
    pub(crate) fn linear((low, high): (f64, f64), unit: Unit, most: u32) -> Self {
        let span = (high - low).max(high.abs() * 1e-3).max(1e-9);
        let rough = span / f64::from(most.max(1));
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .map(|factor| factor * power)
            .into_iter()
            .find(|step| *step >= rough * 0.999_999)
            .unwrap_or(10.0 * power);
        let first = (low / step + 1e-6).floor();
        let last = (high / step - 1e-6).ceil().max(first + 1.0);
        let steps = std::iter::successors(Some(first), |at| Some(at + 1.0));
        let ticks = steps
            .take_while(|at| *at <= last)
            .map(|at| at * step)
            .map(|value| (value, unit.show(value)))
            .collect();
        Self::between(ticks, false)
    }

    /// Equal distances for equal ratios. The range covers `low` and `high`, both above zero.
    pub(crate) fn logarithmic((low, high): (f64, f64), unit: Unit, most: u32) -> Self {
        // Ladders of ever fewer steps: 1, 2, 5, then powers of ten, of a hundred, and so on.
        let finest = ladder((low, high), 1.0, &[1.0, 2.0, 5.0]);
        let coarser = (1..).map(|decades| ladder((low, high), f64::from(decades), &[1.0]));
        let mut ladders = std::iter::once(finest).chain(coarser.take(20));
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let ticks = ladders.find(|ticks| ticks.len() <= most.max(2));
        let ticks = ticks.unwrap_or_else(|| vec![low, high]);
        let labels = ticks.iter().map(|&value| (value, unit.show(value)));
        Self::between(labels.collect(), true)
    }

    /// Message sizes, in bytes, with at most so many labels.
    pub(crate) fn sizes((low, high): (u64, u64), most: u32) -> Self {
        let first = low.max(1).ilog2();
        let last = high.max(2).next_power_of_two().ilog2().max(first + 1);
        // Powers of 2, 4, 32 or 1024: each has 1, 1K and 1M, but the ends of the range stand anyway.
        let step = [1, 2, 5, 10]
            .into_iter()
            .find(|step| (last - first) / step < most.max(2))
            .unwrap_or(20);
        let tick = |exponent: u32| (power_of_two(exponent), size(1 << exponent));
        let ticks = (first..=last).filter(|exponent| exponent % step == 0);
        let mut ticks: Vec<(f64, String)> = ticks.map(tick).collect();
        if ticks.len() < 2 {
            ticks = vec![tick(first), tick(last)];
        }
        Self {
            low: power_of_two(first),
            high: power_of_two(last),
            logarithmic: true,
            ticks,
        }
    }

    fn between(ticks: Vec<(f64, String)>, logarithmic: bool) -> Self {
        let ends = ticks.first().zip(ticks.last());
        let (low, high) = ends.map_or((0.0, 1.0), |((low, _), (high, _))| (*low, *high));
        Self {
            low,
            high,
            logarithmic,
            ticks,
        }
    }

    /// The place of a value: 0 at the low end of the range, 1 at the high one.
    pub(crate) fn at(&self, value: f64) -> f64 {
        match self.logarithmic {
            true => (value / self.low).log2() / (self.high / self.low).log2(),
            false => (value - self.low) / (self.high - self.low),
        }
    }
}

/// All steps of each `decades` powers of ten from just below `low` to just above `high`.
fn ladder((low, high): (f64, f64), decades: f64, steps: &[f64]) -> Vec<f64> {
    let first = (low.log10() / decades).floor() * decades;
    let powers = std::iter::successors(Some(first), |power| Some(power + decades));
    let last = high.log10() + decades;
    let all: Vec<f64> = powers
        .take_while(|power| *power <= last + 1e-9)
        .flat_map(|power| steps.iter().map(move |step| step * 10f64.powf(power)))
        .collect();
    let below = all.iter().rposition(|value| *value <= low * 1.000_001);
    let above = all.iter().position(|value| *value >= high * 0.999_999);
    let first = below.unwrap_or(0);
    let last = above.unwrap_or(all.len() - 1).max(first + 1);
    all.into_iter().take(last + 1).skip(first).collect()
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a power of two is exact whatever its size"
)]
const fn power_of_two(exponent: u32) -> f64 {
    (1u64 << exponent) as f64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn is_round(value: f64) -> bool {
        if value == 0.0 {
            return true;
        }
        let value = value.abs() * 1.000_000_01;
        let first = value / 10f64.powf(value.log10().floor());
        [1.0, 2.0, 5.0]
            .iter()
            .any(|step| (first / step - 1.0).abs() < 1e-6)
    }

    fn assert_ascending(axis: &Axis) {
        for pair in axis.ticks.windows(2) {
            assert!(pair[0].0 < pair[1].0, "{axis:?}");
            assert_ne!(pair[0].1, pair[1].1, "{axis:?}");
        }
    }

    proptest! {
        #[test]
        fn linear_steps_are_round_and_cover_the_values(
            low in prop_oneof![Just(0.0), 1e-6..1e6f64], span in 1e-3..1e6f64, most in 2..10u32,
        ) {
            let axis = Axis::linear((low, low + span.max(low * 1e-2)), Unit::Number, most);
            let values: Vec<f64> = axis.ticks.iter().map(|(value, _)| *value).collect();
            for pair in values.windows(2) {
                prop_assert!(is_round(pair[1] - pair[0]), "{values:?}");
            }
            prop_assert!(values.len() >= 2 && values.len() <= most as usize + 2, "{values:?}");
            prop_assert!(axis.at(low) >= -1e-6 && axis.at(low + span) <= 1.0 + 1e-6);
        }

        #[test]
        fn logarithmic_ticks_are_round_and_cover_the_values(
            low in -9.0..9.0f64, decades in 0.0..12.0f64, most in 3..10u32,
        ) {
            let (low, high) = (10f64.powf(low), 10f64.powf(low + decades));
            let axis = Axis::logarithmic((low, high), Unit::Time, most);
            assert_ascending(&axis);
            for (value, _) in &axis.ticks {
                prop_assert!(is_round(*value), "{axis:?}");
            }
            prop_assert!(axis.ticks.len() >= 2 && axis.ticks.len() <= most as usize);
            prop_assert!(axis.at(low) >= -1e-6 && axis.at(high) <= 1.0 + 1e-6);
        }

        #[test]
        fn ticks_of_sizes_are_powers_of_two(
            low in 0..30u32, more in 0..10u32, odd in 0..1000u64, most in 2..12u32,
        ) {
            let (low, high) = ((1u64 << low) + odd, (1u64 << low << more) + odd);
            let axis = Axis::sizes((low, high), most);
            assert_ascending(&axis);
            for (value, _) in &axis.ticks {
                prop_assert!(value.log2().fract() == 0.0, "{axis:?}");
            }
            prop_assert!(axis.ticks.len() >= 2 && axis.ticks.len() <= most as usize + 1);
        }
    }

    #[test]
    fn values_have_units_that_fit_them() {
        let shown = [
            (Unit::Time, 0.000_000_5, "500 ns"),
            (Unit::Time, 0.000_003_125, "3.13 µs"),
            (Unit::Time, 0.002, "2 ms"),
            (Unit::Goodput, 1.5e9, "1.5 GB/s"),
            (Unit::Rate, 250_000.0, "250 k/s"),
            (Unit::Share, 0.998, "99.8 %"),
            (Unit::Memory, 32.0, "32 KiB"),
            (Unit::Memory, 0.8398, "0.84 KiB"),
            (Unit::Number, 100.0, "100"),
            (Unit::Number, 0.0, "0"),
            (Unit::Goodput, 0.0, "0"),
        ];
        for (unit, value, text) in shown {
            assert_eq!(unit.show(value), text);
        }
    }

    #[test]
    fn known_ranges_have_the_ticks_that_people_draw() {
        let labels = |axis: Axis| -> Vec<String> {
            axis.ticks.into_iter().map(|(_, label)| label).collect()
        };
        let ratios = Axis::linear((0.0, 1.3), Unit::Number, 6);
        assert_eq!(labels(ratios), ["0", "0.5", "1", "1.5"]);
        let sweep = Axis::sizes((1, 1 << 20), 8);
        assert_eq!(labels(sweep), ["1", "32", "1K", "32K", "1M"]);
        let times = Axis::logarithmic((2.5e-6, 4e-4), Unit::Time, 8);
        assert_eq!(
            labels(times),
            [
                "2 µs", "5 µs", "10 µs", "20 µs", "50 µs", "100 µs", "200 µs", "500 µs"
            ]
        );
    }
}

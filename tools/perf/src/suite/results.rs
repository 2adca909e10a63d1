//! Verdicts on quantities, from the rounds of their groups.

use serde::{Deserialize, Serialize};

use crate::run::figures::{Figures, Series};
use crate::stats;
use crate::suite::plan::{Case, Place};
use crate::suite::quantities::{Better, Quantity};

/// The rounds of a group, as they are kept in the JSON document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Recorded {
    /// The group's name, unique in a run.
    pub(crate) group: String,
    /// Where it ran.
    pub(crate) place: Place,
    /// Its members, which took turns.
    pub(crate) members: Vec<Series>,
}

/// One of a round's figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Figure {
    /// Microseconds.
    Time,
    /// Gigabytes per second.
    Goodput,
    /// Million messages per second.
    Rate,
    /// CPU seconds for each GiB.
    Cpu,
    /// KiB of the process.
    Memory,
    /// KiB of the kernel.
    Kernel,
    /// Valid segments over those that came through.
    Valid,
}

impl Figure {
    /// As tables show it.
    pub(crate) const fn unit(self) -> &'static str {
        match self {
            Self::Time => "µs",
            Self::Goodput => "GB/s",
            Self::Rate => "M/s",
            Self::Cpu => "s/GiB",
            Self::Memory | Self::Kernel => "KiB",
            Self::Valid => "",
        }
    }

    const fn of(self, figures: &Figures) -> Option<f64> {
        match self {
            Self::Time => figures.us,
            Self::Goodput => figures.gigabytes_s,
            Self::Rate => figures.mmsg_s,
            Self::Cpu => figures.cpu_s_per_gib,
            Self::Memory => figures.user_kib,
            Self::Kernel => figures.kernel_kib,
            Self::Valid => figures.valid,
        }
    }

    /// The better of two members in the same round.
    fn better(self, one: f64, other: f64) -> f64 {
        match self {
            Self::Time | Self::Cpu | Self::Memory | Self::Kernel => one.min(other),
            Self::Goodput | Self::Rate | Self::Valid => one.max(other),
        }
    }
}

/// The verdict on a bar and an aim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verdict {
    /// The aim is reached, and so the bar.
    Aim,
    /// The bar is reached, not the aim.
    Bar,
    /// The bar is missed.
    Missed,
    /// The bar is closer to the figure than the rounds, or this machine, can tell.
    CannotTell,
    /// Without a bar.
    Information,
    /// Without a figure.
    NotMeasured,
}

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Row {
    /// The quantity's name.
    pub(crate) quantity: &'static str,
    /// Which case of it.
    pub(crate) case: String,
    /// The group whose rounds gave it.
    pub(crate) group: String,
    /// Unit of the two medians.
    pub(crate) unit: &'static str,
    /// Median of our rounds.
    pub(crate) ours: Option<f64>,
    /// Median of the rounds compared with.
    pub(crate) base: Option<f64>,
    /// The judged figure: the median ratio of paired rounds, or the figure itself.
    pub(crate) figure: Option<f64>,
    /// Lower quartile of the same.
    pub(crate) q25: Option<f64>,
    /// Upper quartile of the same.
    pub(crate) q75: Option<f64>,
    /// Half of the interval around the figure within which the rounds can tell nothing.
    pub(crate) margin: Option<f64>,
    /// Margin of the raw row against itself, as a share: this machine's noise.
    pub(crate) noise: Option<f64>,
    /// The verdict on bar and aim.
    pub(crate) verdict: Verdict,
    /// The reason for a missing figure.
    pub(crate) missing: Option<String>,
}

/// Judges one case by the rounds of its group.
pub(crate) fn judge(quantity: &Quantity, case: &Case, recorded: &Recorded) -> Row {
    let ours = series(recorded, &case.ours, case.figure);
    let base = match case.base.as_slice() {
        [] => Ok(Vec::new()),
        keys => series(recorded, keys, case.figure),
    };
    let (ours, base) = match (ours, base) {
        (Ok(ours), Ok(base)) => (ours, base),
        (Err(reason), _) | (_, Err(reason)) => {
            return not_measured(quantity, case, &recorded.group, reason);
        }
    };
    let ones = vec![1.0; ours.len()];
    let divisor: Vec<f64> = match base.as_slice() {
        [] => ones,
        base => base.iter().map(|value| value * case.scale).collect(),
    };
    let Some(ratio) = stats::paired_ratio(&ours, &divisor) else {
        let reason = "no round has both figures".to_owned();
        return not_measured(quantity, case, &recorded.group, reason);
    };
    let noise = stats::noise(&base);
    let (figure, margin) = match quantity.better {
        Better::Less | Better::More => {
            let machine = noise.unwrap_or(0.0) * ratio.median;
            (ratio.median, ratio.margin().max(machine))
        }
        // In every round, whatever the others are.
        Better::Exactly => (worst(&ours, quantity.bar.unwrap_or(1.0)), 0.0),
    };
    let present = |values: &[f64]| {
        let values: Vec<f64> = values.iter().copied().filter(|it| *it > 0.0).collect();
        stats::median(&values)
    };
    Row {
        quantity: quantity.id,
        case: case.name.clone(),
        group: recorded.group.clone(),
        unit: case.figure.unit(),
        ours: present(&ours),
        base: present(&base),
        figure: Some(figure),
        q25: Some(ratio.q25),
        q75: Some(ratio.q75),
        margin: Some(margin),
        noise,
        verdict: verdict(quantity, figure, margin),
        missing: None,
    }
}

/// An empty row, with the reason.
pub(crate) fn not_measured(quantity: &Quantity, case: &Case, group: &str, reason: String) -> Row {
    Row {
        quantity: quantity.id,
        case: case.name.clone(),
        group: group.to_owned(),
        unit: case.figure.unit(),
        ours: None,
        base: None,
        figure: None,
        q25: None,
        q75: None,
        margin: None,
        noise: None,
        verdict: Verdict::NotMeasured,
        missing: Some(reason),
    }
}

fn verdict(quantity: &Quantity, figure: f64, margin: f64) -> Verdict {
    if quantity
        .bar
        .is_some_and(|bar| (figure - bar).abs() < margin)
    {
        return Verdict::CannotTell;
    }
    let keeps = |bound: Option<f64>| bound.map(|bound| quantity.better.keeps(figure, bound));
    match (keeps(quantity.bar), keeps(quantity.aim)) {
        (None, _) => Verdict::Information,
        (Some(_), Some(true)) => Verdict::Aim,
        (Some(true), _) => Verdict::Bar,
        (Some(false), _) => Verdict::Missed,
    }
}

/// The value farthest from `bound`: what has to hold exactly has to hold in every round.
fn worst(values: &[f64], bound: f64) -> f64 {
    let far = |value: &f64| (value - bound).abs();
    let present = values.iter().copied().filter(|value| *value > 0.0);
    present
        .max_by(|one, other| far(one).total_cmp(&far(other)))
        .unwrap_or(0.0)
}

/// The figure of each round: of the better one, where there are several members. 0 stands for none.
fn series(recorded: &Recorded, keys: &[String], figure: Figure) -> Result<Vec<f64>, String> {
    let mut best: Vec<f64> = Vec::new();
    let mut missing = None;
    for key in keys {
        let Some(member) = recorded.members.iter().find(|member| member.key == *key) else {
            missing.get_or_insert_with(|| format!("{key} did not run"));
            continue;
        };
        if let Some(reason) = &member.missing {
            missing.get_or_insert_with(|| format!("{key}: {reason}"));
        }
        let values = member.figures.iter().map(|round| {
            let value = round.as_ref().and_then(|figures| figure.of(figures));
            value.unwrap_or(0.0)
        });
        for (at, value) in values.enumerate() {
            match best.get_mut(at) {
                None => best.push(value),
                Some(known) if *known > 0.0 && value > 0.0 => *known = figure.better(*known, value),
                Some(known) => *known = known.max(value),
            }
        }
    }
    match missing {
        Some(reason) if !best.iter().any(|value| *value > 0.0) => Err(reason),
        _ => Ok(best),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::quantities::find;

    /// As a run leaves it behind.
    const RECORDED: &str = r#"{
        "group": "lo lat 64", "place": "lo", "members": [
            {"key": "udp raw", "missing": null, "rounds": [{"us": 2.0}, {"us": 4.0}, null, {"us": 3.0}]},
            {"key": "ud send", "missing": null, "rounds": [{"us": 2.2}, {"us": 4.6}, {"us": 9.0}, {"us": 3.3}]},
            {"key": "ud write-record", "missing": null, "rounds": [{"us": 2.4}, {"us": 4.4}, {"us": 9.0}, {"us": 3.6}]},
            {"key": "wr", "missing": null, "rounds": [{"valid": 1.0}, {"valid": 1.0}, {"valid": 0.999}]},
            {"key": "ucx", "missing": "not installed", "rounds": []}
        ]}"#;

    fn case(ours: &[&str], base: &[&str], figure: Figure, scale: f64) -> Case {
        let keys = |keys: &[&str]| keys.iter().map(|&key| key.to_owned()).collect();
        Case {
            quantity: "ud-latency",
            name: "64".to_owned(),
            ours: keys(ours),
            base: keys(base),
            figure,
            scale,
        }
    }

    fn row(id: &str, case: &Case) -> Row {
        let recorded: Recorded = serde_json::from_str(RECORDED).unwrap();
        judge(find(id).unwrap(), case, &recorded)
    }

    fn near(value: Option<f64>, expected: f64) {
        assert!((value.unwrap() - expected).abs() < 1e-9, "{value:?}");
    }

    #[test]
    fn a_ratio_pairs_rounds_and_leaves_out_those_that_failed() {
        let row = row(
            "ud-latency",
            &case(&["ud send"], &["udp raw"], Figure::Time, 1.0),
        );
        near(row.figure, 1.1);
        near(row.base, 3.0);
        assert_eq!((row.verdict, row.missing), (Verdict::Aim, None));
    }

    #[test]
    fn the_better_of_two_is_taken_round_by_round() {
        let both = case(
            &["ud send", "ud write-record"],
            &["udp raw"],
            Figure::Time,
            1.0,
        );
        near(row("ud-latency", &both).figure, 1.1);
        let record = case(&["ud write-record"], &["udp raw"], Figure::Time, 1.0);
        let judged = row("ud-latency", &record);
        near(judged.figure, 1.2);
        // Three rounds, from 1.1 to 1.2, cannot tell 1.2 from the bar of 1.2.
        assert_eq!(judged.verdict, Verdict::CannotTell);
        assert_eq!(row("thesis-latency", &record).verdict, Verdict::Missed);
        assert_eq!(row("loss-others", &record).verdict, Verdict::Information);
    }

    /// Rounds of raw UDP and of ours: a ratio of about 1.15, not at the bar of UD's latency.
    fn spread(spread: f64) -> Row {
        let round = |us: f64| format!(r#"{{"us": {us}}}"#);
        let rounds = |of: &dyn Fn(f64) -> f64| {
            let rounds: Vec<String> = (0..20u8).map(|it| round(of(f64::from(it % 4)))).collect();
            rounds.join(",")
        };
        let member = |key: &str, rounds: String| {
            format!(r#"{{"key": "{key}", "missing": null, "rounds": [{rounds}]}}"#)
        };
        let raw = member("udp raw", rounds(&|_| 2.0));
        let ours = member(
            "ud send",
            rounds(&|turn| 2.0 * (1.15 + spread * (turn - 1.5))),
        );
        let text = format!(r#"{{"group": "g", "place": "lo", "members": [{raw}, {ours}]}}"#);
        let recorded: Recorded = serde_json::from_str(&text).unwrap();
        let case = case(&["ud send"], &["udp raw"], Figure::Time, 1.0);
        judge(find("ud-latency").unwrap(), &case, &recorded)
    }

    #[test]
    fn rounds_that_differ_too_much_cannot_tell() {
        let quantity = find("ud-latency").unwrap();
        let away = (1.15 - quantity.bar.unwrap()).abs();
        let steady = spread(away / 10.0);
        assert_ne!(steady.verdict, Verdict::CannotTell, "{steady:?}");
        assert!(steady.margin.unwrap() < away && steady.noise == Some(0.0));
        let restless = spread(away * 4.0);
        assert_eq!(restless.verdict, Verdict::CannotTell, "{restless:?}");
    }

    #[test]
    fn what_it_is_a_ratio_of_can_be_a_share() {
        let half = case(&["ud send"], &["udp raw"], Figure::Time, 0.5);
        near(row("ud-latency", &half).figure, 2.2);
    }

    #[test]
    fn what_has_to_hold_exactly_has_to_hold_in_every_round() {
        let row = row("loss-valid", &case(&["wr"], &[], Figure::Valid, 1.0));
        near(row.figure, 0.999);
        assert_eq!(row.verdict, Verdict::Missed);
    }

    #[test]
    fn an_empty_row_says_why() {
        let empty = row("sleeping", &case(&["ud send"], &["ucx"], Figure::Time, 1.0));
        assert_eq!(empty.verdict, Verdict::NotMeasured);
        assert_eq!(empty.missing.as_deref(), Some("ucx: not installed"));
        let other = row("rate", &case(&["ud send"], &["udp raw"], Figure::Rate, 1.0));
        assert_eq!(other.missing.as_deref(), Some("no round has both figures"));
    }
}

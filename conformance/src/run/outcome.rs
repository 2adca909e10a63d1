//! Plans of runs, and what comes of cases.

use std::time::Duration;

use crate::bench::{Settings, Trial, Verdict};
use crate::cases::{Case, Level};
use crate::profile::Profile;
use crate::recording::Recorder;
use crate::selection::Selection;

/// Plan of a run.
#[derive(Debug)]
pub struct Plan {
    /// How to meet the device.
    pub settings: Settings,
    /// Cases to run.
    pub selection: Selection,
    /// Run cases that crash some devices too.
    pub allow_crash: bool,
    /// Run cases that take a minute or more too.
    pub slow: bool,
    /// Expected failures.
    pub profile: Option<Profile>,
}

/// Outcome of a case, from good to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Everything tried is allowed.
    Pass,
    /// It does not apply to this device or this run.
    Skipped,
    /// Something more basic is wrong, which has a finding of its own: what was tried cannot be judged.
    Inconclusive,
    /// A deviation from a SHOULD.
    Deviates,
    /// A deviation that the profile expects.
    ExpectedFail,
    /// A deviation.
    Fail,
    /// The case could not be carried through.
    Broken,
    /// The device takes no good connection afterwards.
    Dead,
}

impl Outcome {
    /// Whether a run with this outcome fails.
    #[must_use]
    pub fn is_bad(self) -> bool {
        self >= Self::Fail
    }

    /// One word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Skipped => "skipped",
            Self::Inconclusive => "inconclusive",
            Self::Deviates => "deviates",
            Self::ExpectedFail => "expected",
            Self::Fail => "FAIL",
            Self::Broken => "BROKEN",
            Self::Dead => "DEAD",
        }
    }
}

/// A case that was run.
#[derive(Debug)]
pub struct Done {
    /// The case.
    pub case: Case,
    /// Outcome of the case.
    pub outcome: Outcome,
    /// Why, where the trials do not say it.
    pub reason: String,
    /// Trials in order.
    pub trials: Vec<Trial>,
    /// Traffic of the case.
    pub recorder: Recorder,
    /// How long it took.
    pub took: Duration,
    /// Whether the device took no good connection afterwards.
    pub dead: bool,
}

/// Outcome of the failed trials of a case, with the deviations that the profile knows.
pub(super) fn of_trials(
    plan: &Plan,
    case: &Case,
    trials: &[Trial],
    reason: &mut String,
) -> Outcome {
    let unknown = trials
        .iter()
        .any(|trial| trial.verdict == Verdict::Inconclusive);
    let mut worst = if unknown {
        Outcome::Inconclusive
    } else {
        Outcome::Pass
    };
    for trial in trials.iter().filter(|trial| trial.verdict == Verdict::Fail) {
        let expected = plan
            .profile
            .as_ref()
            .and_then(|p| p.expects(case.id, &trial.what, &trial.seen));
        let outcome = match (expected, case.level) {
            (Some(expected), _) => {
                if !reason.contains(&expected.why) {
                    if !reason.is_empty() {
                        reason.push_str("; ");
                    }
                    reason.push_str(&expected.why);
                }
                Outcome::ExpectedFail
            }
            (None, Level::Should) => Outcome::Deviates,
            (None, Level::Must) => Outcome::Fail,
        };
        worst = worst.max(outcome);
    }
    worst
}

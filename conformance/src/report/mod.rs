//! Findings of a run: for people, for programs, and as packets.

pub mod book;
mod compare;
mod html;
mod json;
mod junit;
mod pcapng;
mod picture;
mod text;

pub use compare::{Difference, compare, runs};
pub use html::html;
pub use json::json;
pub use junit::junit;
pub use pcapng::pcapng;
pub use text::{line, text};

use std::collections::BTreeMap;
use std::time::SystemTime;

use crate::run::{Done, Outcome};

/// The tester and its version.
const TESTER: &str = concat!("dgiwarp-conform ", env!("CARGO_PKG_VERSION"));

/// Contents of a report besides the cases.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Where the device listens.
    pub target: String,
    /// Description of the device by the tester's user.
    pub device: String,
    /// Where its agent is.
    pub control: Option<String>,
    /// Options of the run that results depend on.
    pub options: serde_json::Value,
    /// When the run began.
    pub when: SystemTime,
    /// Advice, if no case came through.
    pub hint: Option<String>,
    /// Whether there was no way to the device at all.
    pub unreached: bool,
}

/// Cases that did not run, by their reason.
fn not_run(all: &[Done]) -> BTreeMap<&str, Vec<&'static str>> {
    let mut groups: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for done in all.iter().filter(|done| done.outcome == Outcome::Skipped) {
        groups
            .entry(done.reason.trim())
            .or_default()
            .push(done.case.id);
    }
    groups
}

/// How many cases had each outcome, from good to bad.
#[must_use]
pub fn counts(all: &[Done]) -> Vec<(Outcome, usize)> {
    use Outcome::{Broken, Dead, Deviates, ExpectedFail, Fail, Inconclusive, Pass, Skipped};
    let all_outcomes = [
        Pass,
        Skipped,
        Inconclusive,
        Deviates,
        ExpectedFail,
        Fail,
        Broken,
        Dead,
    ];
    all_outcomes
        .into_iter()
        .map(|outcome| {
            let count = all.iter().filter(|done| done.outcome == outcome).count();
            (outcome, count)
        })
        .filter(|(_, count)| *count > 0)
        .collect()
}

//! Findings of a run: for people, for programs, and as packets.

mod json;
mod junit;
mod pcapng;
mod text;

pub use json::json;
pub use junit::junit;
pub use pcapng::pcapng;
pub use text::{line, text};

use crate::run::{Done, Outcome};

/// Contents of a report besides the cases.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Where the device listens.
    pub target: String,
    /// Description of the device by the tester's user.
    pub device: String,
}

/// How many cases had each outcome, from good to bad.
#[must_use]
pub fn counts(all: &[Done]) -> Vec<(Outcome, usize)> {
    use Outcome::{Broken, Dead, Deviates, ExpectedFail, Fail, Pass, Skipped};
    [Pass, Skipped, Deviates, ExpectedFail, Fail, Broken, Dead]
        .into_iter()
        .map(|outcome| {
            let count = all.iter().filter(|done| done.outcome == outcome).count();
            (outcome, count)
        })
        .filter(|(_, count)| *count > 0)
        .collect()
}

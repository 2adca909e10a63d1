//! The report for programs.

use serde_json::{Value, json as value};
use std::time::UNIX_EPOCH;

use super::{Subject, counts};
use crate::bench::Verdict;
use crate::clock;
use crate::run::Done;

/// The run as one document; `conformance/README.md` lists its fields.
#[must_use]
pub fn json(subject: &Subject, all: &[Done]) -> Value {
    let when = clock::wall().duration_since(UNIX_EPOCH);
    let cases: Vec<_> = all.iter().map(case).collect();
    let summary: serde_json::Map<_, _> = counts(all)
        .into_iter()
        .map(|(outcome, count)| (outcome.word().to_lowercase(), count.into()))
        .collect();
    value!({
        "tester": concat!("dgiwarp-conform ", env!("CARGO_PKG_VERSION")),
        "when": when.map_or(0, |since| since.as_secs()),
        "target": subject.target,
        "device": subject.device,
        "summary": summary,
        "cases": cases,
    })
}

fn case(done: &Done) -> Value {
    let trials: Vec<_> = done
        .trials
        .iter()
        .map(|trial| {
            let mut one = value!({
                "trial": trial.what,
                "pass": trial.verdict == Verdict::Pass,
                "device": trial.seen,
                "clause": trial.clause,
            });
            if trial.verdict == Verdict::Fail {
                one["allowed"] = trial.allowed.clone().into();
            }
            if let Some((sent, received)) = &trial.octets {
                one["sent"] = sent.as_str().into();
                one["received"] = received.as_str().into();
            }
            one
        })
        .collect();
    value!({
        "case": done.case.id,
        "about": done.case.about,
        "clauses": done.case.clauses,
        "outcome": done.outcome,
        "reason": done.reason.trim(),
        "took_ms": u64::try_from(done.took.as_millis()).unwrap_or(u64::MAX),
        "trials": trials,
    })
}

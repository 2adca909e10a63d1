//! The report for programs.

use serde_json::{Value, json as value};
use std::time::UNIX_EPOCH;

use super::book::word;
use super::{Subject, TESTER, counts};
use crate::bench::Verdict;
use crate::recording::sequence::Step;
use crate::run::Done;
use crate::wire::hex;

/// The results as one document, of several devices with one in `runs` for each; `conformance/README.md` lists its fields.
#[must_use]
pub fn json(all: &[(Subject, Vec<Done>)]) -> Value {
    let mut runs: Vec<_> = all
        .iter()
        .map(|(subject, dones)| run(subject, dones))
        .collect();
    match runs.pop() {
        Some(only) if runs.is_empty() => only,
        last => {
            runs.extend(last);
            value!({ "tester": TESTER, "runs": runs })
        }
    }
}

fn run(subject: &Subject, all: &[Done]) -> Value {
    let when = subject.when.duration_since(UNIX_EPOCH);
    let cases: Vec<_> = all.iter().map(case).collect();
    let summary: serde_json::Map<_, _> = counts(all)
        .into_iter()
        .map(|(outcome, count)| (outcome.word().to_lowercase(), count.into()))
        .collect();
    value!({
        "tester": TESTER,
        "when": when.map_or(0, |since| since.as_secs()),
        "target": subject.target,
        "control": subject.control,
        "device": subject.device,
        "options": subject.options,
        "hint": subject.hint,
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
            if trial.verdict == Verdict::Inconclusive {
                one["inconclusive"] = true.into();
            }
            if trial.verdict != Verdict::Pass {
                one["allowed"] = trial.allowed.clone().into();
            }
            if let Some((sent, received)) = &trial.octets {
                one["sent"] = sent.as_str().into();
                one["received"] = received.as_str().into();
            }
            if !trial.steps.is_empty() {
                one["sequence"] = trial.steps.iter().map(step).collect();
            }
            one
        })
        .collect();
    value!({
        "case": done.case.id,
        "about": done.case.about,
        "version": done.case.version,
        "family": word(done.case.family),
        "role": word(done.case.role),
        "needs": word(done.case.needs),
        "level": word(done.case.level),
        "clauses": done.case.clauses,
        "outcome": done.outcome,
        "reason": done.reason.trim(),
        "took_ms": u64::try_from(done.took.as_millis()).unwrap_or(u64::MAX),
        "trials": trials,
    })
}

fn step(step: &Step) -> Value {
    value!({
        "from": step.way.to_string(),
        "at_us": u64::try_from(step.at.as_micros()).unwrap_or(u64::MAX),
        "what": step.what,
        "length": step.length,
        "octets": hex(&step.octets, step.octets.len()),
    })
}

//! The report for people, by section of the RFCs.

use core::fmt::Write as _;
use std::collections::BTreeMap;

use super::{Subject, counts};
use crate::bench::{Trial, Verdict};
use crate::run::{Done, Outcome};

/// A case as one line.
#[must_use]
pub fn line(done: &Done) -> String {
    let mut line = format!(
        "{:<8} {:<4} {}",
        done.outcome.word(),
        done.case.id,
        done.case.about
    );
    let (failed, unknown) = (
        of(done, Verdict::Fail).count(),
        of(done, Verdict::Inconclusive).count(),
    );
    // Writing to a String cannot fail, here and below.
    if failed > 0 {
        let _ = write!(line, ": {failed} of {} trials", done.trials.len());
    }
    if unknown > 0 {
        let _ = write!(
            line,
            ": {unknown} of {} trials inconclusive",
            done.trials.len()
        );
    }
    if !done.reason.is_empty() {
        let _ = write!(line, " [{}]", done.reason.trim());
    }
    line
}

fn of(done: &Done, verdict: Verdict) -> impl Iterator<Item = &Trial> {
    done.trials
        .iter()
        .filter(move |trial| trial.verdict == verdict)
}

/// The whole report.
#[must_use]
pub fn text(subject: &Subject, all: &[Done]) -> String {
    let mut text = format!("Conformance of {}", subject.target);
    if !subject.device.is_empty() {
        let _ = write!(text, ", {}", subject.device);
    }
    text.push_str("\n\nSections:\n");
    let mut sections: BTreeMap<Vec<u32>, (&str, Vec<&Done>)> = BTreeMap::new();
    for done in all {
        for clause in done.case.clauses {
            let section = sections
                .entry(order(clause))
                .or_insert((clause, Vec::new()));
            section.1.push(done);
        }
    }
    for (clause, dones) in sections.values() {
        let ids: Vec<_> = dones
            .iter()
            .map(|done| match done.outcome {
                Outcome::Pass => done.case.id.to_owned(),
                other => format!("{} {}", done.case.id, other.word()),
            })
            .collect();
        let _ = writeln!(text, "  {clause:<18}{}", ids.join(", "));
    }
    let notable = all
        .iter()
        .filter(|done| done.outcome != Outcome::Pass && done.outcome != Outcome::Skipped);
    for done in notable {
        let _ = write!(text, "\n{}\n", line(done));
        for trial in of(done, Verdict::Fail).chain(of(done, Verdict::Inconclusive)) {
            let mark = if trial.verdict == Verdict::Inconclusive {
                " (inconclusive)"
            } else {
                ""
            };
            let _ = writeln!(text, "  {}{mark}", trial.what);
            let _ = writeln!(text, "    device   {}", trial.seen);
            let _ = writeln!(text, "    allowed  {}", trial.allowed.join("; "));
            if let Some((sent, received)) = &trial.octets {
                let _ = writeln!(text, "    sent     …{sent}");
                let _ = writeln!(text, "    received …{received}");
            }
        }
    }
    let not_run = super::not_run(all);
    if !not_run.is_empty() {
        text.push_str("\nNot run:\n");
    }
    for (reason, ids) in not_run {
        let _ = writeln!(text, "  {reason}: {}", ids.join(", "));
    }
    if let Some(hint) = &subject.hint {
        let _ = writeln!(text, "\n{hint}");
    }
    let total: Vec<_> = counts(all)
        .into_iter()
        .map(|(outcome, count)| format!("{count} {}", outcome.word()))
        .collect();
    let trials: usize = all.iter().map(|done| done.trials.len()).sum();
    let _ = writeln!(
        text,
        "\n{} cases, {trials} trials: {}",
        all.len(),
        total.join(", ")
    );
    text
}

/// The numbers in a clause, by which sections sort: RFC, then each part of the section.
pub(super) fn order(clause: &str) -> Vec<u32> {
    clause
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|part| part.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_sort_by_number() {
        assert!(order("RFC 6581 §10") > order("RFC 6581 §9.1"));
        assert!(order("RFC 5041 §7.2") < order("RFC 5044 §4.1"));
    }
}

//! The report as one page that needs nothing else: a summary as a certificate has it, the sections of each RFC, and each finding with its sequence and octets.

use core::fmt::Write as _;
use std::collections::BTreeMap;
use std::time::UNIX_EPOCH;

use serde_json::Value;

use super::junit::escape;
use super::text::order;
use super::{Subject, counts, picture};
use crate::bench::{Trial, Verdict};
use crate::cases::Level;
use crate::clauses::Clauses;
use crate::run::{Done, Outcome};

const STYLE: &str = include_str!("html.css");

/// The page; one part for each device.
#[must_use]
pub fn html(all: &[(Subject, Vec<Done>)]) -> String {
    let mut page = String::from(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">\n<title>Conformance report</title>\n<style>\n",
    );
    page.push_str(STYLE);
    page.push_str("</style></head><body>\n<main>\n");
    let clauses = Clauses::load().unwrap_or_else(|_| Clauses::empty());
    for (number, (subject, dones)) in (1..).zip(all) {
        device(&mut page, number, subject, dones, &clauses);
    }
    page.push_str("</main></body></html>\n");
    page
}

/// Word that a class of the style has.
fn class(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Pass => "pass",
        Outcome::Skipped => "skipped",
        Outcome::Inconclusive => "inconclusive",
        Outcome::Deviates => "deviates",
        Outcome::ExpectedFail => "expected",
        Outcome::Fail | Outcome::Broken | Outcome::Dead => "fail",
    }
}

fn device(page: &mut String, number: usize, subject: &Subject, dones: &[Done], clauses: &Clauses) {
    // Writing to a String cannot fail, here and below.
    let _ = writeln!(page, "<article>\n<header><h1>iWARP conformance report</h1>");
    verdict(page, dones);
    identification(page, subject, dones);
    page.push_str("</header>\n");
    tally(page, dones);
    sections(page, number, dones);
    findings(page, number, dones, clauses);
    cases(page, number, dones);
    not_run(page, dones);
    page.push_str("</article>\n");
}

fn verdict(page: &mut String, dones: &[Done]) {
    let count = |outcomes: &[Outcome]| {
        dones
            .iter()
            .filter(|done| outcomes.contains(&done.outcome))
            .count()
    };
    let bad = count(&[Outcome::Fail, Outcome::Broken, Outcome::Dead]);
    let known = count(&[Outcome::ExpectedFail]);
    let unknown = count(&[Outcome::Inconclusive]);
    let run = dones.len() - count(&[Outcome::Skipped]);
    let (class, text) = match (run, bad, known) {
        (0, ..) => ("skipped", "No case was run".to_owned()),
        (_, 0, 0) => (
            if unknown == 0 { "pass" } else { "inconclusive" },
            format!("No deviation from a MUST in {run} cases"),
        ),
        (_, 0, _) => (
            "expected",
            format!("No news in {run} cases: {known} have deviations that the profile knows"),
        ),
        _ => ("fail", format!("{bad} of {run} cases found deviations")),
    };
    let unknown = match unknown {
        0 => String::new(),
        number => format!("; {number} inconclusive"),
    };
    let _ = writeln!(
        page,
        "<p class=\"verdict {class}\">{}{unknown}</p>",
        escape(&text)
    );
}

fn identification(page: &mut String, subject: &Subject, dones: &[Done]) {
    let since = subject.when.duration_since(UNIX_EPOCH).unwrap_or_default();
    let took: f64 = dones.iter().map(|done| done.took.as_secs_f64()).sum();
    let mut rows = vec![
        ("Device", subject.device.clone()),
        ("Address", subject.target.clone()),
        ("Agent", subject.control.clone().unwrap_or_default()),
        ("Date", date(since.as_secs())),
        ("Duration", format!("{took:.0} s")),
        ("Tester", super::TESTER.to_owned()),
    ];
    for (name, value) in subject.options.as_object().into_iter().flatten() {
        rows.push(option(name, value));
    }
    if let Some(hint) = &subject.hint {
        rows.push(("Hint", hint.clone()));
    }
    page.push_str("<dl class=\"about\">\n");
    for (name, value) in rows
        .iter()
        .filter(|(_, value)| !["", "null", "[]"].contains(&value.as_str()))
    {
        let _ = writeln!(
            page,
            "<div><dt>{}</dt><dd>{}</dd></div>",
            escape(name),
            escape(value)
        );
    }
    page.push_str("</dl>\n");
}

/// An option of the run, as its name in the JSON and its value say it.
fn option<'a>(name: &'a str, value: &Value) -> (&'a str, String) {
    let text = match value {
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match name {
        "crc" => ("CRC", text),
        "allow_crash" => ("Cases that may crash", text),
        "slow" => ("Slow cases", text),
        "patience_s" => ("Patience", format!("{text} s")),
        "many" => ("Connections of cases with many", text),
        _ => (name, text),
    }
}

fn tally(page: &mut String, dones: &[Done]) {
    page.push_str("<ul class=\"tally\">\n");
    for (outcome, count) in counts(dones) {
        let _ = writeln!(
            page,
            "<li class=\"{}\"><b>{count}</b> {}</li>",
            class(outcome),
            outcome.word().to_lowercase()
        );
    }
    let trials: usize = dones.iter().map(|done| done.trials.len()).sum();
    let _ = writeln!(
        page,
        "<li><b>{}</b> cases</li><li><b>{trials}</b> trials</li>\n</ul>",
        dones.len()
    );
}

/// Sections of an RFC in order, by name, with the cases about them.
type Sections<'a> = BTreeMap<Vec<u32>, (String, Vec<&'a Done>)>;

/// A table for each RFC: its sections, and what became of the cases about them.
fn sections(page: &mut String, number: usize, dones: &[Done]) {
    let mut rfcs: BTreeMap<Vec<u32>, (String, Sections<'_>)> = BTreeMap::new();
    for done in dones {
        for clause in done.case.clauses {
            let (rfc, section) = clause.split_once(" §").unwrap_or((clause, ""));
            let (_, sections) = rfcs
                .entry(order(rfc))
                .or_insert_with(|| (rfc.to_owned(), BTreeMap::new()));
            let (_, cases) = sections
                .entry(order(section))
                .or_insert_with(|| (section.to_owned(), Vec::new()));
            cases.push(done);
        }
    }
    page.push_str("<section><h2>By section</h2>\n");
    for (rfc, sections) in rfcs.values() {
        let title = match &rfc[..] {
            "Datagram" => "Datagram mapping",
            "Reliable" => "Reliable datagrams",
            rfc => rfc,
        };
        let _ = writeln!(
            page,
            "<table class=\"sections\"><caption>{}</caption><thead><tr><th>Section</th><th>Result</th><th>Cases</th></tr></thead><tbody>",
            escape(title)
        );
        for (section, cases) in sections.values() {
            let worst = cases
                .iter()
                .map(|done| done.outcome)
                .filter(|outcome| *outcome != Outcome::Skipped)
                .max()
                .unwrap_or(Outcome::Skipped);
            let _ = write!(
                page,
                "<tr><td>§{}</td><td><span class=\"mark {}\">{}</span></td><td class=\"ids\">",
                escape(section),
                class(worst),
                worst.word().to_lowercase()
            );
            for done in cases {
                let _ = write!(
                    page,
                    "<a class=\"{}\" href=\"#d{number}-{id}\">{id}</a> ",
                    class(done.outcome),
                    id = done.case.id
                );
            }
            page.push_str("</td></tr>\n");
        }
        page.push_str("</tbody></table>\n");
    }
    page.push_str("</section>\n");
}

fn failed(done: &Done) -> impl Iterator<Item = &Trial> {
    done.trials
        .iter()
        .filter(|trial| trial.verdict != Verdict::Pass)
}

fn findings(page: &mut String, number: usize, dones: &[Done], clauses: &Clauses) {
    let mut notable: Vec<_> = dones
        .iter()
        .filter(|done| done.outcome >= Outcome::Inconclusive)
        .collect();
    if notable.is_empty() {
        return;
    }
    // The worst first; in the order of the run otherwise.
    notable.sort_by_key(|done| std::cmp::Reverse(done.outcome));
    page.push_str("<section><h2>Findings</h2>\n");
    for done in notable {
        let _ = writeln!(
            page,
            "<section class=\"finding {}\" id=\"d{number}-{id}\"><h3><span class=\"mark {}\">{}</span> {id} {}</h3>",
            class(done.outcome),
            class(done.outcome),
            done.outcome.word().to_lowercase(),
            escape(done.case.about),
            id = done.case.id,
        );
        let level = match done.case.level {
            Level::Must => "MUST",
            Level::Should => "SHOULD",
        };
        let _ = writeln!(
            page,
            "<p class=\"clauses\">{level}: {}</p>",
            escape(&done.case.clauses.join(", "))
        );
        if !done.reason.trim().is_empty() {
            let _ = writeln!(page, "<p>{}</p>", escape(done.reason.trim()));
        }
        let rules: Vec<_> = clauses.of_case(done.case.id).collect();
        if !rules.is_empty() {
            page.push_str("<details><summary>Rules that this case tests</summary><ul>\n");
            for rule in rules {
                let _ = writeln!(
                    page,
                    "<li><code>{}</code> {}: {}</li>",
                    rule.id,
                    rule.keyword.word(),
                    escape(&rule.says)
                );
            }
            page.push_str("</ul></details>\n");
        }
        for trial in failed(done) {
            one(page, trial);
        }
        page.push_str("</section>\n");
    }
    page.push_str("</section>\n");
}

fn one(page: &mut String, trial: &Trial) {
    let mark = if trial.verdict == Verdict::Inconclusive {
        " <span class=\"mark inconclusive\">inconclusive</span>"
    } else {
        ""
    };
    let _ = writeln!(
        page,
        "<div class=\"trial\"><h4>{}{mark}</h4>\n<dl><dt>Device</dt><dd>{}</dd><dt>Allowed</dt><dd>{}</dd></dl>",
        escape(&trial.what),
        escape(&trial.seen),
        trial
            .allowed
            .iter()
            .map(|one| escape(one))
            .collect::<Vec<_>>()
            .join("<br>")
    );
    if !trial.steps.is_empty() {
        let _ = writeln!(
            page,
            "<details><summary>Sequence and octets</summary>\n{}",
            picture::svg(&trial.steps)
        );
        page.push_str("<table class=\"octets\"><thead><tr><th>From</th><th>ms</th><th>Contents</th><th>Octets</th></tr></thead><tbody>\n");
        for step in &trial.steps {
            let more = step.length.saturating_sub(step.octets.len());
            let rest = if more > 0 {
                format!(" … {more} more")
            } else {
                String::new()
            };
            let _ = writeln!(
                page,
                "<tr><td>{}</td><td class=\"n\">{:.1}</td><td>{}</td><td><code>{}</code>{rest}</td></tr>",
                step.way,
                step.at.as_secs_f64() * 1e3,
                escape(&step.what),
                grouped(&step.octets)
            );
        }
        page.push_str("</tbody></table></details>\n");
    }
    page.push_str("</div>\n");
}

/// Octets in words of four.
fn grouped(octets: &[u8]) -> String {
    octets
        .chunks(4)
        .map(|word| crate::wire::hex(word, 4))
        .collect::<Vec<_>>()
        .join(" ")
}

fn cases(page: &mut String, number: usize, dones: &[Done]) {
    let run: Vec<_> = dones
        .iter()
        .filter(|done| done.outcome != Outcome::Skipped)
        .collect();
    if run.is_empty() {
        return;
    }
    page.push_str("<section><h2>Cases that ran</h2>\n<table><thead><tr><th>Case</th><th>Result</th><th>Subject</th><th>Trials</th><th>Version</th></tr></thead><tbody>\n");
    for done in run {
        // A finding has this name already.
        let name = if done.outcome < Outcome::Inconclusive {
            format!(" id=\"d{number}-{}\"", done.case.id)
        } else {
            String::new()
        };
        let _ = writeln!(
            page,
            "<tr{name}><td>{}</td><td><span class=\"mark {}\">{}</span></td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
            done.case.id,
            class(done.outcome),
            done.outcome.word().to_lowercase(),
            escape(done.case.about),
            done.trials.len(),
            done.case.version
        );
    }
    page.push_str("</tbody></table></section>\n");
}

fn not_run(page: &mut String, dones: &[Done]) {
    let groups = super::not_run(dones);
    if groups.is_empty() {
        return;
    }
    page.push_str("<section><h2>Cases that did not run</h2>\n<dl class=\"skipped-cases\">\n");
    for (reason, ids) in groups {
        let _ = writeln!(
            page,
            "<dt>{}</dt><dd>{}</dd>",
            escape(reason),
            ids.join(", ")
        );
    }
    page.push_str("</dl></section>\n");
}

/// Seconds since 1970 as a date and time of UTC.
fn date(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March, so that the day that comes every four years is the last one; eras have 400 years.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let of_month = day - (153 * month + 2) / 5 + 1;
    let (year, month) = if month < 10 {
        (era * 400 + year, month + 3)
    } else {
        (era * 400 + year + 1, month - 9)
    };
    format!(
        "{year:04}-{month:02}-{of_month:02} {:02}:{:02} UTC",
        rest / 3_600,
        rest / 60 % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(date(1_735_689_599), "2024-12-31 23:59 UTC");
        assert_eq!(date(4_107_542_400), "2100-03-01 00:00 UTC");
    }
}

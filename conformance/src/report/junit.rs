//! The report for continuous integration: JUnit's XML, of which only what every reader knows is used.

use core::fmt::Write as _;

use super::{Subject, TESTER};
use crate::bench::Verdict;
use crate::run::{Done, Outcome};

/// One test suite for each device; a case is a test case.
#[must_use]
pub fn junit(all: &[(Subject, Vec<Done>)]) -> String {
    let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n");
    for (subject, dones) in all {
        suite(&mut xml, subject, dones);
    }
    xml.push_str("</testsuites>\n");
    xml
}

fn suite(xml: &mut String, subject: &Subject, all: &[Done]) {
    let bad = all.iter().filter(|done| done.outcome.is_bad()).count();
    let skipped = all
        .iter()
        .filter(|done| matches!(done.outcome, Outcome::Skipped | Outcome::Inconclusive))
        .count();
    // Writing to a String cannot fail, here and below.
    let _ = writeln!(
        xml,
        "<testsuite name=\"dgiwarp-conform {}\" tests=\"{}\" failures=\"{bad}\" skipped=\"{skipped}\">",
        escape(&subject.target),
        all.len()
    );
    let _ = writeln!(
        xml,
        "<properties><property name=\"tester\" value=\"{TESTER}\"/><property name=\"options\" value=\"{}\"/></properties>",
        escape(&subject.options.to_string())
    );
    for done in all {
        let _ = write!(
            xml,
            "<testcase classname=\"{}\" name=\"{} {}\" time=\"{:.3}\">",
            escape(done.case.clauses.first().copied().unwrap_or_default()),
            done.case.id,
            escape(done.case.about),
            done.took.as_secs_f64()
        );
        match done.outcome {
            Outcome::Skipped => {
                let _ = write!(xml, "<skipped message=\"{}\"/>", escape(&done.reason));
            }
            Outcome::Fail | Outcome::Broken | Outcome::Dead => {
                let _ = write!(
                    xml,
                    "<failure message=\"{} {}\">{}</failure>",
                    done.outcome.word(),
                    escape(done.reason.trim()),
                    escape(&details(done))
                );
            }
            Outcome::Inconclusive => {
                let _ = write!(
                    xml,
                    "<skipped message=\"inconclusive: {}\"/><system-out>{}</system-out>",
                    escape(done.reason.trim()),
                    escape(&details(done))
                );
            }
            Outcome::Deviates | Outcome::ExpectedFail => {
                let _ = write!(xml, "<system-out>{}</system-out>", escape(&details(done)));
            }
            Outcome::Pass => {}
        }
        xml.push_str("</testcase>\n");
    }
    xml.push_str("</testsuite>\n");
}

fn details(done: &Done) -> String {
    let mut text = String::new();
    for trial in &done.trials {
        if trial.verdict != Verdict::Pass {
            let allowed = trial.allowed.join("; ");
            let mark = if trial.verdict == Verdict::Inconclusive {
                "inconclusive: "
            } else {
                ""
            };
            let _ = writeln!(
                text,
                "{mark}{}: {}; allowed: {allowed}",
                trial.what, trial.seen
            );
        }
    }
    text
}

pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' | '\t' => out.push(c),
            // XML 1.0 has no other control characters.
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_break_out() {
        assert_eq!(
            escape("<a b=\"c\">&\u{1}"),
            "&lt;a b=&quot;c&quot;&gt;&amp;\u{fffd}"
        );
    }
}

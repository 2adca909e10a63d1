//! The report at the end of `cargo xtask test`.

use std::fmt::Write as _;
use std::time::Duration;

use crate::libtest::Tally;

/// One line of the table of groups.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// The group's name.
    pub(super) word: &'static str,
    /// Wall time.
    pub(super) took: Duration,
    /// Wall time it should stay within.
    pub(super) budget: Duration,
    /// Its results.
    pub(super) tally: Tally,
}

/// Everything that the end of the output is made of.
#[derive(Clone, Debug, Default)]
pub(super) struct Report {
    /// One per group that ran.
    pub(super) rows: Vec<Row>,
    /// Skipped tests: name and reason.
    pub(super) skips: Vec<(String, String)>,
    /// Failures, one line each.
    pub(super) failures: Vec<String>,
    /// Long tests that were not asked for.
    pub(super) left_out: usize,
}

impl Report {
    /// The sum over all groups; with `no_skip`, skipped tests are failed ones.
    pub(super) fn total(&self, no_skip: bool) -> Tally {
        let mut total = Tally::default();
        for row in &self.rows {
            total += row.tally;
        }
        if no_skip {
            total.failed += total.skipped;
            total.skipped = 0;
        }
        total
    }

    /// The text; its last line is `N passed, N failed, N skipped`.
    pub(super) fn render(&self, no_skip: bool) -> String {
        let mut text = format!(
            "\n{:<10}{:>8}{:>8}{:>8}{:>8}{:>8}\n",
            "group", "time", "budget", "passed", "failed", "skipped"
        );
        for row in &self.rows {
            let over = if row.took > row.budget {
                "  over its budget"
            } else {
                ""
            };
            let _infallible = writeln!(
                text,
                "{:<10}{:>8}{:>8}{:>8}{:>8}{:>8}{over}",
                row.word,
                clock_time(row.took),
                clock_time(row.budget),
                row.tally.passed,
                row.tally.failed,
                row.tally.skipped,
            );
        }
        let took: Duration = self.rows.iter().map(|row| row.took).sum();
        let _infallible = writeln!(text, "{:<10}{:>8}", "all", clock_time(took));
        if !self.skips.is_empty() {
            let counted = if no_skip { ", counted as failed" } else { "" };
            let _infallible = writeln!(text, "\nSkipped on this machine{counted}:");
            for (name, reason) in &self.skips {
                let _infallible = writeln!(text, "  {name}: {reason}");
            }
        }
        if !self.failures.is_empty() {
            text.push_str("\nFailed:\n");
            for failure in &self.failures {
                let _infallible = writeln!(text, "  {failure}");
            }
        }
        if self.left_out > 0 {
            let _infallible = writeln!(
                text,
                "\nLong tests not asked for: {} (--soak runs them)",
                self.left_out
            );
        }
        let total = self.total(no_skip);
        let _infallible = writeln!(
            text,
            "\n{} passed, {} failed, {} skipped",
            total.passed, total.failed, total.skipped
        );
        text
    }
}

/// Minutes and seconds, as `3:07`.
fn clock_time(duration: Duration) -> String {
    let seconds = duration.as_secs();
    format!("{}:{:02}", seconds / 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let row = |word, seconds, passed, failed, skipped| Row {
            word,
            took: Duration::from_secs(seconds),
            budget: Duration::from_secs(60),
            tally: Tally {
                passed,
                failed,
                skipped,
            },
        };
        Report {
            rows: vec![row("unit", 7, 10, 0, 1), row("process", 187, 5, 1, 0)],
            skips: vec![("siw".into(), "no /dev/net/tun".into())],
            failures: vec!["-p x --test y: z".into()],
            left_out: 2,
        }
    }

    #[test]
    fn the_last_line_sums_up() {
        let text = report().render(false);
        assert_eq!(text.lines().last(), Some("15 passed, 1 failed, 1 skipped"));
        assert!(text.contains("  siw: no /dev/net/tun\n"));
        assert!(text.contains("  -p x --test y: z\n"));
        assert!(text.contains("    3:07"));
        let over: Vec<_> = text
            .lines()
            .filter(|line| line.ends_with("over its budget"))
            .collect();
        assert_eq!(over.len(), 1);
        assert!(over[0].starts_with("process"));
    }

    #[test]
    fn no_skip_turns_skips_into_failures() {
        assert_eq!(
            report().render(true).lines().last(),
            Some("15 passed, 2 failed, 0 skipped")
        );
    }
}

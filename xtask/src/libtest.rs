//! Output of a test program of Rust's own harness, turned into numbers.

use std::ops::AddAssign;

/// Results of one or more test programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Tests that passed.
    pub passed: u64,
    /// Tests that failed, and programs or checks that failed as a whole.
    pub failed: u64,
    /// Tests that did not find what they need on this machine.
    pub skipped: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

/// Reads the output of one test program line by line.
#[derive(Clone, Debug, Default)]
pub struct Reader {
    /// Sum of the `test result:` lines so far; a documentation test run has several.
    pub tally: Tally,
    /// Whether a `test result:` line came at all.
    pub concluded: bool,
    /// Names of the failed tests.
    pub failures: Vec<String>,
}

impl Reader {
    /// Takes one line of output, without its line end; colours do not matter.
    pub fn line(&mut self, line: &str) {
        let line = without_colours(line);
        let line = line.trim();
        if let Some(rest) = line.strip_prefix("test result: ") {
            if let Some(counts) = parse_result(rest) {
                self.tally += counts;
                self.concluded = true;
            }
        } else if let Some(name) = line
            .strip_prefix("test ")
            .and_then(|rest| rest.strip_suffix(" ... FAILED"))
        {
            self.failures.push(name.to_owned());
        }
    }
}

/// `ok. 3 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s`
fn parse_result(text: &str) -> Option<Tally> {
    let (_, counts) = text.split_once(". ")?;
    let count = |what: &str| {
        counts
            .split(';')
            .find_map(|part| part.trim().strip_suffix(what)?.trim().parse::<u64>().ok())
    };
    Some(Tally {
        passed: count("passed")?,
        failed: count("failed")?,
        skipped: 0,
    })
}

/// The names in the output of `--list --format terse`: lines `path::to::test: test`.
#[must_use]
pub fn listed_tests(output: &str) -> Vec<String> {
    output
        .lines()
        .filter_map(|line| line.strip_suffix(": test"))
        .map(ToOwned::to_owned)
        .collect()
}

/// The last part of a test's path.
#[must_use]
pub fn short_name(path: &str) -> &str {
    path.rsplit("::").next().unwrap_or(path)
}

fn without_colours(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(start) = rest.find("\u{1b}[") {
        plain.push_str(&rest[..start]);
        rest = &rest[start..];
        // An escape sequence of this kind ends with a letter.
        match rest.find(|c: char| c.is_ascii_alphabetic()) {
            Some(end) => rest = &rest[end + 1..],
            None => rest = "",
        }
    }
    plain.push_str(rest);
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(output: &str) -> Reader {
        let mut reader = Reader::default();
        output.lines().for_each(|line| reader.line(line));
        reader
    }

    #[test]
    fn counts_and_names_of_a_failing_program() {
        let reader = read(
            "
running 3 tests
test tests::a ... ok
test tests::b ... FAILED
test long ... ignored, takes an hour

failures:
    tests::b

test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s
",
        );
        assert_eq!(
            reader.tally,
            Tally {
                passed: 1,
                failed: 1,
                skipped: 0
            }
        );
        assert_eq!(reader.failures, ["tests::b"]);
        assert!(reader.concluded);
    }

    #[test]
    fn several_results_add_up_and_colours_are_ignored() {
        let reader = read("test \u{1b}[1mx\u{1b}[0m ... \u{1b}[31mFAILED\u{1b}[m
test result: \u{1b}[32mok\u{1b}[m. 10 passed; 0 failed; 0 ignored; 0 measured; 2 filtered out; finished in 1.20s
test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
");
        assert_eq!(reader.tally.passed, 15);
        assert_eq!(reader.failures, ["x"]);
    }

    #[test]
    fn a_program_that_died_concludes_nothing() {
        let reader = read("running 3 tests\ntest a ... ok\ntest result: garbage\nthread panicked");
        assert!(!reader.concluded);
        assert_eq!(reader.tally, Tally::default());
    }

    #[test]
    fn listing() {
        let names = listed_tests("soak_all_day: test\nmodule::soak_it: test\nbench: benchmark\n");
        assert_eq!(names, ["soak_all_day", "module::soak_it"]);
        assert_eq!(short_name("module::soak_it"), "soak_it");
        assert_eq!(short_name("soak_all_day"), "soak_all_day");
    }
}

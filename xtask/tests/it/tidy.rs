//! The tidy test: rules of the house that the compiler does not check.
//!
//! Each rule is one test, and lists all its violations at once. The rules themselves are checked against small examples,
//! so that a rule that has gone blind fails too.

mod arrangement;
mod citations;
mod graph;
mod imports;
mod licences;
mod links;
mod pictures;
mod promises;
mod recipes;
mod sources;
mod tree;
mod troubleshooting;
mod words;

/// Fails with one line per violation.
#[track_caller]
fn assert_none(rule: &str, violations: &[String]) {
    assert!(
        violations.is_empty(),
        "{rule}:\n  {}",
        violations.join("\n  ")
    );
}

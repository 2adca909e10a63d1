//! The licences of the packages that the workspace is built with.

use cargo_metadata::MetadataCommand;
use xtask::workspace;

use super::assert_none;

/// Licences that go together with `MIT OR Apache-2.0`.
const FINE: [&str; 9] = [
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Zlib",
];

/// Whether one alternative of an SPDX expression has only fine licences. `/` is the old way to write `OR`.
fn is_fine(expression: &str) -> bool {
    let expression = expression.replace('/', " OR ");
    split(&expression, " OR ").iter().any(|alternative| {
        split(alternative, " AND ").iter().all(|part| {
            let part = part.trim();
            match part
                .strip_prefix('(')
                .and_then(|inner| inner.strip_suffix(')'))
            {
                Some(inner) => is_fine(inner),
                None => FINE.contains(&part.trim_end_matches(" WITH LLVM-exception")),
            }
        })
    })
}

/// Splits at `separator` where no bracket is open.
fn split<'a>(expression: &'a str, separator: &str) -> Vec<&'a str> {
    let depth_at = |at: usize| {
        let before = &expression[..at];
        before.matches('(').count() - before.matches(')').count()
    };
    let mut parts = Vec::new();
    let mut start = 0;
    for (at, _) in expression
        .match_indices(separator)
        .filter(|(at, _)| depth_at(*at) == 0)
    {
        parts.push(&expression[start..at]);
        start = at + separator.len();
    }
    parts.push(&expression[start..]);
    parts
}

#[test]
fn every_dependency_has_a_fine_licence() {
    let metadata = MetadataCommand::new()
        .manifest_path(workspace::root().join("Cargo.toml"))
        // Without this, packages that only other systems need would be fetched.
        .other_options([
            "--filter-platform".to_owned(),
            "x86_64-unknown-linux-gnu".to_owned(),
        ])
        .exec()
        .unwrap();
    assert!(
        metadata.packages.len() > 50,
        "the dependencies are not listed"
    );
    let wrong: Vec<_> = metadata
        .packages
        .iter()
        .filter(|package| !package.license.as_deref().is_some_and(is_fine))
        .map(|package| {
            format!(
                "{} {}: {:?}",
                package.name, package.version, package.license
            )
        })
        .collect();
    assert_none("licences", &wrong);
}

#[test]
fn expressions_are_read() {
    assert!(is_fine("MIT OR Apache-2.0"));
    assert!(is_fine("MIT/GPL-2.0"));
    assert!(is_fine("(MIT OR Apache-2.0) AND Unicode-3.0"));
    assert!(is_fine("Apache-2.0 WITH LLVM-exception"));
    assert!(!is_fine("(MIT OR Apache-2.0) AND GPL-2.0"));
    assert!(is_fine("GPL-2.0 OR (MIT AND (ISC OR GPL-2.0))"));
    assert!(!is_fine("GPL-3.0-only"));
    assert!(!is_fine("MIT AND GPL-2.0"));
    assert!(!is_fine(""));
}

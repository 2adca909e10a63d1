//! Every promise of SECURITY.md names a test that exists.

use super::assert_none;
use super::tree::{self, File};

const PROMISES: &str = "## Promises";
const TESTED_BY: &str = "Tested by ";

/// The numbered items of the section of promises, each as one line.
fn promises(text: &str) -> Vec<String> {
    let section = text.split_once(PROMISES).map_or("", |(_, rest)| rest);
    let section = section
        .split_once("\n## ")
        .map_or(section, |(section, _)| section);
    let mut items: Vec<String> = Vec::new();
    for line in section
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
    {
        let starts = line
            .split_once(". ")
            .is_some_and(|(number, _)| number.parse::<u32>().is_ok());
        match items.last_mut() {
            Some(item) if !starts => {
                item.push(' ');
                item.push_str(line);
            }
            _ if starts => items.push(line.to_owned()),
            _ => {}
        }
    }
    items
}

/// The names in backticks after `Tested by`.
fn tests_of(item: &str) -> Vec<&str> {
    let Some((_, tests)) = item.split_once(TESTED_BY) else {
        return Vec::new();
    };
    tests.split('`').skip(1).step_by(2).collect()
}

/// Whether a function of this name, with a test attribute within the lines above it, stands in one of the files.
fn is_a_test(name: &str, sources: &[File]) -> bool {
    let head = format!("fn {name}(");
    let mut naming = sources.iter().filter(|file| file.text.contains(&head));
    naming.any(|file| {
        let lines: Vec<_> = file.text.lines().collect();
        lines.iter().enumerate().any(|(at, line)| {
            line.contains(&head)
                && lines[at.saturating_sub(6)..at]
                    .iter()
                    .any(|line| line.trim() == "#[test]")
        })
    })
}

#[test]
fn every_promise_names_a_test() {
    let files = tree::files();
    let security = files
        .iter()
        .find(|file| file.path == "SECURITY.md")
        .expect("SECURITY.md");
    let promises = promises(&security.text);
    assert!(!promises.is_empty(), "SECURITY.md promises nothing");
    let sources = tree::rust_files();
    let mut wrong = Vec::new();
    for item in &promises {
        let tests = tests_of(item);
        if tests.is_empty() {
            wrong.push(format!("no test: {item}"));
        }
        wrong.extend(
            tests
                .iter()
                .filter(|name| !is_a_test(name, &sources))
                .map(|name| format!("no test is called {name}")),
        );
    }
    assert_none("promises of SECURITY.md", &wrong);
}

#[test]
fn promises_are_read() {
    let text = "# T\n\n1. Not here.\n\n## Promises\n\nSome text.\n\n1. One\n   thing. Tested by `a`, `b`.\n2. Two.\n\n## Not\n\n3. No.\n";
    let items = promises(text);
    assert_eq!(items, ["1. One thing. Tested by `a`, `b`.", "2. Two."]);
    assert_eq!(tests_of(&items[0]), ["a", "b"]);
    assert!(tests_of(&items[1]).is_empty());
    let source = File {
        path: "x.rs".into(),
        text: "#[test]\nfn a() {}\n".into(),
    };
    let sources = [source];
    assert!(is_a_test("a", &sources));
    assert!(!is_a_test("c", &sources));
    let far = File {
        path: "x.rs".into(),
        text: "fn b() {}\n#[test]\nfn a() {}\n".into(),
    };
    assert!(!is_a_test("b", &[far]));
}

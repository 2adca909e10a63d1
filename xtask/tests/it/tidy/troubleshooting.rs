//! Each message that the book's page of troubles quotes stands in the sources.

use super::assert_none;
use super::tree::{self, File};

const PAGE: &str = "docs/use/troubleshooting.md";
const MESSAGES: &str = "## Messages";

/// The first column of the table in the section of messages. Messages stand in backticks, with `…` for what differs.
fn quoted(text: &str) -> Vec<String> {
    let section = text.split_once(MESSAGES).map_or("", |(_, rest)| rest);
    let section = section
        .split_once("\n## ")
        .map_or(section, |(section, _)| section);
    section
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` |"))
        .map(|(message, _)| message.to_owned())
        .collect()
}

/// Whether all pieces of a message stand in one file. A string that goes on in the next line counts as one.
fn is_said(message: &str, sources: &[String]) -> bool {
    sources.iter().any(|source| {
        message
            .split('…')
            .all(|piece| source.contains(piece.trim()))
    })
}

/// Programs' sources, with strings over several lines put together.
fn sources(files: &[File]) -> Vec<String> {
    let of_programs = files
        .iter()
        .filter(|file| !file.path.contains("/tests/") && !file.path.ends_with("tests.rs"));
    of_programs
        .map(|file| {
            let lines: Vec<_> = file.text.split("\\\n").map(str::trim_start).collect();
            lines.concat()
        })
        .collect()
}

#[test]
fn every_quoted_message_is_said() {
    let files = tree::files();
    let page = files.iter().find(|file| file.path == PAGE).expect(PAGE);
    let quoted = quoted(&page.text);
    assert!(
        quoted.len() >= 10,
        "{PAGE} quotes {} messages",
        quoted.len()
    );
    let sources = sources(&tree::rust_files());
    let wrong: Vec<_> = quoted
        .into_iter()
        .filter(|message| !is_said(message, &sources))
        .collect();
    assert_none(
        "messages of the page of troubles that no program prints",
        &wrong,
    );
}

#[test]
fn messages_are_read_and_looked_for() {
    let text = format!(
        "# T\n\n{MESSAGES}\n\n| message | what |\n|---|---|\n| `a … b` | x |\n| `c` | y |\n\n## Next\n\n| `d` | z |\n"
    );
    assert_eq!(quoted(&text), ["a … b", "c"]);
    let file = |path: &str, text: &str| File {
        path: path.to_owned(),
        text: text.to_owned(),
    };
    let sources = sources(&[
        file("x.rs", "\"a {} \\\n      b\""),
        file("x/tests/y.rs", "c"),
    ]);
    assert!(is_said("a … b", &sources));
    assert!(!is_said("c", &sources), "tests are no programs");
    assert!(!is_said("a … d", &sources));
}

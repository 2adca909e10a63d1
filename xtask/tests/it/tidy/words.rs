//! Sentences of comments and documents, as CONTRIBUTING.md has it: none begins with What, Who, Whoever, That, Those or "The same".

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use super::assert_none;
use super::tree::{self, File};

/// Words that begin no sentence.
const NOT_FIRST: [&str; 5] = ["What", "Who", "Whoever", "That", "Those"];
/// Source folders whose comments are checked.
const SOURCES: [&str; 17] = [
    "benches/",
    "codec/",
    "conformance/",
    "ddp/",
    "fuzz/",
    "llp-tcp-mpa/",
    "llp-udp/",
    "memory/",
    "rdmap/",
    "ripc/",
    "sim/",
    "sockets/",
    "stack/",
    "tools/",
    "transfer/",
    "verbs/",
    "xtask/",
];
/// Documents that are checked: these files, and all Markdown below these folders.
const DOCUMENTS: [&str; 9] = [
    "CHANGELOG.md",
    "conformance/",
    "fuzz/",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "README.md",
    "SECURITY.md",
    "docs/",
    "rfc-notes/",
];

fn is_punctuation(c: char) -> bool {
    !c.is_alphanumeric()
}

/// Beginnings of sentences that the rule forbids, in a text without markup.
fn forbidden(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut starts = true;
    let mut words = text.split_whitespace();
    while let Some(word) = words.next() {
        let bare = word.trim_matches(is_punctuation);
        let next = words.clone().next().unwrap_or_default();
        let is_same = bare == "The" && next.trim_end_matches(is_punctuation) == "same";
        if starts && (is_same || NOT_FIRST.contains(&bare)) {
            let rest: Vec<_> = words.clone().take(5).collect();
            found.push(format!("{word} {}", rest.join(" ")));
        }
        starts = word.ends_with(['.', '?', '!']) && !["e.g.", "i.e.", "vs."].contains(&word);
    }
    found
}

/// The texts of a document: paragraphs, items and cells, without code.
fn texts(markdown: &str) -> Vec<String> {
    let mut texts = vec![String::new()];
    let mut in_code = false;
    for event in Parser::new_ext(markdown, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::CodeBlock(_)) => in_code = true,
            Event::End(TagEnd::CodeBlock) => in_code = false,
            Event::Start(
                Tag::Paragraph
                | Tag::Item
                | Tag::TableCell
                | Tag::Heading { .. }
                | Tag::Image { .. },
            ) => texts.push(String::new()),
            Event::Text(text) if !in_code => {
                if let Some(last) = texts.last_mut() {
                    last.push_str(&text);
                }
            }
            // A word that begins no sentence of its own.
            Event::Code(_) => {
                if let Some(last) = texts.last_mut() {
                    last.push_str("code");
                }
            }
            Event::SoftBreak | Event::HardBreak => {
                if let Some(last) = texts.last_mut() {
                    last.push(' ');
                }
            }
            _ => {}
        }
    }
    texts
}

/// The comments of a source: a text for each block of lines.
fn comments(source: &str) -> Vec<String> {
    let mut texts = vec![String::new()];
    for line in source.lines() {
        let line = line.trim_start();
        match (line.strip_prefix("//"), texts.last_mut()) {
            (Some(comment), Some(last)) => {
                last.push_str(comment.trim_start_matches(['/', '!']));
                last.push(' ');
            }
            _ => texts.push(String::new()),
        }
    }
    texts
}

fn is_checked(file: &File) -> bool {
    let listed = |it: &str| file.path == it || it.ends_with('/') && file.path.starts_with(it);
    file.path.ends_with(".md") && DOCUMENTS.iter().any(|it| listed(it))
}

#[test]
fn no_sentence_of_a_document_begins_with_a_word_that_names_nothing() {
    let mut wrong = Vec::new();
    let mut seen = 0;
    for file in tree::files().iter().filter(|file| is_checked(file)) {
        seen += 1;
        for text in texts(&file.text) {
            let found = forbidden(&text);
            wrong.extend(found.iter().map(|it| format!("{}: {it}", file.path)));
        }
    }
    assert!(seen > 30, "{seen} documents");
    assert_none(
        "sentences that begin with What, Who, Whoever, That or Those",
        &wrong,
    );
}

#[test]
fn no_sentence_of_a_comment_does_either() {
    let mut wrong = Vec::new();
    for file in tree::rust_files() {
        if SOURCES.iter().any(|it| file.path.starts_with(it)) {
            for text in comments(&file.text) {
                let found = forbidden(&text);
                wrong.extend(found.iter().map(|it| format!("{}: {it}", file.path)));
            }
        }
    }
    assert_none("sentences of comments that begin so", &wrong);
}

#[test]
fn beginnings_are_seen() {
    assert_eq!(forbidden("A. The same for b."), ["The same for b."]);
    assert_eq!(forbidden("The same, copied."), ["The same, copied."]);
    assert_eq!(
        comments("/// A b.\n//! c\nlet x;\n  // d\n"),
        [" A b.  c ", " d "]
    );
    assert_eq!(forbidden("A b. What is c, d."), ["What is c, d."]);
    assert_eq!(forbidden("Say what. (Who knows)"), ["(Who knows)"]);
    assert!(forbidden("The one who knows What. e.g. That").is_empty());
    assert_eq!(
        texts("# T\n\na `b` c\nd\n\n```\nWho\n```\n"),
        ["", "T", "a code c d"]
    );
}

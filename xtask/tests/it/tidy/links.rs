//! The documents: every relative link and anchor leads somewhere, every path in the pages about the sources exists, and the book lists its pages.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use xtask::workspace;

use super::assert_none;
use super::tree::{self, File};

/// Longest README, in octets.
const LONGEST_README: usize = 10 * 1024;
/// Pages whose words in `code font` are checked, where they are paths.
const ABOUT_SOURCES: [&str; 4] = [
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "docs/inside/",
    "docs/concepts/",
];
/// Folders of the sources, as first part of a path in these pages.
const ROOTS: [&str; 17] = [
    "codec",
    "conformance",
    "ddp",
    "docs",
    "fuzz",
    "llp-tcp-mpa",
    "llp-udp",
    "memory",
    "rdmap",
    "rfc-notes",
    "ripc",
    "sim",
    "stack",
    "tools",
    "verbs",
    "xtask",
    "share",
];

/// Links of a page, and the anchors of its headings.
#[derive(Debug, Default)]
struct Page {
    links: Vec<String>,
    anchors: BTreeSet<String>,
    /// Words in code font.
    codes: Vec<String>,
}

fn parsed(text: &str) -> Page {
    let mut page = Page::default();
    let mut heading: Option<String> = None;
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                page.links.push(dest_url.into_string());
            }
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::End(TagEnd::Heading(_)) => {
                if let Some(text) = heading.take() {
                    let slug = slug(&text);
                    let mut anchor = slug.clone();
                    let mut n = 0;
                    while !page.anchors.insert(anchor) {
                        n += 1;
                        anchor = format!("{slug}-{n}");
                    }
                }
            }
            Event::Text(text) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&text);
                }
            }
            Event::Code(code) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&code);
                }
                page.codes.push(code.into_string());
            }
            _ => {}
        }
    }
    page
}

/// The anchor that forges and mdBook give a heading.
fn slug(heading: &str) -> String {
    heading
        .chars()
        .filter_map(|c| match c {
            ' ' => Some('-'),
            '-' | '_' => Some(c),
            c if c.is_alphanumeric() => c.to_lowercase().next(),
            _ => None,
        })
        .collect()
}

/// A path without `.` and `..`; `None` if it leaves the tree.
fn resolved(path: &Path) -> Option<PathBuf> {
    let mut found = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                if !found.pop() {
                    return None;
                }
            }
            part => found.push(part),
        }
    }
    Some(found)
}

fn documents() -> Vec<File> {
    tree::files()
        .into_iter()
        .filter(|file| file.path.ends_with(".md"))
        .collect()
}

/// Fault of a link of `from`, if there is one.
fn problem(from: &File, link: &str, documents: &[File]) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let folder = Path::new(&from.path)
        .parent()
        .unwrap_or_else(|| Path::new(""));
    let target = if path.is_empty() {
        PathBuf::from(&from.path)
    } else {
        match resolved(&folder.join(path)) {
            Some(target) => target,
            None => return Some(format!("{}: {link} leaves the tree", from.path)),
        }
    };
    if !workspace::root().join(&target).exists() {
        return Some(format!("{}: {link} does not exist", from.path));
    }
    if anchor.is_empty() {
        return None;
    }
    let document = documents
        .iter()
        .find(|document| Path::new(&document.path) == target);
    let found = document.is_some_and(|document| parsed(&document.text).anchors.contains(anchor));
    (!found).then(|| format!("{}: no heading for {link}", from.path))
}

#[test]
fn every_link_leads_somewhere() {
    let documents = documents();
    let mut wrong = Vec::new();
    let mut links = 0;
    for document in &documents {
        for link in parsed(&document.text).links {
            links += 1;
            wrong.extend(problem(document, &link, &documents));
        }
    }
    assert!(links > 150, "{links} links");
    assert_none("links that lead nowhere", &wrong);
}

/// Documents of this tree that a source names, as `rfc-notes/rfc5041.md` in a comment.
fn named_documents(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || "/._-".contains(c)))
        .filter(|word| {
            ["rfc-notes/", "docs/"]
                .iter()
                .any(|it| word.starts_with(it))
        })
        .filter_map(|word| Some(&word[..word.find(".md")? + ".md".len()]))
}

#[test]
fn every_document_that_a_source_names_exists() {
    let root = workspace::root();
    let mut wrong = Vec::new();
    let mut seen = 0;
    for file in tree::files() {
        // The example below names none.
        if file.path.ends_with(".md") || file.path.ends_with("tidy/links.rs") {
            continue;
        }
        for name in named_documents(&file.text) {
            seen += 1;
            if !root.join(name).exists() {
                wrong.push(format!("{}: {name}", file.path));
            }
        }
    }
    assert!(seen >= 20, "{seen} names");
    assert_none("documents that do not exist", &wrong);
}

#[test]
fn the_readme_is_short() {
    let documents = documents();
    let readme = documents.iter().find(|it| it.path == "README.md").unwrap();
    let length = readme.text.len();
    assert!(length <= LONGEST_README, "README.md has {length} octets");
}

#[test]
fn the_book_lists_its_pages() {
    let documents = documents();
    let summary = documents
        .iter()
        .find(|it| it.path == "docs/SUMMARY.md")
        .unwrap();
    let listed: BTreeSet<String> = parsed(&summary.text)
        .links
        .into_iter()
        .map(|link| format!("docs/{link}"))
        .collect();
    let wrong: Vec<_> = documents
        .iter()
        .filter(|it| it.is_in("docs") && it.path != summary.path && !listed.contains(&it.path))
        .map(|it| it.path.clone())
        .collect();
    assert_none("pages that docs/SUMMARY.md does not list", &wrong);
}

/// Whether a word in code font is a path into the sources.
fn is_path(code: &str) -> bool {
    let mut parts = code.split('/');
    let first = parts.next().unwrap_or_default();
    parts.next().is_some()
        && ROOTS.contains(&first)
        && !code.contains(['*', ' ', '…', '{', ':', '<'])
        // A folder of an installation, not of the sources.
        && !code.starts_with("share/")
}

#[test]
fn every_path_in_pages_about_the_sources_exists() {
    let root = workspace::root();
    let mut wrong = Vec::new();
    let mut seen = 0;
    for document in documents() {
        if !ABOUT_SOURCES.iter().any(|it| document.path.starts_with(it)) {
            continue;
        }
        for code in parsed(&document.text).codes {
            if is_path(&code) {
                seen += 1;
                if !root.join(&code).exists() {
                    wrong.push(format!("{}: {code}", document.path));
                }
            }
        }
    }
    assert!(seen >= 20, "{seen} paths");
    assert_none("paths that do not exist", &wrong);
}

#[test]
fn links_anchors_and_paths_are_seen() {
    let page =
        parsed("# A `b` c: d\n\n[x](y.md#z) ![p](q.svg)\n\n## A\n\n## A\n\n`stack/src/lib.rs`\n");
    assert_eq!(page.links, ["y.md#z", "q.svg"]);
    let anchors: Vec<_> = page.anchors.iter().map(String::as_str).collect();
    assert_eq!(anchors, ["a", "a-1", "a-b-c-d"]);
    assert!(page.codes.iter().any(|code| is_path(code)));
    assert!(!is_path("dgiwarp-run") && !is_path("stack::driver") && !is_path("stack/*.rs"));
    assert_eq!(slug("Everything: `--quick`".trim()), "everything---quick");
    let named: Vec<_> = named_documents("// see `rfc-notes/x.md`, ../docs/y.md").collect();
    assert_eq!(named, ["rfc-notes/x.md"]);
    assert_eq!(resolved(Path::new("a/../b/./c")), Some("b/c".into()));
    assert_eq!(resolved(Path::new("../b")), None);
    let from = |path: &str, text: &str| File {
        path: path.into(),
        text: text.into(),
    };
    let files = [from("README.md", "# There\n")];
    assert_eq!(problem(&files[0], "#there", &files), None);
    assert!(problem(&files[0], "#nowhere", &files).is_some());
    assert!(problem(&files[0], "no-such-file.md", &files).is_some());
    assert_eq!(problem(&files[0], "https://example.com/x", &files), None);
}

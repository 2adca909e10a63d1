//! Every section of an RFC that the sources cite is explained in `rfc-notes/`.

use std::collections::BTreeSet;

use super::assert_none;
use super::tree::{self, File};

/// An RFC and a section of it, as in `(5041, "4.1")`; an appendix is `"A"` or `"A.2"`.
type Citation = (u32, String);

/// All citations in a text: `RFC 5041 §4.1`, and further sections after it, as in `RFC 5041 §4.1, §7.2 and §8`.
fn citations(text: &str) -> Vec<(usize, Citation)> {
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        for (at, _) in line.match_indices("RFC ") {
            let rest = &line[at + "RFC ".len()..];
            let digits = rest
                .find(|c: char| !c.is_ascii_digit())
                .unwrap_or(rest.len());
            let (rfc, mut rest) = rest.split_at(digits);
            let Ok(rfc) = rfc.parse() else { continue };
            while let Some(section) = next_section(&mut rest) {
                found.push((number, (rfc, section)));
            }
        }
    }
    found
}

/// Takes ` §4.1`, `, §4.1`, ` and §4.1`, ` to §4.1`, `/§4.1` or `-§4.1` from the start of `rest`.
fn next_section(rest: &mut &str) -> Option<String> {
    let joined = [", ", " and ", " or ", " to ", "/", "-", "–", " ", ""];
    let after = joined
        .iter()
        .find_map(|joint| rest.strip_prefix(joint)?.strip_prefix('§'))?;
    let after = after.trim_start_matches('§');
    let end = after
        .find(|c: char| !(c.is_ascii_alphanumeric() || c == '.'))
        .unwrap_or(after.len());
    let (section, left) = after.split_at(end);
    *rest = left;
    // The full stop of a sentence is no part of the number.
    let section = section.trim_end_matches('.');
    (!section.is_empty()).then(|| section.to_owned())
}

/// The sections that a note explains: headings `### §4.1 Title`, each followed by text.
fn sections(note: &File) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    let mut lines = note.text.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(heading) = line.strip_prefix("### §") else {
            continue;
        };
        let (section, title) = heading.split_once(' ').unwrap_or((heading, ""));
        while lines.next_if(|line| line.trim().is_empty()).is_some() {}
        let explained = lines.peek().is_some_and(|line| !line.starts_with('#'));
        if title.trim().is_empty() || !explained {
            return Err(format!("{}: §{section} has no title or no text", note.path));
        }
        found.push(section.to_owned());
    }
    Ok(found)
}

/// The order of sections: 4.2 before 4.10, appendices last.
fn order(section: &str) -> Vec<(bool, u32, String)> {
    section
        .split('.')
        .map(|part| match part.parse() {
            Ok(number) => (false, number, String::new()),
            Err(_) => (true, 0, part.to_owned()),
        })
        .collect()
}

fn note_path(rfc: u32) -> String {
    format!("rfc-notes/rfc{rfc}.md")
}

#[test]
fn every_cited_section_is_explained() {
    let files = tree::files();
    let known: BTreeSet<(String, String)> = files
        .iter()
        .filter(|file| file.is_in("rfc-notes"))
        .flat_map(|note| {
            sections(note)
                .unwrap_or_default()
                .into_iter()
                .map(|section| (note.path.clone(), section))
        })
        .collect();
    let mut wrong = Vec::new();
    for file in files.iter().filter(|file| file.path.ends_with(".rs")) {
        // The examples below are no citations.
        if file.path.ends_with("tidy/citations.rs") {
            continue;
        }
        for (line, (rfc, section)) in citations(&file.text) {
            if !known.contains(&(note_path(rfc), section.clone())) {
                wrong.push(format!(
                    "{}:{line}: RFC {rfc} §{section} is not in {}",
                    file.path,
                    note_path(rfc)
                ));
            }
        }
    }
    assert_none("cited sections without a note", &wrong);
}

/// The datagram mapping is a specification of its own, with headings `## 5. Title` and `### 5.1 Title`.
#[test]
fn every_cited_section_of_the_datagram_mapping_exists() {
    let files = tree::files();
    let mapping = files
        .iter()
        .find(|file| file.path == "rfc-notes/datagram-mapping.md")
        .expect("rfc-notes/datagram-mapping.md");
    let known: BTreeSet<_> = mapping.text.lines().filter_map(heading).collect();
    assert!(known.len() > 15, "{known:?}");
    let mut wrong = Vec::new();
    for file in files.iter().filter(|file| file.path.ends_with(".rs")) {
        if file.path.ends_with("tidy/citations.rs") {
            continue;
        }
        for (number, line) in (1..).zip(file.text.lines()) {
            for (at, name) in line.match_indices("Datagram ") {
                let mut rest = &line[at + name.len() - 1..];
                while let Some(section) = next_section(&mut rest) {
                    if !known.contains(section.as_str()) {
                        wrong.push(format!("{}:{number}: Datagram §{section}", file.path));
                    }
                }
            }
        }
    }
    assert_none("sections that the datagram mapping does not have", &wrong);
}

/// The number of a heading, without the full stop behind it.
fn heading(line: &str) -> Option<&str> {
    let title = line
        .strip_prefix("###")
        .or_else(|| line.strip_prefix("##"))?;
    let number = title.split_whitespace().next()?.trim_end_matches('.');
    number
        .starts_with(|c: char| c.is_ascii_digit())
        .then_some(number)
}

#[test]
fn notes_are_sorted_and_complete() {
    let mut wrong = Vec::new();
    for note in tree::files()
        .iter()
        .filter(|file| file.path.starts_with("rfc-notes/rfc"))
    {
        match sections(note) {
            Err(error) => wrong.push(error),
            Ok(sections) => {
                for pair in sections
                    .windows(2)
                    .filter(|pair| order(&pair[0]) >= order(&pair[1]))
                {
                    wrong.push(format!("{}: §{} before §{}", note.path, pair[0], pair[1]));
                }
            }
        }
    }
    assert_none("rfc-notes", &wrong);
}

#[test]
fn every_note_is_in_the_index() {
    let files = tree::files();
    let index = files
        .iter()
        .find(|file| file.path == "rfc-notes/README.md")
        .expect("rfc-notes/README.md");
    let wrong: Vec<_> = files
        .iter()
        .filter(|file| file.is_in("rfc-notes") && file.path != index.path)
        .filter_map(|file| file.path.strip_prefix("rfc-notes/"))
        .filter(|name| !index.text.contains(&format!("({name})")))
        .map(ToOwned::to_owned)
        .collect();
    assert_none("notes that rfc-notes/README.md does not list", &wrong);
}

#[test]
fn citations_are_read() {
    let found: Vec<_> = citations(
        "// RFC 5041 §4.1: L is set. RFC 5040 §4.8, §7.2 and §8.1.\n// RFC 7306 §5.\n// RFC 5044 App. B, RFC 5044 §A.2/§B\n",
    )
    .into_iter()
    .map(|(line, (rfc, section))| format!("{line} {rfc} {section}"))
    .collect();
    assert_eq!(
        found,
        [
            "1 5041 4.1",
            "1 5040 4.8",
            "1 5040 7.2",
            "1 5040 8.1",
            "2 7306 5",
            "3 5044 A.2",
            "3 5044 B"
        ]
    );
}

#[test]
fn notes_are_read() {
    let note = |text: &str| File {
        path: "n".into(),
        text: text.into(),
    };
    assert_eq!(
        sections(&note(
            "# T\n\n### §4.1 Title\n\nText.\n### §4.2 More\nText.\n"
        ))
        .unwrap(),
        ["4.1", "4.2"]
    );
    assert!(sections(&note("### §4.1 Title\n\n### §4.2 More\nText.\n")).is_err());
    assert!(sections(&note("### §4.1\nText.\n")).is_err());
    assert!(order("4.2") < order("4.10") && order("9") < order("A") && order("4") < order("4.1"));
}

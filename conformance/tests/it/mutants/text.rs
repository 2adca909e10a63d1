//! Text compared without its white space, so that formatting does not count.

use std::ops::Range;

/// A text and its form without white space and without commas before closing brackets, which rustfmt adds where it breaks a list.
pub(crate) struct Normalized {
    original: String,
    text: String,
    /// Index in `original` of each octet of `text`.
    origins: Vec<usize>,
}

impl Normalized {
    pub(crate) fn of(original: String) -> Self {
        let mut text = String::with_capacity(original.len());
        let mut origins = Vec::with_capacity(original.len());
        for (at, character) in original.char_indices() {
            if character.is_whitespace() {
                continue;
            }
            if matches!(character, ')' | ']' | '}') && text.ends_with(',') {
                text.pop();
                origins.pop();
            }
            text.push(character);
            origins.extend(at..at + character.len_utf8());
        }
        Self {
            original,
            text,
            origins,
        }
    }

    pub(crate) fn original(&self) -> &str {
        &self.original
    }

    /// Whether both differ in more than their format.
    pub(crate) fn differs_from(&self, other: &Self) -> bool {
        self.text != other.text
    }

    /// Ranges of the original that a text matches.
    pub(crate) fn find(&self, wanted: &Self) -> Vec<Range<usize>> {
        let places = self.text.match_indices(&wanted.text);
        places
            .map(|(start, found)| {
                let last = start + found.len() - 1;
                self.origins[start]..self.origins[last] + 1
            })
            .collect()
    }
}

#[test]
fn formatting_does_not_count() {
    let of = |text: &str| Normalized::of(text.to_owned());
    let text = of("é(\n    a,\n    b,\n) + g(a, b)");
    let places = text.find(&of("( a, b )"));
    let found: Vec<_> = places
        .into_iter()
        .map(|place| &text.original()[place])
        .collect();
    assert_eq!(found, ["(\n    a,\n    b,\n)", "(a, b)"]);
    assert!(text.find(&of("(b, a)")).is_empty());
    assert!(!of("g(a,)").differs_from(&of("g( a )")));
}

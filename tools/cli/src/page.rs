//! Manual pages as a sequence of parts, which become roff here and nowhere else.

use clap_mangen::roff::{Inline, Roff, bold, roman};

use crate::{Example, Variable};

/// A manual page that no command line is the definition of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Its name, and that of its file.
    pub name: String,
    /// Its section, 1 to 8.
    pub section: u8,
    /// One line for `whatis`.
    pub about: String,
    /// Contents of the section.
    pub parts: Vec<Part>,
}

/// A piece of a manual page. In its texts, words between backticks are set in bold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// The heading of a section.
    Heading(String),
    /// A paragraph.
    Paragraph(String),
    /// A term and what there is to say of it, indented.
    Item {
        /// The term.
        term: String,
        /// Description.
        text: String,
    },
    /// Lines to type, set as they are.
    Lines(String),
}

impl Page {
    /// The file name.
    #[must_use]
    pub fn file_name(&self) -> String {
        format!("{}.{}", self.name, self.section)
    }

    /// The page as a manual reader takes it.
    #[must_use]
    pub fn render(&self, version: &str) -> String {
        let mut roff = Roff::new();
        let section = self.section.to_string();
        let source = format!("dgiwarp {version}");
        roff.control("TH", [self.name.as_str(), &section, NONE, &source, NONE]);
        set_ragged(&mut roff);
        roff.control("SH", ["NAME"]);
        roff.text([roman(format!("{} - {}", self.name, self.about))]);
        add(&mut roff, &self.parts);
        roff.render()
    }
}

/// An argument of a macro that is left empty.
pub(crate) const NONE: &str = "\"\"";

/// Neither stretched nor hyphenated: names of options and variables are long, and have to be found.
fn set_ragged(roff: &mut Roff) {
    roff.control("ad", ["l"]);
    roff.control("nh", []);
}

/// Text behind the title of a page.
pub(crate) fn ragged() -> String {
    let mut roff = Roff::new();
    set_ragged(&mut roff);
    roff.to_roff()
}

/// The parts at the end of a page.
pub(crate) fn render(parts: &[Part]) -> String {
    let mut roff = Roff::new();
    add(&mut roff, parts);
    roff.to_roff()
}

/// Examples as parts, under their heading.
pub(crate) fn examples(examples: &[Example]) -> Vec<Part> {
    if examples.is_empty() {
        return Vec::new();
    }
    let each = examples.iter().flat_map(|example| {
        [
            Part::Paragraph(example.about.to_owned()),
            Part::Lines(example.line.to_owned()),
        ]
    });
    std::iter::once(Part::Heading("EXAMPLES".to_owned()))
        .chain(each)
        .collect()
}

/// Variables as parts, under their heading.
#[must_use]
pub fn environment(variables: &[Variable]) -> Vec<Part> {
    if variables.is_empty() {
        return Vec::new();
    }
    let each = variables.iter().map(|variable| Part::Item {
        term: format!("{}={}", variable.name, variable.default),
        text: variable.about.clone(),
    });
    std::iter::once(Part::Heading("ENVIRONMENT".to_owned()))
        .chain(std::iter::once(Part::Paragraph(
            "Each variable stands here with what holds where it is not set.".to_owned(),
        )))
        .chain(each)
        .collect()
}

fn add(roff: &mut Roff, parts: &[Part]) {
    // A heading has its own distance from what follows.
    let mut after_heading = false;
    for part in parts {
        if !after_heading && matches!(part, Part::Paragraph(_) | Part::Lines(_)) {
            roff.control("PP", []);
        }
        after_heading = matches!(part, Part::Heading(_));
        match part {
            Part::Heading(text) => {
                roff.control("SH", [text.as_str()]);
            }
            Part::Paragraph(text) => {
                roff.text(inlines(text));
            }
            Part::Item { term, text } => {
                roff.control("TP", []);
                roff.text([bold(term)]);
                roff.text(inlines(text));
            }
            Part::Lines(text) => {
                roff.control("RS", ["4"]);
                roff.control("EX", []);
                for line in text.lines() {
                    roff.text([roman(line)]);
                }
                roff.control("EE", []);
                roff.control("RE", []);
            }
        }
    }
}

/// Every second piece between backticks is bold.
fn inlines(text: &str) -> Vec<Inline> {
    (0..)
        .zip(text.split('`'))
        .filter(|(_, piece)| !piece.is_empty())
        .map(|(at, piece)| {
            if at % 2 == 1 {
                bold(piece)
            } else {
                roman(piece)
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_become_roff() {
        let page = Page {
            name: "thing".to_owned(),
            section: 7,
            about: "what it is".to_owned(),
            parts: vec![
                Part::Heading("FILES".to_owned()),
                Part::Item {
                    term: "/a-b".to_owned(),
                    text: "Read by `thing` only.".to_owned(),
                },
                Part::Lines(".one\ntwo".to_owned()),
            ],
        };
        assert_eq!(page.file_name(), "thing.7");
        let text = page.render("1.2");
        assert!(
            text.contains(".SH NAME\nthing \\- what it is\n.SH FILES\n"),
            "{text}"
        );
        assert!(
            text.contains(".TP\n\\fB/a\\-b\\fR\nRead by \\fBthing\\fR only.\n"),
            "{text}"
        );
        assert!(text.contains(".EX\n\\&.one\ntwo\n.EE\n"), "{text}");
    }
}

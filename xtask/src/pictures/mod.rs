//! Pictures of the documents: SVG made from the text files in `docs/pictures`.
//!
//! One kind for each ending: `sequence`, `boxes`, `cells`, `graph`. Layout uses estimated widths of characters, so that a picture has the
//! same octets on every machine and a test can check that it is fresh. The crates for diagrams that were tried (mermaid-rs-renderer, selkie-rs)
//! measure text with the fonts of the machine, and have no second set of colours for dark pages.

mod boxes;
mod cells;
mod graph;
mod sequence;
mod svg;

use std::fs;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Folder of sources and pictures, below the root of the workspace.
pub const FOLDER: &str = "docs/pictures";

/// Why a picture could not be made.
#[derive(Debug, Error)]
pub enum Error {
    /// A line of a source that is none of its kind.
    #[error("{file}:{line}: {problem}")]
    Line {
        /// The source.
        file: String,
        /// Its line, from 1.
        line: usize,
        /// The rule that the line breaks.
        problem: String,
    },
    /// A file cannot be read or written.
    #[error("{0}: {1}")]
    File(PathBuf, std::io::Error),
}

/// A line that cannot be drawn, before the file's name is added.
type Problem = (usize, String);

/// A source and the picture that it stands for.
#[derive(Debug)]
pub struct Picture {
    /// The text file.
    pub source: PathBuf,
    /// The picture beside it.
    pub path: PathBuf,
    /// The picture's octets.
    pub svg: String,
}

impl Picture {
    /// Whether the file holds these octets.
    #[must_use]
    pub fn is_fresh(&self) -> bool {
        fs::read_to_string(&self.path).is_ok_and(|text| text == self.svg)
    }

    /// Writes the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self) -> Result<(), Error> {
        fs::write(&self.path, &self.svg).map_err(|error| Error::File(self.path.clone(), error))
    }
}

/// Function that draws a source of one kind.
type Draw = fn(&str) -> Result<String, Problem>;

/// Kinds of sources, by the ending of the file.
const KINDS: [(&str, Draw); 4] = [
    ("seq", sequence::draw),
    ("boxes", boxes::draw),
    ("cells", cells::draw),
    ("csv", graph::draw),
];

/// All pictures of the folder, sorted by name.
///
/// # Errors
/// The folder or a source cannot be read, or a line of a source is none of its kind.
pub fn all(folder: &Path) -> Result<Vec<Picture>, Error> {
    let failed = |error| Error::File(folder.to_owned(), error);
    let mut pictures = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let source = entry.map_err(failed)?.path();
        let kind = KINDS
            .iter()
            .find(|(ending, _)| source.extension().is_some_and(|it| it == *ending));
        let Some((_, draw)) = kind else { continue };
        let text =
            fs::read_to_string(&source).map_err(|error| Error::File(source.clone(), error))?;
        let svg = draw(&text).map_err(|(line, problem)| Error::Line {
            file: source.display().to_string(),
            line,
            problem,
        })?;
        let path = source.with_extension("svg");
        pictures.push(Picture { source, path, svg });
    }
    pictures.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(pictures)
}

/// Lines with their numbers, without empty ones and comments (`#`).
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..)
        .zip(text.lines())
        .map(|(number, line)| (number, line.trim()))
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

/// The first word and the rest.
fn word(line: &str) -> (&str, &str) {
    let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    (word, rest.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_draws_and_reports_the_line_it_cannot_draw() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.seq");
        fs::write(
            &file,
            "title T\nactor A Program\nactor B Engine\nA -> B: post\n",
        )
        .unwrap();
        fs::write(folder.path().join("note.md"), "no picture").unwrap();
        let pictures = all(folder.path()).unwrap();
        assert_eq!(pictures.len(), 1);
        assert!(!pictures[0].is_fresh());
        pictures[0].write().unwrap();
        assert!(pictures[0].is_fresh());
        assert!(pictures[0].svg.contains(">post</text>"));
        fs::write(&file, "title T\nactor A Program\nA -> C: post\n").unwrap();
        let error = all(folder.path()).unwrap_err().to_string();
        assert!(error.contains("a.seq:3:"), "{error}");
    }
}

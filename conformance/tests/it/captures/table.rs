//! The table in the captures' README.

use std::collections::BTreeMap;
use std::path::Path;

/// Expectations of a row about its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) file: String,
    pub(crate) requests: usize,
    pub(crate) replies: usize,
    pub(crate) fpdus: usize,
    pub(crate) good_crc: usize,
    /// Number of FPDUs by operation.
    pub(crate) operations: BTreeMap<String, usize>,
}

/// All rows of the README in `folder`.
pub(crate) fn rows(folder: &Path) -> Vec<Row> {
    let text = std::fs::read_to_string(folder.join("README.md")).unwrap();
    text.lines().filter_map(row).collect()
}

fn row(line: &str) -> Option<Row> {
    let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
    let [
        file,
        _command,
        _settings,
        _about,
        frames,
        fpdus,
        good_crc,
        operations,
    ] = cells[..]
    else {
        return None;
    };
    let (requests, replies) = frames.split_once('/')?;
    let operations = operations.split_terminator(", ").map(|one| {
        let (name, count) = one.rsplit_once(" x").unwrap();
        (name.to_owned(), count.parse().unwrap())
    });
    Some(Row {
        file: file.to_owned(),
        // The heading has a slash too, but no numbers.
        requests: requests.parse().ok()?,
        replies: replies.parse().unwrap(),
        fpdus: fpdus.parse().unwrap(),
        good_crc: good_crc.parse().unwrap(),
        operations: operations.collect(),
    })
}

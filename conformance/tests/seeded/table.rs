//! `conformance/seeded-bugs.psv`.

use serde::Deserialize;

/// A bug.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Row {
    pub(crate) bug: String,
    /// Those that find it, with commas between.
    pub(crate) cases: String,
    pub(crate) clause: String,
    #[serde(rename = "what a device with it does")]
    pub(crate) what: String,
    /// What the device's program has in its environment, as `NAME=value`.
    pub(crate) environment: String,
}

impl Row {
    pub(crate) fn cases(&self) -> impl Iterator<Item = &str> {
        self.cases.split(',')
    }

    pub(crate) fn environment(&self) -> Vec<(&str, &str)> {
        self.environment.split_once('=').into_iter().collect()
    }
}

/// All of it.
pub(crate) fn rows() -> Vec<Row> {
    let text = include_str!("../../seeded-bugs.psv");
    csv::ReaderBuilder::new()
        .delimiter(b'|')
        .quoting(false)
        .from_reader(text.as_bytes())
        .deserialize()
        .collect::<Result<_, _>>()
        .unwrap()
}

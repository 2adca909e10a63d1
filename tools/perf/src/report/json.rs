//! The JSON document, schema 1.

use std::fs;
use std::io::Write;
use std::path::Path;

use serde::Serialize;

use crate::error::{IoContext, PerfError, Result};
use crate::machine::host::Host;
use crate::report::{Report, Row};

/// The version of the document's schema.
const SCHEMA: u32 = 1;

#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    version: &'static str,
    host: &'a Host,
    rows: &'a [Row],
}

/// The report as one JSON document.
pub(crate) fn document(report: &Report) -> impl Serialize {
    Document {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION"),
        host: &report.host,
        rows: &report.rows,
    }
}

/// Writes a document to a file, or to standard output for `-`.
pub(crate) fn write<T: Serialize>(document: &T, path: &Path) -> Result<()> {
    let text = serde_json::to_string_pretty(document).map_err(|error| PerfError::Io {
        what: "write JSON",
        source: error.into(),
    })?;
    let text = text + "\n";
    if path.as_os_str() == "-" {
        std::io::stdout()
            .write_all(text.as_bytes())
            .during("write to standard output")
    } else {
        fs::write(path, text).during("write the JSON file")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::catalog::{Mode, Op, Subject, Transport};

    #[test]
    fn rows_have_the_fields_of_the_schema_and_no_others() {
        let subject = Subject::new(Transport::Ud, Op::WriteRecord);
        let report = Report {
            host: Host::read(),
            rows: vec![Row::new(subject, Mode::Bw, 1024)],
            notes: Vec::new(),
        };
        let value: Value = serde_json::to_value(document(&report)).unwrap();
        assert_eq!(value["schema"], 1);
        let keys = |value: &Value| -> Vec<String> {
            let mut keys: Vec<String> = value.as_object().unwrap().keys().cloned().collect();
            keys.sort();
            keys
        };
        assert_eq!(keys(&value), ["host", "rows", "schema", "version"]);
        assert_eq!(
            keys(&value["host"]),
            ["cores", "cpu", "kernel", "load", "pinned"]
        );
        let mut fields: Vec<&str> = "transport op mode size iters min_us p50_us p99_us p999_us \
                                     gbps list mmsg_s loss valid_fraction holes loss_rate \
                                     segments segments_dropped segments_refused \
                                     segments_valid complete_fraction \
                                     holes_per_message receivers receiver_loss user_kib kernel_kib baseline \
                                     baseline_value ratio ratio_q25 ratio_q75 cpu_s_per_gib"
            .split_whitespace()
            .collect();
        fields.sort_unstable();
        assert_eq!(keys(&value["rows"][0]), fields);
        assert_eq!(value["rows"][0]["transport"], "ud");
        assert_eq!(value["rows"][0]["op"], "write-record");
        assert!(value["rows"][0]["p50_us"].is_null());
    }
}

//! The results of the suite, as JSON, as a table, and as HTML: each quantity with its bar and its aim drawn in.

mod html;

use comfy_table::CellAlignment::{Left, Right};
use serde::Serialize;

use crate::machine::host::Host;
use crate::report::table::aligned;
use crate::suite::quantities::{QUANTITIES, Quantity};
use crate::suite::results::{Recorded, Row, Verdict};

pub(crate) use html::html;

/// The version of the document's schema.
const SCHEMA: u32 = 1;

/// The JSON document.
#[derive(Debug, Serialize)]
pub(crate) struct Document<'a> {
    schema: u32,
    version: &'static str,
    host: &'a Host,
    notes: &'a [String],
    quantities: &'static [Quantity],
    rows: &'a [Row],
    /// Every round, so that other figures can be taken from the same run.
    groups: &'a [Recorded],
}

impl<'a> Document<'a> {
    /// The results of a run.
    pub(crate) const fn new(
        host: &'a Host,
        notes: &'a [String],
        rows: &'a [Row],
        groups: &'a [Recorded],
    ) -> Self {
        Self {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            host,
            notes,
            quantities: QUANTITIES,
            rows,
            groups,
        }
    }
}

impl Verdict {
    /// As tables show it.
    const fn word(self) -> &'static str {
        match self {
            Self::Aim => "aim met",
            Self::Bar => "bar met",
            Self::Missed => "MISSED",
            Self::CannotTell => "cannot tell",
            Self::Information => "",
            Self::NotMeasured => "not measured",
        }
    }
}

/// The cells of a row: case, ours, base, figure with quartiles, noise, verdict.
fn cells(row: &Row) -> [String; 6] {
    let with_unit = |value: Option<f64>| {
        value.map_or_else(
            || "-".to_owned(),
            |value| {
                format!("{} {}", short(value), row.unit)
                    .trim_end()
                    .to_owned()
            },
        )
    };
    let figure = match (row.figure, row.q25, row.q75) {
        (Some(figure), Some(q25), Some(q75)) => {
            format!("{} [{} {}]", short(figure), short(q25), short(q75))
        }
        _ => "-".to_owned(),
    };
    let verdict = match &row.missing {
        Some(reason) => format!("{}: {reason}", row.verdict.word()),
        None => row.verdict.word().to_owned(),
    };
    [
        row.case.clone(),
        with_unit(row.ours),
        with_unit(row.base),
        figure,
        row.noise
            .map_or_else(|| "-".to_owned(), |noise| format!("{:.1} %", noise * 100.0)),
        verdict,
    ]
}

/// Three significant digits.
fn short(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        middle if middle >= 10.0 => format!("{value:.1}"),
        one if one >= 0.995 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// Bar and aim as text.
fn goal(quantity: &Quantity) -> String {
    match (quantity.bar, quantity.aim) {
        (Some(bar), Some(aim)) if bar.to_bits() == aim.to_bits() => {
            format!("{} {}", quantity.better.sign(), short(bar))
        }
        (Some(bar), Some(aim)) => {
            let sign = quantity.better.sign();
            format!("{sign} {}, aim {}", short(bar), short(aim))
        }
        _ => "for information".to_owned(),
    }
}

/// The table on standard output.
pub(crate) fn table(rows: &[Row]) -> String {
    let columns = [
        ("", Left, 0),
        ("", Left, 26),
        ("", Right, 11),
        ("", Right, 11),
        ("", Left, 22),
        ("", Right, 7),
        ("", Left, 0),
    ];
    let mut text = String::new();
    for quantity in QUANTITIES {
        let of_quantity = rows.iter().filter(|row| row.quantity == quantity.id);
        let lines = of_quantity.map(|row| {
            let [case, ours, base, figure, noise, verdict] = cells(row);
            [String::new(), case, ours, base, figure, noise, verdict]
        });
        let lines: Vec<[String; 7]> = lines.collect();
        if lines.is_empty() {
            continue;
        }
        text.push_str(&format!(
            "\n{}: {}, {}: {}\n{}",
            quantity.id,
            quantity.words,
            quantity.basis(),
            goal(quantity),
            aligned(&columns, false, lines)
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(verdict: Verdict, missing: Option<&str>) -> Row {
        Row {
            quantity: "rate",
            case: "ud send".to_owned(),
            group: "lo rate 64".to_owned(),
            unit: "M/s",
            ours: Some(0.31),
            base: Some(0.33),
            figure: Some(0.94),
            q25: Some(0.9),
            q75: Some(1.0),
            margin: Some(0.01),
            noise: Some(0.012),
            verdict,
            missing: missing.map(str::to_owned),
        }
    }

    #[test]
    fn a_table_has_a_heading_for_each_quantity_and_says_what_is_missing() {
        let text = table(&[
            row(Verdict::Aim, None),
            row(Verdict::NotMeasured, Some("no <veth>")),
        ]);
        assert_eq!(text.matches("rate: 64-octet messages").count(), 1);
        assert!(text.contains("0.940 [0.900 1.00]"), "{text}");
        assert!(text.contains("1.2 %"), "{text}");
        assert!(text.contains("not measured: no <veth>"), "{text}");
    }
}

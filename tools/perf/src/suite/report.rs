//! What the suite found, as JSON, as a table, and as HTML with plots of goodput under loss.

use serde::Serialize;

use crate::catalog::Mode;
use crate::machine::host::Host;
use crate::report::html::plot::{Axis, Plot, Series};
use crate::report::html::{STYLE, escape, host_line};
use crate::run::figures::Figures;
use crate::suite::plan::Planned;
use crate::suite::quantities::{QUANTITIES, Quantity, find};
use crate::suite::results::{Recorded, Row, Verdict};

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
    /// What a run found.
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
            Self::Information => "",
            Self::NotMeasured => "not measured",
        }
    }

    const fn class(self) -> &'static str {
        match self {
            Self::Aim => "aim",
            Self::Bar => "bar",
            Self::Missed => "missed",
            Self::Information | Self::NotMeasured => "none",
        }
    }
}

/// The cells of a row: case, ours, base, figure with quartiles, verdict.
fn cells(row: &Row) -> [String; 5] {
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
        verdict,
    ]
}

/// Three digits that say something.
fn short(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        middle if middle >= 10.0 => format!("{value:.1}"),
        one if one >= 0.995 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// What bar and aim are.
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
    let mut text = String::new();
    let mut heading = "";
    for row in rows {
        if heading != row.quantity
            && let Some(quantity) = find(row.quantity)
        {
            heading = quantity.id;
            text.push_str(&format!(
                "\n{}: {}, over {}: {}\n",
                quantity.id,
                quantity.words,
                quantity.of,
                goal(quantity)
            ));
        }
        let [case, ours, base, figure, verdict] = cells(row);
        let line = format!("  {case:<26} {ours:>11} {base:>11}  {figure:<22} {verdict}");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// The HTML document, a single file that loads nothing.
pub(crate) fn html(document: &Document<'_>, groups: &[Planned]) -> String {
    let item = |note: &String| format!("<li>{}</li>", escape(note));
    let notes: String = document.notes.iter().map(item).collect();
    let plots: String = loss_plots(groups, document.groups)
        .iter()
        .map(|plot| format!("<figure>{}</figure>\n", plot.svg()))
        .collect();
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <title>dgiwarp-perf suite</title><style>{STYLE}\
         .aim{{background:#d9f0e3}}.bar{{background:#eef6d8}}.missed{{background:#fbdcd5}}</style></head><body>\n\
         <h1>dgiwarp-perf {} suite</h1>\n<p class=\"host\">{}</p>\n\
         <p>All members of a group took turns, round by round; a figure is the median of the ratios of the same \
         rounds, with its quartiles.</p>\n<ul>{notes}</ul>\n{}\n<h2>Under loss</h2>\n{plots}</body></html>\n",
        document.version,
        host_line(document.host),
        html_table(document.rows),
    )
}

fn html_table(rows: &[Row]) -> String {
    let mut body = String::new();
    for row in rows {
        let Some(quantity) = find(row.quantity) else {
            continue;
        };
        let [case, ours, base, figure, verdict] = cells(row);
        let of = format!("{}, over {}", quantity.words, quantity.of);
        let cells = [&of, &case, &goal(quantity), &figure, &ours, &base, &verdict];
        let cells: String = cells
            .iter()
            .map(|cell| format!("<td>{}</td>", escape(cell)))
            .collect();
        body.push_str(&format!(
            "<tr class=\"{}\">{cells}</tr>\n",
            row.verdict.class()
        ));
    }
    let heads = ["quantity", "case", "goal", "figure", "ours", "other", ""];
    let head: String = heads
        .iter()
        .map(|name| format!("<th>{name}</th>"))
        .collect();
    format!("<table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>")
}

/// Goodput and the share that arrived, over the message size: a plot for each operation, a line for each share
/// dropped.
fn loss_plots(groups: &[Planned], recorded: &[Recorded]) -> Vec<Plot> {
    type Of = fn(&Figures) -> Option<f64>;
    let figures: [(&str, Of); 2] = [
        ("goodput under loss, GB/s", |figures| figures.gigabytes_s),
        ("share of the payload that arrived", |figures| {
            figures.arrived
        }),
    ];
    let mut plots: Vec<Plot> = Vec::new();
    for (title, of) in figures {
        for group in groups {
            let Some(recorded) = recorded.iter().find(|it| it.group == group.group.name) else {
                continue;
            };
            for (member, series) in group.group.members.iter().zip(&recorded.members) {
                let Some(spec) = member.spec().filter(|spec| spec.mode == Mode::Loss) else {
                    continue;
                };
                let rounds = series.figures.iter().flatten().filter_map(of);
                let Some(median) = crate::stats::median(&rounds.collect::<Vec<_>>()) else {
                    continue;
                };
                let title = format!("{}: {title}", spec.subject);
                let line = format!("{:.1} % dropped", spec.loss * 100.0);
                point(&mut plots, &title, line, (spec.size, median));
            }
        }
    }
    plots
}

/// Adds a point to the line of this name, in the plot of this title.
fn point(plots: &mut Vec<Plot>, title: &str, line: String, point: (u64, f64)) {
    let at = plots.iter().position(|plot| plot.title == title);
    let at = at.unwrap_or_else(|| {
        plots.push(Plot {
            title: title.to_owned(),
            axis: Axis::Linear,
            series: Vec::new(),
        });
        plots.len() - 1
    });
    let Some(plot) = plots.get_mut(at) else {
        return;
    };
    let known = plot.series.iter_mut().find(|series| series.name == line);
    match known {
        Some(series) => series.points.push(point),
        None => {
            let mut series = Series::new(line);
            series.points.push(point);
            plot.series.push(series);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::plan::{Pace, groups};

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
        assert!(text.contains("not measured: no <veth>"), "{text}");
        let html = html_table(&[row(Verdict::NotMeasured, Some("no <veth>"))]);
        assert!(html.contains("no &lt;veth&gt;"), "{html}");
    }

    #[test]
    fn losses_have_plots_with_a_line_for_each_share() {
        let pace = Pace {
            quick: false,
            rounds: None,
        };
        let groups = groups(pace, &["loss-goodput".to_owned()]);
        let round = Figures {
            gigabytes_s: Some(1.0),
            arrived: Some(0.9),
            ..Figures::default()
        };
        let recorded: Vec<Recorded> = groups
            .iter()
            .map(|group| Recorded {
                group: group.group.name.clone(),
                place: group.place,
                members: group
                    .group
                    .members
                    .iter()
                    .map(|member| crate::run::figures::Series {
                        figures: vec![Some(round.clone())],
                        ..crate::run::figures::Series::new(&member.key, None)
                    })
                    .collect(),
            })
            .collect();
        let plots = loss_plots(&groups, &recorded);
        assert_eq!(plots.len(), 2);
        assert_eq!(
            (plots[0].series.len(), plots[0].series[0].points.len()),
            (5, 4)
        );
    }
}

//! A report as one HTML file: plots as inline SVG, the table, the machine. It loads nothing.

pub(crate) mod plot;

use crate::catalog::{Mode, Subject};
use crate::machine::host::Host;
use crate::report::html::plot::{Axis, Plot, Series};
use crate::report::{Report, Row, size};

pub(crate) const STYLE: &str = "\
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem;\
color:#1c2733;background:#fff}\
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}\
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:13px}\
th,td{padding:.2rem .6rem;text-align:right;border-bottom:1px solid #e3e8ee}\
th{border-bottom:2px solid #9aa7b4}th:nth-child(-n+3),td:nth-child(-n+3){text-align:left}\
tbody tr:hover{background:#f2f6fa}\
figure{display:inline-block;margin:.5rem 1rem .5rem 0}svg{max-width:100%;height:auto}\
.host{color:#52606d}";

/// The whole document.
pub(crate) fn document(report: &Report) -> String {
    let plots: String = plots(&report.rows)
        .iter()
        .map(|plot| format!("<figure>{}</figure>\n", plot.svg()))
        .collect();
    let notes: String = report
        .notes
        .iter()
        .map(|note| format!("<li>{}</li>", escape(note)))
        .collect();
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <title>dgiwarp-perf report</title><style>{STYLE}</style></head><body>\n\
         <h1>dgiwarp-perf {version}</h1>\n<p class=\"host\">{host}</p>\n\
         <p>Every dgiwarp row ran in turns with its raw baseline; a ratio is the median of the \
         ratios of neighbouring rounds, with its quartiles. Latency is half of the round trip, \
         goodput is payload counted at the receiver.</p>\n\
         <ul>{notes}</ul>\n{plots}\n<h2>All rows</h2>\n{table}\n</body></html>\n",
        version = env!("CARGO_PKG_VERSION"),
        host = host_line(&report.host),
        table = table(&report.rows),
    )
}

pub(crate) fn host_line(host: &Host) -> String {
    let pinned = host.pinned.map_or_else(
        || "not pinned".to_owned(),
        |(client, server)| format!("client on CPU {client}, server on CPU {server}"),
    );
    escape(&format!(
        "{}, {} CPUs, Linux {}, load {:.2} at the start, {pinned}",
        host.cpu, host.cores, host.kernel, host.load
    ))
}

/// A mode's figure and its ratio over the message size, where there is more than one size.
fn plots(rows: &[Row]) -> Vec<Plot> {
    let mut plots = Vec::new();
    for mode in [Mode::Lat, Mode::Bw, Mode::Bibw, Mode::Rate] {
        let (title, figure): (&str, Figure) = match mode {
            Mode::Lat => ("Half round trip, p50, µs", |row| row.p50_us),
            Mode::Bw => ("Goodput, GB/s", |row| row.gbps.map(|gbps| gbps / 8.0)),
            Mode::Bibw => ("Goodput both ways, GB/s", |row| {
                row.gbps.map(|gbps| gbps / 8.0)
            }),
            Mode::Rate => ("Million messages per second", |row| row.mmsg_s),
            Mode::Loss | Mode::Fanout | Mode::Idle => continue,
        };
        let of_mode = || rows.iter().filter(|row| row.mode == mode);
        let name = |row: &Row| row.subject().to_string();
        plots.extend(plot(of_mode(), title, Axis::Logarithmic, name, figure));
        let ratio = match mode {
            Mode::Lat => "Latency ratio to raw (lower is better)",
            Mode::Bw | Mode::Bibw | Mode::Loss | Mode::Fanout | Mode::Idle => {
                "Goodput ratio to raw (higher is better)"
            }
            Mode::Rate => "Rate ratio to raw (higher is better)",
        };
        plots.extend(plot(of_mode(), ratio, Axis::Linear, name, |row| row.ratio));
    }
    plots.extend(loss_plots(rows));
    plots.extend(fanout_plots(rows));
    plots
}

/// Goodput over the message size, a line for each operation and number of receivers.
fn fanout_plots(rows: &[Row]) -> Option<Plot> {
    let of_mode = rows.iter().filter(|row| row.mode == Mode::Fanout);
    let name = |row: &Row| format!("{} to {}", row.subject(), row.receivers.unwrap_or(0));
    let title = "Goodput to several receivers, summed, GB/s";
    plot(of_mode, title, Axis::Logarithmic, name, |row| {
        row.gbps.map(|gbps| gbps / 8.0)
    })
}

/// One plot per operation and figure, with a line for each share of dropped datagrams.
fn loss_plots(rows: &[Row]) -> Vec<Plot> {
    let figures: [(&str, Figure); 4] = [
        ("goodput under loss, GB/s", |row| {
            row.gbps.map(|gbps| gbps / 8.0)
        }),
        ("valid share of what was sent", |row| row.valid_fraction),
        ("messages that arrived whole", |row| row.complete_fraction),
        ("holes per message", |row| row.holes_per_message),
    ];
    let mut subjects: Vec<Subject> = Vec::new();
    for row in rows.iter().filter(|row| row.mode == Mode::Loss) {
        if !subjects.contains(&row.subject()) {
            subjects.push(row.subject());
        }
    }
    let mut plots = Vec::new();
    for (title, figure) in figures {
        for &subject in &subjects {
            let of_subject = rows
                .iter()
                .filter(|row| row.mode == Mode::Loss && row.subject() == subject);
            let title = format!("{subject}: {title}");
            let name = |row: &Row| match row.loss_rate {
                Some(loss) => format!("{} % dropped", percent(loss)),
                None => String::new(),
            };
            plots.extend(plot(of_subject, &title, Axis::Linear, name, figure));
        }
    }
    plots
}

/// A share in per cent, without the digits that binary fractions add.
fn percent(share: f64) -> String {
    let text = format!("{:.4}", share * 100.0);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// What of a row is plotted.
type Figure = fn(&Row) -> Option<f64>;

/// A figure over the message size, one line for each name.
fn plot<'a>(
    rows: impl Iterator<Item = &'a Row>,
    title: &str,
    axis: Axis,
    name: impl Fn(&Row) -> String,
    figure: Figure,
) -> Option<Plot> {
    let mut series: Vec<(String, Series)> = Vec::new();
    for row in rows {
        let Some(value) = figure(row).filter(|value| *value > 0.0 || axis == Axis::Linear) else {
            continue;
        };
        let line = name(row);
        let index = series.iter().position(|(known, _)| *known == line);
        let index = index.unwrap_or_else(|| {
            series.push((line.clone(), Series::new(line)));
            series.len() - 1
        });
        if let Some((_, one)) = series.get_mut(index) {
            one.points.push((row.size, value));
        }
    }
    let several = series.iter().any(|(_, one)| one.points.len() > 1);
    several.then(|| Plot {
        title: title.to_owned(),
        axis,
        series: series.into_iter().map(|(_, one)| one).collect(),
    })
}

fn table(rows: &[Row]) -> String {
    let heads = [
        "mode",
        "transport",
        "op",
        "size",
        "messages",
        "min µs",
        "p50 µs",
        "p99 µs",
        "p99.9 µs",
        "GB/s",
        "Mmsg/s",
        "loss",
        "receivers",
        "valid",
        "holes",
        "drop rate",
        "dropped",
        "whole",
        "ratio",
        "q25",
        "q75",
        "to",
        "CPU s/GiB",
        "user KiB",
        "kernel KiB",
    ];
    let head: String = heads
        .iter()
        .map(|name| format!("<th>{name}</th>"))
        .collect();
    let body: String = rows.iter().map(table_row).collect();
    format!("<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
}

fn table_row(row: &Row) -> String {
    let cells = [
        row.mode.name().to_owned(),
        row.transport.name().to_owned(),
        row.op.name().to_owned(),
        size(row.size),
        row.iters.to_string(),
        number(row.min_us, 2),
        number(row.p50_us, 2),
        number(row.p99_us, 2),
        number(row.p999_us, 2),
        number(row.gbps.map(|gbps| gbps / 8.0), 3),
        number(row.mmsg_s, 3),
        number(row.loss, 6),
        row.receivers
            .map_or_else(String::new, |count| count.to_string()),
        number(row.valid_fraction, 6),
        row.holes
            .map_or_else(String::new, |holes| holes.to_string()),
        number(row.loss_rate, 6),
        number(row.dropped_fraction(), 6),
        number(row.complete_fraction, 4),
        number(row.ratio, 3),
        number(row.ratio_q25, 3),
        number(row.ratio_q75, 3),
        row.baseline.clone().unwrap_or_default(),
        number(row.cpu_s_per_gib, 3),
        number(row.user_kib, 1),
        number(row.kernel_kib, 1),
    ];
    let cells: String = cells
        .iter()
        .map(|cell| format!("<td>{}</td>", escape(cell)))
        .collect();
    format!("<tr>{cells}</tr>\n")
}

fn number(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(String::new, |value| format!("{value:.decimals$}"))
}

/// Text as HTML content.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{Op, Transport};
    use crate::machine::host::Host;

    fn report() -> Report {
        let mut rows = Vec::new();
        for size in [64, 1024] {
            for (transport, op) in [(Transport::Udp, Op::Raw), (Transport::Ud, Op::Send)] {
                let mut row = Row::new(Subject::new(transport, op), Mode::Lat, size);
                row.p50_us = Some(3.0);
                rows.push(row);
            }
        }
        Report {
            host: Host {
                cpu: "A <fast> & \"new\" CPU".to_owned(),
                ..Host::read()
            },
            rows,
            notes: vec!["a note".to_owned()],
        }
    }

    #[test]
    fn the_document_loads_nothing() {
        let html = document(&report());
        for foreign in ["http://", "https://", "src=", "@import", "url(", "<link"] {
            assert!(!html.contains(foreign), "{foreign}");
        }
        assert!(html.contains("A &lt;fast&gt; &amp; "));
        assert!(html.contains("a note"));
        assert_eq!(html.matches("<tr>").count(), 1 + 4);
    }

    #[test]
    fn loss_has_a_plot_per_operation_and_a_line_per_share() {
        let mut rows = Vec::new();
        for loss in [0.0, 0.07] {
            for size in [1024, 65_536] {
                let subject = Subject::new(Transport::Ud, Op::WriteRecord);
                let mut row = Row::new(subject, Mode::Loss, size);
                row.loss_rate = Some(loss);
                row.gbps = Some(8.0);
                row.valid_fraction = Some(1.0 - loss);
                row.holes_per_message = Some(loss);
                rows.push(row);
            }
        }
        let html = document(&Report { rows, ..report() });
        // Goodput, valid share, holes; there is no share of whole messages in these rows.
        assert_eq!(html.matches("<svg").count(), 3);
        assert_eq!(html.matches("<polyline").count(), 6);
        assert!(html.contains(">7 % dropped") && html.contains("ud write-record: goodput"));
    }

    #[test]
    fn one_plot_per_figure_that_has_several_sizes() {
        let html = document(&report());
        // Latency has points for two sizes and no ratios; nothing else was measured.
        assert_eq!(html.matches("<svg").count(), 1);
        assert_eq!(html.matches("<polyline").count(), 2);
    }
}

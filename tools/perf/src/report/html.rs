//! A report as one HTML file: plots as inline SVG, the table, the machine. It loads nothing.

mod plot;

use crate::catalog::{Mode, Subject};
use crate::report::html::plot::{Axis, Plot, Series};
use crate::report::{Report, Row, size};

const STYLE: &str = "\
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
        host = host_line(report),
        table = table(&report.rows),
    )
}

fn host_line(report: &Report) -> String {
    let host = &report.host;
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
        let (title, figure): (&str, fn(&Row) -> Option<f64>) = match mode {
            Mode::Lat => ("Half round trip, p50, µs", |row| row.p50_us),
            Mode::Bw => ("Goodput, GB/s", |row| row.gbps.map(|gbps| gbps / 8.0)),
            Mode::Bibw => ("Goodput both ways, GB/s", |row| {
                row.gbps.map(|gbps| gbps / 8.0)
            }),
            Mode::Rate => ("Million messages per second", |row| row.mmsg_s),
        };
        plots.extend(plot(rows, mode, title, Axis::Logarithmic, figure));
        let ratio = match mode {
            Mode::Lat => "Latency ratio to raw (lower is better)",
            Mode::Bw | Mode::Bibw => "Goodput ratio to raw (higher is better)",
            Mode::Rate => "Rate ratio to raw (higher is better)",
        };
        plots.extend(plot(rows, mode, ratio, Axis::Linear, |row| row.ratio));
    }
    plots
}

fn plot(
    rows: &[Row],
    mode: Mode,
    title: &str,
    axis: Axis,
    figure: fn(&Row) -> Option<f64>,
) -> Option<Plot> {
    let mut series: Vec<(Subject, Series)> = Vec::new();
    for row in rows.iter().filter(|row| row.mode == mode) {
        let Some(value) = figure(row).filter(|value| *value > 0.0) else {
            continue;
        };
        let subject = row.subject();
        let index = series.iter().position(|(known, _)| *known == subject);
        let index = index.unwrap_or_else(|| {
            series.push((subject, Series::new(subject.to_string())));
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
        "valid",
        "holes",
        "ratio",
        "q25",
        "q75",
        "to",
        "CPU s/GiB",
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
        number(row.valid_fraction, 6),
        row.holes
            .map_or_else(String::new, |holes| holes.to_string()),
        number(row.ratio, 3),
        number(row.ratio_q25, 3),
        number(row.ratio_q75, 3),
        row.baseline.clone().unwrap_or_default(),
        number(row.cpu_s_per_gib, 3),
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
fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{Op, Transport};
    use crate::host::Host;

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
    fn one_plot_per_figure_that_has_several_sizes() {
        let html = document(&report());
        // Latency has points for two sizes and no ratios; nothing else was measured.
        assert_eq!(html.matches("<svg").count(), 1);
        assert_eq!(html.matches("<polyline").count(), 2);
    }
}

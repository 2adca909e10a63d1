//! The report of single measurements: pictures and tables, mode by mode.

pub(crate) mod axis;
pub(crate) mod colour;
pub(crate) mod page;
pub(crate) mod plot;

use comfy_table::CellAlignment;
use maud::{Markup, html};

use crate::catalog::Mode;
use crate::report::html::axis::Unit;
use crate::report::html::colour::Colour;
use crate::report::html::plot::{Plot, Spread};
use crate::report::{Report, Row, table};

/// A picture of each mode: its caption, unit and spread, and the value of a row.
struct Figure {
    title: &'static str,
    unit: Unit,
    spread: Spread,
    of: fn(&Row) -> Option<f64>,
}

const GOODPUT: Figure = Figure {
    title: "goodput",
    unit: Unit::Goodput,
    spread: Spread::Logarithmic,
    of: |row| row.gbps.map(|gbps| gbps * 1e9 / 8.0),
};

const RATIO: Figure = Figure {
    title: "ratio to raw",
    unit: Unit::Number,
    spread: Spread::Ratio,
    of: |row| row.ratio,
};

/// The pictures of a mode.
fn figures(mode: Mode) -> Vec<Figure> {
    let linear = |title, unit, of| Figure {
        title,
        unit,
        spread: Spread::Linear,
        of,
    };
    match mode {
        Mode::Lat => vec![
            Figure {
                title: "half round trip, p50",
                unit: Unit::Time,
                spread: Spread::Logarithmic,
                of: |row| row.p50_us.map(|us| us / 1e6),
            },
            RATIO,
        ],
        Mode::Bw | Mode::Bibw => vec![GOODPUT, RATIO],
        Mode::Fanout => vec![GOODPUT],
        Mode::Rate => vec![
            linear("messages per second", Unit::Rate, |row| {
                row.mmsg_s.map(|rate| rate * 1e6)
            }),
            RATIO,
        ],
        Mode::Loss => vec![
            Figure {
                spread: Spread::Linear,
                ..GOODPUT
            },
            Figure {
                spread: Spread::Near,
                ..linear("valid share of the payload sent", Unit::Share, |row| {
                    row.valid_fraction
                })
            },
            linear("messages that arrived whole", Unit::Share, |row| {
                row.complete_fraction
            }),
            linear("holes per message", Unit::Number, |row| {
                row.holes_per_message
            }),
        ],
        Mode::Idle => vec![
            linear("memory of the process", Unit::Memory, |row| row.user_kib),
            linear("memory of the kernel", Unit::Memory, |row| row.kernel_kib),
        ],
    }
}

/// The whole document.
pub(crate) fn document(report: &Report) -> String {
    let mut modes: Vec<Mode> = Vec::new();
    for row in &report.rows {
        if !modes.contains(&row.mode) {
            modes.push(row.mode);
        }
    }
    let content = html! {
        p {
            "Every dgiwarp row ran in turns with its raw baseline; a ratio is the median of the ratios of neighbouring \
             rounds, with its quartiles. Latency is half of the round trip, goodput is payload counted at the receiver."
        }
        @for mode in modes {
            @let rows: Vec<&Row> = report.rows.iter().filter(|row| row.mode == mode).collect();
            h2 { (table::title(mode, None)) }
            div.figures {
                @for figure in figures(mode) { (pictures(mode, &figure, &rows)) }
            }
            (html_table(mode, &rows))
        }
    };
    let title = format!("dgiwarp-perf {}", env!("CARGO_PKG_VERSION"));
    page::page(&title, &report.host, &report.notes, "", &content)
}

/// A figure of a mode: pictures of what is compared, beside each other.
fn pictures(mode: Mode, figure: &Figure, rows: &[&Row]) -> Markup {
    let mut plots: Vec<Plot> = Vec::new();
    for row in rows {
        let Some(value) = (figure.of)(row) else {
            continue;
        };
        if value <= 0.0 && figure.spread == Spread::Logarithmic {
            continue;
        }
        let plot = Plot {
            title: match panel(mode, row).as_str() {
                "" => capital(figure.title),
                panel => format!("{}, {panel}", capital(figure.title)),
            },
            unit: figure.unit,
            spread: figure.spread,
            reference: (figure.title == RATIO.title).then_some(1.0),
            series: Vec::new(),
        };
        let line = (name(mode, row), Colour::of(row.subject()));
        plot.add(&mut plots, line, (row.size, value));
    }
    if mode == Mode::Loss {
        plots.iter_mut().for_each(Plot::ramp);
    }
    plot::compared(&plots)
}

/// The picture that a row belongs to.
fn panel(mode: Mode, row: &Row) -> String {
    match mode {
        Mode::Loss => row.subject().to_string(),
        Mode::Fanout => match row.receivers {
            Some(1) => "to one receiver".to_owned(),
            receivers => format!("to {} receivers", receivers.unwrap_or(0)),
        },
        Mode::Idle => String::new(),
        Mode::Lat | Mode::Bw | Mode::Bibw | Mode::Rate => {
            let below = row.transport.uses_datagrams();
            (if below { "over UDP" } else { "over TCP" }).to_owned()
        }
    }
}

/// The name of a row within its picture.
fn name(mode: Mode, row: &Row) -> String {
    match (mode, row.loss_rate) {
        (Mode::Loss, Some(loss)) => format!("{} % dropped", percent(loss)),
        _ => row.subject().to_string(),
    }
}

/// The text with a capital at its beginning.
pub(crate) fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|letter| letter.to_uppercase());
    first.into_iter().flatten().chain(letters).collect()
}

/// A share in per cent, without the digits that binary fractions add.
pub(crate) fn percent(share: f64) -> String {
    let text = format!("{:.4}", share * 100.0);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The columns of the table on standard output.
fn html_table(mode: Mode, rows: &[&Row]) -> Markup {
    let columns = table::columns(mode);
    let class = |index: usize| {
        let column = columns.get(index);
        column.is_some_and(|(_, alignment, _)| *alignment == CellAlignment::Left)
    };
    // A line above each size.
    let begins = |at: usize| {
        let pair = rows.get(at.wrapping_sub(1)).zip(rows.get(at));
        pair.is_some_and(|(before, row)| before.size != row.size)
    };
    html! {
        div.scroll { table {
            thead { tr {
                @for (index, (name, ..)) in columns.iter().enumerate() { th.l[class(index)] { (name) } }
                @if mode == Mode::Loss { th { "drop rate" } }
            } }
            tbody { @for (at, row) in rows.iter().enumerate() { tr.first[begins(at)] {
                @for (index, cell) in table::cells(row).iter().enumerate() { td.l[class(index)] { (cell) } }
                @if let Some(loss) = row.loss_rate { td { (percent(loss)) " %" } }
            } } }
        } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{Op, Subject, Transport};
    use crate::machine::host::Host;
    use crate::report::html::plot::tests::{assert_colours, assert_readable};

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
        assert_eq!(html.matches("<tr").count(), 1 + 4);
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
        assert_readable(&html);
        assert_colours(&html);
        // Goodput, valid share, holes; there is no share of whole messages in these rows.
        assert_eq!(html.matches("<svg").count(), 3);
        assert_eq!(html.matches("<polyline").count(), 6);
        assert!(html.contains(">7 % dropped") && html.contains("Goodput, ud write-record"));
    }

    #[test]
    fn one_plot_per_figure_that_has_several_sizes() {
        let html = document(&report());
        assert_readable(&html);
        // Latency has points for two sizes and no ratios; nothing else was measured.
        assert_eq!(html.matches("<svg").count(), 1);
        assert_eq!(html.matches("<polyline").count(), 2);
    }

    #[test]
    fn one_size_has_values_side_by_side() {
        let mut report = report();
        report.rows.retain(|row| row.size == 64);
        for row in &mut report.rows {
            (row.ratio, row.ratio_q25, row.ratio_q75) = (Some(1.1), Some(1.0), Some(1.2));
        }
        let html = document(&report);
        assert_readable(&html);
        assert_colours(&html);
        assert_eq!(
            (
                html.matches("<svg").count(),
                html.matches("<polyline").count()
            ),
            (2, 0)
        );
        assert_eq!(html.matches("<rect").count(), 4);
    }
}

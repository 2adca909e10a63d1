//! Tables on standard output.

use comfy_table::CellAlignment::{self, Left, Right};
use comfy_table::{ColumnConstraint, Table, Width, presets};

use crate::catalog::Mode;
use crate::report::{Row, size};

/// A column: its heading, its alignment, and its least width.
type Column<'a> = (&'a str, CellAlignment, u16);

/// Lines without borders, columns two spaces apart; a heading on request.
pub(crate) fn aligned<const N: usize>(
    columns: &[Column<'_>; N],
    heading: bool,
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    if heading {
        table.set_header(columns.map(|(name, ..)| name));
    }
    table.add_rows(rows);
    for (column, &(_, alignment, width)) in table.column_iter_mut().zip(columns) {
        column.set_cell_alignment(alignment);
        let least = ColumnConstraint::LowerBoundary(Width::Fixed(width + 2));
        column.set_padding((0, 2)).set_constraint(least);
    }
    table.trim_fmt() + "\n"
}

/// Rows of one mode, and of one share of dropped datagrams in loss mode; a heading where they begin.
pub(crate) fn text(rows: &[Row], heading: bool) -> String {
    let Some(first) = rows.first() else {
        return String::new();
    };
    let title = if heading {
        format!("\n{}\n", title(first.mode, first.loss_rate))
    } else {
        String::new()
    };
    let cells = rows.iter().map(cells);
    title + &aligned(&columns(first.mode), heading, cells)
}

/// The heading of a mode, and of one share of dropped datagrams.
pub(crate) fn title(mode: Mode, loss: Option<f64>) -> String {
    match mode {
        Mode::Lat => "Latency, half round trip in us".to_owned(),
        Mode::Bw => "Goodput in one direction".to_owned(),
        Mode::Bibw => "Goodput in both directions at once".to_owned(),
        Mode::Rate => "Message rate".to_owned(),
        Mode::Idle => "Memory of each end of an idle connection; size is their number".to_owned(),
        Mode::Fanout => "Goodput of one sender to several receivers, summed".to_owned(),
        Mode::Loss => {
            let dropped = loss.map_or_else(|| "a part".to_owned(), |loss| share(loss, 3));
            format!("Goodput while the receiver drops {dropped} of the datagrams")
        }
    }
}

/// The columns of a mode.
pub(crate) fn columns(mode: Mode) -> [Column<'static>; 9] {
    let [a, b, c, d] = match mode {
        Mode::Lat => ["min", "p50", "p99", "p99.9"],
        Mode::Bw | Mode::Bibw | Mode::Rate => ["GB/s", "Mmsg/s", "valid", "CPUs/GiB"],
        Mode::Loss => ["GB/s", "valid", "whole", "holes/msg"],
        Mode::Idle => ["user KiB", "kernel", "", ""],
        Mode::Fanout => ["receivers", "GB/s", "GB/s each", "CPUs/GiB"],
    };
    let lost = match mode {
        Mode::Loss => "dropped",
        Mode::Fanout => "worst",
        Mode::Idle => "",
        Mode::Lat | Mode::Bw | Mode::Bibw | Mode::Rate => "loss",
    };
    [
        ("", Left, 3),
        ("op", Left, 12),
        ("size", Right, 6),
        (a, Right, 8),
        (b, Right, 8),
        (c, Right, 8),
        (d, Right, 8),
        (lost, Right, 7),
        ("ratio [quartiles] to", Left, 0),
    ]
}

/// A row as text.
pub(crate) fn cells(row: &Row) -> [String; 9] {
    // 1e9 bytes per second: the unit of memory and files.
    let gigabytes = row.gbps.map(|gbps| gbps / 8.0);
    let [a, b, c, d] = match row.mode {
        Mode::Lat => [
            number(row.min_us, 2),
            number(row.p50_us, 2),
            number(row.p99_us, 2),
            number(row.p999_us, 2),
        ],
        Mode::Bw | Mode::Bibw | Mode::Rate => [
            number(gigabytes, 3),
            number(row.mmsg_s, 3),
            number(row.valid_fraction, 4),
            number(row.cpu_s_per_gib, 2),
        ],
        Mode::Idle => [
            number(row.user_kib, 1),
            number(row.kernel_kib, 1),
            String::new(),
            String::new(),
        ],
        Mode::Fanout => [
            row.receivers
                .map_or_else(String::new, |count| count.to_string()),
            number(gigabytes, 3),
            number(
                gigabytes
                    .zip(row.receivers)
                    .map(|(sum, count)| sum / f64::from(count)),
                3,
            ),
            number(row.cpu_s_per_gib, 2),
        ],
        Mode::Loss => [
            number(gigabytes, 3),
            number(row.valid_fraction, 5),
            number(row.complete_fraction, 4),
            number(row.holes_per_message, 2),
        ],
    };
    let lost = match row.mode {
        Mode::Loss => row.dropped_fraction().map(|dropped| share(dropped, 3)),
        // The loss of the receiver that missed most.
        Mode::Fanout => {
            let losses = row.receiver_loss.iter().flatten().copied();
            losses.reduce(f64::max).map(|loss| share(loss, 2))
        }
        Mode::Idle => None,
        Mode::Lat | Mode::Bw | Mode::Bibw | Mode::Rate => row.loss.map(|loss| share(loss, 2)),
    };
    [
        row.transport.name().to_owned(),
        row.op.name().to_owned(),
        size(row.size),
        a,
        b,
        c,
        d,
        lost.unwrap_or_default(),
        comparison(row.ratios(), row.baseline.as_deref()),
    ]
}

/// A ratio with its quartiles and its baseline.
pub(crate) fn comparison(ratios: Option<[f64; 3]>, baseline: Option<&str>) -> String {
    match (ratios, baseline) {
        (Some([q25, ratio, q75]), Some(baseline)) => {
            format!("{ratio:.2} [{q25:.2} {q75:.2}] {baseline}")
        }
        _ => String::new(),
    }
}

fn number(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.decimals$}"))
}

/// A share in per cent. A small one is not shown as none.
fn share(share: f64, decimals: usize) -> String {
    if share == 0.0 {
        return "0 %".to_owned();
    }
    let digits = i32::try_from(decimals).unwrap_or(0);
    format!("{:.decimals$} %", (share * 100.0).max(0.1f64.powi(digits)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{Op, Subject, Transport};

    #[test]
    fn a_row_shows_its_ratio_and_baseline() {
        let mut row = Row::new(Subject::new(Transport::Ud, Op::Send), Mode::Lat, 1024);
        row.p50_us = Some(3.125);
        row.loss = Some(0.0);
        row.ratio = Some(1.15);
        row.ratio_q25 = Some(1.1);
        row.ratio_q75 = Some(1.2);
        row.baseline = Some("udp raw".to_owned());
        let text = text(&[row], false);
        assert!(text.contains("1K") && text.contains(" 3.1"), "{text}");
        assert!(text.ends_with("0 %  1.15 [1.10 1.20] udp raw\n"), "{text}");
    }

    #[test]
    fn columns_stand_under_their_headings() {
        let row = Row::new(Subject::new(Transport::Udp, Op::Raw), Mode::Bw, 64);
        let first = text(std::slice::from_ref(&row), true);
        let [_, title, columns, line] = first.lines().collect::<Vec<_>>()[..] else {
            panic!("{first}");
        };
        assert_eq!(title, "Goodput in one direction");
        let end_of = |text: &str, word: &str| text.find(word).unwrap() + word.len();
        assert_eq!(end_of(columns, "size"), end_of(line, "64"));
        assert_eq!(end_of(columns, "GB/s"), line.find('-').unwrap() + 1);
        // Rows that follow stand under the same heading.
        assert_eq!(text(&[row], false).trim_end(), line);
    }

    #[test]
    fn a_small_loss_is_not_shown_as_none() {
        assert_eq!(share(0.0, 2), "0 %");
        assert_eq!(share(0.000_001, 2), "0.01 %");
        assert_eq!(share(0.123, 2), "12.30 %");
        assert_eq!(share(0.000_001, 3), "0.001 %");
    }

    #[test]
    fn a_row_with_loss_shows_what_is_valid_beside_what_was_dropped() {
        let subject = Subject::new(Transport::Ud, Op::WriteRecord);
        let mut row = Row::new(subject, Mode::Loss, 1 << 16);
        row.gbps = Some(16.0);
        row.valid_fraction = Some(0.99);
        row.complete_fraction = Some(0.63);
        row.holes_per_message = Some(0.456);
        row.loss_rate = Some(0.01);
        (row.segments, row.segments_dropped) = (Some(1000), Some(10));
        let text = text(&[row], true);
        for cell in ["2.000", "0.99000", "0.6300", "0.46", "1.000 %"] {
            assert!(text.contains(cell), "{cell} not in {text}");
        }
        let [_, heading, columns, line] = text.lines().collect::<Vec<_>>()[..] else {
            panic!("{text}");
        };
        assert!(heading.contains("drops 1.000 % of"), "{heading}");
        let end_of = |text: &str, word: &str| text.find(word).unwrap() + word.len();
        assert_eq!(end_of(columns, "holes/msg"), end_of(line, "0.46"));
    }
}

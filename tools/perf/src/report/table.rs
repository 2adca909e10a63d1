//! The table on standard output.

use crate::catalog::Mode;
use crate::report::{Row, size};

/// The heading of the rows of one mode.
pub(crate) fn heading(mode: Mode) -> String {
    let (title, columns) = match mode {
        Mode::Lat => (
            "Latency, half round trip in us",
            format!("{:>9} {:>9} {:>9} {:>9}", "min", "p50", "p99", "p99.9"),
        ),
        Mode::Bw | Mode::Bibw | Mode::Rate => (
            match mode {
                Mode::Bw => "Goodput in one direction",
                Mode::Bibw => "Goodput in both directions at once",
                Mode::Rate | Mode::Lat => "Message rate",
            },
            format!(
                "{:>9} {:>9} {:>9} {:>9}",
                "GB/s", "Mmsg/s", "valid", "CPUs/GiB"
            ),
        ),
    };
    format!(
        "\n{title}\n{:<4} {:<12} {:>6} {columns} {:>8}  {}",
        "", "op", "size", "loss", "ratio [quartiles] to"
    )
}

/// One row.
pub(crate) fn line(row: &Row) -> String {
    let columns = match row.mode {
        Mode::Lat => [
            number(row.min_us, 2),
            number(row.p50_us, 2),
            number(row.p99_us, 2),
            number(row.p999_us, 2),
        ],
        Mode::Bw | Mode::Bibw | Mode::Rate => [
            // 1e9 bytes per second: the unit of memory and files.
            number(row.gbps.map(|gbps| gbps / 8.0), 3),
            number(row.mmsg_s, 3),
            number(row.valid_fraction, 4),
            number(row.cpu_s_per_gib, 2),
        ],
    };
    let [a, b, c, d] = columns;
    let text = format!(
        "{:<4} {:<12} {:>6} {a:>9} {b:>9} {c:>9} {d:>9} {:>8}  {}",
        row.transport.name(),
        row.op.name(),
        size(row.size),
        row.loss.map_or_else(String::new, percent),
        comparison(row),
    );
    text.trim_end().to_owned()
}

fn comparison(row: &Row) -> String {
    match (row.ratio, row.ratio_q25, row.ratio_q75, &row.baseline) {
        (Some(ratio), Some(q25), Some(q75), Some(baseline)) => {
            format!("{ratio:.2} [{q25:.2} {q75:.2}] {baseline}")
        }
        _ => String::new(),
    }
}

fn number(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.decimals$}"))
}

/// A share in per cent; a small one does not look like none.
fn percent(share: f64) -> String {
    if share == 0.0 {
        "0 %".to_owned()
    } else {
        format!("{:.2} %", (share * 100.0).max(0.01))
    }
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
        let text = line(&row);
        assert!(text.contains("1K") && text.contains(" 3.1"), "{text}");
        assert!(text.ends_with("0 %  1.15 [1.10 1.20] udp raw"), "{text}");
    }

    #[test]
    fn columns_stand_under_their_headings() {
        let row = Row::new(Subject::new(Transport::Udp, Op::Raw), Mode::Bw, 64);
        let heading = heading(Mode::Bw);
        let columns = heading.lines().last().unwrap();
        let end_of = |text: &str, word: &str| text.find(word).unwrap() + word.len();
        assert_eq!(end_of(columns, "size"), end_of(&line(&row), "64"));
        assert_eq!(end_of(columns, "GB/s"), line(&row).find('-').unwrap() + 1);
    }

    #[test]
    fn a_small_loss_is_not_shown_as_none() {
        assert_eq!(percent(0.0), "0 %");
        assert_eq!(percent(0.000_001), "0.01 %");
        assert_eq!(percent(0.123), "12.30 %");
    }
}

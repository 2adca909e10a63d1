//! Lines of ratios over sizes, one panel for each unit of comparison.
//!
//! The source is CSV with comments: `# title:`, `# y:` and `# ticks:` give the title, the name of the axis and its ticks; the header names the columns
//! `panel,series` and the sizes; every further row is a line. A ratio of 1 is drawn as a line of its own.

use super::Problem;
use super::svg::{Anchor, Svg, width};

const MARGIN: f64 = 16.0;
const PLOT: (f64, f64) = (300.0, 210.0);
const COLOURS: usize = 3;

struct Row {
    panel: String,
    series: String,
    values: Vec<f64>,
}

struct Axis {
    top: f64,
    low: f64,
    high: f64,
}

impl Axis {
    fn y(&self, value: f64) -> f64 {
        self.top + PLOT.1 * (self.high - value) / (self.high - self.low)
    }
}

/// Draws the graph.
pub(super) fn draw(text: &str) -> Result<String, Problem> {
    let comment = |name: &str| {
        text.lines()
            .find_map(|line| {
                line.strip_prefix('#')?
                    .trim()
                    .strip_prefix(name)?
                    .strip_prefix(':')
            })
            .map(str::trim)
            .ok_or_else(|| (1, format!("no comment {name:?}")))
    };
    let (title, name) = (comment("title")?, comment("y")?);
    let ticks: Vec<f64> = comment("ticks")?
        .split_whitespace()
        .filter_map(|tick| tick.parse().ok())
        .collect();
    let (Some(low), Some(high)) = (ticks.first(), ticks.last()) else {
        return Err((1, "no ticks".into()));
    };
    let (sizes, rows) = table(text)?;
    let mut panels: Vec<&str> = rows.iter().map(|row| row.panel.as_str()).collect();
    panels.dedup();
    let names = rows.iter().map(|row| width(&row.series));
    let beside = names.fold(0.0, f64::max) + 58.0;
    let axis = Axis {
        top: MARGIN + 74.0,
        low: *low,
        high: *high,
    };
    let mut svg = Svg::default();
    svg.text("title", (MARGIN, MARGIN + 12.0), Anchor::Start, title);
    svg.text("small", (MARGIN, MARGIN + 32.0), Anchor::Start, name);
    let mut left = MARGIN + 34.0;
    for panel in panels {
        svg.text("bold", (left, axis.top - 14.0), Anchor::Start, panel);
        for tick in &ticks {
            let y = axis.y(*tick);
            let is_one = (tick - 1.0).abs() < 1e-9;
            let class = if is_one { "line" } else { "thin" };
            svg.line(class, (left, y), (left + PLOT.0, y), is_one);
            svg.text(
                "small",
                (left - 6.0, y + 4.0),
                Anchor::End,
                &format!("{tick}"),
            );
        }
        let step = PLOT.0 / (u16::try_from(sizes.len()).map_or(1.0, f64::from) - 1.0).max(1.0);
        let x = |n: u16| left + step * f64::from(n);
        for (n, size) in (0u16..).zip(&sizes) {
            let base = axis.top + PLOT.1 + 18.0;
            svg.text("small", (x(n), base), Anchor::Middle, size);
        }
        let mut ends = Vec::new();
        let of_panel = rows.iter().filter(|row| row.panel == panel);
        for (n, row) in of_panel.enumerate() {
            let points: Vec<_> = (0u16..)
                .zip(&row.values)
                .map(|(n, value)| (x(n), axis.y(*value)))
                .collect();
            svg.polyline(&format!("s{}", n % COLOURS), &points, 2.0);
            let last = row.values.last().copied().unwrap_or(1.0);
            ends.push((axis.y(last) + 4.0, n, format!("{} {last:.2}", row.series)));
        }
        // Names at the ends of the lines, as far apart as their height.
        ends.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut free = f64::MIN;
        for (y, n, text) in ends {
            let y = y.max(free);
            free = y + 16.0;
            let at = (left + PLOT.0 + 8.0, y);
            svg.text(&format!("t{}", n % COLOURS), at, Anchor::Start, &text);
        }
        left += PLOT.0 + beside + 34.0;
    }
    let base = axis.top + PLOT.1 + 34.0;
    Ok(svg.finish(title, (left - 34.0, base)))
}

/// Sizes and rows of the table.
fn table(text: &str) -> Result<(Vec<String>, Vec<Row>), Problem> {
    let mut lines = super::lines(text);
    let (number, header) = lines.next().ok_or_else(|| (1, "no header".to_owned()))?;
    let sizes: Vec<_> = header.split(',').skip(2).map(str::to_owned).collect();
    if !header.starts_with("panel,series,") || sizes.len() < 2 {
        return Err((number, "not panel,series,SIZE,SIZE…".into()));
    }
    let mut rows = Vec::new();
    for (number, line) in lines {
        let mut fields = line.split(',');
        let (Some(panel), Some(series)) = (fields.next(), fields.next()) else {
            return Err((number, "not PANEL,SERIES,VALUE…".into()));
        };
        let values: Result<Vec<f64>, _> = fields.map(str::parse).collect();
        let values = values.map_err(|_| (number, "a value is no number".to_owned()))?;
        if values.len() != sizes.len() {
            return Err((
                number,
                format!("{} values for {} sizes", values.len(), sizes.len()),
            ));
        }
        rows.push(Row {
            panel: panel.to_owned(),
            series: series.to_owned(),
            values,
        });
    }
    Ok((sizes, rows))
}

//! Line plots over the message size, as SVG text.

use std::fmt::Write;

use crate::report::size;

const WIDTH: f64 = 520.0;
const HEIGHT: f64 = 350.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 88.0;
const BOTTOM: f64 = 34.0;

/// Told apart also by people who do not see all colours (after Okabe and Ito).
const COLOURS: [&str; 10] = [
    "#555555", "#0072b2", "#d55e00", "#009e73", "#111111", "#56b4e9", "#e69f00", "#8fbf3f",
    "#cc79a7", "#8a5a9e",
];

/// How values are spread over the height.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Axis {
    /// From zero, with a line at 1.
    Linear,
    /// Powers of ten.
    Logarithmic,
}

/// A line with a name.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    /// As the legend shows it.
    pub(crate) name: String,
    /// Message size in bytes, and the value there.
    pub(crate) points: Vec<(u64, f64)>,
}

impl Series {
    /// A line without points.
    pub(crate) const fn new(name: String) -> Self {
        Self {
            name,
            points: Vec::new(),
        }
    }
}

/// A plot of several lines; at least one has points, and no value is negative, or zero on a logarithmic
/// axis.
#[derive(Clone, Debug)]
pub(crate) struct Plot {
    /// What is shown, with its unit.
    pub(crate) title: String,
    /// The vertical axis.
    pub(crate) axis: Axis,
    /// The lines.
    pub(crate) series: Vec<Series>,
}

/// Maps sizes and values to the picture.
struct Scale {
    x: (f64, f64),
    y: (f64, f64),
    axis: Axis,
}

impl Plot {
    /// The picture.
    pub(crate) fn svg(&self) -> String {
        let scale = self.scale();
        let mut svg = format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             width=\"{WIDTH}\" height=\"{HEIGHT}\" font-size=\"11\" role=\"img\">\
             <text x=\"{LEFT}\" y=\"16\" font-size=\"14\" font-weight=\"600\">{}</text>",
            self.title
        );
        self.grid(&scale, &mut svg);
        for (index, series) in self.series.iter().enumerate() {
            let colour = COLOURS.get(index % COLOURS.len()).unwrap_or(&"#000");
            line(series, &scale, colour, &mut svg);
            legend(index, &series.name, colour, &mut svg);
        }
        svg.push_str("</svg>");
        svg
    }

    fn scale(&self) -> Scale {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let sizes = || points().map(|(size, _)| log2(*size));
        let values = || points().map(|(_, value)| *value);
        let x = (
            sizes().fold(f64::INFINITY, f64::min),
            sizes().fold(0.0, f64::max),
        );
        let top = values().fold(0.0, f64::max);
        let bottom = values().fold(f64::INFINITY, f64::min);
        let y = match self.axis {
            Axis::Linear => (0.0, (top * 1.1).max(1.2)),
            Axis::Logarithmic => (
                bottom.log10().floor(),
                top.log10().ceil().max(bottom.log10().floor() + 1.0),
            ),
        };
        Scale {
            x: (x.0, x.1.max(x.0 + 1.0)),
            y,
            axis: self.axis,
        }
    }

    fn grid(&self, scale: &Scale, svg: &mut String) {
        let right = WIDTH - RIGHT;
        for (value, strong) in self.ticks(scale) {
            let y = scale.y(value);
            let colour = if strong { "#8795a1" } else { "#e3e8ee" };
            let label = if value >= 0.01 || value == 0.0 {
                format!("{value:.3}")
            } else {
                format!("{value:e}")
            };
            let label = label.trim_end_matches('0').trim_end_matches('.');
            let label = if label.is_empty() { "0" } else { label };
            push(
                svg,
                format_args!(
                    "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\" \
                     stroke=\"{colour}\"/><text x=\"{:.1}\" y=\"{:.1}\" \
                     text-anchor=\"end\">{label}</text>",
                    LEFT - 6.0,
                    y + 4.0,
                ),
            );
        }
        let mut sizes: Vec<u64> = self
            .series
            .iter()
            .flat_map(|series| series.points.iter().map(|(size, _)| *size))
            .collect();
        sizes.sort_unstable();
        sizes.dedup();
        for bytes in sizes {
            let x = scale.x(bytes);
            push(
                svg,
                format_args!(
                    "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                    HEIGHT - BOTTOM + 18.0,
                    size(bytes),
                ),
            );
        }
    }

    /// Values with a line across, and whether it is a strong one.
    fn ticks(&self, scale: &Scale) -> Vec<(f64, bool)> {
        let (low, high) = scale.y;
        match self.axis {
            Axis::Linear => {
                let step = if high <= 2.5 { 0.25 } else { high / 8.0 };
                let mut ticks: Vec<(f64, bool)> =
                    std::iter::successors(Some(0.0), |value| Some(value + step))
                        .take_while(|value| *value <= high)
                        .map(|value| (value, value == 1.0))
                        .collect();
                if high > 2.5 {
                    ticks.push((1.0, true));
                }
                ticks
            }
            Axis::Logarithmic => {
                // Lines between the powers of ten only while there is room for their labels.
                let roomy = high - low <= 4.0;
                let decades = std::iter::successors(Some(low), |decade| Some(decade + 1.0));
                decades
                    .take_while(|decade| *decade <= high)
                    .flat_map(|decade| {
                        let base = 10f64.powf(decade);
                        [(base, true), (base * 2.0, false), (base * 5.0, false)]
                    })
                    .filter(|(value, strong)| value.log10() <= high && (roomy || *strong))
                    .collect()
            }
        }
    }
}

impl Scale {
    fn x(&self, size: u64) -> f64 {
        let (low, high) = self.x;
        LEFT + 12.0 + (log2(size) - low) / (high - low) * (WIDTH - LEFT - RIGHT - 24.0)
    }

    fn y(&self, value: f64) -> f64 {
        let (low, high) = self.y;
        let value = match self.axis {
            Axis::Linear => value,
            Axis::Logarithmic => value.log10(),
        };
        HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM)
    }
}

fn line(series: &Series, scale: &Scale, colour: &str, svg: &mut String) {
    let mut path = String::new();
    for (bytes, value) in &series.points {
        let (x, y) = (scale.x(*bytes), scale.y(*value));
        push(&mut path, format_args!("{x:.1},{y:.1} "));
        push(
            svg,
            format_args!(
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\">\
                 <title>{} {}: {value:.3}</title></circle>",
                series.name,
                size(*bytes),
            ),
        );
    }
    push(
        svg,
        format_args!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.trim_end()
        ),
    );
}

/// Names in up to four lines above the plot, three in each.
#[expect(
    clippy::cast_precision_loss,
    reason = "there are at most a handful of lines"
)]
fn legend(index: usize, name: &str, colour: &str, svg: &mut String) {
    let x = LEFT + (index % 3) as f64 * 145.0;
    let y = 34.0 + (index / 3) as f64 * 15.0;
    push(
        svg,
        format_args!(
            "<rect x=\"{x}\" y=\"{:.1}\" width=\"14\" height=\"4\" fill=\"{colour}\"/>\
             <text x=\"{}\" y=\"{y}\">{name}</text>",
            y - 6.0,
            x + 19.0,
        ),
    );
}

#[expect(clippy::cast_precision_loss, reason = "a message size is at most 2^30")]
fn log2(size: u64) -> f64 {
    (size.max(1) as f64).log2()
}

/// Writing to a string cannot fail.
fn push(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    let _ = text.write_fmt(arguments);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(axis: Axis, points: &[(u64, f64)]) -> Plot {
        Plot {
            title: "test".to_owned(),
            axis,
            series: vec![Series {
                name: "line".to_owned(),
                points: points.to_vec(),
            }],
        }
    }

    #[test]
    fn every_point_lies_inside_the_picture() {
        for axis in [Axis::Linear, Axis::Logarithmic] {
            let plot = plot(axis, &[(1, 0.002), (1 << 20, 11.5), (64, 2.7)]);
            let scale = plot.scale();
            for (size, value) in &plot.series[0].points {
                let (x, y) = (scale.x(*size), scale.y(*value));
                assert!((LEFT..=WIDTH - RIGHT).contains(&x), "{x}");
                assert!((TOP..=HEIGHT - BOTTOM).contains(&y), "{y}");
            }
        }
    }

    #[test]
    fn larger_is_higher_and_further_right() {
        let plot = plot(Axis::Logarithmic, &[(1, 1.0), (1024, 100.0)]);
        let scale = plot.scale();
        assert!(scale.x(1024) > scale.x(1));
        assert!(scale.y(100.0) < scale.y(1.0));
    }

    #[test]
    fn a_single_value_needs_no_division_by_zero() {
        let svg = plot(Axis::Logarithmic, &[(64, 1.0)]).svg();
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}

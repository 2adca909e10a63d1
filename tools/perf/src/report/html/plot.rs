//! Pictures as inline SVG: lines over the message size with their names at their ends, and values side by side.
//!
//! Colours are custom properties, one for light pages and one for dark ones, so that a page follows its reader's
//! choice. The crate plotters writes colours into attributes and has neither tooltips nor places for names, which
//! leaves little of it to use.

use maud::{Markup, html};

use crate::endpoint::pattern::widen;
use crate::report::html::axis::{Axis, Unit};
use crate::report::html::colour::Colour;
use crate::report::size;
use crate::stats::float;

/// Width of a picture, in pixels at its natural size.
const WIDTH: f64 = 470.0;
const HEIGHT: f64 = 280.0;
/// Height of a row of values.
const ROW: f64 = 26.0;
/// Size of all text, and the distance of two lines of it.
const FONT: f64 = 12.0;
const LINE: f64 = 15.0;
/// Space above, and below for the labels of the lower axis.
const TOP: f64 = 12.0;
const BOTTOM: f64 = 26.0;
/// Space between an axis and its labels, and around a name at the end of a line.
const GAP: f64 = 7.0;
/// Length of the dash of its own colour before a name.
const SWATCH: f64 = 10.0;
/// Distance of names from the end of the axis.
const NAME: f64 = 3.0 * GAP + SWATCH;
/// Ratios beyond this are drawn on a logarithmic axis.
const FAR: f64 = 4.0;
/// Labels on the axis of sizes, and on that of values.
const MOST_SIZES: u32 = 8;
const MOST_VALUES: u32 = 7;

/// The axis of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spread {
    /// From zero.
    Linear,
    /// From zero, unless the largest is many times the smallest.
    Ratio,
    /// Around the values, which need not be near zero.
    Near,
    /// Equal distances for equal ratios; all values are above zero.
    Logarithmic,
}

/// A line with a name.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    /// Written at the end of the line.
    pub(crate) name: String,
    /// Its colour and dashes.
    pub(crate) colour: Colour,
    /// Message size in bytes, and the value there.
    pub(crate) points: Vec<(u64, f64)>,
}

/// Lines over the message size; at least one has points.
#[derive(Clone, Debug)]
pub(crate) struct Plot {
    /// The caption.
    pub(crate) title: String,
    /// The unit of all values.
    pub(crate) unit: Unit,
    /// The axis of values.
    pub(crate) spread: Spread,
    /// A value that all are compared with, drawn across.
    pub(crate) reference: Option<f64>,
    /// The lines.
    pub(crate) series: Vec<Series>,
}

/// The values of a plot, which decide its axis; plots that are compared share one.
fn axis_of<'a>(plots: impl IntoIterator<Item = &'a Plot>) -> Option<Axis> {
    let plots: Vec<&Plot> = plots.into_iter().collect();
    let first = plots.first()?;
    let values = plots.iter().flat_map(|plot| {
        let points = plot.series.iter().flat_map(|series| &series.points);
        points
            .map(|(_, value)| *value)
            .chain(plot.reference)
            .collect::<Vec<_>>()
    });
    Some(axis(values, first.unit, first.spread))
}

/// An axis for these values.
fn axis(values: impl Iterator<Item = f64>, unit: Unit, spread: Spread) -> Axis {
    let (low, high) = values.fold((f64::INFINITY, 0.0), |(low, high), value| {
        (value.min(low), value.max(high))
    });
    match spread {
        Spread::Ratio if high > FAR && low > 0.0 => {
            Axis::logarithmic((low, high), unit, MOST_VALUES + 1)
        }
        Spread::Linear | Spread::Ratio => Axis::linear((0.0, high), unit, MOST_VALUES - 1),
        Spread::Near => Axis::linear((low.min(high), high), unit, MOST_VALUES - 1),
        Spread::Logarithmic => Axis::logarithmic((low.min(high), high), unit, MOST_VALUES + 1),
    }
}

/// An upper bound of the width of a text in usual fonts.
pub(crate) fn text_width(text: &str) -> f64 {
    text.chars()
        .map(|letter| match letter {
            'm' | 'M' | 'w' | 'W' | 'G' | '%' | '–' => 0.86,
            'i' | 'l' | 'j' | 't' | 'f' | 'r' | ' ' | '.' | ',' | '-' | '/' => 0.42,
            _ => 0.62,
        })
        .sum::<f64>()
        * FONT
}

/// The width of the longest of these texts.
fn longest<'a>(texts: impl Iterator<Item = &'a str>) -> f64 {
    texts.map(text_width).fold(0.0, f64::max)
}

/// The frame that lines are drawn in.
struct Frame {
    left: f64,
    right: f64,
    bottom: f64,
    x: Axis,
    y: Axis,
}

/// The unit of the axis below: memory is shown over connections, all else over message sizes.
const fn below(unit: Unit) -> &'static str {
    match unit {
        Unit::Memory => "connections",
        Unit::Time | Unit::Goodput | Unit::Rate | Unit::Share | Unit::Number => "bytes",
    }
}

impl Frame {
    fn x(&self, bytes: u64) -> f64 {
        self.left + self.x.at(float(bytes)) * (self.right - self.left)
    }

    fn y(&self, value: f64) -> f64 {
        self.bottom - self.y.at(value) * (self.bottom - TOP)
    }

    fn grid(&self, reference: Option<f64>, unit: Unit) -> Markup {
        html! {
            @for (value, label) in &self.y.ticks {
                @let y = self.y(*value);
                line.grid x1=(px(self.left)) x2=(px(self.right)) y1=(px(y)) y2=(px(y)) {}
                text x=(px(self.left - GAP)) y=(px(y + 4.0)) text-anchor="end" { (label) }
            }
            @if let Some(y) = reference.map(|value| self.y(value)) {
                line.reference x1=(px(self.left)) x2=(px(self.right)) y1=(px(y)) y2=(px(y)) {}
            }
            @for (bytes, label) in &self.x.ticks {
                @let x = self.left + self.x.at(*bytes) * (self.right - self.left);
                line.axis x1=(px(x)) x2=(px(x)) y1=(px(self.bottom)) y2=(px(self.bottom + 4.0)) {}
                text x=(px(x)) y=(px(self.bottom + 18.0)) text-anchor="middle" { (label) }
            }
            text x=(px(self.right + NAME)) y=(px(self.bottom + 18.0)) { (below(unit)) }
        }
    }
}

impl Plot {
    /// The picture with its caption. `y` covers all values.
    fn figure(&self, y: &Axis) -> Markup {
        html! {
            figure {
                figcaption { (self.title) }
                (self.svg(y))
            }
        }
    }

    fn svg(&self, y: &Axis) -> Markup {
        let sizes = || {
            let points = self.series.iter().flat_map(|series| &series.points);
            points.map(|(size, _)| *size)
        };
        let range = (sizes().min().unwrap_or(1), sizes().max().unwrap_or(1));
        let count = float(widen(self.series.len()));
        let bottom = (HEIGHT - BOTTOM).max(TOP + count * LINE);
        let names = self.series.iter().map(|series| series.name.as_str());
        let names = longest(names.chain([below(self.unit)]));
        let frame = Frame {
            left: longest(y.ticks.iter().map(|(_, label)| label.as_str())) + GAP + 2.0,
            right: WIDTH - names - NAME,
            bottom,
            x: Axis::sizes(range, MOST_SIZES),
            y: y.clone(),
        };
        let ends: Vec<f64> = self
            .series
            .iter()
            .map(|series| {
                let last = series.points.iter().max_by_key(|(size, _)| *size);
                last.map_or(bottom, |(_, value)| frame.y(*value))
            })
            .collect();
        let places = apart(&ends, LINE, (TOP, bottom));
        html! {
            svg viewBox=(format!("0 0 {WIDTH} {}", px(bottom + BOTTOM))) role="img" aria-label=(self.title) {
                (frame.grid(self.reference, self.unit))
                @for ((series, end), place) in self.series.iter().zip(ends).zip(places) {
                    (series.markup(&frame, self.unit, (end, place)))
                }
            }
        }
    }
}

/// Pictures that are compared: lines, or values side by side where no line has a second size.
pub(crate) fn compared(plots: &[Plot]) -> Markup {
    let mut lines = plots.to_vec();
    for plot in &mut lines {
        plot.series.retain(|series| series.points.len() > 1);
    }
    lines.retain(|plot| !plot.series.is_empty());
    if !lines.is_empty() {
        let axis = axis_of(&lines);
        return html! {
            @if let Some(axis) = axis { @for plot in &lines { (plot.figure(&axis)) } }
        };
    }
    let bars: Vec<Bars> = plots.iter().map(Plot::bars).collect();
    html! {
        @if let Some(axis) = axis_of_bars(&bars) { @for bars in &bars { (bars.figure(&axis)) } }
    }
}

impl Plot {
    /// Adds a point to the line of this name, in the plot of the same title as this empty one.
    pub(crate) fn add(self, plots: &mut Vec<Self>, line: (String, Colour), point: (u64, f64)) {
        let at = plots.iter().position(|plot| plot.title == self.title);
        let at = at.unwrap_or_else(|| {
            plots.push(self);
            plots.len() - 1
        });
        let Some(plot) = plots.get_mut(at) else {
            return;
        };
        let (name, colour) = line;
        match plot.series.iter_mut().find(|series| series.name == name) {
            Some(series) => series.points.push(point),
            None => plot.series.push(Series {
                name,
                colour,
                points: vec![point],
            }),
        }
    }

    /// Colours the lines as steps in an order.
    pub(crate) fn ramp(&mut self) {
        let count = self.series.len();
        for (index, series) in self.series.iter_mut().enumerate() {
            series.colour = Colour::step(index, count);
        }
    }

    /// The first value of each line.
    fn bars(&self) -> Bars {
        let bar = |series: &Series| {
            let (_, value) = *series.points.first()?;
            Some(Bar {
                name: series.name.clone(),
                colour: series.colour.clone(),
                value,
            })
        };
        Bars {
            title: self.title.clone(),
            unit: self.unit,
            reference: self.reference,
            bars: self.series.iter().filter_map(bar).collect(),
        }
    }
}

impl Series {
    /// The line, its points, and its name at its end; a thin line leads to a name that had to move.
    fn markup(&self, frame: &Frame, unit: Unit, (end, place): (f64, f64)) -> Markup {
        let mut points = self.points.clone();
        points.sort_by_key(|(size, _)| *size);
        let path: Vec<String> = points
            .iter()
            .map(|(size, value)| format!("{},{}", px(frame.x(*size)), px(frame.y(*value))))
            .collect();
        let last = points
            .last()
            .map_or(frame.right, |(size, _)| frame.x(*size));
        let name = frame.right + NAME;
        let swatch = name - SWATCH - 4.0;
        html! {
            g.series style=(self.colour.style()) {
                line.lead x1=(px(last)) y1=(px(end)) x2=(px(swatch)) y2=(px(place)) {}
                line.swatch x1=(px(swatch)) x2=(px(name - 4.0)) y1=(px(place)) y2=(px(place)) {}
                polyline points=(path.join(" ")) stroke-dasharray=[self.colour.dash()] {}
                @for (size_of, value) in &points {
                    circle cx=(px(frame.x(*size_of))) cy=(px(frame.y(*value))) r="3.5" {
                        title { (self.name) ", " (size(*size_of)) ": " (unit.show(*value)) }
                    }
                }
                text.name x=(px(name)) y=(px(place + 4.0)) { (self.name) }
            }
        }
    }
}

/// Places next to the wanted ones, at least `distance` apart and within `bounds` as far as there is room.
fn apart(wanted: &[f64], distance: f64, bounds: (f64, f64)) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    let wish = |index: &usize| wanted.get(*index).copied().unwrap_or(0.0);
    order.sort_by(|one, other| wish(one).total_cmp(&wish(other)));
    let mut places: Vec<f64> = order.iter().map(wish).collect();
    // Downwards, then back up from the lower bound, then down once more from the upper one.
    let mut least = bounds.0;
    for place in &mut places {
        *place = place.max(least);
        least = *place + distance;
    }
    let mut most = bounds.1;
    for place in places.iter_mut().rev() {
        *place = place.min(most);
        most = *place - distance;
    }
    let mut sorted: Vec<(usize, f64)> = order.into_iter().zip(places).collect();
    sorted.sort_by_key(|(index, _)| *index);
    sorted.into_iter().map(|(_, place)| place).collect()
}

/// A value with a name.
#[derive(Clone, Debug)]
struct Bar {
    /// Written before it.
    name: String,
    /// Its colour.
    colour: Colour,
    /// Its length.
    value: f64,
}

/// Values side by side, where there is one size only.
#[derive(Clone, Debug)]
struct Bars {
    /// The caption.
    title: String,
    /// The unit of all values.
    unit: Unit,
    /// A value that all are compared with, drawn across.
    reference: Option<f64>,
    /// The values, at least one.
    bars: Vec<Bar>,
}

/// The axis of these pictures, which are compared.
fn axis_of_bars(all: &[Bars]) -> Option<Axis> {
    let unit = all.first()?.unit;
    let values = all.iter().flat_map(|bars| &bars.bars).map(|bar| bar.value);
    let references = all.iter().filter_map(|bars| bars.reference);
    let most = values.chain(references).fold(0.0, f64::max);
    Some(Axis::linear((0.0, most), unit, 4))
}

impl Bars {
    /// The picture with its caption. `axis` covers all values.
    fn figure(&self, axis: &Axis) -> Markup {
        let names = longest(self.bars.iter().map(|bar| bar.name.as_str()));
        let shown = |bar: &Bar| self.unit.show(bar.value);
        let texts: Vec<String> = self.bars.iter().map(shown).collect();
        let left = names + 2.0 * GAP;
        let right = WIDTH - longest(texts.iter().map(String::as_str)) - GAP;
        let x = |value: f64| left + axis.at(value) * (right - left - GAP);
        let bottom = TOP + ROW * float(widen(self.bars.len()));
        html! {
            figure {
                figcaption { (self.title) }
                svg viewBox=(format!("0 0 {WIDTH} {}", px(bottom + BOTTOM))) role="img" aria-label=(self.title) {
                    @for (value, label) in &axis.ticks {
                        line.grid x1=(px(x(*value))) x2=(px(x(*value))) y1=(px(TOP)) y2=(px(bottom)) {}
                        text x=(px(x(*value))) y=(px(bottom + 18.0)) text-anchor="middle" { (label) }
                    }
                    @if let Some(x) = self.reference.map(x) {
                        line.reference x1=(px(x)) x2=(px(x)) y1=(px(TOP)) y2=(px(bottom)) {}
                    }
                    @for ((index, bar), text) in (0u32..).zip(&self.bars).zip(&texts) {
                        @let y = TOP + ROW * (f64::from(index) + 0.5);
                        g.series style=(bar.colour.style()) {
                            text x=(px(names)) y=(px(y + 4.0)) text-anchor="end" { (bar.name) }
                            rect x=(px(left)) y=(px(y - 7.0)) height="14" width=(px((x(bar.value) - left).max(1.0))) {}
                            text.name x=(px(x(bar.value) + GAP)) y=(px(y + 4.0)) { (text) }
                        }
                    }
                }
            }
        }
    }
}

/// A place in a picture, as text.
pub(crate) fn px(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::catalog::subjects::{RC_READ, RC_SEND, RC_WRITE, TCP_RAW};

    /// The value of an attribute of an element's text.
    fn attribute<'a>(element: &'a str, name: &str) -> Option<&'a str> {
        let start = element.find(&format!(" {name}=\""))? + name.len() + 3;
        element.get(start..)?.split('"').next()
    }

    /// Left, right, top, bottom, and text of each text in a picture.
    fn boxes(svg: &str) -> Vec<([f64; 4], String)> {
        let texts = svg.split("<text").skip(1);
        texts
            .map(|text| {
                let (head, rest) = text.split_once('>').expect("an element");
                let content = rest.split('<').next().expect("its text").to_owned();
                let place = |name| attribute(head, name).expect("a place").parse::<f64>();
                let (x, y) = (place("x").expect("x"), place("y").expect("y"));
                let width = text_width(&content);
                let left = match attribute(head, "text-anchor") {
                    Some("end") => x - width,
                    Some("middle") => x - width / 2.0,
                    _ => x,
                };
                ([left, left + width, y - 10.0, y + 3.0], content)
            })
            .collect()
    }

    /// No text of any picture of a page lies over another or outside of its picture.
    pub(crate) fn assert_readable(page: &str) {
        assert!(!page.contains("NaN") && !page.contains("inf,"), "{page}");
        for svg in page.split("<svg").skip(1) {
            let svg = svg.split("</svg>").next().expect("an end");
            let view = attribute(svg, "viewBox").expect("a view box");
            let view: Vec<f64> = view.split(' ').map(|it| it.parse().expect("it")).collect();
            let texts = boxes(svg);
            for (at, (one, name)) in texts.iter().enumerate() {
                assert!(
                    one[0] >= -0.5 && one[1] <= view[2] + 0.5,
                    "{name}: {one:?} {svg}"
                );
                assert!(
                    one[2] >= -0.5 && one[3] <= view[3] + 0.5,
                    "{name}: {one:?} {svg}"
                );
                for (other, beside) in &texts[..at] {
                    let apart = one[0] >= other[1] || other[0] >= one[1];
                    let below = one[2] >= other[3] - 0.5 || other[2] >= one[3] - 0.5;
                    assert!(apart || below, "{name} over {beside}: {svg}");
                }
            }
        }
    }

    /// No two lines of a picture share a colour, on light pages or on dark ones.
    pub(crate) fn assert_colours(page: &str) {
        for svg in page.split("<svg").skip(1) {
            let svg = svg.split("</svg>").next().expect("an end");
            let styles: Vec<&str> = svg
                .split("<g class=\"series\"")
                .skip(1)
                .filter_map(|group| attribute(group, "style"))
                .collect();
            for scheme in ["--light:", "--dark:"] {
                let colour = |style: &&str| style.split(scheme).nth(1)?.get(..7).map(str::to_owned);
                let mut colours: Vec<String> = styles.iter().filter_map(colour).collect();
                assert_eq!(colours.len(), styles.len());
                colours.sort_unstable();
                colours.dedup();
                assert_eq!(colours.len(), styles.len(), "{scheme} {svg}");
            }
        }
    }

    fn plot(unit: Unit, spread: Spread, lines: Vec<Vec<(u64, f64)>>) -> Plot {
        let names = ["ud write-record", "rc send", "0.1 % dropped", "x"];
        let count = lines.len();
        let series = lines.into_iter().enumerate().map(|(index, points)| Series {
            name: names[index % names.len()].to_owned(),
            colour: Colour::step(index, count),
            points,
        });
        Plot {
            title: "test".to_owned(),
            unit,
            spread,
            reference: (spread == Spread::Ratio).then_some(1.0),
            series: series.collect(),
        }
    }

    fn assert_inside(plot: &Plot) {
        let axis = axis_of([plot]).expect("values");
        let svg = plot.svg(&axis).into_string();
        assert_readable(&svg);
        assert_colours(&svg);
        for circle in svg.split("<circle").skip(1) {
            let place = |name| attribute(circle, name).expect("a place").parse::<f64>();
            let (x, y) = (place("cx").expect("x"), place("cy").expect("y"));
            assert!((0.0..=WIDTH).contains(&x) && y >= TOP - 0.1, "{svg}");
        }
    }

    proptest! {
        #[test]
        fn labels_of_lines_neither_overlap_nor_leave_the_picture(
            unit in prop::sample::select(vec![Unit::Time, Unit::Goodput, Unit::Rate, Unit::Number]),
            spread in prop::sample::select(vec![Spread::Linear, Spread::Ratio, Spread::Near, Spread::Logarithmic]),
            scale in -9.0..9.0f64,
            lines in prop::collection::vec(
                prop::collection::vec((1u64..1 << 30, 0.001..1.0f64), 1..12), 1..24,
            ),
        ) {
            let scaled = |(size, value): (u64, f64)| (size, value * 10f64.powf(scale));
            let lines = lines.into_iter().map(|line| line.into_iter().map(scaled).collect());
            assert_inside(&plot(unit, spread, lines.collect()));
        }

        #[test]
        fn labels_of_values_neither_overlap_nor_leave_the_picture(
            values in prop::collection::vec(0.0..1e4f64, 1..12),
        ) {
            let count = values.len();
            let bars = values.into_iter().enumerate().map(|(index, value)| Bar {
                name: ["udp raw-single", "rc write"][index % 2].to_owned(),
                colour: Colour::step(index, count),
                value,
            });
            let bars = Bars {
                title: "test".to_owned(),
                unit: Unit::Goodput,
                reference: Some(1.0),
                bars: bars.collect(),
            };
            let axis = axis_of_bars(std::slice::from_ref(&bars)).expect("values");
            let page = bars.figure(&axis).into_string();
            assert_readable(&page);
            assert_colours(&page);
        }

        #[test]
        fn names_keep_their_distance_and_their_order(
            wanted in prop::collection::vec(0.0..200.0f64, 1..12),
        ) {
            let places = apart(&wanted, LINE, (0.0, 200.0));
            for (one, place) in places.iter().enumerate() {
                prop_assert!((-1e-6..=200.0 + 1e-6).contains(place), "{places:?}");
                for other in 0..one {
                    prop_assert!((place - places[other]).abs() >= LINE - 1e-6, "{places:?}");
                    let up = wanted[one] < wanted[other];
                    prop_assert!(!up || place < &places[other], "{places:?}");
                }
            }
        }
    }

    #[test]
    fn larger_is_higher_and_further_right() {
        let points = vec![(1, 1.0), (1024, 100.0)];
        let plot = plot(Unit::Number, Spread::Logarithmic, vec![points]);
        let svg = plot.svg(&axis_of([&plot]).unwrap()).into_string();
        let circles: Vec<&str> = svg.split("<circle").skip(1).collect();
        let place = |at: usize, name| {
            attribute(circles[at], name)
                .unwrap()
                .parse::<f64>()
                .unwrap()
        };
        assert!(place(0, "cx") < place(1, "cx"));
        assert!(place(0, "cy") > place(1, "cy"));
    }

    #[test]
    fn operations_have_colours_of_their_own() {
        let line = |subject| Series {
            name: "line".to_owned(),
            colour: Colour::of(subject),
            points: vec![(1, 1.0), (2, 1.0)],
        };
        let plot = Plot {
            series: [TCP_RAW, RC_SEND, RC_WRITE, RC_READ].map(line).to_vec(),
            ..plot(Unit::Time, Spread::Linear, Vec::new())
        };
        assert_inside(&plot);
    }
}

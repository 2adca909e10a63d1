//! The suite's page: verdicts at a glance, each quantity with its cases on one scale, and goodput under loss.

use maud::{Markup, html};

use crate::catalog::Mode;
use crate::report::html::axis::{Axis, Unit};
use crate::report::html::colour::Colour;
use crate::report::html::page::page;
use crate::report::html::plot::{Plot, Spread, compared, px, text_width};
use crate::report::html::{capital, percent};
use crate::run::figures::Figures;
use crate::stats;
use crate::suite::plan::Planned;
use crate::suite::quantities::{Better, QUANTITIES, Quantity};
use crate::suite::report::{Document, cells, goal};
use crate::suite::results::{Recorded, Row, Verdict};

const STYLE: &str = "
.tiles{display:flex;flex-wrap:wrap;gap:.75rem;margin:1rem 0}
.tile{border:1px solid var(--rule);border-radius:6px;padding:.4rem .9rem;min-width:7rem}
.tile b{display:block;font-size:1.5rem;line-height:1.3}
.aim{color:var(--good)}.bar{color:var(--fair)}.missed{color:var(--bad)}.none{color:var(--soft)}
td.aim,td.bar,td.missed{font-weight:600}
.cases table{table-layout:fixed;min-width:58rem}.cases th:nth-child(2),.cases th:nth-child(3){width:6rem}
.cases th:nth-child(4){width:11rem}.cases th:nth-child(6){width:7.5rem}
td.graph,th.graph{padding:0;width:20rem}.graph svg{width:20rem;max-width:none;overflow:hidden}
tbody td.graph{border-bottom-color:transparent}
.graph text{font-weight:400}.zone{fill:var(--zone)}.goal{stroke-width:1.5}.goal.bar{stroke:var(--ink)}.goal.aim{stroke:var(--good);\
stroke-dasharray:4 3}text.aim{fill:var(--good)}text.bar{fill:var(--ink)}
.whisker{stroke:var(--c);stroke-width:3;stroke-opacity:.45;stroke-linecap:round}.dot{fill:var(--c)}
.dot.aim{--c:var(--good)}.dot.bar{--c:var(--fair)}.dot.missed{--c:var(--bad)}.dot.none{--c:var(--soft)}
.whisker.aim{--c:var(--good)}.whisker.bar{--c:var(--fair)}.whisker.missed{--c:var(--bad)}\
.whisker.none{--c:var(--soft)}";

/// Width of the graph of a quantity, and the heights of its heading and of a row.
const WIDTH: f64 = 320.0;
const HEADING: f64 = 40.0;
const ROW: f64 = 27.0;
/// Space at both ends of the scale.
const MARGIN: f64 = 22.0;

impl Verdict {
    const fn class(self) -> &'static str {
        match self {
            Self::Aim => "aim",
            Self::Bar => "bar",
            Self::Missed => "missed",
            Self::Information | Self::CannotTell | Self::NotMeasured => "none",
        }
    }

    /// A sign for readers who do not see colours.
    const fn sign(self) -> &'static str {
        match self {
            Self::Aim => "✓✓",
            Self::Bar => "✓",
            Self::Missed => "✗",
            Self::CannotTell => "?",
            Self::Information => "",
            Self::NotMeasured => "–",
        }
    }
}

/// The HTML document, a single file that loads nothing.
pub(crate) fn html(document: &Document<'_>, groups: &[Planned]) -> String {
    let plots = loss_plots(groups, document.groups);
    let content = html! {
        p {
            "All members of a group took turns, round by round; a figure is the median of the ratios of the same rounds, \
             with its quartiles."
        }
        (summary(document.rows))
        @for quantity in QUANTITIES {
            @let rows: Vec<&Row> = document.rows.iter().filter(|row| row.quantity == quantity.id).collect();
            @if !rows.is_empty() { (section(quantity, &rows)) }
        }
        @if !plots.is_empty() {
            h2 { "Under loss" }
            @for unit in [Unit::Goodput, Unit::Share] {
                @let of_unit = plots.iter().filter(|plot| plot.unit == unit).cloned().collect::<Vec<_>>();
                div.figures { (compared(&of_unit)) }
            }
        }
    };
    let title = format!("dgiwarp-perf {} suite", document.version);
    page(&title, document.host, document.notes, STYLE, &content)
}

/// The number of cases of each verdict, and the quantities whose bar was missed.
fn summary(rows: &[Row]) -> Markup {
    let verdicts = [
        (Verdict::Aim, "aim met"),
        (Verdict::Bar, "bar met"),
        (Verdict::Missed, "missed"),
        (Verdict::CannotTell, "cannot tell"),
        (Verdict::Information, "for information"),
        (Verdict::NotMeasured, "not measured"),
    ];
    let count = |verdict| rows.iter().filter(|row| row.verdict == verdict).count();
    let missed = QUANTITIES.iter().filter(|quantity| {
        let is_missed = |row: &Row| row.verdict == Verdict::Missed && row.quantity == quantity.id;
        rows.iter().any(is_missed)
    });
    let missed: Vec<&Quantity> = missed.collect();
    html! {
        div.tiles { @for (verdict, words) in verdicts { @if count(verdict) > 0 {
            div.tile { b class=(verdict.class()) { (count(verdict)) " " (verdict.sign()) } (words) }
        } } }
        @if !missed.is_empty() {
            p { "Missed: "
                @for (index, quantity) in missed.iter().enumerate() {
                    @if index > 0 { ", " }
                    a href={ "#" (quantity.id) } { (quantity.words) }
                }
            }
        }
    }
}

/// A quantity: its cases, each with its figure on the common scale.
fn section(quantity: &Quantity, rows: &[&Row]) -> Markup {
    let scale = Scale::new(quantity, rows);
    html! {
        h3 id=(quantity.id) { (capital(quantity.words)) }
        p.soft { (capital(&quantity.basis())) ": " (goal(quantity)) }
        div.scroll.cases { table {
            thead { tr {
                th.l { "case" } th { "ours" } th { "other" } th { "figure [quartiles]" } th { "noise" }
                th.graph { @if let Some(scale) = &scale { (scale.heading()) } }
                th.l { "" }
            } }
            tbody { @for row in rows { tr {
                @let [case, ours, base, figure, noise, _] = cells(row);
                td.l { (case) } td { (ours) } td { (base) } td { (figure) } td { (noise) }
                @match &row.missing {
                    Some(reason) => { td.l.w colspan="2" { (row.verdict.sign()) " " (reason) } }
                    None => {
                        td.graph { @if let Some(scale) = &scale { (scale.row(row)) } }
                        td.l class=(row.verdict.class()) {
                            (row.verdict.sign()) " " (row.verdict.word().to_lowercase())
                        }
                    }
                }
            } } }
        } }
    }
}

/// The common scale of a quantity's cases, with bar and aim.
struct Scale {
    axis: Axis,
    bar: Option<f64>,
    aim: Option<f64>,
    better: Better,
}

impl Scale {
    /// None without a figure.
    fn new(quantity: &Quantity, rows: &[&Row]) -> Option<Self> {
        let figures = rows.iter().flat_map(|row| [row.figure, row.q25, row.q75]);
        let figures: Vec<f64> = figures.flatten().collect();
        if figures.is_empty() {
            return None;
        }
        let all = figures.into_iter().chain(quantity.bar).chain(quantity.aim);
        let (low, high) = all.fold((f64::INFINITY, 0.0), |(low, high), value| {
            (value.min(low), value.max(high))
        });
        // Figures that lie far apart would crowd at one end.
        let axis = match low > 0.0 && high / low > 20.0 {
            true => Axis::logarithmic((low, high), Unit::Number, 7),
            false => Axis::linear((low, high), Unit::Number, 5),
        };
        Some(Self {
            axis,
            bar: quantity.bar,
            aim: quantity.aim.filter(|aim| Some(*aim) != quantity.bar),
            better: quantity.better,
        })
    }

    fn x(&self, value: f64) -> f64 {
        MARGIN + self.axis.at(value) * (WIDTH - 2.0 * MARGIN)
    }

    /// Names of bar and aim, and the ticks.
    fn heading(&self) -> Markup {
        let mut names: Vec<(f64, &str, &str)> = Vec::new();
        names.extend(self.bar.map(|bar| (self.x(bar), "bar", "bar")));
        names.extend(self.aim.map(|aim| (self.x(aim), "aim", "aim")));
        names.sort_by(|one, other| one.0.total_cmp(&other.0));
        // Neighbours turn away from each other.
        let anchors: &[&str] = match names.as_slice() {
            [(one, ..), (other, ..)] if other - one < 2.0 * text_width("bar") => &["end", "start"],
            _ => &["middle", "middle"],
        };
        html! {
            svg viewBox=(format!("0 0 {WIDTH} {HEADING}")) {
                @for ((x, name, class), anchor) in names.iter().zip(anchors) {
                    text class=(class) x=(px(*x)) y="14" text-anchor=(anchor) { (name) }
                }
                @for (value, label) in &self.axis.ticks {
                    text x=(px(self.x(*value))) y="34" text-anchor="middle" { (label) }
                }
            }
        }
    }

    /// A figure with its quartiles, over the zone of figures that keep the bar.
    fn row(&self, row: &Row) -> Markup {
        let class = row.verdict.class();
        let zone = self.bar.map(|bar| match self.better {
            Better::Less => (0.0, self.x(bar)),
            Better::More => (self.x(bar), WIDTH),
            Better::Exactly => (self.x(bar), self.x(bar)),
        });
        html! {
            svg viewBox=(format!("0 0 {WIDTH} {ROW}")) {
                @if let Some((from, to)) = zone {
                    rect.zone x=(px(from)) y="0" width=(px(to - from)) height=(ROW) {}
                }
                @for (value, _) in &self.axis.ticks {
                    @let x = px(self.x(*value));
                    line.grid x1=(x) x2=(x) y1="0" y2=(ROW) {}
                }
                @for (goal, name) in [(self.bar, "bar"), (self.aim, "aim")] {
                    @if let Some(x) = goal.map(|goal| px(self.x(goal))) {
                        line class={ "goal " (name) } x1=(x) x2=(x) y1="0" y2=(ROW) {}
                    }
                }
                @if let (Some(q25), Some(q75)) = (row.q25, row.q75) {
                    line class={ "whisker " (class) } x1=(px(self.x(q25))) x2=(px(self.x(q75)))
                        y1=(ROW / 2.0) y2=(ROW / 2.0) {}
                }
                @if let Some(figure) = row.figure {
                    circle class={ "dot " (class) } cx=(px(self.x(figure))) cy=(ROW / 2.0) r="4.5" {
                        title { (row.case) ": " (cells(row)[3]) }
                    }
                }
            }
        }
    }
}

/// Goodput and the share that arrived, over the message size: a plot for each operation, a line for each share
/// dropped.
fn loss_plots(groups: &[Planned], recorded: &[Recorded]) -> Vec<Plot> {
    type Of = fn(&Figures) -> Option<f64>;
    let figures: [(&str, Unit, Of); 2] = [
        ("Goodput", Unit::Goodput, |figures| {
            figures.gigabytes_s.map(|speed| speed * 1e9)
        }),
        (
            "Share of the payload that arrived",
            Unit::Share,
            |figures| figures.arrived,
        ),
    ];
    let mut plots: Vec<Plot> = Vec::new();
    for (title, unit, of) in figures {
        for Planned { group, .. } in groups {
            let recorded = recorded.iter().find(|it| it.group == group.name);
            let series = recorded.map_or(&[][..], |recorded| &recorded.members);
            for (spec, series) in group.members.iter().map(|it| it.spec()).zip(series) {
                let Some(spec) = spec.filter(|spec| spec.mode == Mode::Loss) else {
                    continue;
                };
                let rounds = series.figures.iter().flatten().filter_map(of);
                let Some(median) = stats::median(&rounds.collect::<Vec<_>>()) else {
                    continue;
                };
                let plot = Plot {
                    title: format!("{title}, {}", spec.subject),
                    unit,
                    spread: match unit {
                        Unit::Share => Spread::Near,
                        _ => Spread::Linear,
                    },
                    reference: None,
                    series: Vec::new(),
                };
                let line = format!("{} % dropped", percent(spec.loss));
                plot.add(
                    &mut plots,
                    (line, Colour::of(spec.subject)),
                    (spec.size, median),
                );
            }
        }
    }
    plots.iter_mut().for_each(Plot::ramp);
    plots
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::report::html::plot::tests::assert_readable;
    use crate::suite::plan::{Pace, groups};

    fn row(case: &str, figure: f64, verdict: Verdict) -> Row {
        Row {
            quantity: "rate",
            case: case.to_owned(),
            group: "lo rate 64".to_owned(),
            unit: "M/s",
            ours: Some(0.31),
            base: Some(0.33),
            figure: Some(figure),
            q25: Some(figure * 0.99),
            q75: Some(figure * 1.02),
            margin: Some(0.01),
            noise: Some(0.01),
            verdict,
            missing: None,
        }
    }

    fn quantity(better: Better, bar: f64, aim: f64) -> Quantity {
        Quantity {
            better,
            bar: Some(bar),
            aim: Some(aim),
            ..*crate::suite::quantities::find("rate").unwrap()
        }
    }

    #[test]
    fn a_quantity_shows_each_case_with_bar_and_aim() {
        let rate = quantity(Better::More, 0.9, 0.95);
        let rows = [
            row("ud <send>", 0.96, Verdict::Aim),
            row("rc send", 0.8, Verdict::Missed),
            Row {
                missing: Some("no <veth>".to_owned()),
                figure: None,
                ..row("rc write", 0.0, Verdict::NotMeasured)
            },
        ];
        let rows: Vec<&Row> = rows.iter().collect();
        let page = section(&rate, &rows).into_string();
        assert_readable(&page);
        assert!(page.contains("ud &lt;send&gt;") && page.contains("no &lt;veth&gt;"));
        // One line of each goal in each case that has a figure, and their names once.
        assert_eq!(page.matches("class=\"goal bar\"").count(), 2, "{page}");
        assert_eq!(page.matches("class=\"goal aim\"").count(), 2, "{page}");
        assert_eq!(page.matches("<circle").count(), 2, "{page}");
        assert_eq!(page.matches(">bar</text>").count(), 1, "{page}");
    }

    proptest! {
        #[test]
        fn scales_are_readable_wherever_figures_and_goals_are(
            figures in prop::collection::vec(1e-3..1e3f64, 1..8), bar in 0.01..100.0f64, more in 0.0..2.0f64,
            better in prop::sample::select(vec![Better::Less, Better::More, Better::Exactly]),
        ) {
            let goals = quantity(better, bar, bar * (1.0 + more));
            let rows: Vec<Row> = figures.iter().map(|&figure| row("it", figure, Verdict::Bar)).collect();
            let rows: Vec<&Row> = rows.iter().collect();
            let page = section(&goals, &rows).into_string();
            assert_readable(&page);
            for circle in page.split("cx=\"").skip(1) {
                let x: f64 = circle.split('"').next().unwrap().parse().unwrap();
                prop_assert!((0.0..=WIDTH).contains(&x), "{page}");
            }
        }
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

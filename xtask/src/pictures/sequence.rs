//! Sequence diagrams.
//!
//! ```text
//! title UD Send
//! host Sender: P E             a frame around neighbouring actors
//! actor P Program
//! P -> E: post                 an arrow; `-->` is dashed, `-x` is lost on the way
//! E -> E: cut                  work of one actor
//! note E: text                 a note at one actor; `note P E:` spans several
//! at 20 ms                     a time in the left margin, of the next line
//! gap                          room
//! ```
//! `|` in a text begins a new line.

use super::svg::{Anchor, LINE, Svg, width};
use super::{Problem, lines, word};

const MARGIN: f64 = 16.0;
/// Least distance of two actors' lines.
const APART: f64 = 96.0;
/// Height of an actor's box.
const BOX: f64 = 30.0;
/// Distance of two steps beside the text above the arrow.
const STEP: f64 = 18.0;

struct Actor {
    id: String,
    name: String,
    x: f64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Arrow {
    Solid,
    Dashed,
    Lost,
}

enum Step {
    Arrow(Arrow, usize, usize, Vec<String>),
    Note(usize, usize, Vec<String>),
    At(String),
    Gap,
}

#[derive(Default)]
struct Diagram {
    title: String,
    actors: Vec<Actor>,
    hosts: Vec<(String, usize, usize)>,
    steps: Vec<Step>,
}

fn texts(text: &str) -> Vec<String> {
    text.split('|').map(|part| part.trim().to_owned()).collect()
}

fn widest(texts: &[String]) -> f64 {
    texts.iter().map(|text| width(text)).fold(0.0, f64::max)
}

/// Height of some lines of text.
fn height(texts: &[String]) -> f64 {
    texts.iter().map(|_| LINE).sum()
}

impl Actor {
    /// Half of the width of the box; its text is bold.
    fn half(&self) -> f64 {
        width(&self.name) * 0.54 + 12.0
    }
}

impl Diagram {
    fn parse(text: &str) -> Result<Self, Problem> {
        let mut this = Self::default();
        let mut hosts = Vec::new();
        for (number, line) in lines(text) {
            let fail = |problem: String| (number, problem);
            let (first, rest) = word(line);
            match first {
                "title" => rest.clone_into(&mut this.title),
                "actor" => {
                    let (id, name) = word(rest);
                    this.actors.push(Actor {
                        id: id.to_owned(),
                        name: name.to_owned(),
                        x: 0.0,
                    });
                }
                "host" => hosts.push((number, rest.to_owned())),
                "at" => this.steps.push(Step::At(rest.to_owned())),
                "gap" => this.steps.push(Step::Gap),
                "note" => {
                    let (ids, text) = rest
                        .split_once(':')
                        .ok_or_else(|| fail("a note needs a colon".into()))?;
                    let (low, high) = this.span(ids).map_err(fail)?;
                    this.steps.push(Step::Note(low, high, texts(text)));
                }
                _ => {
                    let step = this.arrow(line).map_err(fail)?;
                    this.steps.push(step);
                }
            }
        }
        // Actors may be named after the hosts that frame them.
        for (number, line) in hosts {
            let fail = |problem: String| (number, problem);
            let (name, ids) = line
                .split_once(':')
                .ok_or_else(|| fail("a host needs a colon".into()))?;
            let (low, high) = this.span(ids).map_err(fail)?;
            this.hosts.push((name.trim().to_owned(), low, high));
        }
        Ok(this)
    }

    fn index(&self, id: &str) -> Result<usize, String> {
        self.actors
            .iter()
            .position(|actor| actor.id == id)
            .ok_or_else(|| format!("no actor {id}"))
    }

    fn span(&self, ids: &str) -> Result<(usize, usize), String> {
        let mut found = Vec::new();
        for id in ids.split_whitespace() {
            found.push(self.index(id)?);
        }
        let low = found.iter().min().ok_or("no actor is named")?;
        let high = found.iter().max().ok_or("no actor is named")?;
        Ok((*low, *high))
    }

    fn arrow(&self, line: &str) -> Result<Step, String> {
        let (ends, text) = line.split_once(':').ok_or("an arrow needs a colon")?;
        let mut words = ends.split_whitespace();
        let (Some(from), Some(kind), Some(to), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err("not ACTOR ARROW ACTOR: TEXT".into());
        };
        let kind = match kind {
            "->" => Arrow::Solid,
            "-->" => Arrow::Dashed,
            "-x" => Arrow::Lost,
            other => return Err(format!("no arrow {other}")),
        };
        Ok(Step::Arrow(
            kind,
            self.index(from)?,
            self.index(to)?,
            texts(text),
        ))
    }

    /// Puts the actors as far apart as the texts between them need; returns the width of the picture.
    fn place(&mut self) -> f64 {
        let timed = self.steps.iter().any(|step| matches!(step, Step::At(_)));
        let left = MARGIN + if timed { 64.0 } else { 0.0 };
        for at in 0..self.actors.len() {
            let half = self.actors[at].half();
            let mut x = left + half;
            if let Some(before) = at.checked_sub(1) {
                let other = &self.actors[before];
                // Frames of two hosts stay apart.
                let frames = self.hosts.iter().any(|(_, low, _)| *low == at);
                let room = if frames { 52.0 } else { 28.0 };
                x = x.max(other.x + (other.half() + half + room).max(APART));
            }
            for step in &self.steps {
                x = x.max(self.least(step, at, left));
            }
            self.actors[at].x = x;
        }
        let mut right: f64 = 0.0;
        for actor in &self.actors {
            right = right.max(actor.x + actor.half());
        }
        for step in &self.steps {
            right = right.max(self.reach(step));
        }
        right + MARGIN
    }

    /// Least place of an actor for one step; those before it are placed.
    fn least(&self, step: &Step, at: usize, left: f64) -> f64 {
        let (low, high, need) = match step {
            Step::Arrow(_, from, to, texts) if from == to => {
                (*from, *from + 1, widest(texts) + 44.0)
            }
            Step::Arrow(_, from, to, texts) => (*from.min(to), *from.max(to), widest(texts) + 30.0),
            Step::Note(low, high, texts) if low < high => (*low, *high, widest(texts) - 40.0),
            // Half of the note on each side.
            Step::Note(low, _, texts) if *low == at => {
                let before = at.checked_sub(1);
                let before = before.map_or(left, |it| self.actors[it].x + 12.0);
                return before + widest(texts) / 2.0 + 12.0;
            }
            Step::Note(low, _, texts) => (*low, *low + 1, widest(texts) / 2.0 + 24.0),
            Step::At(_) | Step::Gap => return 0.0,
        };
        if high == at {
            self.actors[low].x + need
        } else {
            0.0
        }
    }

    /// Rightmost point of a step.
    fn reach(&self, step: &Step) -> f64 {
        match step {
            Step::Arrow(_, from, to, texts) if from == to => {
                self.actors[*from].x + widest(texts) + 40.0
            }
            Step::Note(low, high, texts) => {
                let middle = f64::midpoint(self.actors[*low].x, self.actors[*high].x);
                middle + widest(texts) / 2.0 + 14.0
            }
            Step::Arrow(..) | Step::At(_) | Step::Gap => 0.0,
        }
    }
}

/// Draws a diagram.
pub(super) fn draw(text: &str) -> Result<String, Problem> {
    let mut diagram = Diagram::parse(text)?;
    let full = diagram
        .place()
        .max(width(&diagram.title) * 1.2 + 2.0 * MARGIN);
    let mut over = Svg::default();
    let top = MARGIN + LINE + if diagram.hosts.is_empty() { 8.0 } else { 34.0 };
    let mut y = top + BOX + STEP;
    let mut at = None;
    for step in &diagram.steps {
        let started = y;
        match step {
            Step::At(text) => {
                at = Some(text.clone());
                continue;
            }
            Step::Gap => y += STEP,
            Step::Note(low, high, texts) => {
                let ends = (diagram.actors[*low].x, diagram.actors[*high].x);
                y += note(&mut over, ends, texts, y);
            }
            Step::Arrow(kind, from, to, texts) => {
                y += arrow(&mut over, &diagram.actors, (*kind, *from, *to), texts, y);
            }
        }
        if let Some(text) = at.take() {
            let base = match step {
                Step::Arrow(_, from, to, texts) if from != to => started + height(texts),
                _ => started + 8.0,
            };
            over.text("small", (MARGIN, base), Anchor::Start, &text);
        }
    }
    let bottom = y;
    let mut svg = Svg::default();
    svg.text(
        "title",
        (MARGIN, MARGIN + 12.0),
        Anchor::Start,
        &diagram.title,
    );
    for (name, low, high) in &diagram.hosts {
        let (a, b) = (&diagram.actors[*low], &diagram.actors[*high]);
        let left = a.x - a.half() - 8.0;
        let right = if high + 1 == diagram.actors.len() {
            full - 8.0
        } else {
            b.x + b.half() + 8.0
        };
        let size = (right - left, bottom - top + 40.0);
        svg.rect("band", (left, top - 24.0), size, 6.0);
        let middle = f64::midpoint(left, right);
        svg.text("small", (middle, top - 9.0), Anchor::Middle, name);
    }
    for actor in &diagram.actors {
        let half = actor.half();
        svg.line("line", (actor.x, top + BOX), (actor.x, bottom + 8.0), true);
        svg.rect("box", (actor.x - half, top), (2.0 * half, BOX), 4.0);
        svg.text("bold", (actor.x, top + 20.0), Anchor::Middle, &actor.name);
    }
    let mut whole = svg;
    whole.append(over);
    Ok(whole.finish(&diagram.title, (full, bottom + 26.0)))
}

/// Draws a note over the lines of two actors, or of one; returns its height.
fn note(svg: &mut Svg, (a, b): (f64, f64), texts: &[String], y: f64) -> f64 {
    let spanned = if a < b { b - a + 60.0 } else { 0.0 };
    let wide = spanned.max(widest(texts) + 20.0);
    let tall = height(texts) + 10.0;
    let left = f64::midpoint(a, b) - wide / 2.0;
    svg.rect("note", (left, y - 6.0), (wide, tall), 4.0);
    for (n, text) in (0u8..).zip(texts) {
        let base = y + 11.0 + LINE * f64::from(n);
        svg.text("", (left + wide / 2.0, base), Anchor::Middle, text);
    }
    tall + STEP - 4.0
}

/// Draws one arrow whose text begins at `y`; returns its height.
fn arrow(
    svg: &mut Svg,
    actors: &[Actor],
    (kind, from, to): (Arrow, usize, usize),
    texts: &[String],
    y: f64,
) -> f64 {
    let tall = height(texts);
    let (a, b) = (actors[from].x, actors[to].x);
    if from == to {
        let points = [
            (a, y),
            (a + 22.0, y),
            (a + 22.0, y + 14.0),
            (a + 1.0, y + 14.0),
        ];
        svg.polyline("line", &points, 1.0);
        svg.head((a + 22.0, y + 14.0), (a + 1.0, y + 14.0));
        for (n, text) in (0u8..).zip(texts) {
            let base = y + 11.0 + LINE * f64::from(n);
            svg.text("", (a + 30.0, base), Anchor::Start, text);
        }
        return tall.max(14.0) + STEP;
    }
    let class = if kind == Arrow::Lost {
        "over lost-text"
    } else {
        "over"
    };
    for (n, text) in (0u8..).zip(texts) {
        let base = y + 6.0 + LINE * f64::from(n);
        svg.text(class, (f64::midpoint(a, b), base), Anchor::Middle, text);
    }
    let base = y + tall - 4.0;
    if kind == Arrow::Lost {
        let end = a + (b - a) * 0.82;
        svg.line("lost", (a, base), (end, base), false);
        svg.cross((end, base), 5.0);
    } else {
        svg.line("line", (a, base), (b, base), kind == Arrow::Dashed);
        svg.head((a, base), (b, base));
    }
    tall + STEP
}

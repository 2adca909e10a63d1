//! Boxes on a grid, and arrows between them: layers and states.
//!
//! ```text
//! title Layers
//! grid 130 46 40 34            width and height of a cell, room between columns and rows
//! box S 0 1 2 stack|engine     name, column, row, columns wide, text
//! band 0 0 3 2 text            a frame around cells: column, row, columns, rows
//! S -> D: text                 an arrow from edge to edge; `-->` is dashed, `<->` has two heads
//! S -> D right: text           the same, from and to the right-hand edges, for boxes below one another
//! ```

use super::svg::{Anchor, LINE, Svg, width};
use super::{Problem, lines, word};

const MARGIN: f64 = 20.0;

struct Node {
    id: String,
    column: f64,
    row: f64,
    columns: f64,
    texts: Vec<String>,
}

struct Edge {
    from: usize,
    to: usize,
    kind: String,
    side: String,
    text: String,
}

struct Band {
    column: f64,
    row: f64,
    columns: f64,
    rows: f64,
    text: String,
}

struct Grid {
    cell: (f64, f64),
    room: (f64, f64),
    top: f64,
}

impl Grid {
    fn corner(&self, column: f64, row: f64) -> (f64, f64) {
        (
            MARGIN + column * (self.cell.0 + self.room.0),
            self.top + row * (self.cell.1 + self.room.1),
        )
    }

    fn size(&self, columns: f64, rows: f64) -> (f64, f64) {
        (
            columns * (self.cell.0 + self.room.0) - self.room.0,
            rows * (self.cell.1 + self.room.1) - self.room.1,
        )
    }

    /// Middle and half size of a box.
    fn place(&self, node: &Node) -> ((f64, f64), (f64, f64)) {
        let (x, y) = self.corner(node.column, node.row);
        let (w, h) = self.size(node.columns, 1.0);
        ((x + w / 2.0, y + h / 2.0), (w / 2.0, h / 2.0))
    }
}

fn numbers<const N: usize>(line: &str) -> Result<([f64; N], &str), String> {
    let mut found = [0.0; N];
    let mut rest = line;
    for slot in &mut found {
        let (first, after) = word(rest);
        *slot = first
            .parse()
            .map_err(|_| format!("{first:?} is no number"))?;
        rest = after;
    }
    Ok((found, rest))
}

fn edge(line: &str, nodes: &[Node]) -> Result<Edge, String> {
    let (ends, text) = line.split_once(':').unwrap_or((line, ""));
    let words: Vec<_> = ends.split_whitespace().collect();
    let (from, kind, to, side) = match words.as_slice() {
        [from, kind, to] => (from, kind, to, ""),
        [from, kind, to, side] => (from, kind, to, *side),
        _ => return Err("not BOX ARROW BOX: TEXT".into()),
    };
    let index = |id: &str| {
        nodes
            .iter()
            .position(|node| node.id == id)
            .ok_or_else(|| format!("no box {id}"))
    };
    Ok(Edge {
        from: index(from)?,
        to: index(to)?,
        kind: (*kind).to_owned(),
        side: side.to_owned(),
        text: text.trim().to_owned(),
    })
}

/// Draws boxes and arrows.
pub(super) fn draw(text: &str) -> Result<String, Problem> {
    let mut title = String::new();
    let (mut nodes, mut bands, mut edges) = (Vec::new(), Vec::new(), Vec::new());
    let mut grid = Grid {
        cell: (130.0, 46.0),
        room: (40.0, 34.0),
        top: MARGIN + 26.0,
    };
    for (number, line) in lines(text) {
        let fail = |problem: String| (number, problem);
        let (first, rest) = word(line);
        match first {
            "title" => rest.clone_into(&mut title),
            "grid" => {
                let ([w, h, x, y], _) = numbers(rest).map_err(fail)?;
                (grid.cell, grid.room) = ((w, h), (x, y));
            }
            "box" => {
                let (id, rest) = word(rest);
                let ([column, row, columns], text) = numbers(rest).map_err(fail)?;
                let texts: Vec<_> = text.split('|').map(|it| it.trim().to_owned()).collect();
                let wide = grid.size(columns, 1.0).0;
                // The lines after the first are small.
                let share = |n| if n == 0 { 1.05 } else { 0.85 };
                let mut all = texts.iter().enumerate();
                if let Some((_, long)) = all.find(|(n, it)| width(it) * share(*n) > wide) {
                    return Err(fail(format!("the box is too narrow for {long:?}")));
                }
                nodes.push(Node {
                    id: id.to_owned(),
                    column,
                    row,
                    columns,
                    texts,
                });
            }
            "band" => {
                let ([column, row, columns, rows], text) = numbers(rest).map_err(fail)?;
                bands.push(Band {
                    column,
                    row,
                    columns,
                    rows,
                    text: text.to_owned(),
                });
            }
            _ => edges.push(edge(line, &nodes).map_err(fail)?),
        }
    }
    let mut svg = Svg::default();
    svg.text("title", (MARGIN, MARGIN + 8.0), Anchor::Start, &title);
    let mut extent = (width(&title) * 1.2 + 2.0 * MARGIN, 0.0f64);
    for band in &bands {
        let (x, y) = grid.corner(band.column, band.row);
        let (w, h) = grid.size(band.columns, band.rows);
        svg.rect("band", (x - 10.0, y - 10.0), (w + 20.0, h + 32.0), 6.0);
        svg.text("small", (x, y + h + 15.0), Anchor::Start, &band.text);
        extent = (extent.0.max(x + w + 10.0), extent.1.max(y + h + 22.0));
    }
    for edge in &edges {
        let right = arrow(&mut svg, &grid, &nodes, edge);
        extent.0 = extent.0.max(right);
    }
    for node in &nodes {
        let ((x, y), (w, h)) = grid.place(node);
        svg.rect("box", (x - w, y - h), (2.0 * w, 2.0 * h), 5.0);
        let above: f64 = node.texts.iter().skip(1).map(|_| LINE / 2.0).sum();
        for (n, text) in (0u8..).zip(&node.texts) {
            let class = if n == 0 { "bold" } else { "small" };
            let base = y + 4.5 - above + LINE * f64::from(n);
            svg.text(class, (x, base), Anchor::Middle, text);
        }
        extent = (extent.0.max(x + w), extent.1.max(y + h));
    }
    Ok(svg.finish(&title, (extent.0 + MARGIN, extent.1 + MARGIN)))
}

/// Draws an arrow; returns its rightmost point.
fn arrow(svg: &mut Svg, grid: &Grid, nodes: &[Node], edge: &Edge) -> f64 {
    let ((ax, ay), (aw, ah)) = grid.place(&nodes[edge.from]);
    let ((bx, by), (bw, bh)) = grid.place(&nodes[edge.to]);
    let dashed = edge.kind == "-->";
    if edge.side == "right" || edge.side == "left" {
        let sign = if edge.side == "right" { 1.0 } else { -1.0 };
        let (from, to) = ((ax + sign * aw, ay + 6.0), (bx + sign * bw, by - 6.0));
        let out = if sign > 0.0 {
            from.0.max(to.0)
        } else {
            from.0.min(to.0)
        } + sign * 24.0;
        svg.polyline("line", &[from, (out, from.1), (out, to.1), to], 1.0);
        svg.head((out, to.1), to);
        let middle = f64::midpoint(from.1, to.1) + 4.0;
        let anchor = if sign > 0.0 {
            Anchor::Start
        } else {
            Anchor::End
        };
        svg.text("", (out + sign * 6.0, middle), anchor, &edge.text);
        return out + 12.0 + width(&edge.text);
    }
    // From the edge that faces the other box; upright wherever the two lie above one another.
    let low = (ax - aw).max(bx - bw);
    let high = (ax + aw).min(bx + bw);
    let (from, to) = if low < high && (ay - by).abs() > 1.0 {
        let x = f64::midpoint(low, high);
        let down = if by > ay { 1.0 } else { -1.0 };
        ((x, ay + down * ah), (x, by - down * bh))
    } else if (ay - by).abs() < 1.0 {
        let right = if bx > ax { 1.0 } else { -1.0 };
        ((ax + right * aw, ay), (bx - right * bw, by))
    } else {
        let right = if bx > ax { 1.0 } else { -1.0 };
        let down = if by > ay { 1.0 } else { -1.0 };
        (
            (ax + right * aw * 0.7, ay + down * ah),
            (bx - right * bw * 0.7, by - down * bh),
        )
    };
    svg.line("line", from, to, dashed);
    svg.head(from, to);
    if edge.kind == "<->" {
        svg.head(to, from);
    }
    let (x, y) = (f64::midpoint(from.0, to.0), f64::midpoint(from.1, to.1));
    if !edge.text.is_empty() {
        if (from.0 - to.0).abs() < 1.0 {
            svg.text("over", (x + 7.0, y + 4.0), Anchor::Start, &edge.text);
            return x + 7.0 + width(&edge.text);
        }
        svg.text("over", (x, y - 6.0), Anchor::Middle, &edge.text);
    }
    0.0
}

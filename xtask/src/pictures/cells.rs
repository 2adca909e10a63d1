//! Rows of cells: segments of a message on their way, and the octets of a buffer.
//!
//! ```text
//! title Write-Record under loss
//! columns 0|1448|2896          texts above the cells
//! row posted: # # #            # sent, x lost, v valid, . not valid, space between any two
//! note text                    a line of text below the rows so far
//! ```

use super::svg::{Anchor, Svg, width};
use super::{Problem, lines, word};

const MARGIN: f64 = 16.0;
const CELL: (f64, f64) = (64.0, 26.0);
const ROW: f64 = 40.0;

/// Draws rows of cells.
pub(super) fn draw(text: &str) -> Result<String, Problem> {
    let parsed: Vec<_> = lines(text).collect();
    let names = parsed.iter().filter_map(|(_, line)| {
        let (name, _) = line.strip_prefix("row ")?.split_once(':')?;
        Some(width(name))
    });
    let left = MARGIN + names.fold(0.0, f64::max) + 14.0;
    let mut svg = Svg::default();
    let mut title = "";
    let (mut y, mut right) = (MARGIN + 12.0, 0.0f64);
    for (number, line) in parsed {
        let (first, rest) = word(line);
        match first {
            "title" => {
                title = rest;
                svg.text("title", (MARGIN, y), Anchor::Start, rest);
                y += 30.0;
            }
            "columns" => {
                for (n, text) in (0u8..).zip(rest.split('|')) {
                    let x = left + CELL.0 * f64::from(n);
                    svg.text("small", (x, y), Anchor::Start, text.trim());
                }
                y += 8.0;
            }
            "row" => {
                let (name, cells) = rest
                    .split_once(':')
                    .ok_or_else(|| (number, "a row needs a colon".to_owned()))?;
                svg.text("", (left - 10.0, y + 18.0), Anchor::End, name);
                for (n, cell) in (0u8..).zip(cells.split_whitespace()) {
                    let corner = (left + CELL.0 * f64::from(n), y);
                    let class = match cell {
                        "#" => "sent",
                        "v" => "valid",
                        "x" | "." => "hole",
                        other => return Err((number, format!("no cell {other}"))),
                    };
                    svg.rect(class, corner, (CELL.0 - 4.0, CELL.1), 3.0);
                    if cell == "x" {
                        svg.cross((corner.0 + CELL.0 / 2.0 - 2.0, y + CELL.1 / 2.0), 6.0);
                    }
                    right = right.max(corner.0 + CELL.0);
                }
                y += ROW;
            }
            "note" => {
                svg.text("", (left, y + 10.0), Anchor::Start, rest);
                right = right.max(left + width(rest));
                y += 26.0;
            }
            other => return Err((number, format!("no line {other}"))),
        }
    }
    right = right.max(MARGIN + width(title) * 1.2);
    Ok(svg.finish(title, (right + MARGIN, y + MARGIN / 2.0)))
}

//! Elements of SVG, with colours for light and dark pages.

use std::fmt::Write as _;

/// Size of text, in pixels.
pub(super) const FONT: f64 = 13.0;
/// Distance of two lines of text.
pub(super) const LINE: f64 = 17.0;

/// Colours as classes; each kind of picture uses some. A background of its own keeps a picture legible where the page's colours are not those
/// that the reader's system asks for.
const STYLE: &str = "\
text{font:13px system-ui,'DejaVu Sans',sans-serif;fill:#1f2328}
.small{font-size:11px;fill:#59636e}.title{font-size:15px;font-weight:600}.bold{font-weight:600}
.over{paint-order:stroke;stroke:#fff;stroke-width:4px}.page{fill:#fff}.box{fill:#eef2f7;stroke:#59636e}.note{fill:#fff8dc;stroke:#b8a55a}.band{fill:#f6f8fa;stroke:#d1d9e0}
.line{stroke:#59636e;fill:none}.thin{stroke:#d1d9e0;fill:none}.head{fill:#59636e}
.lost{stroke:#c4320a;fill:none}.lost-text{fill:#c4320a}
.valid{fill:#bfe3c8;stroke:#4a9460}.hole{fill:#fff;stroke:#c4320a}.sent{fill:#cfe0fa;stroke:#4878c0}
.s0{stroke:#0b62c4;fill:none}.s1{stroke:#b35900;fill:none}.s2{stroke:#1a7f37;fill:none}.t0{fill:#0b62c4}.t1{fill:#b35900}.t2{fill:#1a7f37}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.small{fill:#9aa4af}
.over{stroke:#0d1117}.page{fill:#0d1117}.box{fill:#1d2733;stroke:#8b949e}.note{fill:#2f2a14;stroke:#8d7d3a}.band{fill:#151b23;stroke:#3d444d}
.line{stroke:#9aa4af}.thin{stroke:#30363d}.head{fill:#9aa4af}
.lost{stroke:#ff7b54}.lost-text{fill:#ff7b54}
.valid{fill:#1f5131;stroke:#5bb578}.hole{fill:#0d1117;stroke:#ff7b54}.sent{fill:#1c3a66;stroke:#79a8ec}
.s0{stroke:#6cb0ff}.s1{stroke:#f0a050}.s2{stroke:#57c878}.t0{fill:#6cb0ff}.t1{fill:#f0a050}.t2{fill:#57c878}}
";

/// Where a text stands relative to its point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Anchor {
    /// The text begins at the point.
    Start,
    /// Its middle is the point.
    Middle,
    /// It ends at the point.
    End,
}

/// A picture that grows.
#[derive(Debug, Default)]
pub(super) struct Svg {
    body: String,
}

/// Width of a text in pixels, of the widest of the usual fonts.
pub(super) fn width(text: &str) -> f64 {
    text.chars().map(advance).sum::<f64>() * FONT
}

/// Width of a character in units of the font's size.
fn advance(character: char) -> f64 {
    match character {
        'i' | 'j' | 'l' | '.' | ',' | ':' | ';' | '\'' | '|' | '!' | ' ' => 0.33,
        'f' | 'r' | 't' | '(' | ')' | '[' | ']' | '-' | '/' | '"' => 0.41,
        'm' | 'w' | 'M' | 'W' | '…' | '→' | '≤' | '×' => 0.95,
        'A'..='Z' | '_' => 0.72,
        _ => 0.62,
    }
}

/// A text with the characters of XML replaced.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// A number without a fraction where it has none.
fn number(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").unwrap_or(&text).to_owned()
}

impl Svg {
    // Writing to a String cannot fail.

    pub(super) fn rect(&mut self, class: &str, (x, y): (f64, f64), (w, h): (f64, f64), round: f64) {
        let [x, y, w, h, round] = [x, y, w, h, round].map(number);
        let _ = writeln!(
            self.body,
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\" rx=\"{round}\"/>"
        );
    }

    pub(super) fn text(&mut self, class: &str, (x, y): (f64, f64), anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let _ = writeln!(
            self.body,
            "<text class=\"{class}\" x=\"{}\" y=\"{}\" text-anchor=\"{anchor}\">{}</text>",
            number(x),
            number(y),
            escaped(text)
        );
    }

    pub(super) fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64), dashed: bool) {
        let [x1, y1, x2, y2] = [from.0, from.1, to.0, to.1].map(number);
        let dash = if dashed {
            " stroke-dasharray=\"5 4\""
        } else {
            ""
        };
        let _ = writeln!(
            self.body,
            "<line class=\"{class}\" x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\"{dash}/>"
        );
    }

    pub(super) fn polyline(&mut self, class: &str, points: &[(f64, f64)], thickness: f64) {
        let points: Vec<_> = points
            .iter()
            .map(|(x, y)| format!("{},{}", number(*x), number(*y)))
            .collect();
        let _ = writeln!(
            self.body,
            "<polyline class=\"{class}\" points=\"{}\" stroke-width=\"{}\" stroke-linejoin=\"round\"/>",
            points.join(" "),
            number(thickness)
        );
    }

    /// A filled head of an arrow at `to`, for a line that comes from `from`.
    pub(super) fn head(&mut self, from: (f64, f64), to: (f64, f64)) {
        let (dx, dy) = (to.0 - from.0, to.1 - from.1);
        let length = dx.hypot(dy).max(1.0);
        let (ux, uy) = (dx / length, dy / length);
        let back = (to.0 - 9.0 * ux, to.1 - 9.0 * uy);
        let points = [
            to,
            (back.0 - 4.0 * uy, back.1 + 4.0 * ux),
            (back.0 + 4.0 * uy, back.1 - 4.0 * ux),
        ];
        let points: Vec<_> = points
            .iter()
            .map(|(x, y)| format!("{},{}", number(*x), number(*y)))
            .collect();
        let _ = writeln!(
            self.body,
            "<polygon class=\"head\" points=\"{}\"/>",
            points.join(" ")
        );
    }

    /// A cross of two strokes.
    pub(super) fn cross(&mut self, (x, y): (f64, f64), half: f64) {
        for sign in [1.0, -1.0] {
            let points = [(x - half, y - sign * half), (x + half, y + sign * half)];
            self.polyline("lost", &points, 2.0);
        }
    }

    /// Puts another picture over this one.
    pub(super) fn append(&mut self, over: Self) {
        self.body.push_str(&over.body);
    }

    /// The whole document.
    pub(super) fn finish(self, title: &str, (w, h): (f64, f64)) -> String {
        let (w, h) = (number(w.ceil()), number(h.ceil()));
        let title = escaped(title);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w}\" height=\"{h}\" viewBox=\"0 0 {w} {h}\" role=\"img\">\n\
             <title>{title}</title>\n<style>\n{STYLE}</style>\n\
             <rect class=\"page\" x=\"0\" y=\"0\" width=\"{w}\" height=\"{h}\" rx=\"6\"/>\n{}</svg>\n",
            self.body
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped_and_numbers_are_short() {
        assert_eq!(escaped("a<b & c>d"), "a&lt;b &amp; c&gt;d");
        assert_eq!((number(3.0), number(2.54)), ("3".into(), "2.5".into()));
        assert!(width("WW") > width("ii"));
    }
}

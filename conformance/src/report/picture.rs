//! A connection's steps as a picture: tester and device, and an arrow for each frame.

use core::fmt::Write as _;

use super::junit::escape;
use crate::recording::Way;
use crate::recording::sequence::Step;

const WIDTH: usize = 900;
const LEFT: usize = 70;
const RIGHT: usize = WIDTH - 70;
const ROW: usize = 34;
const TOP: usize = 44;
/// The longest text above an arrow.
const LONGEST: usize = 100;

/// The picture as SVG, in colours of the page around it.
pub(super) fn svg(steps: &[Step]) -> String {
    let height = TOP + ROW * steps.len() + 16;
    let mut svg = format!(
        "<svg class=\"sequence\" role=\"img\" aria-label=\"sequence of frames\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" xmlns=\"http://www.w3.org/2000/svg\">\n"
    );
    for (x, name) in [(LEFT, "tester"), (RIGHT, "device")] {
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(
            svg,
            "<text class=\"end\" x=\"{x}\" y=\"18\" text-anchor=\"middle\">{name}</text><line x1=\"{x}\" y1=\"26\" x2=\"{x}\" y2=\"{height}\"/>"
        );
    }
    for (row, step) in steps.iter().enumerate() {
        let y = TOP + ROW * row + 18;
        let (from, to, class) = match step.way {
            Way::Sent => (LEFT, RIGHT, ""),
            Way::Received => (RIGHT, LEFT, "device"),
        };
        let back = if to > from { to - 8 } else { to + 8 };
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text><line class=\"{class}\" x1=\"{from}\" y1=\"{y}\" x2=\"{to}\" y2=\"{y}\"/><path class=\"{}tip\" d=\"M{to} {y}L{back} {}L{back} {}z\"/>",
            WIDTH / 2,
            y - 6,
            escape(&short(&step.what)),
            if class.is_empty() { "" } else { "device-" },
            y - 4,
            y + 4
        );
    }
    svg.push_str("</svg>\n");
    svg
}

fn short(text: &str) -> String {
    if text.chars().count() <= LONGEST {
        return text.to_owned();
    }
    text.chars().take(LONGEST - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_step_is_an_arrow_of_its_end() {
        let step = |way, what: &str| Step {
            way,
            at: Duration::ZERO,
            what: what.to_owned(),
            octets: vec![1],
            length: 1,
        };
        let long = "x".repeat(500);
        let svg = svg(&[step(Way::Sent, "a < b"), step(Way::Received, &long)]);
        assert_eq!(svg.matches("<path").count(), 2);
        assert_eq!(svg.matches("device-tip").count(), 1);
        assert!(svg.contains("a &lt; b") && !svg.contains(&long));
    }
}

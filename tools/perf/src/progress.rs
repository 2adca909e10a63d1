//! A progress bar on standard error, if that is a terminal.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use crate::clock::seconds;

/// Cells of the bar.
const WIDTH: usize = 24;

/// How far a run has come, by the time planned for its parts.
#[derive(Debug)]
pub(crate) struct Progress {
    visible: bool,
    shown: bool,
    total: Duration,
    done: Duration,
}

impl Progress {
    /// A bar for a run of this length.
    pub(crate) fn new(total: Duration) -> Self {
        Self {
            visible: std::io::stderr().is_terminal(),
            shown: false,
            total,
            done: Duration::ZERO,
        }
    }

    /// Draws the bar with what is being done now.
    pub(crate) fn show(&mut self, what: &str) {
        if self.visible {
            self.shown = true;
            eprint!("\r\x1b[K{}", line(self.done, self.total, what));
            // A bar that cannot be drawn is no reason to fail.
            let _ = std::io::stderr().flush();
        }
    }

    /// A part of this length is done.
    pub(crate) fn advance(&mut self, part: Duration) {
        self.done += part;
    }

    /// Takes the bar away, before something else is printed and at the end.
    pub(crate) fn clear(&mut self) {
        if self.shown {
            self.shown = false;
            eprint!("\r\x1b[K");
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "the share is in 0..=1"
)]
fn line(done: Duration, total: Duration, what: &str) -> String {
    let share = (seconds(done) / seconds(total).max(1e-9)).clamp(0.0, 1.0);
    let filled = (share * WIDTH as f64).round() as usize;
    let left = seconds(total.saturating_sub(done)).ceil();
    format!(
        "[{}{}] {:3.0} %  {what}, about {left} s left",
        "#".repeat(filled),
        ".".repeat(WIDTH - filled),
        share * 100.0,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_fills_and_never_overflows() {
        let total = Duration::from_secs(10);
        let half = line(Duration::from_secs(5), total, "udp raw lat 64");
        assert!(
            half.starts_with("[############............]  50 %"),
            "{half}"
        );
        assert!(half.ends_with("about 5 s left"));
        let over = line(Duration::from_secs(11), total, "x");
        assert!(over.contains("100 %") && over.ends_with("about 0 s left"));
        assert!(line(Duration::ZERO, Duration::ZERO, "x").contains("0 %"));
    }
}

//! The progress bar of a run, on standard error if that is a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// The share of a run that is done, by the time planned for its parts.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    total: Duration,
    done: Duration,
}

impl Progress {
    /// A bar for a run of this length, drawn between measurements, never during one.
    pub(crate) fn new(total: Duration) -> Self {
        let style = ProgressStyle::with_template("[{bar:24}] {percent:>3} %  {msg}")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::new(milliseconds(total));
        bar.set_style(style.progress_chars("#."));
        Self {
            bar,
            total,
            done: Duration::ZERO,
        }
    }

    /// Draws the bar with the part that begins.
    pub(crate) fn show(&self, part: &str) {
        let left = self.total.saturating_sub(self.done).as_secs_f64().ceil();
        self.bar.set_message(format!("{part}, about {left} s left"));
        self.bar.force_draw();
    }

    /// A part of this length is done.
    pub(crate) fn advance(&mut self, part: Duration) {
        self.done += part;
        self.bar
            .set_position(milliseconds(self.done.min(self.total)));
    }

    /// Writes something else while the bar is away.
    pub(crate) fn aside<T>(&self, write: impl FnOnce() -> T) -> T {
        self.bar.suspend(write)
    }

    /// Removes the bar.
    pub(crate) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

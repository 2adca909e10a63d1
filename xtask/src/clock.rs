//! The one place where these tasks read a clock or sleep. They are edges: they wait for other programs.

use std::time::{Duration, Instant};

/// The present time.
#[expect(
    clippy::disallowed_methods,
    reason = "an edge of the project: it times other programs"
)]
#[must_use]
pub fn now() -> Instant {
    Instant::now()
}

/// Waits before another program is looked at again.
#[expect(
    clippy::disallowed_methods,
    reason = "an edge of the project: a child process offers no descriptor to wait on here"
)]
pub fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

//! The only place that reads the clock or sleeps.

use std::time::{Duration, Instant, SystemTime};

/// The monotonic time.
#[expect(
    clippy::disallowed_methods,
    reason = "a tester is an edge: it waits for somebody else's device"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The calendar's time, for reports.
#[expect(
    clippy::disallowed_methods,
    reason = "a report says when it was made; nothing is decided by it"
)]
pub(crate) fn wall() -> SystemTime {
    SystemTime::now()
}

/// Waits before a device is asked again.
#[expect(
    clippy::disallowed_methods,
    reason = "a device that does not listen yet offers no descriptor to wait on"
)]
pub(crate) fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

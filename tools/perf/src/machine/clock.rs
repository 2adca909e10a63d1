//! The only place that reads the clock or sleeps.

use std::time::Instant;

/// The monotonic time.
#[expect(
    clippy::disallowed_methods,
    reason = "a benchmark is an edge: it measures real time"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Nanoseconds from `start` to `end`, saturating (584 years fit).
pub(crate) fn nanoseconds(start: Instant, end: Instant) -> u64 {
    u64::try_from(end.saturating_duration_since(start).as_nanos()).unwrap_or(u64::MAX)
}

//! The only place of this crate that reads the clock.

use std::sync::OnceLock;
use std::time::Instant;

/// Now.
#[inline]
#[expect(clippy::disallowed_methods, reason = "the driver owns real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// An instant as nanoseconds since the first use, for atomics; `u64::MAX` stands for never.
pub(crate) fn to_nanos(at: Option<Instant>) -> u64 {
    at.map_or(u64::MAX, |at| {
        let since = at.saturating_duration_since(origin());
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX - 1)
    })
}

fn origin() -> Instant {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    *ORIGIN.get_or_init(now)
}

/// Makes the origin earlier than every instant that is converted later.
pub(crate) fn start() {
    origin();
}

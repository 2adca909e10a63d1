//! The only place of this crate that reads the clock.

use std::cell::Cell;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime};

/// Now.
#[inline]
#[expect(clippy::disallowed_methods, reason = "the driver owns real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Time since the epoch, as the host's clock has it; for the eyes of people only.
#[expect(clippy::disallowed_methods, reason = "the driver owns real time")]
pub(crate) fn since_epoch() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

/// An instant as nanoseconds since the first use, for atomics; `u64::MAX` stands for never.
pub(crate) fn to_nanos(at: Option<Instant>) -> u64 {
    at.map_or(u64::MAX, |at| {
        let since = at.saturating_duration_since(origin());
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX - 1)
    })
}

thread_local! {
    /// The latest reading of the coarse clock, and its instant.
    static LATEST: Cell<Option<(TimeSpec, Instant)>> = const { Cell::new(None) };
}

/// Now, up to some milliseconds late: for the timers of the data path, which last a hundred times longer. It costs a
/// fifth of [`now`].
#[inline]
pub(crate) fn coarse() -> Instant {
    let Some(reading) = coarse_reading() else {
        return now();
    };
    // The clock seldom ticks between two messages.
    LATEST.with(|latest| match latest.get() {
        Some((of, at)) if of == reading => at,
        Some(_) | None => {
            let at = instant_of(reading);
            latest.set(Some((reading, at)));
            at
        }
    })
}

fn coarse_reading() -> Option<TimeSpec> {
    clock_gettime(ClockId::CLOCK_MONOTONIC_COARSE).ok()
}

/// The instant of a reading of the coarse clock.
#[cold]
fn instant_of(reading: TimeSpec) -> Instant {
    let origin = origins();
    origin.precise + Duration::from(reading).saturating_sub(origin.coarse)
}

/// One moment on both clocks.
#[derive(Debug)]
struct Origins {
    precise: Instant,
    coarse: Duration,
}

fn origins() -> &'static Origins {
    static ORIGINS: OnceLock<Origins> = OnceLock::new();
    ORIGINS.get_or_init(|| Origins {
        precise: now(),
        coarse: coarse_reading().map_or(Duration::ZERO, Duration::from),
    })
}

fn origin() -> Instant {
    origins().precise
}

/// The first instant from `at` on that is a multiple of `step` after the first use.
pub(crate) fn round_up(at: Instant, step: Duration) -> Instant {
    let since = at.saturating_duration_since(origin()).as_nanos();
    let over = since % step.as_nanos().max(1);
    let missing = if over == 0 { 0 } else { step.as_nanos() - over };
    at + Duration::from_nanos(u64::try_from(missing).unwrap_or(0))
}

/// Makes the origin earlier than every instant that is converted later.
pub(crate) fn start() {
    origin();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_meet_on_a_grid() {
        start();
        let step = Duration::from_millis(7);
        let at = now();
        let rounded = round_up(at, step);
        assert!(rounded >= at && rounded - at < step);
        assert_eq!(round_up(rounded, step), rounded);
        assert_eq!(
            round_up(rounded + Duration::from_nanos(1), step),
            rounded + step
        );
    }

    #[test]
    fn the_coarse_clock_keeps_up() {
        start();
        let precise = now();
        let until = precise + Duration::from_millis(50);
        while now() < until {
            let lag = now().saturating_duration_since(coarse());
            assert!(lag < Duration::from_millis(40), "{lag:?} late");
        }
        assert!(coarse() > precise);
    }
}

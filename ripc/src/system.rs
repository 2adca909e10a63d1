//! Clock and random numbers of the system, and wakers.

use std::io;
use std::task::Waker;
use std::time::{Duration, Instant, SystemTime};

use crate::error::Error;

/// Time of now.
#[expect(clippy::disallowed_methods, reason = "the driver reads the clock")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Time after `timeout`; `None` where that is beyond all times.
pub(crate) fn after(timeout: Duration) -> Option<Instant> {
    now().checked_add(timeout)
}

/// A number that nobody foresees.
pub(crate) fn random() -> Result<u64, Error> {
    let mut bytes = [0; 8];
    fill_random(&mut bytes)?;
    Ok(u64::from_be_bytes(bytes))
}

/// Fills with octets that nobody foresees.
pub(crate) fn fill_random(bytes: &mut [u8]) -> Result<(), Error> {
    getrandom::fill(bytes).map_err(|error| Error::System {
        what: "the system gives no randomness",
        source: io::Error::other(error),
    })
}

/// Seconds since 1970-01-01 UTC.
#[expect(clippy::disallowed_methods, reason = "the driver reads the clock")]
pub(crate) fn unix_seconds() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Makes this waker the one to wake. Returns another that was there, to be dropped without a lock.
pub(crate) fn replace_waker(known: &mut Option<Waker>, waker: &Waker) -> Option<Waker> {
    if known.as_ref().is_some_and(|known| known.will_wake(waker)) {
        return None;
    }
    known.replace(waker.clone())
}

//! Clock and random numbers of the system.

use std::io;
use std::time::{Duration, Instant};

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
    getrandom::fill(&mut bytes).map_err(|error| Error::System {
        what: "the system gives no randomness",
        source: io::Error::other(error),
    })?;
    Ok(u64::from_be_bytes(bytes))
}

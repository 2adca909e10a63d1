//! Entry points for fuzzers. They see the inside of the stack, so they are here; `fuzz/targets` of the source tree gives them to the fuzzers.
//!
//! Each takes octets apart into what somebody does with the engine, and panics where the engine breaks a promise. Not part of the API.

mod connection;
mod datagrams;
mod guarded;
mod hostile;
mod rc_end;
mod tally;
mod ud_end;

use std::sync::OnceLock;
use std::time::Instant;

pub use connection::connection;
pub use datagrams::datagrams;

/// When everything begins.
#[expect(
    clippy::disallowed_methods,
    reason = "an instant cannot be made otherwise"
)]
fn start() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now)
}

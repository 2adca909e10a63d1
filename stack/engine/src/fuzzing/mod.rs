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

/// The time at which every run begins.
static START: OnceLock<Instant> = OnceLock::new();

fn start() -> Instant {
    *START.get().expect("a run was begun")
}

/// Begins a run. `start` is the origin of its clock; that of the first run counts.
fn begin(start: Instant) {
    START.get_or_init(|| start);
}

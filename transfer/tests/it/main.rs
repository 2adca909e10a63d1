//! Sessions over real connections, between files on a real disk.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "what the system refuses fails the test")]
#![expect(
    clippy::disallowed_methods,
    reason = "tests wait for other processes, with deadlines"
)]

mod attributes;
mod common;
mod deltas;
mod moves;
mod protected;
mod trouble;

//! `mz` as users run it.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "what the system refuses fails the test")]
#![expect(
    clippy::disallowed_methods,
    reason = "tests wait for other processes, with deadlines"
)]

mod attributes;
mod channels;
mod common;
mod deltas;
mod mirrors;
mod streams;
mod tops;
mod transfers;
mod trouble;

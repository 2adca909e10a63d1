//! Integration tests of the device: one program, in which each module is what `cargo xtask test` runs as a process of its own.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

/// The path of a test of the calling module, for [`common::Process`].
macro_rules! here {
    ($test:literal) => {
        concat!(module_path!(), "::", $test)
    };
}

mod common;
mod connections;
mod cutoff;
mod cycles;
mod descriptors;
mod examples;
mod failures;
mod failures_icmp;
mod fairness;
mod faults;
mod groups;
mod half_open;
mod hostility;
mod messages;
mod moved;
mod pairing;
mod peers;
mod rc;
mod rc_costs;
mod rc_crc;
mod rc_hostility;
mod rc_leaving;
mod rc_lost;
mod rc_operations;
mod rc_own_ends;
mod rc_parked_rest;
mod rc_private_data;
mod rc_srq;
mod rc_windows;
mod read_floods;
mod reads;
mod records;
mod relay;
mod reliable;
mod same_host;
mod services;
mod srq;
mod statistics;
mod tap;
#[cfg(feature = "tokio")]
mod tokio;
mod uc;
mod watch;
mod xrc;

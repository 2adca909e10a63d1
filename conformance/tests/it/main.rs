//! Integration tests of the conformance tester: one program, in which each module is what `cargo xtask test` runs as a process of its own.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod captures;
mod device;
mod laboratory;
mod misbehaving;
mod mutant_rules;
mod mutants;
mod siw;
mod tshark;

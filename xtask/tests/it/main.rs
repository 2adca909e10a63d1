//! Integration tests of the tasks, and the rules of the tree: one program, in which each module is what `cargo xtask test` runs as a process of its own.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cross;
mod dist;
mod lab;
mod mutants;
mod packages;
mod tidy;

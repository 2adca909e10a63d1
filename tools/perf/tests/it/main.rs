//! Integration tests of `dgiwarp-perf`: one program, in which each module is what `cargo xtask test` runs as a process of its own.
#![forbid(unsafe_code)]

mod binary;
mod lab;
mod programs;
mod strangers;

//! Integration tests of the drop-in libraries and of `dgiwarp-run`: one program, in which each module is what `cargo xtask test` runs as a process of its own.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod abi;
mod api;
mod cancellation;
mod common;
mod debian;
mod direct;
mod efa;
mod errors;
mod extended;
mod limits;
mod linking;
mod lives;
mod mpi;
mod oracle;
mod others;
mod paths;
mod perftest;
mod ports;
mod pyverbs;
mod random;
mod rc_rd;
mod rdmacm;
mod rdmacm_ud;
mod rsocket;
mod rsocket_peers;
mod run;
mod same_host;
mod sanitizers;
mod services;
mod sockets;
mod sockets_children;
mod sockets_ss;
mod sockets_udp;
mod sockets_video;
mod symbols;
mod traffic;
mod valgrind;

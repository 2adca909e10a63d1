//! Peers to test against, and later the conformance tester itself.
//!
//! Nothing here uses the protocol crates: what tests an implementation speaks with octets
//! of its own. The one peer so far is [`siw`], the Linux kernel's soft-iWARP driver in a
//! virtual machine.

#![forbid(unsafe_code)]

pub mod siw;

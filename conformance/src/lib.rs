//! `dgiwarp-conform`: does a device speak iWARP as its RFCs say?
//!
//! The tester is a peer that can do everything wrong: it builds frames octet by octet ([`wire`], [`peer`]) and judges what the
//! device under test does by sets of allowed outcomes, each with the clause that allows it ([`oracle`]). Nothing here uses the
//! protocol crates: what tests an implementation speaks with octets of its own.
//!
//! [`cases`] are what is tested, [`clauses`] what the RFCs ask for, [`run`] goes through them, [`report`] says what came of it. [`trace`] judges recorded traffic instead. [`siw`] is the Linux kernel's
//! soft-iWARP driver in a virtual machine, to test against.

#![forbid(unsafe_code)]

pub mod agent;
pub mod bench;
pub mod cases;
pub mod clauses;
pub mod cli;
mod clock;
pub mod dice;
pub mod oracle;
pub mod peer;
pub mod profile;
pub mod recording;
pub mod report;
pub mod run;
pub mod selection;
pub mod siw;
pub mod station;
pub mod trace;
pub mod wire;

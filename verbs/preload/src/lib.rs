//! Preload library that lets unmodified programs of TCP and UDP sockets use rsockets.
//!
//! Sockets that a program makes stay the kernel's. A connection is upgraded when it is made: where a client finds out that the server takes rsockets ([`peers`]), and on the server's side by a
//! listener of rsockets beside the kernel's ([`listener`]). The number of the program's descriptor stays, as a *face* ([`table`]); calls on faces go to `librdmacm.so.1`, all others to
//! the C library. UDP sockets have a queue pair beside them, by which datagrams go to peers that have one too ([`datagrams`]). The verbs library below calls functions of the C library too, and so those of this library, for descriptors that are no faces.
//!
//! `docs/use/sockets.md` describes the use.

#![allow(
    unsafe_code,
    reason = "it stands in for functions of the C library; each block states the fact it relies on"
)]

// A test of this crate shall have the C library's own functions.
#[cfg(not(test))]
mod children;
#[cfg(not(test))]
mod connect;
#[cfg(not(test))]
mod datagrams;
#[cfg(not(test))]
mod functions;
#[cfg_attr(
    test,
    expect(dead_code, reason = "functions of the C library use the rest")
)]
mod lifetimes;
#[cfg(not(test))]
mod listener;
#[cfg(not(test))]
mod peers;
#[cfg(not(test))]
mod policy;
#[cfg(not(test))]
mod process;
#[cfg(not(test))]
mod records;
mod rules;
#[cfg(not(test))]
mod sets;
#[cfg(not(test))]
mod system;
#[cfg_attr(
    test,
    expect(dead_code, reason = "functions of the C library use the rest")
)]
mod table;

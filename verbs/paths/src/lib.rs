//! Preload library that redirects paths of RDMA devices, which the kernel does not have, and lets programs have TCP ports that rdma_cm has too.
//!
//! Some programs open `/dev/infiniband/uverbs0` or read `/sys/class/infiniband` instead of calling libibverbs.
//! `dgiwarp-run` writes these files to a directory of its own and preloads this library: functions that take a path
//! redirect those two prefixes to the directory, and pass all other paths on unchanged.
//!
//! A separate library, because exports of `open` and `stat` replace the C library's for the whole process: in
//! `libibverbs.so.1` they would do so in every program linked to it.
//!
//! An rdma_cm port is a TCP port here, which programs for InfiniBand also bind with a socket of their own. Where `bind` or `listen` of such a socket finds the port taken, listeners of
//! rdma_cm in this process are made to give it up (`dgiwarpdv_yield_port`).
//!
//! The directory is the one that the library was loaded from, by its symbolic link, so no setting is needed. Only the
//! first redirected path allocates, and other paths cost a comparison.

#![allow(
    unsafe_code,
    reason = "it stands in for functions of the C library; each block states the fact it relies on"
)]

// A test of this crate shall have the C library's own functions.
#[cfg(not(test))]
mod functions;
#[cfg(not(test))]
mod next;
#[cfg(not(test))]
mod ports;
mod redirect;

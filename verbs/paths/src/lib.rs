//! A preload library that shows programs a device where the kernel has none.
//!
//! Some programs do not believe libibverbs alone: they look for `/dev/infiniband/uverbs0`, or read a device's home below
//! `/sys/class/infiniband`. `dgiwarp-run` writes what they look for into a directory of its own, and has this library
//! loaded in front of the C library: functions that take a path send paths below those two places to that directory,
//! and hand on all others as they are.
//!
//! It is a library of its own, because whatever exports `open` and `stat` does so for the whole process: inside
//! `libibverbs.so.1` it would come in front of the C library in every program that is linked to that.
//!
//! The directory is the one that the library was loaded from (a symbolic link to it, that is), so there is no setting.
//! Nothing here allocates but at the first redirected path, and paths that are not redirected cost a comparison.

#![allow(
    unsafe_code,
    reason = "it stands in for functions of the C library; each block states the fact it relies on"
)]

// A test of this crate shall have the C library's own functions.
#[cfg(not(test))]
mod functions;
mod redirect;

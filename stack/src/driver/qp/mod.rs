//! The parts of every queue pair: posting, exclusive access to its engine, buffers.

pub(crate) mod core;
pub(crate) mod cork;
#[cfg(test)]
pub(crate) mod cork_tests;
pub(crate) mod exclusive;
#[cfg(test)]
mod exclusive_tests;
#[cfg(test)]
#[expect(
    clippy::duplicate_mod,
    reason = "the model checker's primitives stand in place of the real ones"
)]
mod interleavings;
pub(crate) mod posting;
pub(crate) mod staging;

/// Primitives of [`exclusive`], which its model check replaces.
mod sync {
    pub(super) use parking_lot::{Mutex, MutexGuard};
    pub(super) use std::sync::atomic::{AtomicU32, Ordering};
}

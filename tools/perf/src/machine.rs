//! The machine of a run: CPUs, clock, memory of a process, SIGINT.

pub(crate) mod clock;
pub(crate) mod footprint;
pub(crate) mod host;
pub(crate) mod interrupt;

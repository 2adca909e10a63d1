//! Protection domains, memory regions, memory windows.

pub(crate) mod mw;
pub(crate) mod pd;

//! The software RNIC's own endpoints.

pub(crate) mod read;
pub(crate) mod ud;

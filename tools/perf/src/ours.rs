//! The software RNIC's own endpoints.

pub(crate) mod ud;

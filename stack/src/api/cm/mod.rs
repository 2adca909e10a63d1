//! Connection management: connections over MPA, and service ID resolution.

pub(crate) mod channel;
pub(crate) mod listener;
pub(crate) mod sidr;

//! The baselines: the best socket code we know for each path.

pub(crate) mod group;
pub(crate) mod path_mtu;
pub(crate) mod tcp;
pub(crate) mod udp;

//! The baselines: the best socket code we know for each path.

mod datagrams;
pub(crate) mod group;
mod path_mtu;
pub(crate) mod tcp;
pub(crate) mod udp;

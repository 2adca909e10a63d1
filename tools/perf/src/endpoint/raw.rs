//! The baselines: the best socket code for each path.

mod datagrams;
pub(crate) mod group;
pub(crate) mod idle;
mod incoming;
mod path_mtu;
pub(crate) mod shm;
pub(crate) mod tcp;
pub(crate) mod udp;

//! Connected queue pairs, their TCP connections and how these come up and go down.

pub(crate) mod counted_tcp;
pub(crate) mod lanes;
pub(crate) mod lingering;
pub(crate) mod liveness;
#[cfg(test)]
pub(crate) mod memory_pipe;
pub(crate) mod mpa_startup;
pub(crate) mod one_sided;
pub(crate) mod pipe;
pub(crate) mod port;
mod port_mark;
pub(crate) mod qp;
pub(crate) mod socket;

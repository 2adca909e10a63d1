//! Identifiers: `struct rdma_cm_id` and the state behind it.

pub(crate) mod identifier;
pub(crate) mod lifecycle;
pub(crate) mod options;
pub(crate) mod request_gate;
pub(crate) mod set_option;

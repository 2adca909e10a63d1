//! Queue pairs, shared receive queues, address handles and multicast groups.

pub(crate) mod ah;
pub(crate) mod cm_qp;
pub(crate) mod create;
pub(crate) mod datagram_attr;
pub(crate) mod ece;
pub(crate) mod mcast;
pub(crate) mod qp_table;
pub(crate) mod queue_pair;
mod rc_rd;
pub(crate) mod rc_transport;
pub(crate) mod srq;
pub(crate) mod state;
pub(crate) mod xrc;

//! The communication manager, `librdmacm.so.1`: identifiers of connections, and events about them.
//!
//! An [`Id`](id::Id) is what stands behind a `struct rdma_cm_id`; its [`Transport`](id::Transport) says how it connects. What
//! happens to it is queued with the event channel it belongs to ([`channel`]), by whatever thread notices, and becomes a
//! `struct rdma_cm_event` in the program's own thread, when that asks for it ([`event`]): only there are the program's
//! structs written. Calls on an identifier without a channel wait for their event themselves.
//!
//! Locks, outermost first: the table of identifiers, the state of one, the channel it belongs to, the channel's queue. What
//! the stack tells takes only the table and the last two, so that it may be told under a lock of the stack.

pub(crate) mod addr;
mod channel;
mod connect;
mod device;
mod endpoint;
mod event;
mod id;
mod multicast;
mod options;
mod qp;
mod request;
mod tcp;
mod udp;

pub(crate) use addr::addrinfo::{rdma_freeaddrinfo, rdma_getaddrinfo};
pub(crate) use addr::resolve::{rdma_bind_addr, rdma_resolve_addr, rdma_resolve_route};
pub(crate) use channel::{
    rdma_ack_cm_event, rdma_create_event_channel, rdma_destroy_event_channel, rdma_get_cm_event,
};
pub(crate) use connect::{
    rdma_accept, rdma_connect, rdma_disconnect, rdma_establish, rdma_listen, rdma_reject,
    rdma_reject_ece,
};
pub(crate) use device::{rdma_free_devices, rdma_get_devices};
pub(crate) use endpoint::{
    rdma_create_ep, rdma_create_srq, rdma_create_srq_ex, rdma_destroy_ep, rdma_destroy_srq,
    rdma_get_request,
};
pub(crate) use id::{
    rdma_create_id, rdma_destroy_id, rdma_get_dst_port, rdma_get_src_port, rdma_migrate_id,
};
pub(crate) use multicast::{rdma_join_multicast, rdma_join_multicast_ex, rdma_leave_multicast};
pub(crate) use options::{rdma_get_remote_ece, rdma_notify, rdma_set_local_ece, rdma_set_option};
pub(crate) use qp::{rdma_create_qp, rdma_create_qp_ex, rdma_destroy_qp, rdma_init_qp_attr};

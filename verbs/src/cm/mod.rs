//! The communication manager, `librdmacm.so.1`: identifiers of connections, and their events.
//!
//! An [`Id`](id::identifier::Id) is the state behind a `struct rdma_cm_id`; its [`Transport`](id::identifier::Transport) is that of the
//! port space. Events are queued with the identifier's event channel ([`event::queue`]) by any thread, and become a
//! `struct rdma_cm_event` when the program fetches them ([`event::fetch`]): only the program's own threads write its structs. Calls on a
//! synchronous identifier wait for their event.
//!
//! Lock order: the table of identifiers, the state of an identifier, its channel, the channel's queue. The stack raises events under
//! its own locks, and takes only the table and the last two.

pub(crate) mod addr;
mod conn_param;
mod connect;
pub(crate) mod device;
mod endpoint;
mod event;
mod id;
mod incoming;
mod qp;
mod srq;
pub(crate) mod tcp;
pub(crate) mod udp;

pub(crate) use addr::addrinfo::{rdma_freeaddrinfo, rdma_getaddrinfo};
pub(crate) use addr::resolve::{rdma_bind_addr, rdma_resolve_addr, rdma_resolve_route};
pub(crate) use connect::{
    rdma_accept, rdma_connect, rdma_disconnect, rdma_establish, rdma_listen, rdma_reject,
    rdma_reject_ece,
};
pub(crate) use device::{rdma_free_devices, rdma_get_devices};
pub(crate) use endpoint::{rdma_create_ep, rdma_destroy_ep, rdma_get_request};
pub(crate) use event::channel::{
    rdma_ack_cm_event, rdma_create_event_channel, rdma_destroy_event_channel, rdma_get_cm_event,
};
pub(crate) use id::identifier::raise_removal;
pub(crate) use id::lifecycle::{
    rdma_create_id, rdma_destroy_id, rdma_get_dst_port, rdma_get_src_port, rdma_migrate_id,
};
pub(crate) use id::set_option::{
    rdma_get_remote_ece, rdma_notify, rdma_set_local_ece, rdma_set_option,
};
pub(crate) use qp::{rdma_create_qp, rdma_create_qp_ex, rdma_destroy_qp, rdma_init_qp_attr};
pub(crate) use srq::{rdma_create_srq, rdma_create_srq_ex, rdma_destroy_srq};
pub(crate) use udp::join::{rdma_join_multicast, rdma_join_multicast_ex, rdma_leave_multicast};

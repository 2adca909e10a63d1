//! Drop-in `libibverbs.so.1`, `librdmacm.so.1` and `libefa.so.1` on the dgiwarp software RNIC.
//!
//! This crate translates C structs to the safe API of [`dgiwarp`], and its results to the return conventions of
//! rdma-core's man pages. It has no protocol. Package `dgiwarp-verbs-library` makes the shared library of it, one file
//! for all names (symbolic links), so that programs with several libraries share one device.
//!
//! Layers, from the outside in: [`export`] binds C names with symbol versions; one module per group of man pages checks
//! pointers and converts; `ffi` catches panics and finds the object behind a C pointer; [`abi`] mirrors the structs.
//!
//! `unsafe` is confined to this crate and `dgiwarp-memory`. Every use relies on the contract of verbs: pointers of the
//! program are NULL or valid, and destroyed objects are not used.

#![allow(
    unsafe_code,
    reason = "this crate is the C ABI; each block states the fact it relies on"
)]

pub mod abi;
mod cm;
mod cq;
pub mod describe;
mod device;
mod dv;
mod efa;
pub mod export;
mod ffi;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod log;
mod mem;
mod names;
mod post;
mod qp;
mod rsocket;
mod unsupported;

pub use device::list::DEVICE_NAME;
pub use device::{gid, persona, sysfs};
pub use dv::DV_EXPORTS;
pub use efa::EFA_EXPORTS;
pub use unsupported::UNSUPPORTED;

export::export! {
/// Supported functions: name, node, and implementation.
pub EXPORTS, bound by bind_exports;
    "IBVERBS_1.0" {
        "ibv_create_comp_channel" => cq::queue::ibv_create_comp_channel;
        "ibv_destroy_comp_channel" => cq::queue::ibv_destroy_comp_channel;
        "ibv_get_sysfs_path" => device::list::ibv_get_sysfs_path;
        "ibv_rate_to_mult" => names::ibv_rate_to_mult;
        "ibv_read_sysfs_file" => device::list::ibv_read_sysfs_file;
        "mult_to_ibv_rate" => names::mult_to_ibv_rate;
    }
    "IBVERBS_1.1" {
        "ibv_ack_async_event" => device::async_event::ibv_ack_async_event;
        "ibv_ack_cq_events" => cq::queue::ibv_ack_cq_events;
        "ibv_attach_mcast" => qp::mcast::ibv_attach_mcast;
        "ibv_detach_mcast" => qp::mcast::ibv_detach_mcast;
        "ibv_alloc_pd" => mem::mr::ibv_alloc_pd;
        "ibv_close_device" => device::open::ibv_close_device;
        "ibv_create_ah" => qp::ah::ibv_create_ah;
        "ibv_create_ah_from_wc" => qp::ah::ibv_create_ah_from_wc;
        "ibv_create_cq" => cq::queue::ibv_create_cq;
        "ibv_create_qp" => qp::create::ibv_create_qp;
        "ibv_create_srq" => qp::srq::ibv_create_srq;
        "ibv_dealloc_pd" => mem::mr::ibv_dealloc_pd;
        "ibv_dereg_mr" => mem::mr::ibv_dereg_mr;
        "ibv_destroy_ah" => qp::ah::ibv_destroy_ah;
        "ibv_destroy_cq" => cq::queue::ibv_destroy_cq;
        "ibv_destroy_qp" => qp::queue_pair::ibv_destroy_qp;
        "ibv_destroy_srq" => qp::srq::ibv_destroy_srq;
        "ibv_dofork_range" => device::list::ibv_dofork_range;
        "ibv_dontfork_range" => device::list::ibv_dontfork_range;
        "ibv_event_type_str" => names::ibv_event_type_str;
        "ibv_fork_init" => device::list::ibv_fork_init;
        "ibv_free_device_list" => device::list::ibv_free_device_list;
        "ibv_get_async_event" => device::async_event::ibv_get_async_event;
        "ibv_get_cq_event" => cq::queue::ibv_get_cq_event;
        "ibv_get_device_guid" => device::list::ibv_get_device_guid;
        "ibv_get_device_list" => device::list::ibv_get_device_list;
        "ibv_get_device_name" => device::list::ibv_get_device_name;
        "ibv_init_ah_from_wc" => qp::ah::ibv_init_ah_from_wc;
        "ibv_modify_qp" => qp::queue_pair::ibv_modify_qp;
        "ibv_modify_srq" => qp::srq::ibv_modify_srq;
        "ibv_node_type_str" => names::ibv_node_type_str;
        "ibv_open_device" => device::open::ibv_open_device;
        "ibv_port_state_str" => names::ibv_port_state_str;
        "ibv_query_device" => device::query::ibv_query_device;
        "ibv_query_gid" => device::query::ibv_query_gid;
        "ibv_query_pkey" => device::query::ibv_query_pkey;
        "ibv_query_port" => device::query::ibv_query_port;
        "ibv_query_qp" => qp::queue_pair::ibv_query_qp;
        "ibv_query_srq" => qp::srq::ibv_query_srq;
        "ibv_rate_to_mbps" => names::ibv_rate_to_mbps;
        "ibv_reg_mr" => mem::mr::ibv_reg_mr;
        "ibv_rereg_mr" => mem::rereg_mr::ibv_rereg_mr;
        "ibv_resize_cq" => cq::queue::ibv_resize_cq;
        "ibv_wc_status_str" => names::ibv_wc_status_str;
        "mbps_to_ibv_rate" => names::mbps_to_ibv_rate;
    }
    "IBVERBS_1.5" {
        "ibv_get_pkey_index" => device::query::ibv_get_pkey_index;
    }
    "IBVERBS_1.6" {
        "ibv_qp_to_qp_ex" => post::wr_calls::ibv_qp_to_qp_ex;
    }
    "IBVERBS_1.7" {
        "ibv_reg_mr_iova" => mem::mr::ibv_reg_mr_iova;
    }
    "IBVERBS_1.8" {
        "ibv_reg_mr_iova2" => mem::mr::ibv_reg_mr_iova2;
    }
    "IBVERBS_1.9" {
        "ibv_get_device_index" => device::list::ibv_get_device_index;
    }
    "IBVERBS_1.10" {
        "ibv_query_ece" => qp::ece::ibv_query_ece;
        "ibv_set_ece" => qp::ece::ibv_set_ece;
    }
    "IBVERBS_1.11" {
        "_ibv_query_gid_ex" => device::query::_ibv_query_gid_ex;
        "_ibv_query_gid_table" => device::query::_ibv_query_gid_table;
    }
    "IBVERBS_1.12" {
        "ibv_reg_dmabuf_mr" => mem::dmabuf::ibv_reg_dmabuf_mr;
    }
    "IBVERBS_1.13" {
        "ibv_is_fork_initialized" => device::list::ibv_is_fork_initialized;
    }
    "IBVERBS_1.14" {
        "ibv_query_qp_data_in_order" => device::query::ibv_query_qp_data_in_order;
    }
    "IBVERBS_PRIVATE_34" {
        "ibv_query_gid_type" => device::query::ibv_query_gid_type;
    }
    "RDMACM_1.0" {
        "rdma_accept" => cm::rdma_accept;
        "rdma_ack_cm_event" => cm::rdma_ack_cm_event;
        "rdma_bind_addr" => cm::rdma_bind_addr;
        "rdma_connect" => cm::rdma_connect;
        "rdma_create_ep" => cm::rdma_create_ep;
        "rdma_create_event_channel" => cm::rdma_create_event_channel;
        "rdma_create_id" => cm::rdma_create_id;
        "rdma_create_qp" => cm::rdma_create_qp;
        "rdma_create_qp_ex" => cm::rdma_create_qp_ex;
        "rdma_create_srq" => cm::rdma_create_srq;
        "rdma_create_srq_ex" => cm::rdma_create_srq_ex;
        "rdma_destroy_ep" => cm::rdma_destroy_ep;
        "rdma_destroy_event_channel" => cm::rdma_destroy_event_channel;
        "rdma_destroy_id" => cm::rdma_destroy_id;
        "rdma_destroy_qp" => cm::rdma_destroy_qp;
        "rdma_destroy_srq" => cm::rdma_destroy_srq;
        "rdma_disconnect" => cm::rdma_disconnect;
        "rdma_event_str" => names::rdma_event_str;
        "rdma_free_devices" => cm::rdma_free_devices;
        "rdma_freeaddrinfo" => cm::rdma_freeaddrinfo;
        "rdma_get_cm_event" => cm::rdma_get_cm_event;
        "rdma_get_devices" => cm::rdma_get_devices;
        "rdma_get_dst_port" => cm::rdma_get_dst_port;
        "rdma_get_request" => cm::rdma_get_request;
        "rdma_get_src_port" => cm::rdma_get_src_port;
        "rdma_getaddrinfo" => cm::rdma_getaddrinfo;
        "rdma_join_multicast" => cm::rdma_join_multicast;
        "rdma_leave_multicast" => cm::rdma_leave_multicast;
        "rdma_listen" => cm::rdma_listen;
        "rdma_migrate_id" => cm::rdma_migrate_id;
        "rdma_notify" => cm::rdma_notify;
        "rdma_reject" => cm::rdma_reject;
        "rdma_resolve_addr" => cm::rdma_resolve_addr;
        "rdma_resolve_route" => cm::rdma_resolve_route;
        "rdma_set_option" => cm::rdma_set_option;
        "raccept" => rsocket::raccept;
        "rbind" => rsocket::rbind;
        "rclose" => rsocket::rclose;
        "rconnect" => rsocket::rconnect;
        "rfcntl" => rsocket::rfcntl;
        "rgetpeername" => rsocket::rgetpeername;
        "rgetsockname" => rsocket::rgetsockname;
        "rgetsockopt" => rsocket::rgetsockopt;
        "riomap" => rsocket::riomap;
        "riounmap" => rsocket::riounmap;
        "riowrite" => rsocket::riowrite;
        "rlisten" => rsocket::rlisten;
        "rpoll" => rsocket::rpoll;
        "rread" => rsocket::rread;
        "rreadv" => rsocket::rreadv;
        "rrecv" => rsocket::rrecv;
        "rrecvfrom" => rsocket::rrecvfrom;
        "rrecvmsg" => rsocket::rrecvmsg;
        "rselect" => rsocket::rselect;
        "rsend" => rsocket::rsend;
        "rsendmsg" => rsocket::rsendmsg;
        "rsendto" => rsocket::rsendto;
        "rsetsockopt" => rsocket::rsetsockopt;
        "rshutdown" => rsocket::rshutdown;
        "rsocket" => rsocket::rsocket;
        "rwrite" => rsocket::rwrite;
        "rwritev" => rsocket::rwritev;
    }
    "RDMACM_1.1" {
        "rdma_join_multicast_ex" => cm::rdma_join_multicast_ex;
    }
    "RDMACM_1.2" {
        "rdma_establish" => cm::rdma_establish;
        "rdma_init_qp_attr" => cm::rdma_init_qp_attr;
    }
    "RDMACM_1.3" {
        "rdma_get_remote_ece" => cm::rdma_get_remote_ece;
        "rdma_reject_ece" => cm::rdma_reject_ece;
        "rdma_set_local_ece" => cm::rdma_set_local_ece;
    }
    "RDMACM_1.5" {
        "repoll_create" => rsocket::repoll_create;
        "repoll_ctl" => rsocket::repoll_ctl;
        "repoll_wait" => rsocket::repoll_wait;
    }
}

/// rdma-core's provider libraries read it in debug builds; a part of the library's interface.
#[allow(
    named_asm_labels,
    clippy::extra_unused_type_parameters,
    reason = "as in the other functions that hold symbols"
)]
#[unsafe(naked)]
unsafe extern "C" fn bind_data<Library>() {
    std::arch::naked_asm!(
        ".pushsection .data,\"aw\",@progbits",
        ".globl __dg_verbs_allow_disassociate_destroy",
        ".type __dg_verbs_allow_disassociate_destroy,@object",
        ".size __dg_verbs_allow_disassociate_destroy, 1",
        "__dg_verbs_allow_disassociate_destroy: .byte 0",
        ".symver __dg_verbs_allow_disassociate_destroy, verbs_allow_disassociate_destroy@@IBVERBS_PRIVATE_34",
        ".popsection",
    )
}

/// Symbols of the shared library.
#[derive(Clone, Copy, Debug)]
pub struct Symbols {
    /// Naming these functions links the symbols. They are never called.
    _bound: [unsafe extern "C" fn(); 6],
}

impl Symbols {
    /// Puts the symbols into the crate with a static item of this value, of which a program or library has exactly one.
    /// `Library` is a type of that crate.
    #[must_use]
    pub const fn of<Library>() -> Self {
        Self {
            _bound: [
                bind_exports::<Library>,
                bind_data::<Library>,
                dv::bind::<Library>,
                efa::bind::<Library>,
                unsupported::bind::<Library>,
                ffi::own_socket::bind::<Library>,
            ],
        }
    }
}

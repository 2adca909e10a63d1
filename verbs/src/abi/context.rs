//! The context and its two tables of functions.

use super::{
    ibv_alloc_dm_attr, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_device, ibv_device_attr_ex,
    ibv_dm, ibv_mr, ibv_mw, ibv_mw_bind, ibv_parent_domain_init_attr, ibv_pd, ibv_port_attr,
    ibv_qp, ibv_qp_init_attr_ex, ibv_qp_open_attr, ibv_query_device_ex_input, ibv_recv_wr,
    ibv_send_wr, ibv_sge, ibv_srq, ibv_srq_init_attr_ex, ibv_td, ibv_td_init_attr, ibv_values_ex,
    ibv_wc, ibv_xrcd, ibv_xrcd_init_attr, layouts,
};
use std::ffi::{c_int, c_uint, c_void};

/// A function pointer whose type does not matter here because it stays NULL: either the header never calls it, or it
/// tests it and answers `EOPNOTSUPP` itself.
pub type Unset = Option<unsafe extern "C" fn()>;

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_context_ops {
    pub _compat_query_device: Unset,
    pub _compat_query_port: Unset,
    pub _compat_alloc_pd: Unset,
    pub _compat_dealloc_pd: Unset,
    pub _compat_reg_mr: Unset,
    pub _compat_rereg_mr: Unset,
    pub _compat_dereg_mr: Unset,
    pub alloc_mw: Option<unsafe extern "C" fn(*mut ibv_pd, c_uint) -> *mut ibv_mw>,
    pub bind_mw: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_mw, *mut ibv_mw_bind) -> c_int>,
    pub dealloc_mw: Option<unsafe extern "C" fn(*mut ibv_mw) -> c_int>,
    pub _compat_create_cq: Unset,
    pub poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>,
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
    pub _compat_cq_event: Unset,
    pub _compat_resize_cq: Unset,
    pub _compat_destroy_cq: Unset,
    pub _compat_create_srq: Unset,
    pub _compat_modify_srq: Unset,
    pub _compat_query_srq: Unset,
    pub _compat_destroy_srq: Unset,
    pub post_srq_recv: Option<
        unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
    >,
    pub _compat_create_qp: Unset,
    pub _compat_query_qp: Unset,
    pub _compat_modify_qp: Unset,
    pub _compat_destroy_qp: Unset,
    pub post_send:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>,
    pub post_recv:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    pub _compat_create_ah: Unset,
    pub _compat_destroy_ah: Unset,
    pub _compat_attach_mcast: Unset,
    pub _compat_detach_mcast: Unset,
    pub _compat_async_event: Unset,
}

#[repr(C)]
pub struct ibv_context {
    pub device: *mut ibv_device,
    pub ops: ibv_context_ops,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
    pub mutex: libc::pthread_mutex_t,
    pub abi_compat: *mut c_void,
}

/// Value of `abi_compat` of a context at the end of a [`verbs_context`].
pub const VERBS_ABI_IS_EXTENDED: *mut c_void = usize::MAX as *mut c_void;

/// Grows at its front: programs compiled against newer headers see from `sz` which fields exist.
#[repr(C)]
pub struct verbs_context {
    pub query_port:
        Option<unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> c_int>,
    pub advise_mr:
        Option<unsafe extern "C" fn(*mut ibv_pd, c_uint, u32, *mut ibv_sge, u32) -> c_int>,
    pub alloc_null_mr: Option<unsafe extern "C" fn(*mut ibv_pd) -> *mut ibv_mr>,
    pub read_counters: Unset,
    pub attach_counters_point_flow: Unset,
    pub create_counters: Unset,
    pub destroy_counters: Unset,
    pub reg_dm_mr:
        Option<unsafe extern "C" fn(*mut ibv_pd, *mut ibv_dm, u64, usize, c_uint) -> *mut ibv_mr>,
    pub alloc_dm:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_alloc_dm_attr) -> *mut ibv_dm>,
    pub free_dm: Option<unsafe extern "C" fn(*mut ibv_dm) -> c_int>,
    pub modify_flow_action_esp: Unset,
    pub destroy_flow_action: Unset,
    pub create_flow_action_esp: Unset,
    pub modify_qp_rate_limit: Unset,
    pub alloc_parent_domain: Option<
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_parent_domain_init_attr) -> *mut ibv_pd,
    >,
    pub dealloc_td: Option<unsafe extern "C" fn(*mut ibv_td) -> c_int>,
    pub alloc_td:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_td_init_attr) -> *mut ibv_td>,
    pub modify_cq: Unset,
    pub post_srq_ops: Unset,
    pub destroy_rwq_ind_table: Unset,
    pub create_rwq_ind_table: Unset,
    pub destroy_wq: Unset,
    pub modify_wq: Unset,
    pub create_wq: Unset,
    pub query_rt_values:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_values_ex) -> c_int>,
    pub create_cq_ex:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex>,
    pub priv_: *mut c_void,
    pub query_device_ex: Option<
        unsafe extern "C" fn(
            *mut ibv_context,
            *const ibv_query_device_ex_input,
            *mut ibv_device_attr_ex,
            usize,
        ) -> c_int,
    >,
    pub ibv_destroy_flow: Unset,
    pub abi_placeholder2: Unset,
    pub ibv_create_flow: Unset,
    pub abi_placeholder1: Unset,
    pub open_qp:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_open_attr) -> *mut ibv_qp>,
    pub create_qp_ex:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp>,
    pub get_srq_num: Option<unsafe extern "C" fn(*mut ibv_srq, *mut u32) -> c_int>,
    pub create_srq_ex:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq>,
    pub open_xrcd:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd>,
    pub close_xrcd: Option<unsafe extern "C" fn(*mut ibv_xrcd) -> c_int>,
    pub _abi_placeholder3: u64,
    pub sz: usize,
    pub context: ibv_context,
}

layouts! {
    /// Layouts of this file.
    CONTEXT_LAYOUTS:
    struct ibv_context_ops = 256 {
        alloc_mw @ 56, bind_mw @ 64, dealloc_mw @ 72, poll_cq @ 88, req_notify_cq @ 96, post_srq_recv @ 160,
        post_send @ 200, post_recv @ 208,
    }
    struct ibv_context = 328 {
        device @ 0, ops @ 8, cmd_fd @ 264, async_fd @ 268, num_comp_vectors @ 272, mutex @ 280, abi_compat @ 320,
    }
    struct verbs_context = 648 {
        query_port @ 0, advise_mr @ 8, alloc_null_mr @ 16, read_counters @ 24, attach_counters_point_flow @ 32,
        create_counters @ 40, destroy_counters @ 48, reg_dm_mr @ 56, alloc_dm @ 64, free_dm @ 72,
        modify_flow_action_esp @ 80, destroy_flow_action @ 88, create_flow_action_esp @ 96, modify_qp_rate_limit @ 104,
        alloc_parent_domain @ 112, dealloc_td @ 120, alloc_td @ 128, modify_cq @ 136, post_srq_ops @ 144,
        destroy_rwq_ind_table @ 152, create_rwq_ind_table @ 160, destroy_wq @ 168, modify_wq @ 176, create_wq @ 184,
        query_rt_values @ 192, create_cq_ex @ 200, query_device_ex @ 216, ibv_destroy_flow @ 224,
        ibv_create_flow @ 240, open_qp @ 256, create_qp_ex @ 264, get_srq_num @ 272, create_srq_ex @ 280,
        open_xrcd @ 288, close_xrcd @ 296, sz @ 312, context @ 320,
    }
}

//! Exported functions that are not supported, each with its way to fail.
//!
//! Programs are linked with `BIND_NOW`: a missing symbol keeps them from starting even if they never call it. Therefore
//! every symbol of Debian's two libraries exists, and an unsupported function fails at run time in its man page's own
//! convention. The table lists all of them; supporting a function moves its row to [`crate::EXPORTS`].
//!
//! The functions take no parameters although their C prototypes do: on the supported architectures the caller owns the
//! argument registers and the stack, so ignoring arguments is sound.

use crate::export::export;
use nix::errno::Errno;
use std::ffi::{c_int, c_void};
use std::ptr;

/// Returns an `errno` value: `EOPNOTSUPP`.
extern "C" fn errno_value() -> c_int {
    Errno::EOPNOTSUPP.set();
    libc::EOPNOTSUPP
}

/// Returns -1 and sets `errno`.
extern "C" fn minus_one() -> i64 {
    Errno::EOPNOTSUPP.set();
    -1
}

/// Returns NULL and sets `errno`.
extern "C" fn null() -> *mut c_void {
    Errno::EOPNOTSUPP.set();
    ptr::null_mut()
}

/// Returns 0 and sets `errno`, for numbers without a failure value.
extern "C" fn zero() -> c_int {
    Errno::EOPNOTSUPP.set();
    0
}

/// Has no result: releases of objects that cannot exist, copies between kernel and user layouts, and hooks of the
/// provider interface, whose callers have nothing to register.
extern "C" fn nothing() {}

export! {
/// Unsupported functions: name, node, and way to fail.
pub UNSUPPORTED, bound by bind;
    "IBVERBS_1.0" {
        "ibv_copy_path_rec_from_kern" => nothing;
        "ibv_copy_path_rec_to_kern" => nothing;
        "ibv_copy_qp_attr_from_kern" => nothing;
    }
    "IBVERBS_1.1" {
        "ibv_resolve_eth_l2_from_gid" => minus_one;
        "ibv_copy_ah_attr_from_kern" => nothing;
    }
    "IBVERBS_1.10" {
        "ibv_import_device" => null;
        "ibv_import_mr" => null;
        "ibv_import_pd" => null;
        "ibv_unimport_mr" => nothing;
        "ibv_unimport_pd" => nothing;
    }
    "IBVERBS_1.13" {
        "ibv_import_dm" => null;
        "ibv_unimport_dm" => nothing;
    }
    "IBVERBS_PRIVATE_34" {
        "execute_ioctl" => errno_value;
        "ibv_cmd_advise_mr" => errno_value;
        "ibv_cmd_alloc_dm" => errno_value;
        "ibv_cmd_alloc_mw" => errno_value;
        "ibv_cmd_alloc_pd" => errno_value;
        "ibv_cmd_attach_mcast" => errno_value;
        "ibv_cmd_close_xrcd" => errno_value;
        "ibv_cmd_create_ah" => errno_value;
        "ibv_cmd_create_counters" => errno_value;
        "ibv_cmd_create_cq" => errno_value;
        "ibv_cmd_create_cq_ex" => errno_value;
        "ibv_cmd_create_flow" => errno_value;
        "ibv_cmd_create_flow_action_esp" => errno_value;
        "ibv_cmd_create_qp" => errno_value;
        "ibv_cmd_create_qp_ex" => errno_value;
        "ibv_cmd_create_qp_ex2" => errno_value;
        "ibv_cmd_create_rwq_ind_table" => errno_value;
        "ibv_cmd_create_srq" => errno_value;
        "ibv_cmd_create_srq_ex" => errno_value;
        "ibv_cmd_create_wq" => errno_value;
        "ibv_cmd_dealloc_mw" => errno_value;
        "ibv_cmd_dealloc_pd" => errno_value;
        "ibv_cmd_dereg_mr" => errno_value;
        "ibv_cmd_destroy_ah" => errno_value;
        "ibv_cmd_destroy_counters" => errno_value;
        "ibv_cmd_destroy_cq" => errno_value;
        "ibv_cmd_destroy_flow" => errno_value;
        "ibv_cmd_destroy_flow_action" => errno_value;
        "ibv_cmd_destroy_qp" => errno_value;
        "ibv_cmd_destroy_rwq_ind_table" => errno_value;
        "ibv_cmd_destroy_srq" => errno_value;
        "ibv_cmd_destroy_wq" => errno_value;
        "ibv_cmd_detach_mcast" => errno_value;
        "ibv_cmd_free_dm" => errno_value;
        "ibv_cmd_get_context" => errno_value;
        "ibv_cmd_modify_cq" => errno_value;
        "ibv_cmd_modify_flow_action_esp" => errno_value;
        "ibv_cmd_modify_qp" => errno_value;
        "ibv_cmd_modify_qp_ex" => errno_value;
        "ibv_cmd_modify_srq" => errno_value;
        "ibv_cmd_modify_wq" => errno_value;
        "ibv_cmd_open_qp" => errno_value;
        "ibv_cmd_open_xrcd" => errno_value;
        "ibv_cmd_poll_cq" => errno_value;
        "ibv_cmd_post_recv" => errno_value;
        "ibv_cmd_post_send" => errno_value;
        "ibv_cmd_post_srq_recv" => errno_value;
        "ibv_cmd_query_context" => errno_value;
        "ibv_cmd_query_device_any" => errno_value;
        "ibv_cmd_query_mr" => errno_value;
        "ibv_cmd_query_port" => errno_value;
        "ibv_cmd_query_qp" => errno_value;
        "ibv_cmd_query_srq" => errno_value;
        "ibv_cmd_read_counters" => errno_value;
        "ibv_cmd_reg_dm_mr" => errno_value;
        "ibv_cmd_reg_dmabuf_mr" => errno_value;
        "ibv_cmd_reg_mr" => errno_value;
        "ibv_cmd_req_notify_cq" => errno_value;
        "ibv_cmd_rereg_mr" => errno_value;
        "ibv_cmd_resize_cq" => errno_value;
        "ibv_read_ibdev_sysfs_file" => minus_one;
        "_verbs_init_and_alloc_context" => null;
        "verbs_open_device" => null;
        "__ioctl_final_num_attrs" => zero;
        "__verbs_log" => nothing;
        "verbs_init_cq" => nothing;
        "verbs_register_driver_34" => nothing;
        "verbs_set_ops" => nothing;
        "verbs_uninit_context" => nothing;
    }
}

//! The structs and numbers of rdma-core's `infiniband/efadv.h`, release 44.

use super::{ibv_gid, layouts};
use std::ffi::c_int;

/// `driver_qp_type` of scalable reliable datagrams.
pub const EFADV_QP_DRIVER_TYPE_SRD: u32 = 0;

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct efadv_qp_init_attr {
    pub comp_mask: u64,
    pub driver_qp_type: u32,
    pub reserved: [u8; 4],
}

pub const EFADV_DEVICE_ATTR_CAPS_RDMA_READ: u32 = 1;
pub const EFADV_DEVICE_ATTR_CAPS_CQ_WITH_SGID: u32 = 1 << 2;

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct efadv_device_attr {
    pub comp_mask: u64,
    pub max_sq_wr: u32,
    pub max_rq_wr: u32,
    pub max_sq_sge: u16,
    pub max_rq_sge: u16,
    pub inline_buf_size: u16,
    pub reserved: [u8; 2],
    pub device_caps: u32,
    pub max_rdma_size: u32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct efadv_ah_attr {
    pub comp_mask: u64,
    pub ahn: u16,
    pub reserved: [u8; 6],
}

#[repr(C)]
pub struct efadv_cq {
    pub comp_mask: u64,
    pub wc_read_sgid: Option<unsafe extern "C" fn(*mut Self, *mut ibv_gid) -> c_int>,
}

pub const EFADV_WC_EX_WITH_SGID: u64 = 1;

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct efadv_cq_init_attr {
    pub comp_mask: u64,
    pub wc_flags: u64,
}

layouts! {
/// Layouts of this file's structs.
EFA_LAYOUTS:
    struct efadv_qp_init_attr = 16 { comp_mask @ 0, driver_qp_type @ 8, reserved @ 12 }
    struct efadv_device_attr = 32 {
        comp_mask @ 0, max_sq_wr @ 8, max_rq_wr @ 12, max_sq_sge @ 16, max_rq_sge @ 18, inline_buf_size @ 20, reserved @ 22,
        device_caps @ 24, max_rdma_size @ 28,
    }
    struct efadv_ah_attr = 16 { comp_mask @ 0, ahn @ 8, reserved @ 10 }
    struct efadv_cq = 16 { comp_mask @ 0, wc_read_sgid @ 8 }
    struct efadv_cq_init_attr = 16 { comp_mask @ 0, wc_flags @ 8 }
}

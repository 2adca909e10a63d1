//! The structs and numbers of our own header, `infiniband/dgiwarpdv.h`, which documents them.

use super::{ibv_gid, layouts};
use std::ffi::{c_int, c_uint, c_void};

/// Major version << 16 | minor version of the interface.
pub const DGIWARPDV_VERSION: u32 = 0x0001_0001;

/// `IBV_WC_DRIVER1`.
pub const DGIWARPDV_WC_WRITE_RECORD: c_uint = 135;
/// `IBV_WC_DRIVER2`.
pub const DGIWARPDV_WC_RECORD_SEGMENT: c_uint = 136;

pub const DGIWARPDV_EVENT_ERROR_QUEUE: c_uint = 30;
pub const DGIWARPDV_EVENT_RECORD_RING_FULL: c_uint = 31;

pub const DGIWARPDV_QP_RECORDS: u32 = 1;
pub const DGIWARPDV_QP_SEGMENT_COMPLETIONS: u32 = 1 << 1;

pub const DGIWARPDV_QP_DRIVER_TYPE_RD: u32 = 1;

#[derive(Clone, Copy)]
#[repr(C)]
pub struct dgiwarpdv_qp_init_attr {
    pub size: usize,
    pub flags: u32,
    pub record_slots: u32,
    pub segment_slots: u32,
    pub record_timeout_ms: u32,
    pub reorder_window: u32,
    pub read_timeout_ms: u32,
    pub max_rate: u64,
    pub bind_addr: *const libc::sockaddr,
    pub bind_addr_len: libc::socklen_t,
    pub driver_qp_type: u32,
    pub unreachable_ms: u32,
    pub reserved: u32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct dgiwarpdv_qp_attr {
    pub size: usize,
    pub receive_buffer: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct dgiwarpdv_range {
    pub start: u32,
    pub end: u32,
}

pub const DGIWARPDV_RECORD_WITH_IMM: u32 = 1;

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct dgiwarpdv_record_info {
    pub size: usize,
    pub remote_addr: u64,
    pub rkey: u32,
    pub length: u32,
    pub valid: u32,
    pub num_ranges: u32,
    pub flags: u32,
    /// In network order.
    pub imm_data: u32,
    pub gid: ibv_gid,
    pub qpn: u32,
    pub scope_id: u32,
}

pub const DGIWARPDV_ERROR_TERMINATE: u32 = 1;
pub const DGIWARPDV_ERROR_NETWORK: u32 = 2;
pub const DGIWARPDV_ERROR_UNREACHABLE: u32 = 3;
pub const DGIWARPDV_ERROR_RNR_RETRIES: u32 = 4;
pub const DGIWARPDV_ERROR_RESTARTED: u32 = 5;
pub const DGIWARPDV_ERROR_VIOLATION: u32 = 6;
pub const DGIWARPDV_ERROR_CLOSED: u32 = 7;

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct dgiwarpdv_wc_source {
    pub size: usize,
    pub gid: ibv_gid,
    pub qpn: u32,
    pub scope_id: u32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct dgiwarpdv_error {
    pub size: usize,
    pub reason: u32,
    pub qpn: u32,
    pub gid: ibv_gid,
    pub scope_id: u32,
    pub has_message: u32,
    pub message: u32,
    pub network_errno: i32,
    pub layer: u8,
    pub error_type: u8,
    pub code: u8,
    pub reserved: [u8; 5],
}

pub const DGIWARPDV_MR_IOVA: u32 = 1;
pub const DGIWARPDV_MR_ONLY_FROM: u32 = 1 << 1;
pub const DGIWARPDV_MR_COOKIE: u32 = 1 << 2;
pub const DGIWARPDV_MR_WELL_KNOWN: u32 = 1 << 3;

#[derive(Clone, Copy)]
#[repr(C)]
pub struct dgiwarpdv_mr_init_attr {
    pub size: usize,
    pub addr: *mut c_void,
    pub length: usize,
    pub iova: u64,
    pub access: c_uint,
    pub flags: u32,
    pub peer_gid: ibv_gid,
    pub peer_qpn: u32,
    pub peer_scope_id: u32,
    pub well_known: u32,
    pub reserved: u32,
}

/// Timeouts as `poll(2)` has them: milliseconds, without end if negative.
pub type Milliseconds = c_int;

layouts! {
/// Layouts of this file's structs.
DIRECT_LAYOUTS:
    struct dgiwarpdv_wc_source = 32 { size @ 0, gid @ 8, qpn @ 24, scope_id @ 28 }
    struct dgiwarpdv_qp_init_attr = 64 {
        size @ 0, flags @ 8, record_slots @ 12, segment_slots @ 16, record_timeout_ms @ 20, reorder_window @ 24,
        read_timeout_ms @ 28, max_rate @ 32, bind_addr @ 40, bind_addr_len @ 48,
        driver_qp_type @ 52, unreachable_ms @ 56, reserved @ 60,
    }
    struct dgiwarpdv_qp_attr = 16 { size @ 0, receive_buffer @ 8 }
    struct dgiwarpdv_range = 8 { start @ 0, end @ 4 }
    struct dgiwarpdv_record_info = 64 {
        size @ 0, remote_addr @ 8, rkey @ 16, length @ 20, valid @ 24, num_ranges @ 28, flags @ 32, imm_data @ 36, gid @ 40,
        qpn @ 56, scope_id @ 60,
    }
    struct dgiwarpdv_error = 56 {
        size @ 0, reason @ 8, qpn @ 12, gid @ 16, scope_id @ 32, has_message @ 36, message @ 40, network_errno @ 44, layer @ 48,
        error_type @ 49, code @ 50, reserved @ 51,
    }
    struct dgiwarpdv_mr_init_attr = 72 {
        size @ 0, addr @ 8, length @ 16, iova @ 24, access @ 32, flags @ 36, peer_gid @ 40, peer_qpn @ 56, peer_scope_id @ 60,
        well_known @ 64, reserved @ 68,
    }
}

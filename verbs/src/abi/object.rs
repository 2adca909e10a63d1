//! The objects that programs hold pointers to.

use super::{ibv_context, ibv_gid, ibv_sge, layouts};
use std::ffi::{c_int, c_uint, c_void};

#[repr(C)]
pub struct ibv_pd {
    pub context: *mut ibv_context,
    pub handle: u32,
}

#[repr(C)]
pub struct ibv_mr {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

#[repr(C)]
pub struct ibv_td {
    pub context: *mut ibv_context,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_td_init_attr {
    pub comp_mask: u32,
}

pub const IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS: u32 = 1;
pub const IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT: u32 = 1 << 1;

/// Domain, context, size, alignment, type of resource.
pub type AllocFunction =
    unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, usize, u64) -> *mut c_void;
/// Domain, context, memory, type of resource.
pub type FreeFunction = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, *mut c_void, u64);

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_parent_domain_init_attr {
    pub pd: *mut ibv_pd,
    pub td: *mut ibv_td,
    pub comp_mask: u32,
    pub alloc: Option<AllocFunction>,
    pub free: Option<FreeFunction>,
    pub pd_context: *mut c_void,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_alloc_dm_attr {
    pub length: usize,
    pub log_align_req: u32,
    pub comp_mask: u32,
}

#[repr(C)]
pub struct ibv_dm {
    pub context: *mut ibv_context,
    pub memcpy_to_dm: Option<unsafe extern "C" fn(*mut Self, u64, *const c_void, usize) -> c_int>,
    pub memcpy_from_dm: Option<unsafe extern "C" fn(*mut c_void, *mut Self, u64, usize) -> c_int>,
    pub comp_mask: u32,
    pub handle: u32,
}

pub const IBV_REREG_MR_CHANGE_TRANSLATION: c_int = 1;
pub const IBV_REREG_MR_CHANGE_PD: c_int = 1 << 1;
pub const IBV_REREG_MR_CHANGE_ACCESS: c_int = 1 << 2;

pub const IBV_ACCESS_LOCAL_WRITE: c_uint = 1;
pub const IBV_ACCESS_REMOTE_WRITE: c_uint = 1 << 1;
pub const IBV_ACCESS_REMOTE_READ: c_uint = 1 << 2;
pub const IBV_ACCESS_REMOTE_ATOMIC: c_uint = 1 << 3;
pub const IBV_ACCESS_MW_BIND: c_uint = 1 << 4;
pub const IBV_ACCESS_ZERO_BASED: c_uint = 1 << 5;
pub const IBV_ACCESS_ON_DEMAND: c_uint = 1 << 6;
pub const IBV_ACCESS_HUGETLB: c_uint = 1 << 7;
/// Bits 20 to 29: hints that a provider may ignore, so they are accepted whatever they are.
pub const IBV_ACCESS_OPTIONAL_RANGE: c_uint = 0x3ff0_0000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ibv_global_route {
    pub dgid: ibv_gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_grh {
    pub version_tclass_flow: u32,
    pub paylen: u16,
    pub next_hdr: u8,
    pub hop_limit: u8,
    pub sgid: ibv_gid,
    pub dgid: ibv_gid,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ibv_ah_attr {
    pub grh: ibv_global_route,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

#[repr(C)]
pub struct ibv_ah {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub handle: u32,
}

#[repr(C)]
pub struct ibv_comp_channel {
    pub context: *mut ibv_context,
    pub fd: c_int,
    pub refcnt: c_int,
}

#[repr(C)]
pub struct ibv_cq {
    pub context: *mut ibv_context,
    pub channel: *mut ibv_comp_channel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
    pub mutex: libc::pthread_mutex_t,
    pub cond: libc::pthread_cond_t,
    pub comp_events_completed: u32,
    pub async_events_completed: u32,
}

#[repr(C)]
pub struct ibv_poll_cq_attr {
    pub comp_mask: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ibv_wc_tm_info {
    pub tag: u64,
    pub priv_: u32,
}

/// Reads a field of the completion that an extended queue stands at.
pub type Reader<T> = Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> T>;

#[repr(C)]
pub struct ibv_cq_ex {
    /// Programs cast between the two: the fields are the same.
    pub base: ibv_cq,
    pub comp_mask: u32,
    pub status: c_uint,
    pub wr_id: u64,
    pub start_poll: Option<unsafe extern "C" fn(*mut Self, *mut ibv_poll_cq_attr) -> c_int>,
    pub next_poll: Reader<c_int>,
    pub end_poll: Reader<()>,
    pub read_opcode: Reader<c_uint>,
    pub read_vendor_err: Reader<u32>,
    pub read_byte_len: Reader<u32>,
    pub read_imm_data: Reader<u32>,
    pub read_qp_num: Reader<u32>,
    pub read_src_qp: Reader<u32>,
    pub read_wc_flags: Reader<c_uint>,
    pub read_slid: Reader<u32>,
    pub read_sl: Reader<u8>,
    pub read_dlid_path_bits: Reader<u8>,
    pub read_completion_ts: Reader<u64>,
    pub read_cvlan: Reader<u16>,
    pub read_flow_tag: Reader<u32>,
    pub read_tm_info: Option<unsafe extern "C" fn(*mut Self, *mut ibv_wc_tm_info)>,
    pub read_completion_wallclock_ns: Reader<u64>,
}

pub const IBV_CQ_INIT_ATTR_MASK_FLAGS: u32 = 1;
pub const IBV_CQ_INIT_ATTR_MASK_PD: u32 = 1 << 1;
pub const IBV_CREATE_CQ_ATTR_SINGLE_THREADED: u32 = 1;
pub const IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN: u32 = 1 << 1;
/// The fields of a completion that every device has: byte length, immediate, queue pairs, LIDs and service level.
pub const IBV_WC_STANDARD_FLAGS: u64 = 0x7f;
pub const IBV_WC_EX_WITH_COMPLETION_TIMESTAMP: u64 = 1 << 7;
pub const IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK: u64 = 1 << 11;

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_cq_init_attr_ex {
    pub cqe: u32,
    pub cq_context: *mut c_void,
    pub channel: *mut ibv_comp_channel,
    pub comp_vector: u32,
    pub wc_flags: u64,
    pub comp_mask: u32,
    pub flags: u32,
    pub parent_domain: *mut ibv_pd,
}

#[repr(C)]
pub struct ibv_srq {
    pub context: *mut ibv_context,
    pub srq_context: *mut c_void,
    pub pd: *mut ibv_pd,
    pub handle: u32,
    pub mutex: libc::pthread_mutex_t,
    pub cond: libc::pthread_cond_t,
    pub events_completed: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ibv_srq_attr {
    pub max_wr: u32,
    pub max_sge: u32,
    pub srq_limit: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_srq_init_attr {
    pub srq_context: *mut c_void,
    pub attr: ibv_srq_attr,
}

pub const IBV_SRQ_INIT_ATTR_TYPE: u32 = 1;
pub const IBV_SRQ_INIT_ATTR_PD: u32 = 1 << 1;
pub const IBV_SRQ_INIT_ATTR_XRCD: u32 = 1 << 2;
pub const IBV_SRQ_INIT_ATTR_CQ: u32 = 1 << 3;
pub const IBV_SRQT_BASIC: c_uint = 0;
pub const IBV_SRQT_XRC: c_uint = 1;

pub const IBV_XRCD_INIT_ATTR_FD: u32 = 1;
pub const IBV_XRCD_INIT_ATTR_OFLAGS: u32 = 1 << 1;

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_xrcd_init_attr {
    pub comp_mask: u32,
    pub fd: c_int,
    pub oflags: c_int,
}

#[repr(C)]
pub struct ibv_xrcd {
    pub context: *mut ibv_context,
}

pub const IBV_QP_OPEN_ATTR_NUM: u32 = 1;
pub const IBV_QP_OPEN_ATTR_XRCD: u32 = 1 << 1;
pub const IBV_QP_OPEN_ATTR_CONTEXT: u32 = 1 << 2;
pub const IBV_QP_OPEN_ATTR_TYPE: u32 = 1 << 3;

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_qp_open_attr {
    pub comp_mask: u32,
    pub qp_num: u32,
    pub xrcd: *mut ibv_xrcd,
    pub qp_context: *mut c_void,
    pub qp_type: c_uint,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_tm_cap {
    pub max_num_tags: u32,
    pub max_ops: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_srq_init_attr_ex {
    pub srq_context: *mut c_void,
    pub attr: ibv_srq_attr,
    pub comp_mask: u32,
    pub srq_type: c_uint,
    pub pd: *mut ibv_pd,
    pub xrcd: *mut ibv_xrcd,
    pub cq: *mut ibv_cq,
    pub tm_cap: ibv_tm_cap,
}

pub const IBV_SRQ_MAX_WR: c_int = 1;
pub const IBV_SRQ_LIMIT: c_int = 1 << 1;

#[repr(C)]
pub struct ibv_qp {
    pub context: *mut ibv_context,
    pub qp_context: *mut c_void,
    pub pd: *mut ibv_pd,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub handle: u32,
    pub qp_num: u32,
    pub state: c_uint,
    pub qp_type: c_uint,
    pub mutex: libc::pthread_mutex_t,
    pub cond: libc::pthread_cond_t,
    pub events_completed: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ibv_ece {
    pub vendor_id: u32,
    pub options: u32,
    pub comp_mask: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_mw_bind_info {
    pub mr: *mut ibv_mr,
    pub addr: u64,
    pub length: u64,
    pub mw_access_flags: c_uint,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_mw_bind {
    pub wr_id: u64,
    pub send_flags: c_uint,
    pub bind_info: ibv_mw_bind_info,
}

#[repr(C)]
pub struct ibv_mw {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub rkey: u32,
    pub handle: u32,
    /// `type` in C.
    pub kind: c_uint,
}

pub const IBV_MW_TYPE_1: c_uint = 1;
pub const IBV_MW_TYPE_2: c_uint = 2;

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ibv_data_buf {
    pub addr: *mut c_void,
    pub length: usize,
}

#[repr(C)]
pub struct ibv_qp_ex {
    pub qp_base: ibv_qp,
    pub comp_mask: u64,
    pub wr_id: u64,
    pub wr_flags: c_uint,
    pub wr_atomic_cmp_swp: Option<unsafe extern "C" fn(*mut Self, u32, u64, u64, u64)>,
    pub wr_atomic_fetch_add: Option<unsafe extern "C" fn(*mut Self, u32, u64, u64)>,
    pub wr_bind_mw:
        Option<unsafe extern "C" fn(*mut Self, *mut ibv_mw, u32, *const ibv_mw_bind_info)>,
    pub wr_local_inv: Option<unsafe extern "C" fn(*mut Self, u32)>,
    pub wr_rdma_read: Option<unsafe extern "C" fn(*mut Self, u32, u64)>,
    pub wr_rdma_write: Option<unsafe extern "C" fn(*mut Self, u32, u64)>,
    pub wr_rdma_write_imm: Option<unsafe extern "C" fn(*mut Self, u32, u64, u32)>,
    pub wr_send: Option<unsafe extern "C" fn(*mut Self)>,
    pub wr_send_imm: Option<unsafe extern "C" fn(*mut Self, u32)>,
    pub wr_send_inv: Option<unsafe extern "C" fn(*mut Self, u32)>,
    pub wr_send_tso: Option<unsafe extern "C" fn(*mut Self, *mut c_void, u16, u16)>,
    pub wr_set_ud_addr: Option<unsafe extern "C" fn(*mut Self, *mut ibv_ah, u32, u32)>,
    pub wr_set_xrc_srqn: Option<unsafe extern "C" fn(*mut Self, u32)>,
    pub wr_set_inline_data: Option<unsafe extern "C" fn(*mut Self, *mut c_void, usize)>,
    pub wr_set_inline_data_list:
        Option<unsafe extern "C" fn(*mut Self, usize, *const ibv_data_buf)>,
    pub wr_set_sge: Option<unsafe extern "C" fn(*mut Self, u32, u64, u32)>,
    pub wr_set_sge_list: Option<unsafe extern "C" fn(*mut Self, usize, *const ibv_sge)>,
    pub wr_start: Option<unsafe extern "C" fn(*mut Self)>,
    pub wr_complete: Option<unsafe extern "C" fn(*mut Self) -> c_int>,
    pub wr_abort: Option<unsafe extern "C" fn(*mut Self)>,
    pub wr_atomic_write: Option<unsafe extern "C" fn(*mut Self, u32, u64, *const c_void)>,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_async_event {
    pub element: ibv_async_element,
    pub event_type: c_uint,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub union ibv_async_element {
    pub cq: *mut ibv_cq,
    pub qp: *mut ibv_qp,
    pub srq: *mut ibv_srq,
    pub wq: *mut c_void,
    pub port_num: c_int,
}

layouts! {
    /// Layouts of this file.
    OBJECT_LAYOUTS:
    struct ibv_pd = 16 { context @ 0, handle @ 8 }
    struct ibv_mr = 48 { context @ 0, pd @ 8, addr @ 16, length @ 24, handle @ 32, lkey @ 36, rkey @ 40 }
    struct ibv_td = 8 { context @ 0 }
    struct ibv_td_init_attr = 4 { comp_mask @ 0 }
    struct ibv_parent_domain_init_attr = 48 { pd @ 0, td @ 8, comp_mask @ 16, alloc @ 24, free @ 32, pd_context @ 40 }
    struct ibv_alloc_dm_attr = 16 { length @ 0, log_align_req @ 8, comp_mask @ 12 }
    struct ibv_dm = 32 { context @ 0, memcpy_to_dm @ 8, memcpy_from_dm @ 16, comp_mask @ 24, handle @ 28 }
    struct ibv_global_route = 24 { dgid @ 0, flow_label @ 16, sgid_index @ 20, hop_limit @ 21, traffic_class @ 22 }
    struct ibv_grh = 40 { version_tclass_flow @ 0, paylen @ 4, next_hdr @ 6, hop_limit @ 7, sgid @ 8, dgid @ 24 }
    struct ibv_ah_attr = 32 {
        grh @ 0, dlid @ 24, sl @ 26, src_path_bits @ 27, static_rate @ 28, is_global @ 29, port_num @ 30,
    }
    struct ibv_ah = 24 { context @ 0, pd @ 8, handle @ 16 }
    struct ibv_comp_channel = 16 { context @ 0, fd @ 8, refcnt @ 12 }
    struct ibv_cq = 128 {
        context @ 0, channel @ 8, cq_context @ 16, handle @ 24, cqe @ 28, mutex @ 32, cond @ 72,
        comp_events_completed @ 120, async_events_completed @ 124,
    }
    struct ibv_poll_cq_attr = 4 { comp_mask @ 0 }
    struct ibv_wc_tm_info = 16 { tag @ 0 }
    struct ibv_cq_ex = 288 {
        comp_mask @ 128, status @ 132, wr_id @ 136, start_poll @ 144, next_poll @ 152, end_poll @ 160,
        read_opcode @ 168, read_vendor_err @ 176, read_byte_len @ 184, read_imm_data @ 192, read_qp_num @ 200,
        read_src_qp @ 208, read_wc_flags @ 216, read_slid @ 224, read_sl @ 232, read_dlid_path_bits @ 240,
        read_completion_ts @ 248, read_cvlan @ 256, read_flow_tag @ 264, read_tm_info @ 272,
        read_completion_wallclock_ns @ 280,
    }
    struct ibv_cq_init_attr_ex = 56 {
        cqe @ 0, cq_context @ 8, channel @ 16, comp_vector @ 24, wc_flags @ 32, comp_mask @ 40, flags @ 44,
        parent_domain @ 48,
    }
    struct ibv_srq = 128 { context @ 0, srq_context @ 8, pd @ 16, handle @ 24, mutex @ 32, cond @ 72, events_completed @ 120 }
    struct ibv_srq_attr = 12 { max_wr @ 0, max_sge @ 4, srq_limit @ 8 }
    struct ibv_srq_init_attr = 24 { srq_context @ 0, attr @ 8 }
    struct ibv_tm_cap = 8 { max_num_tags @ 0, max_ops @ 4 }
    struct ibv_xrcd_init_attr = 12 { comp_mask @ 0, fd @ 4, oflags @ 8 }
    struct ibv_xrcd = 8 { context @ 0 }
    struct ibv_qp_open_attr = 32 { comp_mask @ 0, qp_num @ 4, xrcd @ 8, qp_context @ 16, qp_type @ 24 }
    struct ibv_srq_init_attr_ex = 64 {
        srq_context @ 0, attr @ 8, comp_mask @ 20, srq_type @ 24, pd @ 32, xrcd @ 40, cq @ 48, tm_cap @ 56,
    }
    struct ibv_qp = 160 {
        context @ 0, qp_context @ 8, pd @ 16, send_cq @ 24, recv_cq @ 32, srq @ 40, handle @ 48, qp_num @ 52,
        state @ 56, qp_type @ 60, mutex @ 64, cond @ 104, events_completed @ 152,
    }
    struct ibv_ece = 12 { vendor_id @ 0, options @ 4, comp_mask @ 8 }
    struct ibv_mw_bind_info = 32 { mr @ 0, addr @ 8, length @ 16, mw_access_flags @ 24 }
    struct ibv_mw_bind = 48 { wr_id @ 0, send_flags @ 8, bind_info @ 16 }
    struct ibv_mw = 32 { context @ 0, pd @ 8, rkey @ 16, handle @ 20 }
    struct ibv_data_buf = 16 { addr @ 0, length @ 8 }
    struct ibv_qp_ex = 352 {
        qp_base @ 0, comp_mask @ 160, wr_id @ 168, wr_flags @ 176, wr_atomic_cmp_swp @ 184, wr_atomic_fetch_add @ 192,
        wr_bind_mw @ 200, wr_local_inv @ 208, wr_rdma_read @ 216, wr_rdma_write @ 224, wr_rdma_write_imm @ 232,
        wr_send @ 240, wr_send_imm @ 248, wr_send_inv @ 256, wr_send_tso @ 264, wr_set_ud_addr @ 272,
        wr_set_xrc_srqn @ 280, wr_set_inline_data @ 288, wr_set_inline_data_list @ 296, wr_set_sge @ 304,
        wr_set_sge_list @ 312, wr_start @ 320, wr_complete @ 328, wr_abort @ 336, wr_atomic_write @ 344,
    }
    struct ibv_async_event = 16 { element @ 0, event_type @ 8 }
}

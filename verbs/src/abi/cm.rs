//! The structs of `rdma/rdma_cma.h`, and of `infiniband/sa.h` what they point to.

use super::{
    ibv_ah_attr, ibv_comp_channel, ibv_context, ibv_cq, ibv_gid, ibv_pd, ibv_qp, ibv_srq, layouts,
};
use libc::sockaddr_storage;
use std::ffi::{c_char, c_int, c_uint, c_void};

/// Address family of InfiniBand, `AF_IB`.
pub const AF_IB: c_int = 27;

pub const RDMA_PS_IPOIB: c_uint = 0x0002;
pub const RDMA_PS_TCP: c_uint = 0x0106;
pub const RDMA_PS_UDP: c_uint = 0x0111;
pub const RDMA_PS_IB: c_uint = 0x013f;

/// `RDMA_MAX_RESP_RES` and `RDMA_MAX_INIT_DEPTH`: as much as the device has.
pub const RDMA_MAX_DEPTH: u8 = 0xff;

pub const RAI_PASSIVE: c_int = 1;
pub const RAI_NUMERICHOST: c_int = 1 << 1;
pub const RAI_NOROUTE: c_int = 1 << 2;
pub const RAI_FAMILY: c_int = 1 << 3;

pub const RDMA_OPTION_ID: c_int = 0;
pub const RDMA_OPTION_IB: c_int = 1;
pub const RDMA_OPTION_ID_TOS: c_int = 0;
pub const RDMA_OPTION_ID_REUSEADDR: c_int = 1;
pub const RDMA_OPTION_ID_AFONLY: c_int = 2;
pub const RDMA_OPTION_ID_ACK_TIMEOUT: c_int = 3;
pub const RDMA_OPTION_IB_PATH: c_int = 1;

#[derive(Clone, Copy)]
#[repr(C)]
pub struct rdma_ib_addr {
    pub sgid: ibv_gid,
    pub dgid: ibv_gid,
    pub pkey: u16,
}

/// The two unions of address kinds are each as long as `sockaddr_storage`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct rdma_addr {
    pub src_addr: sockaddr_storage,
    pub dst_addr: sockaddr_storage,
    pub addr: rdma_ib_addr,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct rdma_route {
    pub addr: rdma_addr,
    pub path_rec: *mut ibv_sa_path_rec,
    pub num_paths: c_int,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ibv_sa_path_rec {
    pub dgid: ibv_gid,
    pub sgid: ibv_gid,
    pub dlid: u16,
    pub slid: u16,
    pub raw_traffic: c_int,
    pub flow_label: u32,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub reversible: c_int,
    pub numb_path: u8,
    pub pkey: u16,
    pub sl: u8,
    pub mtu_selector: u8,
    pub mtu: u8,
    pub rate_selector: u8,
    pub rate: u8,
    pub packet_life_time_selector: u8,
    pub packet_life_time: u8,
    pub preference: u8,
}

#[repr(C)]
pub struct rdma_event_channel {
    pub fd: c_int,
}

#[repr(C)]
pub struct rdma_cm_id {
    pub verbs: *mut ibv_context,
    pub channel: *mut rdma_event_channel,
    pub context: *mut c_void,
    pub qp: *mut ibv_qp,
    pub route: rdma_route,
    pub ps: c_uint,
    pub port_num: u8,
    pub event: *mut rdma_cm_event,
    pub send_cq_channel: *mut ibv_comp_channel,
    pub send_cq: *mut ibv_cq,
    pub recv_cq_channel: *mut ibv_comp_channel,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub pd: *mut ibv_pd,
    pub qp_type: c_uint,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct rdma_conn_param {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: u8,
    pub qp_num: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct rdma_ud_param {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub ah_attr: ibv_ah_attr,
    pub qp_num: u32,
    pub qkey: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub union rdma_event_param {
    pub conn: rdma_conn_param,
    pub ud: rdma_ud_param,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct rdma_cm_event {
    pub id: *mut rdma_cm_id,
    pub listen_id: *mut rdma_cm_id,
    pub event: c_uint,
    pub status: c_int,
    pub param: rdma_event_param,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct rdma_addrinfo {
    pub ai_flags: c_int,
    pub ai_family: c_int,
    pub ai_qp_type: c_int,
    pub ai_port_space: c_int,
    pub ai_src_len: libc::socklen_t,
    pub ai_dst_len: libc::socklen_t,
    pub ai_src_addr: *mut libc::sockaddr,
    pub ai_dst_addr: *mut libc::sockaddr,
    pub ai_src_canonname: *mut c_char,
    pub ai_dst_canonname: *mut c_char,
    pub ai_route_len: usize,
    pub ai_route: *mut c_void,
    pub ai_connect_len: usize,
    pub ai_connect: *mut c_void,
    pub ai_next: *mut Self,
}

/// `struct sockaddr_ib` of `infiniband/ib.h`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct sockaddr_ib {
    pub sib_family: u16,
    pub sib_pkey: u16,
    pub sib_flowinfo: u32,
    pub sib_addr: [u8; 16],
    pub sib_sid: u64,
    pub sib_sid_mask: u64,
    pub sib_scope_id: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct rdma_cm_join_mc_attr_ex {
    pub comp_mask: u32,
    pub join_flags: u32,
    pub addr: *mut libc::sockaddr,
}

layouts! {
    /// Layouts of this file.
    CM_LAYOUTS:
    struct sockaddr_ib = 48 {
        sib_family @ 0, sib_pkey @ 2, sib_flowinfo @ 4, sib_addr @ 8, sib_sid @ 24, sib_sid_mask @ 32, sib_scope_id @ 40,
    }
    struct rdma_cm_join_mc_attr_ex = 16 { comp_mask @ 0, join_flags @ 4, addr @ 8 }
    struct rdma_ib_addr = 40 { sgid @ 0, dgid @ 16, pkey @ 32 }
    struct rdma_addr = 296 { src_addr @ 0, dst_addr @ 128, addr @ 256 }
    struct rdma_route = 312 { addr @ 0, path_rec @ 296, num_paths @ 304 }
    struct ibv_sa_path_rec = 64 {
        dgid @ 0, sgid @ 16, dlid @ 32, slid @ 34, raw_traffic @ 36, flow_label @ 40, hop_limit @ 44,
        traffic_class @ 45, reversible @ 48, numb_path @ 52, pkey @ 54, sl @ 56, mtu_selector @ 57, mtu @ 58,
        rate_selector @ 59, rate @ 60, packet_life_time_selector @ 61, packet_life_time @ 62, preference @ 63,
    }
    struct rdma_event_channel = 4 { fd @ 0 }
    struct rdma_cm_id = 416 {
        verbs @ 0, channel @ 8, context @ 16, qp @ 24, route @ 32, ps @ 344, port_num @ 348, event @ 352,
        send_cq_channel @ 360, send_cq @ 368, recv_cq_channel @ 376, recv_cq @ 384, srq @ 392, pd @ 400, qp_type @ 408,
    }
    struct rdma_conn_param = 24 {
        private_data @ 0, private_data_len @ 8, responder_resources @ 9, initiator_depth @ 10, flow_control @ 11,
        retry_count @ 12, rnr_retry_count @ 13, srq @ 14, qp_num @ 16,
    }
    struct rdma_ud_param = 56 { private_data @ 0, private_data_len @ 8, ah_attr @ 16, qp_num @ 48, qkey @ 52 }
    struct rdma_cm_event = 80 { id @ 0, listen_id @ 8, event @ 16, status @ 20, param @ 24 }
    struct rdma_addrinfo = 96 {
        ai_flags @ 0, ai_family @ 4, ai_qp_type @ 8, ai_port_space @ 12, ai_src_len @ 16, ai_dst_len @ 20,
        ai_src_addr @ 24, ai_dst_addr @ 32, ai_src_canonname @ 40, ai_dst_canonname @ 48, ai_route_len @ 56,
        ai_route @ 64, ai_connect_len @ 72, ai_connect @ 80, ai_next @ 88,
    }
}

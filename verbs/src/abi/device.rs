//! Device, port and GID attributes.

use super::layouts;
use std::ffi::{c_char, c_int, c_uint, c_void};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C, align(8))]
pub struct ibv_gid {
    pub raw: [u8; 16],
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_gid_entry {
    pub gid: ibv_gid,
    pub gid_index: u32,
    pub port_num: u32,
    pub gid_type: u32,
    pub ndev_ifindex: u32,
}

/// Values of `enum ibv_gid_type`.
pub const IBV_GID_TYPE_ROCE_V2: u32 = 2;
/// RoCE v2 in `enum ibv_gid_type_sysfs` of the provider interface.
pub const IBV_GID_TYPE_SYSFS_ROCE_V2: c_uint = 1;

#[repr(C)]
pub struct ibv_device {
    pub _ops: [*mut c_void; 2],
    pub node_type: c_int,
    pub transport_type: c_int,
    pub name: [c_char; 64],
    pub dev_name: [c_char; 64],
    pub dev_path: [c_char; 256],
    pub ibdev_path: [c_char; 256],
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_device_attr {
    pub fw_ver: [u8; 64],
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: c_uint,
    pub max_sge: c_int,
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    pub max_pd: c_int,
    pub max_qp_rd_atom: c_int,
    pub max_ee_rd_atom: c_int,
    pub max_res_rd_atom: c_int,
    pub max_qp_init_rd_atom: c_int,
    pub max_ee_init_rd_atom: c_int,
    pub atomic_cap: c_uint,
    pub max_ee: c_int,
    pub max_rdd: c_int,
    pub max_mw: c_int,
    pub max_raw_ipv6_qp: c_int,
    pub max_raw_ethy_qp: c_int,
    pub max_mcast_grp: c_int,
    pub max_mcast_qp_attach: c_int,
    pub max_total_mcast_qp_attach: c_int,
    pub max_ah: c_int,
    pub max_fmr: c_int,
    pub max_map_per_fmr: c_int,
    pub max_srq: c_int,
    pub max_srq_wr: c_int,
    pub max_srq_sge: c_int,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

/// Flags of `ibv_device_attr.device_cap_flags`.
pub const IBV_DEVICE_SYS_IMAGE_GUID: c_uint = 1 << 11;
pub const IBV_DEVICE_CURR_QP_STATE_MOD: c_uint = 1 << 7;
pub const IBV_DEVICE_RC_RNR_NAK_GEN: c_uint = 1 << 12;
pub const IBV_DEVICE_MEM_WINDOW: c_uint = 1 << 17;
pub const IBV_DEVICE_XRC: c_uint = 1 << 20;
pub const IBV_DEVICE_MEM_MGT_EXTENSIONS: c_uint = 1 << 21;
pub const IBV_DEVICE_MEM_WINDOW_TYPE_2B: c_uint = 1 << 24;

#[repr(C)]
pub struct ibv_query_device_ex_input {
    pub comp_mask: u32,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct ibv_odp_caps {
    pub general_caps: u64,
    pub rc_odp_caps: u32,
    pub uc_odp_caps: u32,
    pub ud_odp_caps: u32,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct ibv_tso_caps {
    pub max_tso: u32,
    pub supported_qpts: u32,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct ibv_rss_caps {
    pub supported_qpts: u32,
    pub max_rwq_indirection_tables: u32,
    pub max_rwq_indirection_table_size: u32,
    pub rx_hash_fields_mask: u64,
    pub rx_hash_function: u8,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct ibv_packet_pacing_caps {
    pub qp_rate_limit_min: u32,
    pub qp_rate_limit_max: u32,
    pub supported_qpts: u32,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct ibv_tm_caps {
    pub max_rndv_hdr_size: u32,
    pub max_num_tags: u32,
    pub flags: u32,
    pub max_ops: u32,
    pub max_sge: u32,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct ibv_cq_moderation_caps {
    pub max_cq_count: u16,
    pub max_cq_period: u16,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct ibv_pci_atomic_caps {
    pub fetch_add: u16,
    pub swap: u16,
    pub compare_swap: u16,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_device_attr_ex {
    pub orig_attr: ibv_device_attr,
    pub comp_mask: u32,
    pub odp_caps: ibv_odp_caps,
    pub completion_timestamp_mask: u64,
    pub hca_core_clock: u64,
    pub device_cap_flags_ex: u64,
    pub tso_caps: ibv_tso_caps,
    pub rss_caps: ibv_rss_caps,
    pub max_wq_type_rq: u32,
    pub packet_pacing_caps: ibv_packet_pacing_caps,
    pub raw_packet_caps: u32,
    pub tm_caps: ibv_tm_caps,
    pub cq_mod_caps: ibv_cq_moderation_caps,
    pub max_dm_size: u64,
    pub pci_atomic_caps: ibv_pci_atomic_caps,
    pub xrc_odp_caps: u32,
    pub phys_port_cnt_ex: u32,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct ibv_port_attr {
    pub state: c_uint,
    pub max_mtu: c_uint,
    pub active_mtu: c_uint,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
}

/// The part of [`ibv_port_attr`] that programs compiled against old headers provide, in bytes.
pub const COMPAT_PORT_ATTR_LEN: usize = 48;

pub const IBV_PORT_ACTIVE: c_uint = 4;
pub const IBV_LINK_LAYER_ETHERNET: u8 = 2;
pub const IBV_PORT_CM_SUP: u32 = 1 << 16;
pub const IBV_PORT_IP_BASED_GIDS: u32 = 1 << 26;

/// Of `raw_clock`.
pub const IBV_VALUES_MASK_RAW_CLOCK: u32 = 1;

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_values_ex {
    pub comp_mask: u32,
    pub raw_clock: libc::timespec,
}

layouts! {
    /// Layouts of this file.
    DEVICE_LAYOUTS:
    union ibv_gid = 16 { raw @ 0 }
    struct ibv_gid_entry = 32 { gid @ 0, gid_index @ 16, port_num @ 20, gid_type @ 24, ndev_ifindex @ 28 }
    struct ibv_device = 664 { node_type @ 16, transport_type @ 20, name @ 24, dev_name @ 88, dev_path @ 152, ibdev_path @ 408 }
    struct ibv_device_attr = 232 {
        fw_ver @ 0, node_guid @ 64, sys_image_guid @ 72, max_mr_size @ 80, page_size_cap @ 88, vendor_id @ 96,
        vendor_part_id @ 100, hw_ver @ 104, max_qp @ 108, max_qp_wr @ 112, device_cap_flags @ 116, max_sge @ 120,
        max_sge_rd @ 124, max_cq @ 128, max_cqe @ 132, max_mr @ 136, max_pd @ 140, max_qp_rd_atom @ 144,
        max_ee_rd_atom @ 148, max_res_rd_atom @ 152, max_qp_init_rd_atom @ 156, max_ee_init_rd_atom @ 160,
        atomic_cap @ 164, max_ee @ 168, max_rdd @ 172, max_mw @ 176, max_raw_ipv6_qp @ 180, max_raw_ethy_qp @ 184,
        max_mcast_grp @ 188, max_mcast_qp_attach @ 192, max_total_mcast_qp_attach @ 196, max_ah @ 200, max_fmr @ 204,
        max_map_per_fmr @ 208, max_srq @ 212, max_srq_wr @ 216, max_srq_sge @ 220, max_pkeys @ 224,
        local_ca_ack_delay @ 226, phys_port_cnt @ 227,
    }
    struct ibv_query_device_ex_input = 4 { comp_mask @ 0 }
    struct ibv_odp_caps = 24 { general_caps @ 0 }
    struct ibv_tso_caps = 8 { max_tso @ 0, supported_qpts @ 4 }
    struct ibv_rss_caps = 32 {
        supported_qpts @ 0, max_rwq_indirection_tables @ 4, max_rwq_indirection_table_size @ 8,
        rx_hash_fields_mask @ 16, rx_hash_function @ 24,
    }
    struct ibv_packet_pacing_caps = 12 { qp_rate_limit_min @ 0, qp_rate_limit_max @ 4, supported_qpts @ 8 }
    struct ibv_tm_caps = 20 { max_rndv_hdr_size @ 0, max_num_tags @ 4, flags @ 8, max_ops @ 12, max_sge @ 16 }
    struct ibv_cq_moderation_caps = 4 { max_cq_count @ 0, max_cq_period @ 2 }
    struct ibv_pci_atomic_caps = 6 { fetch_add @ 0, swap @ 2, compare_swap @ 4 }
    struct ibv_device_attr_ex = 400 {
        orig_attr @ 0, comp_mask @ 232, odp_caps @ 240, completion_timestamp_mask @ 264, hca_core_clock @ 272,
        device_cap_flags_ex @ 280, tso_caps @ 288, rss_caps @ 296, max_wq_type_rq @ 328, packet_pacing_caps @ 332,
        raw_packet_caps @ 344, tm_caps @ 348, cq_mod_caps @ 368, max_dm_size @ 376, pci_atomic_caps @ 384,
        xrc_odp_caps @ 392, phys_port_cnt_ex @ 396,
    }
    struct ibv_port_attr = 52 {
        state @ 0, max_mtu @ 4, active_mtu @ 8, gid_tbl_len @ 12, port_cap_flags @ 16, max_msg_sz @ 20,
        bad_pkey_cntr @ 24, qkey_viol_cntr @ 28, pkey_tbl_len @ 32, lid @ 34, sm_lid @ 36, lmc @ 38, max_vl_num @ 39,
        sm_sl @ 40, subnet_timeout @ 41, init_type_reply @ 42, active_width @ 43, active_speed @ 44, phys_state @ 45,
        link_layer @ 46, flags @ 47, port_cap_flags2 @ 48,
    }
    struct ibv_values_ex = 24 { comp_mask @ 0, raw_clock @ 8 }
}

//! Attributes of the device and its port.

use crate::abi::{
    IBV_DEVICE_CURR_QP_STATE_MOD, IBV_DEVICE_MEM_MGT_EXTENSIONS, IBV_DEVICE_MEM_WINDOW,
    IBV_DEVICE_MEM_WINDOW_TYPE_2B, IBV_DEVICE_RC_RNR_NAK_GEN, IBV_DEVICE_SYS_IMAGE_GUID,
    IBV_DEVICE_XRC, IBV_LINK_LAYER_ETHERNET, IBV_PORT_ACTIVE, IBV_PORT_CM_SUP,
    IBV_PORT_IP_BASED_GIDS, ibv_device_attr, ibv_device_attr_ex, ibv_odp_caps, ibv_pci_atomic_caps,
    ibv_port_attr,
};
use crate::device::gid::{GidTable, host_gids};
use crate::device::{limits, persona};
use nix::ifaddrs::getifaddrs;
use std::ffi::{c_int, c_uint};
use std::sync::OnceLock;

/// `enum ibv_port_state` of a host without addresses.
const IBV_PORT_DOWN: c_uint = 1;
/// `enum ibv_atomic_cap`: atomic among queue pairs of the device. The PCI capabilities report that atomics are so for the host's processors too; programs such as
/// UCX take atomics of a device with `IBV_ATOMIC_GLOB` for none.
const IBV_ATOMIC_HCA: c_uint = 1;
/// `IBV_PCI_ATOMIC_OPERATION_8_BYTE_SIZE_SUP`.
const PCI_ATOMIC_8_BYTES: u16 = 2;
/// `enum ibv_mtu`: 4096 bytes, the largest. The mapping cuts messages for the path, so that a datagram of this length is one message on every path.
const IBV_MTU_4096: c_uint = 5;

/// `enum ibv_device_cap_flags`: optional capabilities.
const CAPABILITIES: c_uint = IBV_DEVICE_SYS_IMAGE_GUID
    | IBV_DEVICE_CURR_QP_STATE_MOD
    | IBV_DEVICE_RC_RNR_NAK_GEN
    | IBV_DEVICE_MEM_WINDOW
    | IBV_DEVICE_MEM_WINDOW_TYPE_2B
    | IBV_DEVICE_MEM_MGT_EXTENSIONS;

/// The port's GUID, as a number: EUI-64 of the first interface's hardware address, else made from the host's name.
pub(crate) fn node_guid() -> u64 {
    static GUID: OnceLock<u64> = OnceLock::new();
    *GUID.get_or_init(|| hardware_address().map_or_else(|| name_guid(&host_name()), eui64))
}

/// RFC 4291 appendix A: the universal/local bit inverted and ff:fe in the middle.
fn eui64(mac: [u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = mac;
    u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

/// A locally administered identifier for hosts without any hardware address (FNV-1a, 64 bits).
fn name_guid(name: &[u8]) -> u64 {
    let hash = name.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    });
    let [_, rest @ ..] = hash.to_be_bytes();
    let [b, c, d, e, f, g, h] = rest;
    u64::from_be_bytes([0x02, b, c, d, e, f, g, h])
}

/// The hardware address of the interface that has the port's first address, else of the first one that has any.
fn hardware_address() -> Option<[u8; 6]> {
    let first = host_gids().ok()?.first().map_or(0, |gid| gid.ifindex);
    let mut found: Vec<(bool, usize, [u8; 6])> = getifaddrs()
        .ok()?
        .filter_map(|entry| {
            let link = *entry.address.as_ref()?.as_link_addr()?;
            let other = u32::try_from(link.ifindex()) != Ok(first);
            Some((other, link.ifindex(), link.addr()?))
        })
        .filter(|(_, _, mac)| *mac != [0; 6])
        .collect();
    found.sort_unstable();
    found.first().map(|(_, _, mac)| *mac)
}

fn host_name() -> Vec<u8> {
    nix::unistd::gethostname()
        .map(std::os::unix::ffi::OsStringExt::into_vec)
        .unwrap_or_default()
}

/// The port's present attributes.
pub(crate) fn port_attr(gids: &GidTable) -> ibv_port_attr {
    let up = gids.primary().is_some();
    ibv_port_attr {
        state: if up { IBV_PORT_ACTIVE } else { IBV_PORT_DOWN },
        max_mtu: IBV_MTU_4096,
        active_mtu: IBV_MTU_4096,
        gid_tbl_len: c_int::try_from(gids.len()).unwrap_or(c_int::MAX),
        port_cap_flags: IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS,
        max_msg_sz: persona::present().max_message(),
        pkey_tbl_len: 1,
        lid: gids.lid(),
        max_vl_num: 1,
        // 10 Gbit/s, as virtual Ethernet devices report. Software has no line rate.
        active_width: 2,
        active_speed: 1,
        // LINK_UP or DISABLED.
        phys_state: if up { 5 } else { 3 },
        link_layer: IBV_LINK_LAYER_ETHERNET,
        ..ibv_port_attr::default()
    }
}

fn capabilities(has_hello: bool) -> c_uint {
    CAPABILITIES | if has_hello { IBV_DEVICE_XRC } else { 0 }
}

/// The device's attributes. XRC needs the hello of dgiwarp peers.
pub(crate) fn device_attr(has_hello: bool) -> ibv_device_attr {
    let mut fw_ver = [0; 64];
    for (to, from) in fw_ver.iter_mut().zip(env!("CARGO_PKG_VERSION").bytes()) {
        *to = from;
    }
    let guid = node_guid().to_be();
    let (vendor_id, vendor_part_id) = persona::present().vendor_and_part();
    // SAFETY: a struct of integers, for which zero is a valid value.
    let absent: ibv_device_attr = unsafe { std::mem::zeroed() };
    ibv_device_attr {
        fw_ver,
        node_guid: guid,
        sys_image_guid: guid,
        max_mr_size: u64::MAX,
        page_size_cap: 0xffff_f000,
        vendor_id,
        vendor_part_id,
        max_qp: limits::max_qp(),
        max_qp_wr: limits::MAX_QP_WR,
        device_cap_flags: capabilities(has_hello),
        max_sge: limits::MAX_SGE,
        max_sge_rd: limits::MAX_SGE,
        max_cq: limits::MAX_CQ,
        max_cqe: limits::MAX_CQE,
        max_mr: limits::MAX_MR,
        max_pd: limits::MAX_PD,
        max_qp_rd_atom: limits::MAX_RD_ATOMIC.into(),
        max_res_rd_atom: limits::max_qp().saturating_mul(limits::MAX_RD_ATOMIC.into()),
        max_qp_init_rd_atom: limits::MAX_RD_ATOMIC.into(),
        atomic_cap: IBV_ATOMIC_HCA,
        max_mw: limits::MAX_MW,
        max_mcast_grp: limits::MAX_MCAST_GROUPS,
        max_mcast_qp_attach: limits::max_qp(),
        max_total_mcast_qp_attach: limits::max_qp(),
        max_ah: limits::MAX_AH,
        max_srq: limits::MAX_SRQ,
        max_srq_wr: limits::MAX_QP_WR,
        max_srq_sge: limits::MAX_SGE,
        max_pkeys: 1,
        phys_port_cnt: 1,
        ..absent
    }
}

/// The device's extended attributes.
pub(crate) fn device_attr_ex(has_hello: bool) -> ibv_device_attr_ex {
    // SAFETY: a struct of integers, for which zero is a valid value.
    let absent: ibv_device_attr_ex = unsafe { std::mem::zeroed() };
    ibv_device_attr_ex {
        orig_attr: device_attr(has_hello),
        completion_timestamp_mask: u64::MAX,
        // In kHz: the clock counts nanoseconds.
        hca_core_clock: 1_000_000,
        device_cap_flags_ex: capabilities(has_hello).into(),
        pci_atomic_caps: ibv_pci_atomic_caps {
            fetch_add: PCI_ATOMIC_8_BYTES,
            swap: 0,
            compare_swap: PCI_ATOMIC_8_BYTES,
        },
        odp_caps: ibv_odp_caps {
            general_caps: odp::SUPPORT | odp::IMPLICIT,
            rc_odp_caps: odp::MESSAGES | odp::WRITE | odp::READ | odp::ATOMIC,
            uc_odp_caps: odp::MESSAGES | odp::WRITE,
            ud_odp_caps: odp::MESSAGES,
        },
        xrc_odp_caps: if has_hello {
            odp::MESSAGES | odp::WRITE | odp::READ | odp::ATOMIC
        } else {
            0
        },
        phys_port_cnt_ex: 1,
        max_dm_size: limits::MAX_DM as u64,
        ..absent
    }
}

/// On-demand paging: `enum ibv_odp_general_cap_bits` and `enum ibv_odp_transport_cap_bits`.
mod odp {
    pub(super) const SUPPORT: u64 = 1;
    pub(super) const IMPLICIT: u64 = 1 << 1;
    /// Send, Recv and Recv of a shared queue.
    pub(super) const MESSAGES: u32 = 1 | 1 << 1 | 1 << 5;
    pub(super) const WRITE: u32 = 1 << 2;
    pub(super) const READ: u32 = 1 << 3;
    pub(super) const ATOMIC: u32 = 1 << 4;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guids_are_never_zero_and_follow_the_hardware_address() {
        assert_eq!(
            eui64([0x02, 0xfc, 0x00, 0x00, 0x00, 0x01]),
            0x00fc_00ff_fe00_0001
        );
        assert_eq!(name_guid(b"host") >> 56, 2);
        assert_ne!(name_guid(b"host"), name_guid(b"tsoh"));
        assert_ne!(node_guid(), 0);
    }

    /// UCX uses the atomics of devices that report these.
    #[test]
    fn atomics_are_reported_as_hardware_does() {
        let attr = device_attr_ex(true);
        assert_eq!(attr.orig_attr.atomic_cap, 1);
        let caps = attr.pci_atomic_caps;
        assert_eq!((caps.fetch_add, caps.swap, caps.compare_swap), (2, 0, 2));
    }

    #[test]
    fn a_host_without_addresses_has_its_port_down() {
        let attr = port_attr(&GidTable::default());
        assert_eq!(
            (attr.state, attr.lid, attr.gid_tbl_len),
            (IBV_PORT_DOWN, 0, 0)
        );
    }
}

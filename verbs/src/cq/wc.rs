//! Work completions of the stack in the form of C.

use crate::abi::{
    DGIWARPDV_WC_RECORD_SEGMENT, DGIWARPDV_WC_WRITE_RECORD, IBV_WC_BIND_MW, IBV_WC_COMP_SWAP,
    IBV_WC_FETCH_ADD, IBV_WC_GRH, IBV_WC_LOCAL_INV, IBV_WC_RDMA_READ, IBV_WC_RDMA_WRITE,
    IBV_WC_RECV, IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_SEND, IBV_WC_WITH_IMM, IBV_WC_WITH_INV, ibv_wc,
};
use crate::device::gid::MAX_UNICAST_LID;
use crate::device::persona::{self, Persona};
use dgiwarp::{Wc, WcOpcode, WcStatus};
use std::ffi::c_uint;
use std::net::{IpAddr, SocketAddr};

/// `enum ibv_wc_status`.
fn status(status: WcStatus) -> c_uint {
    match status {
        WcStatus::Success => 0,
        WcStatus::LocalLength => 1,
        WcStatus::LocalProtection => 4,
        WcStatus::Flushed => 5,
        WcStatus::MwBind => 6,
        WcStatus::BadResponse => 7,
        WcStatus::RemoteInvalidRequest => 9,
        WcStatus::RemoteAccess => 10,
        WcStatus::RemoteOperation => 11,
        WcStatus::RetryExceeded => 12,
        WcStatus::RnrRetryExceeded => 13,
        WcStatus::RemoteAborted => 16,
        WcStatus::ResponseTimeout => 20,
        WcStatus::General => 21,
        // The enum is open: other failures are general errors.
        _ => 21,
    }
}

/// The completion status of EFA devices (`efa_io_comp_status`), by which programs such as libfabric recognize RNR.
fn efa_status(status: WcStatus) -> u32 {
    match status {
        WcStatus::Success => 0,
        WcStatus::Flushed => 1,
        WcStatus::LocalProtection => 5,
        WcStatus::LocalLength => 6,
        WcStatus::RemoteAccess => 7,
        WcStatus::RemoteAborted => 8,
        WcStatus::RnrRetryExceeded => 10,
        WcStatus::RemoteInvalidRequest => 11,
        WcStatus::BadResponse | WcStatus::RemoteOperation => 12,
        WcStatus::RetryExceeded | WcStatus::ResponseTimeout => 13,
        // Internal error of the queue pair.
        _ => 2,
    }
}

/// Cause of an error beside its status; of a segment, its offset in the message.
fn vendor_error(wc: &Wc) -> u32 {
    if wc.status != WcStatus::Success && persona::present() == Persona::Efa {
        efa_status(wc.status)
    } else {
        wc.vendor_error | wc.offset
    }
}

/// `enum ibv_wc_opcode`, with the records of `dgiwarpdv.h`; `None` for operations that verbs do not have.
fn opcode(opcode: WcOpcode) -> Option<c_uint> {
    match opcode {
        WcOpcode::Send => Some(IBV_WC_SEND),
        WcOpcode::RdmaWrite => Some(IBV_WC_RDMA_WRITE),
        WcOpcode::RdmaRead => Some(IBV_WC_RDMA_READ),
        WcOpcode::CompareSwap => Some(IBV_WC_COMP_SWAP),
        WcOpcode::FetchAdd => Some(IBV_WC_FETCH_ADD),
        WcOpcode::LocalInvalidate => Some(IBV_WC_LOCAL_INV),
        WcOpcode::BindMw => Some(IBV_WC_BIND_MW),
        WcOpcode::Recv => Some(IBV_WC_RECV),
        WcOpcode::RecvRdmaWithImmediate => Some(IBV_WC_RECV_RDMA_WITH_IMM),
        WcOpcode::WriteRecord => Some(DGIWARPDV_WC_WRITE_RECORD),
        WcOpcode::WriteRecordSegment => Some(DGIWARPDV_WC_RECORD_SEGMENT),
        WcOpcode::RegisterMr => None,
        _ => None,
    }
}

/// Fields of the sender of a datagram; zero where a completion has none.
#[derive(Default)]
struct Source {
    qpn: u32,
    /// The lower half of its IPv4 address, where that is a unicast LID.
    lid: u16,
    service_level: u8,
}

impl From<SocketAddr> for Source {
    fn from(source: SocketAddr) -> Self {
        let qpn = source.port().into();
        let IpAddr::V4(v4) = source.ip().to_canonical() else {
            return Self {
                qpn,
                ..Self::default()
            };
        };
        let [_, _, high, low] = v4.octets();
        Self {
            qpn,
            lid: match u16::from_be_bytes([high, low]) {
                lid @ 1..=MAX_UNICAST_LID => lid,
                _ => 0,
            },
            service_level: SL_OF_IPV4,
        }
    }
}

/// The LID that completions of a peer's messages have; 0 for an IPv6 address.
pub(crate) fn lid_of(peer: IpAddr) -> u16 {
    Source::from(SocketAddr::new(peer, 0)).lid
}

/// Service level of a datagram with an IPv4 header. RoCE has no service level, and mlx5 devices report the type of
/// header in this field: for this value UCX expects 4 octets of address, otherwise 16.
const SL_OF_IPV4: u8 = 2;

/// The C struct of a completion.
#[inline]
pub(crate) fn to_c(wc: &Wc) -> Option<ibv_wc> {
    let grh = wc.grh && wc.status == WcStatus::Success;
    let source = wc.source.map(Source::from).unwrap_or_default();
    let mut flags = 0;
    if grh {
        flags |= IBV_WC_GRH;
    }
    if wc.immediate.is_some() {
        flags |= IBV_WC_WITH_IMM;
    }
    if wc.invalidated.is_some() {
        flags |= IBV_WC_WITH_INV;
    }
    Some(ibv_wc {
        wr_id: wc.wr_id,
        status: status(wc.status),
        opcode: opcode(wc.opcode)?,
        vendor_err: vendor_error(wc),
        byte_len: wc.byte_len.saturating_add(if grh { 40 } else { 0 }),
        // Immediates are in network order; an STag shares the field, in the byte order of the machine.
        imm_data: match (wc.immediate, wc.invalidated) {
            (Some(immediate), _) => immediate.to_be(),
            (None, invalidated) => invalidated.unwrap_or(0),
        },
        qp_num: wc.qpn,
        src_qp: source.qpn,
        wc_flags: flags,
        pkey_index: 0,
        slid: source.lid,
        sl: if grh { source.service_level } else { 0 },
        dlid_path_bits: 0,
    })
}

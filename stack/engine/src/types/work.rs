//! Work requests and work completions.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use dgiwarp_rdmap::datagram::RecordHandle;

/// Most scatter/gather elements of a work request.
pub const MAX_SGE: usize = 16;

/// A part of registered memory (`ibv_sge`, whose layout it has).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Sge {
    /// Address, in the region's own address space (its `iova`).
    pub addr: u64,
    /// Octets.
    pub length: u32,
    /// The region's local key.
    pub lkey: u32,
}

/// Octets of a message that are in one place.
#[derive(Debug, Clone, Copy)]
pub enum ShortData<'a> {
    /// Registered.
    Sge(Sge),
    /// Octets of the program.
    Inline(&'a [u8]),
}

impl ShortData<'_> {
    /// Their number; `None` above 2^32 - 1.
    #[inline]
    pub(crate) fn length(&self) -> Option<u32> {
        match self {
            Self::Sge(sge) => Some(sge.length),
            Self::Inline(octets) => u32::try_from(octets.len()).ok(),
        }
    }
}

/// Operation of a send work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Send to the receive queue of the destination.
    Send {
        /// 32 bits that arrive with the message.
        immediate: Option<u32>,
    },
    /// RDMA Write-Record: write to the destination's memory, which keeps a record of the octets that arrived.
    WriteRecord {
        /// The remote key of the target region.
        rkey: u32,
        /// The target address in that region's address space.
        remote_addr: u64,
        /// 32 bits that arrive with the record.
        immediate: Option<u32>,
    },
    /// RDMA Read: fill the scatter/gather elements, which need local write access, from the destination's memory. Up to 2^30 octets. Reads complete
    /// in the order in which they finish, at the latest at their deadline: then in error, with the octets that arrived in place, counted in
    /// [`Wc::byte_len`] and listed by `UdQp::take_read_map`.
    Read {
        /// The remote key of the source region.
        rkey: u32,
        /// The source address in that region's address space.
        remote_addr: u64,
        /// Time until its deadline; `None` takes `Config::read_timeout`.
        timeout: Option<Duration>,
    },
}

/// A receive work request (`ibv_recv_wr`).
#[derive(Debug, Clone, Copy)]
pub struct RecvWr<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Where the payload goes, in this order.
    pub sges: &'a [Sge],
}

/// Operation that a completion reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WcOpcode {
    /// A posted Send.
    Send,
    /// A posted Write-Record or UC Write: its last octet was handed to the network.
    RdmaWrite,
    /// A posted RDMA Read.
    RdmaRead,
    /// A posted atomic compare and swap.
    CompareSwap,
    /// A posted atomic addition.
    FetchAdd,
    /// A posted local invalidation of an STag.
    LocalInvalidate,
    /// The binding of a memory window.
    BindMw,
    /// A fast registration.
    RegisterMr,
    /// A posted receive.
    Recv,
    /// A posted receive that a Write with immediate consumed; its octets are in the region that the peer wrote to.
    RecvRdmaWithImmediate,
    /// A Write-Record that a peer made into our memory; `wr_id` is the record's handle.
    WriteRecord,
    /// A segment of a Write-Record, with `RecordCompletions::PerSegment`: `byte_len` octets from `offset` on are
    /// valid now. The record is open, or complete with this segment.
    WriteRecordSegment,
}

/// Status of a completion (`ibv_wc_status`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WcStatus {
    /// Completed without error.
    Success,
    /// A message did not fit its receive, or exceeds what the transport carries.
    LocalLength,
    /// A scatter/gather element names memory that is not registered, not with the right needed, or in
    /// another protection domain.
    LocalProtection,
    /// A window could not be bound, a region not be registered, or a key not be invalidated.
    MwBind,
    /// The QP was destroyed or went to the error state first.
    Flushed,
    /// The network refused the message; `vendor_error` is its errno.
    General,
    /// The peer refused the request, violated the protocol, or disappeared.
    RemoteOperation,
    /// The peer's memory does not allow the access.
    RemoteAccess,
    /// The peer could not take the request: too long for its receive, or not understood.
    RemoteInvalidRequest,
    /// The peer of a reliable datagram QP restarted or ended the association: the request may have been carried out.
    RemoteAborted,
    /// The peer of a reliable datagram QP violated the protocol.
    BadResponse,
    /// The peer had no receive posted.
    RnrRetryExceeded,
    /// The connection was lost.
    RetryExceeded,
    /// The deadline of a Read passed before all octets had arrived; `vendor_error` is the error that the network reported for the peer meanwhile
    /// (`ECONNREFUSED` where no QP has its number), or 0.
    ResponseTimeout,
}

impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Success => "success",
            Self::LocalLength => "local length error",
            Self::LocalProtection => "local protection error",
            Self::MwBind => "memory window bind error",
            Self::Flushed => "work request flushed",
            Self::General => "general error",
            Self::RemoteOperation => "remote operation error",
            Self::RemoteAccess => "remote access error",
            Self::RemoteInvalidRequest => "remote invalid request error",
            Self::RemoteAborted => "remote abort error",
            Self::BadResponse => "bad response error",
            Self::RnrRetryExceeded => "no receive was posted at the peer",
            Self::RetryExceeded => "the connection was lost",
            Self::ResponseTimeout => "response timeout error",
        })
    }
}

/// A work completion (`ibv_wc`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wc {
    /// `wr_id` of the work request, or the handle of a record.
    pub wr_id: u64,
    /// Outcome. Unless it is `Success`, of the other fields only `wr_id`, `qpn` and `vendor_error` are valid.
    pub status: WcStatus,
    /// Operation that is complete.
    pub opcode: WcOpcode,
    /// Octets received, without the space for a GRH; of a record, octets valid.
    pub byte_len: u32,
    /// Offset in the message of a record's segment; else 0.
    pub offset: u32,
    /// Immediate of the message, if it has one.
    pub immediate: Option<u32>,
    /// Local STag that a received Send invalidated.
    pub invalidated: Option<u32>,
    /// Number of the local QP.
    pub qpn: u32,
    /// Sender of a received message; its port number is its QPN.
    pub source: Option<SocketAddr>,
    /// Local address that a message was received on.
    pub destination: Option<IpAddr>,
    /// Whether the message carries the solicited event mark.
    pub solicited: bool,
    /// Whether the receive's buffers begin with 40 octets for a GRH.
    pub grh: bool,
    /// Further information about an error; 0 where there is none.
    pub vendor_error: u32,
}

/// A completion of nothing, to make the arrays that `Cq::poll` fills.
impl Default for Wc {
    fn default() -> Self {
        Self::new(0, WcOpcode::Send, 0)
    }
}

impl Wc {
    /// A successful completion; every field that is not given is zero or empty.
    pub fn new(wr_id: u64, opcode: WcOpcode, qpn: u32) -> Self {
        Self {
            wr_id,
            status: WcStatus::Success,
            opcode,
            byte_len: 0,
            offset: 0,
            immediate: None,
            invalidated: None,
            qpn,
            source: None,
            destination: None,
            solicited: false,
            grh: false,
            vendor_error: 0,
        }
    }

    /// The completion with another status.
    pub fn with_status(self, status: WcStatus) -> Self {
        Self { status, ..self }
    }

    /// The record of a completion with opcode [`WcOpcode::WriteRecord`] or [`WcOpcode::WriteRecordSegment`].
    #[must_use]
    pub fn record(&self) -> RecordHandle {
        RecordHandle::from_u64(self.wr_id)
    }
}

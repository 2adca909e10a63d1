//! Work requests and work completions.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use dgiwarp_rdmap::datagram::RecordHandle;

/// Most scatter/gather elements of a work request.
pub const MAX_SGE: usize = 16;

/// A part of registered memory (`ibv_sge`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sge {
    /// Address, in the region's own address space (its `iova`).
    pub addr: u64,
    /// Octets.
    pub length: u32,
    /// The region's local key.
    pub lkey: u32,
}

/// What a send work request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Send to the receive queue of the destination.
    Send {
        /// 32 bits that come with the message.
        immediate: Option<u32>,
    },
    /// RDMA Write-Record: write to the destination's memory, which keeps a record of what arrived.
    WriteRecord {
        /// The remote key of the target region.
        rkey: u32,
        /// The target address in that region's address space.
        remote_addr: u64,
        /// 32 bits that come with the record.
        immediate: Option<u32>,
    },
    /// RDMA Read: fill the scatter/gather elements, which need local write access, from the destination's memory. Up to 2^30 octets. Reads complete
    /// in the order in which they finish, at the latest when their time is over: then in error, with the octets that came in place, counted in
    /// [`Wc::byte_len`] and listed by [`UdQp::take_read_map`](crate::UdQp::take_read_map).
    Read {
        /// The remote key of the source region.
        rkey: u32,
        /// The source address in that region's address space.
        remote_addr: u64,
        /// The time it may take; `None` takes [`Config::read_timeout`](crate::Config::read_timeout).
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

/// What a completion completes.
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
    /// A posted invalidation of an STag of ours.
    LocalInvalidate,
    /// The binding of a memory window.
    BindMw,
    /// A fast registration.
    RegisterMr,
    /// A posted receive.
    Recv,
    /// A posted receive that a Write with immediate consumed; the octets are in the region that the peer wrote to.
    RecvRdmaWithImmediate,
    /// A Write-Record that a peer made into our memory; `wr_id` is the record's handle.
    WriteRecord,
    /// A segment of one, where [`RecordCompletions::PerSegment`](crate::RecordCompletions::PerSegment) asks for it: `byte_len` octets from `offset` on are
    /// valid now. The record is open, or complete with this segment.
    WriteRecordSegment,
}

/// How a work request ended (`ibv_wc_status`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WcStatus {
    /// As asked.
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
    /// The peer refused or violated the protocol, or went away.
    RemoteOperation,
    /// The peer's memory does not allow what was asked.
    RemoteAccess,
    /// The peer could not take the request: too long for its receive, or not understood.
    RemoteInvalidRequest,
    /// The peer had no receive posted.
    RnrRetryExceeded,
    /// The connection was lost.
    RetryExceeded,
    /// A Read's time was over before all octets had come; `vendor_error` is what the network reported of the peer meanwhile (`ECONNREFUSED` where
    /// no QP has that number), or 0.
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
            Self::RnrRetryExceeded => "no receive was posted at the peer",
            Self::RetryExceeded => "the connection was lost",
            Self::ResponseTimeout => "response timeout error",
        })
    }
}

/// A work completion (`ibv_wc`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wc {
    /// That of the work request, or the handle of a record.
    pub wr_id: u64,
    /// How it ended. Unless it is `Success`, only `wr_id`, `qpn` and `vendor_error` count beside it.
    pub status: WcStatus,
    /// What it completes.
    pub opcode: WcOpcode,
    /// Octets received, without the space for a GRH; of a record, octets valid.
    pub byte_len: u32,
    /// Of a segment of a record, where its octets begin in the message; else 0.
    pub offset: u32,
    /// The immediate, if one came.
    pub immediate: Option<u32>,
    /// The STag of ours that a received Send invalidated.
    pub invalidated: Option<u32>,
    /// Our QP.
    pub qpn: u32,
    /// The sender of what was received; its port is its QPN.
    pub source: Option<SocketAddr>,
    /// The address of ours that it was sent to.
    pub destination: Option<IpAddr>,
    /// Whether the sender asked for a solicited event.
    pub solicited: bool,
    /// Whether the receive's buffers begin with 40 octets for a GRH.
    pub grh: bool,
    /// More about an error, where there is more.
    pub vendor_error: u32,
}

/// A completion of nothing, to make the arrays that [`Cq::poll`](crate::Cq::poll) fills.
impl Default for Wc {
    fn default() -> Self {
        Self::new(0, WcOpcode::Send, 0)
    }
}

impl Wc {
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

    pub fn with_status(self, status: WcStatus) -> Self {
        Self { status, ..self }
    }

    /// The record of a completion with opcode [`WcOpcode::WriteRecord`] or [`WcOpcode::WriteRecordSegment`].
    #[must_use]
    pub fn record(&self) -> RecordHandle {
        RecordHandle::from_u64(self.wr_id)
    }
}

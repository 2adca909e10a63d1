//! Work requests of a connected QP.

use dgiwarp_ddp::{STag, TaggedOffset};
use dgiwarp_rdmap::wire::AtomicOperation;
use smallvec::SmallVec;

use crate::cq_ring::CompletionSink;
use crate::mr::{Bind, BindError, MrTable, StreamId};
use crate::recv_queue::SgeList;
use crate::types::{Sge, Wc, WcOpcode, WcStatus};
use dgiwarp_memory::Access;

/// Most octets of inline data.
pub const MAX_INLINE: usize = 256;

/// Operation of a posted work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RcWork {
    /// Send, with Invalidate if an STag is given.
    Send {
        /// STag of the peer that the message invalidates.
        invalidate: Option<STag>,
    },
    /// Send with immediate, between dgiwarp peers only.
    SendImmediate {
        /// The immediate.
        immediate: u32,
    },
    /// RDMA Write, with Immediate Data behind it if given (RFC 7306 §6).
    Write {
        /// Destination at the peer.
        stag: STag,
        /// Offset in it.
        start: TaggedOffset,
        /// The immediate.
        immediate: Option<u32>,
    },
    /// RDMA Read.
    Read {
        /// Source at the peer.
        stag: STag,
        /// Offset in it.
        start: TaggedOffset,
    },
    /// Atomic operation (RFC 7306 §5).
    Atomic {
        /// Memory of the peer.
        stag: STag,
        /// Offset in it.
        start: TaggedOffset,
        /// The operation.
        operation: AtomicOperation,
    },
    /// Operation on local keys, which the peer does not see.
    Memory(MemoryWork),
}

/// Operation on local keys, carried out in posting order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryWork {
    /// Invalidates an STag.
    LocalInvalidate {
        /// The STag.
        stag: STag,
    },
    /// Binds a window.
    BindMw(Bind),
    /// Registers the memory that was given to a region for that.
    RegisterMr {
        /// The region's new remote key.
        rkey: u32,
        /// Rights of the registration.
        access: Access,
    },
}

impl MemoryWork {
    pub(crate) fn carry_out(self, mrs: &MrTable, stream: StreamId) -> Result<(), BindError> {
        match self {
            Self::LocalInvalidate { stag } => mrs
                .invalidate(stream, stag, false)
                .map_err(|_| BindError::CannotInvalidate(stag.get())),
            Self::BindMw(bind) => mrs.bind(stream, &bind),
            Self::RegisterMr { rkey, access } => mrs.register_fast(stream.pd, rkey, access),
        }
    }

    const fn opcode(self) -> WcOpcode {
        match self {
            Self::LocalInvalidate { .. } => WcOpcode::LocalInvalidate,
            Self::BindMw(_) => WcOpcode::BindMw,
            Self::RegisterMr { .. } => WcOpcode::RegisterMr,
        }
    }
}

/// Octets of inline data up to which a work request has them in itself. Longer ones are an allocation each: room for them in every work request would be copied
/// with each.
const INLINE_WITHIN: usize = 64;

/// Inline data.
pub type InlineOctets = SmallVec<[u8; INLINE_WITHIN]>;

/// The local memory of a work request.
#[derive(Debug)]
pub enum RcData {
    /// Registered.
    Sges(SgeList),
    /// Copied when it was posted, at most [`MAX_INLINE`] octets.
    Inline(InlineOctets),
}

impl RcData {
    /// Memory for a response.
    pub(crate) fn sink(&self) -> &[Sge] {
        match self {
            Self::Sges(sges) => sges,
            Self::Inline(_) => &[],
        }
    }
}

/// A posted work request.
#[derive(Debug)]
pub struct RcSendWqe {
    /// Returned in the completion.
    pub wr_id: u64,
    /// The operation.
    pub work: RcWork,
    /// Its local memory.
    pub data: RcData,
    /// Octets of that memory.
    pub length: u32,
    /// Whether it completes with a completion if it succeeds.
    pub signaled: bool,
    /// Whether the message carries the solicited event mark.
    pub solicited: bool,
    /// Whether it waits for the Reads and atomics before it.
    pub fence: bool,
    /// Number of the peer's shared receive queue, where the QP is an XRC initiator.
    pub remote_srqn: u32,
}

impl RcSendWqe {
    /// Completes the work request.
    pub fn complete(&self, qpn: u32, status: WcStatus, completions: &mut impl CompletionSink) {
        let wc = Wc {
            status,
            byte_len: self.length,
            ..Wc::new(self.wr_id, self.opcode(), qpn)
        };
        complete_send(wc, self.signaled, completions);
    }

    fn opcode(&self) -> WcOpcode {
        match self.work {
            RcWork::Send { .. } | RcWork::SendImmediate { .. } => WcOpcode::Send,
            RcWork::Write { .. } => WcOpcode::RdmaWrite,
            RcWork::Read { .. } => WcOpcode::RdmaRead,
            RcWork::Atomic {
                operation: AtomicOperation::FetchAdd { .. },
                ..
            } => WcOpcode::FetchAdd,
            RcWork::Atomic {
                operation: AtomicOperation::CompareSwap { .. },
                ..
            } => WcOpcode::CompareSwap,
            RcWork::Memory(work) => work.opcode(),
        }
    }
}

/// Completes a work request with `wc`, if it is `signaled` or fails.
#[inline]
pub(super) fn complete_send(wc: Wc, signaled: bool, completions: &mut impl CompletionSink) {
    // First: the program may post into the free place as soon as it has the completion.
    completions.retired();
    if signaled || wc.status != WcStatus::Success {
        completions.sent(wc);
    }
}

/// Mark of a work request in the send queue.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Extent {
    /// Octets of FPDUs up to and with its last one, counted from the beginning of the connection.
    pub(super) octets: u64,
    /// Sends and Writes that left up to and with it, as the stream counts them.
    pub(super) messages: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::AsyncEvent;

    /// Calls in order.
    #[derive(Debug, Default)]
    struct Calls(Vec<&'static str>);

    impl CompletionSink for Calls {
        fn sent(&mut self, _: Wc) {
            self.0.push("sent");
        }
        fn received(&mut self, _: Wc) {}
        fn segment(&mut self, _: Wc) -> bool {
            false
        }
        fn retired(&mut self) {
            self.0.push("retired");
        }
        fn event(&mut self, _: AsyncEvent) {}
    }

    #[test]
    fn the_place_is_free_before_the_completion_can_be_seen() {
        let wqe = RcSendWqe {
            wr_id: 1,
            work: RcWork::Send { invalidate: None },
            data: RcData::Sges(SgeList::new()),
            length: 0,
            signaled: true,
            solicited: false,
            fence: false,
            remote_srqn: 0,
        };
        let mut calls = Calls::default();
        wqe.complete(1, WcStatus::Success, &mut calls);
        assert_eq!(calls.0, ["retired", "sent"]);
    }
}

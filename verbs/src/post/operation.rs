//! Work requests of C as operations of the stack: the one translation, for `ibv_post_send` and the extended calls.

use crate::abi::{
    IBV_SEND_FENCE, IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_SEND_SOLICITED,
    IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_BIND_MW, IBV_WR_LOCAL_INV,
    IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV, ibv_send_wr,
};
use crate::mem::mw;
use dgiwarp::{
    AtomicOperation, Destination, Operation, PostError, RcOperation, RcSendWr, RdSendWr, SendWr,
    Sge, UcOperation, UcSendWr,
};
use nix::errno::Errno;
use std::ffi::c_uint;
use std::time::Duration;

/// Flags that a work request may have.
const FLAGS: c_uint = IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE;

/// A work request of any queue pair, without its payload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkRequest {
    wr_id: u64,
    /// `IBV_SEND_…`, a subset of [`FLAGS`].
    flags: c_uint,
    /// On datagrams, a Write is a Write-Record.
    pub(crate) operation: RcOperation,
    /// A Write of a UC queue pair is a Write-Record.
    pub(crate) record: bool,
    /// Longest time of a Read of datagrams.
    pub(crate) timeout: Option<Duration>,
    /// Number of the peer's shared receive queue; of XRC initiators.
    pub(crate) remote_srqn: u32,
}

impl WorkRequest {
    /// Unknown flags are `EINVAL`. `signal_all` is the queue pair's `sq_sig_all`.
    #[inline]
    pub(crate) fn new(
        operation: RcOperation,
        wr_id: u64,
        flags: c_uint,
        signal_all: bool,
    ) -> Result<Self, Errno> {
        if flags & !FLAGS != 0 {
            return Err(Errno::EINVAL);
        }
        Ok(Self {
            wr_id,
            flags: if signal_all {
                flags | IBV_SEND_SIGNALED
            } else {
                flags
            },
            operation,
            record: false,
            timeout: None,
            remote_srqn: 0,
        })
    }

    /// The work request of an XRC initiator for a shared receive queue of the peer.
    #[inline]
    pub(crate) fn to_srq(self, remote_srqn: u32) -> Self {
        Self {
            remote_srqn,
            ..self
        }
    }

    fn has(&self, flag: c_uint) -> bool {
        self.flags & flag != 0
    }

    /// For a reliable connected queue pair.
    #[inline]
    pub(crate) fn rc<'a>(&self, sges: &'a [Sge], inline: &'a [u8]) -> RcSendWr<'a> {
        RcSendWr {
            wr_id: self.wr_id,
            operation: self.operation,
            sges,
            inline,
            signaled: self.has(IBV_SEND_SIGNALED),
            solicited: self.has(IBV_SEND_SOLICITED),
            fence: self.has(IBV_SEND_FENCE),
            remote_srqn: self.remote_srqn,
        }
    }

    /// For a reliable datagram queue pair.
    #[inline]
    pub(crate) fn rd<'a>(
        &self,
        destination: Destination,
        sges: &'a [Sge],
        inline: &'a [u8],
    ) -> RdSendWr<'a> {
        RdSendWr {
            destination,
            wr: self.rc(sges, inline),
        }
    }

    /// For an unreliable connected queue pair.
    #[inline]
    pub(crate) fn uc<'a>(&self, sges: &'a [Sge]) -> Result<UcSendWr<'a>, PostError> {
        let operation = match self.operation {
            RcOperation::Send { invalidate: None } => UcOperation::Send { immediate: None },
            RcOperation::SendImmediate { immediate } => UcOperation::Send {
                immediate: Some(immediate),
            },
            RcOperation::Write {
                rkey,
                remote_addr,
                immediate,
            } if self.record => UcOperation::WriteRecord {
                rkey,
                remote_addr,
                immediate,
            },
            RcOperation::Write {
                rkey,
                remote_addr,
                immediate,
            } => UcOperation::Write {
                rkey,
                remote_addr,
                immediate,
            },
            RcOperation::Send { .. }
            | RcOperation::Read { .. }
            | RcOperation::Atomic { .. }
            | RcOperation::LocalInvalidate { .. }
            | RcOperation::BindMw { .. }
            | RcOperation::RegisterMr { .. } => return Err(PostError::Malformed),
        };
        Ok(UcSendWr {
            wr_id: self.wr_id,
            operation,
            sges,
            signaled: self.has(IBV_SEND_SIGNALED),
            solicited: self.has(IBV_SEND_SOLICITED),
        })
    }

    /// The operation for a datagram queue pair.
    #[inline]
    pub(crate) fn ud_operation(&self) -> Result<Operation, PostError> {
        Ok(match self.operation {
            RcOperation::Send { invalidate: None } => Operation::Send { immediate: None },
            RcOperation::SendImmediate { immediate } => Operation::Send {
                immediate: Some(immediate),
            },
            RcOperation::Write {
                rkey,
                remote_addr,
                immediate,
            } => Operation::WriteRecord {
                rkey,
                remote_addr,
                immediate,
            },
            RcOperation::Read { rkey, remote_addr } => Operation::Read {
                rkey,
                remote_addr,
                timeout: self.timeout,
            },
            RcOperation::Send { .. }
            | RcOperation::Atomic { .. }
            | RcOperation::LocalInvalidate { .. }
            | RcOperation::BindMw { .. }
            | RcOperation::RegisterMr { .. } => return Err(PostError::Malformed),
        })
    }

    /// For a datagram queue pair, with its [`ud_operation`](Self::ud_operation).
    #[inline]
    pub(crate) fn ud<'a>(
        &self,
        operation: Operation,
        destination: Destination,
        sges: &'a [Sge],
    ) -> SendWr<'a> {
        SendWr {
            wr_id: self.wr_id,
            operation,
            destination,
            sges,
            signaled: self.has(IBV_SEND_SIGNALED),
            solicited: self.has(IBV_SEND_SOLICITED),
        }
    }
}

/// A Send with an immediate in network order, as programs write it.
pub(crate) fn send_immediate(immediate: u32) -> RcOperation {
    RcOperation::SendImmediate {
        immediate: u32::from_be(immediate),
    }
}

/// A Write, with an immediate in network order if there is one.
pub(crate) fn write(rkey: u32, remote_addr: u64, immediate: Option<u32>) -> RcOperation {
    RcOperation::Write {
        rkey,
        remote_addr,
        immediate: immediate.map(u32::from_be),
    }
}

pub(crate) fn compare_swap(rkey: u32, remote_addr: u64, compare: u64, swap: u64) -> RcOperation {
    RcOperation::Atomic {
        rkey,
        remote_addr,
        operation: AtomicOperation::CompareSwap {
            compare,
            compare_mask: u64::MAX,
            swap,
            swap_mask: u64::MAX,
        },
    }
}

pub(crate) fn fetch_add(rkey: u32, remote_addr: u64, add: u64) -> RcOperation {
    RcOperation::Atomic {
        rkey,
        remote_addr,
        operation: AtomicOperation::FetchAdd { add, mask: 0 },
    }
}

/// The operation of a plain Send, which every queue pair has. Other opcodes are `EINVAL`.
#[inline]
pub(crate) fn send(wr: &ibv_send_wr) -> Result<RcOperation, Errno> {
    match wr.opcode {
        IBV_WR_SEND => Ok(RcOperation::Send { invalidate: None }),
        IBV_WR_SEND_WITH_IMM => Ok(send_immediate(wr.imm_data)),
        _ => Err(Errno::EINVAL),
    }
}

/// The operation of a Send with or without invalidation, which reliable datagram queue pairs have. Other opcodes are `EINVAL`.
#[inline]
pub(crate) fn reliable_send(wr: &ibv_send_wr) -> Result<RcOperation, Errno> {
    match wr.opcode {
        // The STag shares the immediate's field, in the machine's byte order.
        IBV_WR_SEND_WITH_INV => Ok(RcOperation::Send {
            invalidate: Some(wr.imm_data),
        }),
        _ => send(wr),
    }
}

/// The operation of a work request that is not one of a datagram queue pair's Writes or Reads.
#[inline]
pub(crate) fn operation(wr: &ibv_send_wr) -> Result<RcOperation, Errno> {
    // SAFETY: all members are plain data; an opcode that fills another member does not use this one.
    let rdma = unsafe { wr.wr.rdma };
    // SAFETY: as above.
    let atomic = unsafe { wr.wr.atomic };
    let (rkey, remote_addr) = (rdma.rkey, rdma.remote_addr);
    match wr.opcode {
        IBV_WR_RDMA_WRITE => Ok(write(rkey, remote_addr, None)),
        IBV_WR_RDMA_WRITE_WITH_IMM => Ok(write(rkey, remote_addr, Some(wr.imm_data))),
        IBV_WR_RDMA_READ => Ok(RcOperation::Read { rkey, remote_addr }),
        IBV_WR_ATOMIC_FETCH_AND_ADD => Ok(fetch_add(
            atomic.rkey,
            atomic.remote_addr,
            atomic.compare_add,
        )),
        IBV_WR_ATOMIC_CMP_AND_SWP => Ok(compare_swap(
            atomic.rkey,
            atomic.remote_addr,
            atomic.compare_add,
            atomic.swap,
        )),
        IBV_WR_BIND_MW => {
            // SAFETY: bindings fill this member, with a live window and region.
            unsafe {
                mw::binding(
                    wr.bind_mw.mw,
                    wr.bind_mw.rkey,
                    &raw const wr.bind_mw.bind_info,
                )
            }
        }
        IBV_WR_LOCAL_INV => Ok(RcOperation::LocalInvalidate { rkey: wr.imm_data }),
        _ => reliable_send(wr),
    }
}

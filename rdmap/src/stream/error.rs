//! What ends a stream.

use dgiwarp_ddp::error::{TaggedError, UntaggedError};

use crate::wire::Opcode;
use crate::wire::control::ControlError;

/// The triplet with which a peer ended the stream (RFC 5040 §4.8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminateCause {
    /// 0 RDMA, 1 DDP, 2 LLP.
    pub layer: u8,
    /// Error type; its meaning depends on the layer.
    pub error_type: u8,
    /// Error code; its meaning depends on layer and type.
    pub code: u8,
}

/// Why a stream cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// A ULPDU is shorter than its headers.
    #[error("a ULPDU of {0} octets is shorter than its headers")]
    Truncated(usize),
    /// The RDMAP control octet means nothing (RFC 5040 §4.8, remote operation errors 0x05 and 0x06).
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The operation does not belong into this DDP header, is not asked for, or is not done here.
    #[error("unexpected {0:?}")]
    UnexpectedOpcode(Opcode),
    /// A tagged segment violates a row of RFC 5041 §7.2.
    #[error("tagged segment: {0}")]
    Tagged(#[from] TaggedError),
    /// An untagged segment violates a row of RFC 5041 §7.2.
    #[error("untagged segment: {0}")]
    Untagged(#[from] UntaggedError),
    /// A posted receive names memory that is not there: our own program's fault.
    #[error("a posted receive names memory that is not registered")]
    LocalProtection,
    /// The peer sent a Terminate.
    #[error("the peer terminated: layer {}, type {}, code {:#04x}", .0.layer, .0.error_type, .0.code)]
    Terminated(TerminateCause),
}

//! Errors that end a stream, and their Terminate codes.

use dgiwarp_ddp::error::{TaggedError, UntaggedError};
use dgiwarp_ddp::{STag, TaggedOffset};

use crate::wire::control::ControlError;
use crate::wire::{Cause, Opcode};

/// Error that ends a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// A ULPDU is shorter than the DDP header that it begins with.
    #[error("a ULPDU of {0} octets is shorter than its headers")]
    Truncated(usize),
    /// The RDMAP control octet is invalid.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The opcode is not one of this buffer model or of this queue.
    #[error("unexpected {0:?}")]
    UnexpectedOpcode(Opcode),
    /// The length of a message is not that of its kind, or of its request.
    #[error("{opcode:?} of {length} octets")]
    Length {
        /// Kind of the message.
        opcode: Opcode,
        /// Octets behind the DDP header.
        length: u32,
    },
    /// A dgiwarp peer's Immediate Data reports another length than that of the Write before it.
    #[error("immediate of a Write of {reported} octets behind {placed} octets")]
    Written {
        /// Octets that the peer reports.
        reported: u32,
        /// Octets of the Write before it; zero where none is.
        placed: u32,
    },
    /// A tagged segment violates a row of RFC 5041 §7.2.
    #[error("tagged segment: {0}")]
    Tagged(#[from] TaggedError),
    /// An untagged segment violates a row of RFC 5041 §7.2.
    #[error("untagged segment: {0}")]
    Untagged(#[from] UntaggedError),
    /// The buffer of a Read Request or an atomic request violates a row (RFC 5040 §7.2).
    #[error("requested buffer: {0}")]
    Source(TaggedError),
    /// The STag of a Send with Invalidate is not one of this stream (RFC 5040 §5.3).
    #[error("{0} cannot be invalidated")]
    CannotInvalidate(STag),
    /// The buffer of an atomic request is not aligned (RFC 7306 §8.2).
    #[error("atomic operation at {0}, which is not a multiple of 8")]
    Misaligned(TaggedOffset),
    /// The code of an atomic request is unknown (RFC 7306 §5.2.1).
    #[error("atomic operation code {0:#x}")]
    AtomicCode(u8),
    /// An Atomic Response with another identifier than the request's (RFC 7306 §5.2.2).
    #[error("an atomic response for {found:#x} instead of {expected:#x}")]
    AtomicIdentifier {
        /// Identifier in the response.
        found: u32,
        /// Identifier of the oldest request.
        expected: u32,
    },
    /// The memory of an own work request is not registered.
    #[error("a work request names memory that is not registered")]
    LocalProtection,
    /// The lower layer failed but can still send; the number is its error code.
    #[error("the lower layer failed with code {0}")]
    Llp(u8),
    /// The peer sent a Terminate.
    #[error("the peer terminated: {0}")]
    Terminated(Cause),
}

impl StreamError {
    /// Row of RFC 5040 §4.8 figure 9, of RFC 5041 §7.2, or of the lower layer for a Terminate. `None` for a Terminate of the peer, which
    /// is not answered.
    #[must_use]
    pub const fn cause(self) -> Option<Cause> {
        Some(match self {
            // No row is about lengths: unspecified error.
            Self::Truncated(_)
            | Self::Length { .. }
            | Self::Written { .. }
            | Self::AtomicIdentifier { .. } => Cause::UNSPECIFIED_OPERATION,
            Self::Control(ControlError::Version(_)) => Cause::VERSION,
            Self::Control(ControlError::Opcode(_))
            | Self::UnexpectedOpcode(_)
            | Self::AtomicCode(_) => Cause::UNEXPECTED_OPCODE,
            Self::Tagged(error) => tagged(error),
            Self::Untagged(error) => untagged(error),
            Self::Source(error) => source(error),
            Self::CannotInvalidate(_) => Cause::CANNOT_INVALIDATE,
            // RFC 7306 §8.2 names this row.
            Self::Misaligned(_) => Cause::CATASTROPHIC_STREAM,
            Self::LocalProtection => Cause::LOCAL,
            Self::Llp(code) => Cause {
                layer: 2,
                error_type: 0,
                code,
            },
            Self::Terminated(_) => return None,
        })
    }
}

const fn ddp(error_type: u8, code: u8) -> Cause {
    Cause {
        layer: 1,
        error_type,
        code,
    }
}

/// RFC 5041 §7.2, type 1. DDP has no row for rights; RDMAP has.
const fn tagged(error: TaggedError) -> Cause {
    match error.code() {
        Some(code) => ddp(1, code),
        None => Cause::ACCESS,
    }
}

/// RFC 5041 §7.2, type 2.
const fn untagged(error: UntaggedError) -> Cause {
    ddp(2, error.code())
}

/// RFC 5040 §4.8, remote protection errors: RDMAP checks the buffer of a request.
const fn source(error: TaggedError) -> Cause {
    match error {
        TaggedError::InvalidStag => Cause::INVALID_STAG,
        TaggedError::BaseOrBounds => Cause::BASE_OR_BOUNDS,
        TaggedError::Access => Cause::ACCESS,
        TaggedError::NotAssociated => Cause::NOT_ASSOCIATED,
        TaggedError::Wrap => Cause::WRAP,
        TaggedError::Version => ddp(1, 0x04),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 5040 §4.8 figure 9 and RFC 5041 §7.2, row by row.
    #[test]
    fn every_error_has_its_row() {
        let opcode = Opcode::Immediate;
        let rows = [
            (StreamError::LocalProtection, (0, 0, 0x00)),
            (StreamError::Source(TaggedError::InvalidStag), (0, 1, 0x00)),
            (StreamError::Source(TaggedError::BaseOrBounds), (0, 1, 0x01)),
            (StreamError::Source(TaggedError::Access), (0, 1, 0x02)),
            (StreamError::Tagged(TaggedError::Access), (0, 1, 0x02)),
            (
                StreamError::Source(TaggedError::NotAssociated),
                (0, 1, 0x03),
            ),
            (StreamError::Source(TaggedError::Wrap), (0, 1, 0x04)),
            (StreamError::CannotInvalidate(STag::new(1)), (0, 1, 0x09)),
            (StreamError::Control(ControlError::Version(2)), (0, 2, 0x05)),
            (StreamError::Control(ControlError::Opcode(15)), (0, 2, 0x06)),
            (StreamError::UnexpectedOpcode(opcode), (0, 2, 0x06)),
            (StreamError::AtomicCode(1), (0, 2, 0x06)),
            (StreamError::Misaligned(TaggedOffset::new(4)), (0, 2, 0x07)),
            (StreamError::Truncated(3), (0, 2, 0xff)),
            (StreamError::Length { opcode, length: 7 }, (0, 2, 0xff)),
            (
                StreamError::Written {
                    reported: 8,
                    placed: 7,
                },
                (0, 2, 0xff),
            ),
            (
                StreamError::AtomicIdentifier {
                    found: 1,
                    expected: 2,
                },
                (0, 2, 0xff),
            ),
            (StreamError::Tagged(TaggedError::InvalidStag), (1, 1, 0x00)),
            (StreamError::Tagged(TaggedError::BaseOrBounds), (1, 1, 0x01)),
            (
                StreamError::Tagged(TaggedError::NotAssociated),
                (1, 1, 0x02),
            ),
            (StreamError::Tagged(TaggedError::Wrap), (1, 1, 0x03)),
            (StreamError::Tagged(TaggedError::Version), (1, 1, 0x04)),
            (
                StreamError::Untagged(UntaggedError::InvalidQueue),
                (1, 2, 0x01),
            ),
            (StreamError::Untagged(UntaggedError::NoBuffer), (1, 2, 0x02)),
            (StreamError::Untagged(UntaggedError::MsnRange), (1, 2, 0x03)),
            (
                StreamError::Untagged(UntaggedError::InvalidOffset),
                (1, 2, 0x04),
            ),
            (StreamError::Untagged(UntaggedError::TooLong), (1, 2, 0x05)),
            (StreamError::Untagged(UntaggedError::Version), (1, 2, 0x06)),
            (StreamError::Llp(2), (2, 0, 0x02)),
        ];
        for (error, row) in rows {
            let cause = error.cause().unwrap();
            assert_eq!((cause.layer, cause.error_type, cause.code), row, "{error}");
        }
        assert_eq!(StreamError::Terminated(Cause::LOCAL).cause(), None);
    }
}

//! Errors of a peer: the rows of RFC 5041 §7.2.

/// Errors of tagged segments (RFC 5041 §7.2, Tagged Buffer Errors).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TaggedError {
    /// 0x00: the STag names no buffer.
    #[error("invalid STag")]
    InvalidStag,
    /// 0x01: the octets are not all inside the buffer.
    #[error("base or bounds violation")]
    BaseOrBounds,
    /// 0x02: the STag belongs to another stream or protection domain.
    #[error("STag not associated with the DDP stream")]
    NotAssociated,
    /// 0x03: the tagged offset wraps.
    #[error("tagged offset wraps")]
    Wrap,
    /// 0x04: the DDP version is not 1.
    #[error("invalid DDP version")]
    Version,
    /// The buffer does not give the right that the operation needs. DDP has no row for it; RDMAP reports an
    /// access rights violation (RFC 5040 §4.8).
    #[error("access rights violation")]
    Access,
}

/// Errors of untagged segments (RFC 5041 §7.2, Untagged Buffer Errors).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UntaggedError {
    /// 0x01: no queue of the ULP has this number.
    #[error("invalid queue number")]
    InvalidQueue,
    /// 0x02: the message needs a buffer and none is posted.
    #[error("no buffer available for the message")]
    NoBuffer,
    /// 0x03: no message with this MSN may arrive now.
    #[error("MSN outside the valid range")]
    MsnRange,
    /// 0x04: the message offset is not the one expected.
    #[error("invalid message offset")]
    InvalidOffset,
    /// 0x05: the message is longer than its buffer.
    #[error("message too long for its buffer")]
    TooLong,
    /// 0x06: the DDP version is not 1.
    #[error("invalid DDP version")]
    Version,
}

impl TaggedError {
    /// Error code of the row, of error type 0x1; `None` for the row of RDMAP's.
    #[must_use]
    pub const fn code(self) -> Option<u8> {
        match self {
            Self::InvalidStag => Some(0x00),
            Self::BaseOrBounds => Some(0x01),
            Self::NotAssociated => Some(0x02),
            Self::Wrap => Some(0x03),
            Self::Version => Some(0x04),
            Self::Access => None,
        }
    }
}

impl UntaggedError {
    /// Error code of the row, of error type 0x2.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::InvalidQueue => 0x01,
            Self::NoBuffer => 0x02,
            Self::MsnRange => 0x03,
            Self::InvalidOffset => 0x04,
            Self::TooLong => 0x05,
            Self::Version => 0x06,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 5041 §7.2, row by row.
    #[test]
    fn every_row_has_its_code() {
        for (error, code) in [
            (TaggedError::InvalidStag, Some(0)),
            (TaggedError::BaseOrBounds, Some(1)),
            (TaggedError::NotAssociated, Some(2)),
            (TaggedError::Wrap, Some(3)),
            (TaggedError::Version, Some(4)),
            (TaggedError::Access, None),
        ] {
            assert_eq!(error.code(), code, "{error}");
        }
        for (error, code) in [
            (UntaggedError::InvalidQueue, 1),
            (UntaggedError::NoBuffer, 2),
            (UntaggedError::MsnRange, 3),
            (UntaggedError::InvalidOffset, 4),
            (UntaggedError::TooLong, 5),
            (UntaggedError::Version, 6),
        ] {
            assert_eq!(error.code(), code, "{error}");
        }
    }
}

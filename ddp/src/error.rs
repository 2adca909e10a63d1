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

//! Formats of `rfc-notes/ripc.md`: octets to values and back, one file per format.

pub(crate) mod hello;
pub(crate) mod message;
pub(crate) mod metadata;
pub(crate) mod resolve;
pub(crate) mod token;

#[cfg(test)]
pub(crate) mod examples;

use dgiwarp_codec::Truncated;

/// Version of the protocol.
pub(crate) const VERSION: u16 = 1;

/// Octets that are not of the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FormatError {
    /// They end too early.
    #[error(transparent)]
    Truncated(#[from] Truncated),
    /// They do not begin with the protocol's mark.
    #[error("{0:#010x} is not the mark of the protocol")]
    Mark(u32),
    /// Another version.
    #[error("version {0}")]
    Version(u16),
    /// A kind of message or item that there is not.
    #[error("kind {0}")]
    Kind(u8),
    /// A count or length over its limit.
    #[error("{what} of {value}, limit {limit}")]
    Limit {
        /// Name of the field.
        what: &'static str,
        /// Its value.
        value: u64,
        /// Highest value.
        limit: u64,
    },
    /// A field that must not be zero.
    #[error("{0} is zero")]
    Zero(&'static str),
    /// Octets behind the end.
    #[error("{0} octets too many")]
    Trailing(usize),
    /// A text that is not UTF-8.
    #[error("a name is not UTF-8")]
    Utf8,
}

/// Fails where `value` is over its limit.
pub(crate) fn check(what: &'static str, value: u64, limit: u64) -> Result<(), FormatError> {
    if value > limit {
        return Err(FormatError::Limit { what, value, limit });
    }
    Ok(())
}

/// Number of 16 bits at octet `at` of a header.
pub(crate) fn u16_at<const AT: usize, const LEN: usize>(header: &[u8; LEN]) -> u16 {
    const { assert!(AT + 2 <= LEN, "a field is inside its header") };
    u16::from_be_bytes([header[AT], header[AT + 1]])
}

/// The first `count` octets and the rest.
pub(crate) fn split(bytes: &[u8], count: usize) -> Result<(&[u8], &[u8]), FormatError> {
    bytes.split_at_checked(count).ok_or_else(|| {
        let available = bytes.len();
        Truncated {
            needed: count,
            available,
        }
        .into()
    })
}

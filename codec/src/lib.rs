//! Byte-level building blocks that every protocol crate of dgiwarp shares.
//!
//! This crate knows no protocol. It holds
//! - [`split_header`], the one way headers are cut off received bytes without an index that could panic;
//! - [`crc`], the CRC32c that RFC 5044 §4.4 uses, with its order of bytes on the wire;
//! - [`Payload`], through which a lower layer reads and checksums payload that it does not own, and [`PayloadSlice`], a range of one.
//!
//! ```
//! use dgiwarp_codec::{crc, split_header};
//!
//! let (header, rest) = split_header::<2>(&[0x41, 0x43, 7]).unwrap();
//! assert_eq!(header, &[0x41, 0x43]);
//! assert_eq!(rest, &[7]);
//! assert_eq!(crc::crc32c(b"123456789"), 0xE306_9283);
//! ```

#![forbid(unsafe_code)]

pub mod crc;
mod payload;
mod payload_slice;

pub use payload::Payload;
pub use payload_slice::{Head, PayloadSlice};

/// Received octets end before the header that they should hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{available} octets where a header of {needed} was expected")]
pub struct Truncated {
    /// Length of the expected header in octets.
    pub needed: usize,
    /// Octets received.
    pub available: usize,
}

/// Splits a header of `LEN` bytes off the front of `bytes` and returns it with the rest.
///
/// # Errors
/// [`Truncated`] if `bytes` holds fewer than `LEN` bytes.
pub fn split_header<const LEN: usize>(bytes: &[u8]) -> Result<(&[u8; LEN], &[u8]), Truncated> {
    bytes.split_first_chunk::<LEN>().ok_or(Truncated {
        needed: LEN,
        available: bytes.len(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_header_names_both_lengths() {
        assert_eq!(
            split_header::<4>(&[1, 2]),
            Err(Truncated {
                needed: 4,
                available: 2
            })
        );
    }

    #[test]
    fn an_exact_header_leaves_nothing() {
        assert_eq!(split_header::<2>(&[1, 2]), Ok((&[1, 2], &[][..])));
    }
}

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

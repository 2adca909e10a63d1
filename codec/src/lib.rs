//! Byte-level building blocks that every protocol crate of dgiwarp shares.
//!
//! This crate is free of protocols. It holds
//! - [`split_header`], the one way headers are cut off received bytes without an index that could panic, and [`u32_at`] and [`u64_at`], which read the
//!   numbers of one;
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
pub use payload_slice::PayloadSlice;

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

/// The octets of the field that begins at octet `AT` of a header. One that is not inside the header does not compile.
#[inline(always)]
fn field<const AT: usize, const N: usize, const LEN: usize>(header: &[u8; LEN]) -> [u8; N] {
    const { assert!(AT + N <= LEN, "a field is inside its header") };
    let field = header.get(AT..).and_then(<[u8]>::first_chunk);
    *field.expect("it is inside the header")
}

/// The number of 32 bits at octet `AT` of a header, most significant octet first. One that is not inside the header does not compile.
#[must_use]
#[inline(always)]
pub fn u32_at<const AT: usize, const LEN: usize>(header: &[u8; LEN]) -> u32 {
    u32::from_be_bytes(field::<AT, 4, LEN>(header))
}

/// The number of 64 bits at octet `AT` of a header, most significant octet first. One that is not inside the header does not compile.
#[must_use]
#[inline(always)]
pub fn u64_at<const AT: usize, const LEN: usize>(header: &[u8; LEN]) -> u64 {
    u64::from_be_bytes(field::<AT, 8, LEN>(header))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_header() {
        let header = [1, 2, 3, 4, 5, 6, 7, 8, 9];
        assert_eq!(u32_at::<0, 9>(&header), 0x0102_0304);
        assert_eq!(u32_at::<5, 9>(&header), 0x0607_0809);
        assert_eq!(u64_at::<1, 9>(&header), 0x0203_0405_0607_0809);
    }

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

//! The CRC32c that ends every datagram (§1).

use dgiwarp_codec::crc;

/// Octets that the CRC takes.
pub const LEN: usize = crc::LEN;

/// A datagram is not intact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DigestError {
    /// No room for a CRC.
    #[error("a datagram of {0} octets has no room for a CRC")]
    TooShort(usize),
    /// The CRC is another.
    #[error("the CRC is {found:#010x} where {computed:#010x} was computed")]
    Mismatch {
        /// What the datagram carries.
        found: u32,
        /// What its octets give.
        computed: u32,
    },
}

/// Checks the CRC and returns what it covers: the segment.
///
/// # Errors
/// [`DigestError`]; then nothing of the datagram may be used.
#[inline]
pub fn check(datagram: &[u8]) -> Result<&[u8], DigestError> {
    let (segment, &trailer) = datagram
        .split_last_chunk::<LEN>()
        .ok_or(DigestError::TooShort(datagram.len()))?;
    let found = crc::from_wire(trailer);
    let computed = crc::crc32c(segment);
    if found == computed {
        Ok(segment)
    } else {
        Err(DigestError::Mismatch { found, computed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn too_short_is_named() {
        assert_eq!(check(&[1, 2, 3]), Err(DigestError::TooShort(3)));
        assert_eq!(check(&[0; 4]), Ok(&[][..]));
    }

    proptest! {
        /// A CRC finds every error burst of up to 32 bits, so every flipped octet.
        #[test]
        fn a_changed_octet_is_found(segment: Vec<u8>, at: prop::sample::Index, change in 1u8..) {
            let mut datagram = segment.clone();
            datagram.extend_from_slice(&crc::to_wire(crc::crc32c(&segment)));
            prop_assert_eq!(check(&datagram), Ok(&segment[..]));
            let position = at.index(datagram.len());
            datagram[position] ^= change;
            let changed = matches!(check(&datagram), Err(DigestError::Mismatch { .. }));
            prop_assert!(changed);
        }
    }
}

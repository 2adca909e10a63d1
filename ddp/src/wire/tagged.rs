//! The tagged header (RFC 5041 §4.2): 14 octets.
//!
//! ```text
//! octet 0 control | 1 RsvdULP | 2..6 STag | 6..14 TO
//! ```

use dgiwarp_codec::{Truncated, split_header};

use super::Control;
use crate::{STag, TaggedOffset};

/// Length in octets.
pub const LEN: usize = 14;

/// A tagged header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaggedHeader {
    /// First octet; T is set.
    pub control: Control,
    /// RsvdULP: the control octet of RDMAP.
    pub rsvd_ulp: u8,
    /// Names the tagged buffer.
    pub stag: STag,
    /// TO of the segment's first octet.
    pub tagged_offset: TaggedOffset,
}

impl TaggedHeader {
    /// Parses a header whose first octet has T set and returns it with the octets behind it.
    ///
    /// # Errors
    /// [`Truncated`] for fewer than 14 octets.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Truncated> {
        let (&[c, u, s0, s1, s2, s3, t0, t1, t2, t3, t4, t5, t6, t7], rest) =
            split_header::<LEN>(bytes)?;
        let header = Self {
            control: Control::parse(c),
            rsvd_ulp: u,
            stag: STag::new(u32::from_be_bytes([s0, s1, s2, s3])),
            tagged_offset: TaggedOffset::new(u64::from_be_bytes([t0, t1, t2, t3, t4, t5, t6, t7])),
        };
        Ok((header, rest))
    }

    /// Octets of the header.
    #[must_use]
    #[inline]
    pub fn emit(&self) -> [u8; LEN] {
        let [s0, s1, s2, s3] = self.stag.get().to_be_bytes();
        let [t0, t1, t2, t3, t4, t5, t6, t7] = self.tagged_offset.get().to_be_bytes();
        let c = self.control.emit();
        let u = self.rsvd_ulp;
        [c, u, s0, s1, s2, s3, t0, t1, t2, t3, t4, t5, t6, t7]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_short_header_is_named() {
        assert!(TaggedHeader::parse(&[0xc1; LEN - 1]).is_err());
    }

    proptest! {
        #[test]
        fn parse_and_emit_are_inverse(bytes: [u8; LEN], rest: Vec<u8>) {
            let all = [&bytes[..], &rest].concat();
            let (header, tail) = TaggedHeader::parse(&all).unwrap();
            prop_assert_eq!(header.emit(), bytes);
            prop_assert_eq!(tail, &rest[..]);
        }
    }
}

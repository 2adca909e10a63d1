//! The untagged header (RFC 5041 §4.3): 18 octets.
//!
//! ```text
//! octet 0 control | 1..6 RsvdULP | 6..10 QN | 10..14 MSN | 14..18 MO
//! ```

use std::ops::Range;

use dgiwarp_codec::{Truncated, split_header};

use super::Control;
use crate::{MessageOffset, Msn, QueueNumber};

/// Length in octets.
pub const LEN: usize = 18;
/// Octets of QN, MSN and MO.
pub const PLACE: Range<usize> = 6..LEN;

/// An untagged header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UntaggedHeader {
    /// First octet; T is clear.
    pub control: Control,
    /// First octet of RsvdULP: the control octet of RDMAP.
    pub rsvd_ulp: u8,
    /// Other four octets of RsvdULP: RDMAP's Invalidate STag, or the Q_Key on datagrams.
    pub rsvd_ulp_word: u32,
    /// QN.
    pub queue_number: QueueNumber,
    /// MSN of the message in its queue.
    pub msn: Msn,
    /// MO of the segment's first octet.
    pub message_offset: MessageOffset,
}

impl UntaggedHeader {
    /// Parses a header whose first octet has T clear and returns it with the octets behind it.
    ///
    /// # Errors
    /// [`Truncated`] for fewer than 18 octets.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Truncated> {
        let (
            &[
                c,
                u,
                w0,
                w1,
                w2,
                w3,
                q0,
                q1,
                q2,
                q3,
                n0,
                n1,
                n2,
                n3,
                o0,
                o1,
                o2,
                o3,
            ],
            rest,
        ) = split_header::<LEN>(bytes)?;
        let header = Self {
            control: Control::parse(c),
            rsvd_ulp: u,
            rsvd_ulp_word: u32::from_be_bytes([w0, w1, w2, w3]),
            queue_number: QueueNumber::new(u32::from_be_bytes([q0, q1, q2, q3])),
            msn: Msn::new(u32::from_be_bytes([n0, n1, n2, n3])),
            message_offset: MessageOffset::new(u32::from_be_bytes([o0, o1, o2, o3])),
        };
        Ok((header, rest))
    }

    /// Octets of the header.
    #[must_use]
    #[inline]
    pub fn emit(&self) -> [u8; LEN] {
        let [w0, w1, w2, w3] = self.rsvd_ulp_word.to_be_bytes();
        let [q0, q1, q2, q3] = self.queue_number.get().to_be_bytes();
        let [n0, n1, n2, n3] = self.msn.get().to_be_bytes();
        let [o0, o1, o2, o3] = self.message_offset.get().to_be_bytes();
        let c = self.control.emit();
        let u = self.rsvd_ulp;
        [
            c, u, w0, w1, w2, w3, q0, q1, q2, q3, n0, n1, n2, n3, o0, o1, o2, o3,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_short_header_is_named() {
        assert!(UntaggedHeader::parse(&[0x41; LEN - 1]).is_err());
    }

    proptest! {
        #[test]
        fn parse_and_emit_are_inverse(bytes: [u8; LEN], rest: Vec<u8>) {
            let all = [&bytes[..], &rest].concat();
            let (header, tail) = UntaggedHeader::parse(&all).unwrap();
            prop_assert_eq!(header.emit(), bytes);
            prop_assert_eq!(tail, &rest[..]);
        }
    }
}

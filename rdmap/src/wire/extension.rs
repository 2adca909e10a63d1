//! Extension of the datagram mapping (§3): 24 octets by which every segment identifies its whole message.
//!
//! ```text
//! octet 0 flags | 1..4 zero | 4 epoch | 8 message number | 12 message length | 16 message offset | 20 immediate
//! ```

use dgiwarp_codec::{Truncated, split_header, u32_at};

/// Length in octets.
pub const LEN: usize = 24;

/// The flags octet. Unknown bits are ignored when received.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags(u8);

impl Flags {
    /// I: the immediate is valid.
    pub const IMMEDIATE: Self = Self(0x01);
    /// S: the receiver raises a solicited event.
    pub const SOLICITED: Self = Self(0x02);
    /// W: a UC RDMA Write, which is placed without a record.
    pub const WRITE: Self = Self(0x04);

    const KNOWN: u8 = 0x07;

    /// No flag.
    #[must_use]
    pub const fn empty() -> Self {
        Self(0)
    }

    /// Union of both sets.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// `other` if `condition`, else these.
    #[must_use]
    pub const fn with(self, other: Self, condition: bool) -> Self {
        if condition { self.union(other) } else { self }
    }

    /// Whether all of `other` are set.
    #[must_use]
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// The extension of a Write-Record or Segmented Send segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extension {
    /// Flags: validity of the optional parts.
    pub flags: Flags,
    /// Epoch of the sending QP.
    pub epoch: u32,
    /// Message number, of this sender to this receiver.
    pub number: u32,
    /// Octets of the whole message.
    pub length: u32,
    /// Message offset: octets of the message before this segment.
    pub offset: u32,
    /// Immediate data, if [`Flags::IMMEDIATE`] is set.
    pub immediate: u32,
}

impl Extension {
    /// Parses an extension and returns it with the octets behind it.
    ///
    /// # Errors
    /// [`Truncated`] for fewer than 24 octets.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Truncated> {
        let (header, rest) = split_header::<LEN>(bytes)?;
        let [flags, ..] = header;
        let extension = Self {
            flags: Flags(flags & Flags::KNOWN),
            epoch: u32_at::<4, LEN>(header),
            number: u32_at::<8, LEN>(header),
            length: u32_at::<12, LEN>(header),
            offset: u32_at::<16, LEN>(header),
            immediate: u32_at::<20, LEN>(header),
        };
        Ok((extension, rest))
    }

    /// The octets, reserved ones zero.
    #[must_use]
    #[inline]
    pub fn emit(&self) -> [u8; LEN] {
        let Flags(f) = self.flags;
        let [e0, e1, e2, e3] = self.epoch.to_be_bytes();
        let [n0, n1, n2, n3] = self.number.to_be_bytes();
        let [l0, l1, l2, l3] = self.length.to_be_bytes();
        let [o0, o1, o2, o3] = self.offset.to_be_bytes();
        let [i0, i1, i2, i3] = self.immediate.to_be_bytes();
        [
            f, 0, 0, 0, e0, e1, e2, e3, n0, n1, n2, n3, l0, l1, l2, l3, o0, o1, o2, o3, i0, i1, i2,
            i3,
        ]
    }

    /// The immediate, if there is one.
    #[must_use]
    pub fn immediate(&self) -> Option<u32> {
        self.flags
            .contains(Flags::IMMEDIATE)
            .then_some(self.immediate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_short_extension_is_named() {
        assert!(Extension::parse(&[0; LEN - 1]).is_err());
    }

    proptest! {
        #[test]
        fn parse_ignores_reserved_bits_and_else_inverts_emit(bytes: [u8; LEN], rest: Vec<u8>) {
            let all = [&bytes[..], &rest].concat();
            let (extension, tail) = Extension::parse(&all).unwrap();
            let mut expected = bytes;
            expected[0] &= 0x07;
            expected[1..4].fill(0);
            prop_assert_eq!(extension.emit(), expected);
            prop_assert_eq!(tail, &rest[..]);
        }
    }
}

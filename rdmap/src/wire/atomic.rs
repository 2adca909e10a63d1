//! The headers of atomic operations (RFC 7306 §5.2): request of 52 octets, response of 12, behind the untagged DDP header.
//!
//! ```text
//! request:  octet 0 reserved, AOpCode (low four bits of octet 3) | 4 request identifier | 8 STag | 12 TO
//!           20 add or swap data | 28 add or swap mask | 36 compare data | 44 compare mask
//! response: octet 0 request identifier | 4 original value
//! ```

use dgiwarp_codec::{Truncated, split_header, u32_at, u64_at};
use dgiwarp_ddp::{STag, TaggedOffset};

/// Length of a request in octets.
pub const REQUEST_LEN: usize = 52;
/// Length of a response in octets.
pub const RESPONSE_LEN: usize = 12;
/// Octets of the operand of an atomic operation, and their alignment.
pub const OPERAND_LEN: u32 = 8;

const FETCH_ADD: u8 = 0b0000;
// RFC 7306 §5.2.1: there is no 0001b.
const COMPARE_SWAP: u8 = 0b0010;
const OPCODE_MASK: u8 = 0x0f;

/// Operation on the eight octets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtomicOperation {
    /// Adds, in fields of their own (RFC 7306 §5.1.1).
    FetchAdd {
        /// Summand.
        add: u64,
        /// Most significant bit of each field, from which no carry leaves. Zero is one field of 64 bits.
        mask: u64,
    },
    /// Stores if the comparison is equal (RFC 7306 §5.1.2).
    CompareSwap {
        /// Value of the comparison.
        compare: u64,
        /// Bits that are compared.
        compare_mask: u64,
        /// Value to store.
        swap: u64,
        /// Bits that are stored.
        swap_mask: u64,
    },
}

impl AtomicOperation {
    /// Value of the eight octets after the operation, from `held` before.
    #[must_use]
    pub const fn apply(self, held: u64) -> u64 {
        match self {
            Self::FetchAdd { add, mask } => {
                // Without the fields' highest bits no carry leaves a field; those bits are added without carry.
                ((held & !mask).wrapping_add(add & !mask)) ^ ((held ^ add) & mask)
            }
            Self::CompareSwap {
                compare,
                compare_mask,
                swap,
                swap_mask,
            } => {
                if (compare ^ held) & compare_mask == 0 {
                    (held & !swap_mask) | (swap & swap_mask)
                } else {
                    held
                }
            }
        }
    }
}

/// An atomic request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AtomicRequest {
    /// Operation.
    pub operation: AtomicOperation,
    /// Identifier that the response repeats.
    pub identifier: u32,
    /// Names the responder's buffer.
    pub stag: STag,
    /// TO of the operand.
    pub tagged_offset: TaggedOffset,
}

/// An atomic request is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AtomicRequestError {
    /// The request ends inside its header.
    #[error(transparent)]
    Truncated(#[from] Truncated),
    /// No operation has this code (RFC 7306 §5.2.1).
    #[error("atomic operation code {0:#x}")]
    Code(u8),
}

impl AtomicRequest {
    /// Parses a header and returns it with the octets behind it. Reserved bits, and fields that the operation does not use, are ignored.
    ///
    /// # Errors
    /// [`AtomicRequestError`].
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), AtomicRequestError> {
        let (header, rest) = split_header::<REQUEST_LEN>(bytes)?;
        let [_, _, _, code, ..] = header;
        let operation = match code & OPCODE_MASK {
            FETCH_ADD => AtomicOperation::FetchAdd {
                add: u64_at::<20, REQUEST_LEN>(header),
                mask: u64_at::<28, REQUEST_LEN>(header),
            },
            COMPARE_SWAP => AtomicOperation::CompareSwap {
                compare: u64_at::<36, REQUEST_LEN>(header),
                compare_mask: u64_at::<44, REQUEST_LEN>(header),
                swap: u64_at::<20, REQUEST_LEN>(header),
                swap_mask: u64_at::<28, REQUEST_LEN>(header),
            },
            unassigned => return Err(AtomicRequestError::Code(unassigned)),
        };
        let request = Self {
            operation,
            identifier: u32_at::<4, REQUEST_LEN>(header),
            stag: STag::new(u32_at::<8, REQUEST_LEN>(header)),
            tagged_offset: TaggedOffset::new(u64_at::<12, REQUEST_LEN>(header)),
        };
        Ok((request, rest))
    }

    /// Octets of the header.
    #[must_use]
    pub fn emit(&self) -> [u8; REQUEST_LEN] {
        let (code, fields) = match self.operation {
            // RFC 7306 §5.2.1: FetchAdd has no comparison: data zero, mask all ones.
            AtomicOperation::FetchAdd { add, mask } => (FETCH_ADD, [add, mask, 0, u64::MAX]),
            AtomicOperation::CompareSwap {
                compare,
                compare_mask,
                swap,
                swap_mask,
            } => (COMPARE_SWAP, [swap, swap_mask, compare, compare_mask]),
        };
        let mut out = [0; REQUEST_LEN];
        let mut rest = &mut out[..];
        let mut put = |octets: &[u8]| {
            let (now, later) = std::mem::take(&mut rest).split_at_mut(octets.len());
            now.copy_from_slice(octets);
            rest = later;
        };
        put(&[0, 0, 0, code]);
        put(&self.identifier.to_be_bytes());
        put(&self.stag.get().to_be_bytes());
        put(&self.tagged_offset.get().to_be_bytes());
        for field in fields {
            put(&field.to_be_bytes());
        }
        out
    }
}

/// An atomic response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AtomicResponse {
    /// Identifier of the request.
    pub identifier: u32,
    /// Value of the eight octets before the operation.
    pub original: u64,
}

impl AtomicResponse {
    /// Parses a header and returns it with the octets behind it.
    ///
    /// # Errors
    /// [`Truncated`] for fewer than 12 octets.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Truncated> {
        let (header, rest) = split_header::<RESPONSE_LEN>(bytes)?;
        let response = Self {
            identifier: u32_at::<0, RESPONSE_LEN>(header),
            original: u64_at::<4, RESPONSE_LEN>(header),
        };
        Ok((response, rest))
    }

    /// Octets of the header.
    #[must_use]
    pub fn emit(&self) -> [u8; RESPONSE_LEN] {
        let [i0, i1, i2, i3] = self.identifier.to_be_bytes();
        let [v0, v1, v2, v3, v4, v5, v6, v7] = self.original.to_be_bytes();
        [i0, i1, i2, i3, v0, v1, v2, v3, v4, v5, v6, v7]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RFC 7306 §5.2.1, figure 4.
    #[test]
    fn the_figures_order() {
        let request = AtomicRequest {
            operation: AtomicOperation::CompareSwap {
                compare: 0x5152_5354_5556_5758,
                compare_mask: 0x6162_6364_6566_6768,
                swap: 0x3132_3334_3536_3738,
                swap_mask: 0x4142_4344_4546_4748,
            },
            identifier: 0x0102_0304,
            stag: STag::new(0x1112_1314),
            tagged_offset: TaggedOffset::new(0x2122_2324_2526_2728),
        };
        let mut expected = vec![0, 0, 0, 2, 1, 2, 3, 4, 0x11, 0x12, 0x13, 0x14];
        for tens in 2..7 {
            expected.extend((1..9).map(|ones| tens << 4 | ones));
        }
        assert_eq!(request.emit()[..], expected);
        assert_eq!(AtomicRequest::parse(&expected), Ok((request, &[][..])));
        let response = AtomicResponse {
            identifier: 0x0102_0304,
            original: 0x1112_1314_1516_1718,
        };
        let octets = [
            1, 2, 3, 4, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 9,
        ];
        assert_eq!(response.emit(), octets[..12]);
        assert_eq!(AtomicResponse::parse(&octets), Ok((response, &[9][..])));
    }

    #[test]
    fn fetch_add_says_what_it_does_not_compare() {
        let request = AtomicRequest {
            operation: AtomicOperation::FetchAdd { add: 1, mask: 2 },
            identifier: 0,
            stag: STag::new(0),
            tagged_offset: TaggedOffset::new(0),
        };
        let octets = request.emit();
        assert_eq!((octets[3], octets[27], octets[35]), (0, 1, 2));
        assert_eq!(
            (&octets[36..44], &octets[44..]),
            (&[0; 8][..], &[0xff; 8][..])
        );
        assert_eq!(AtomicRequest::parse(&octets).unwrap().0, request);
    }

    #[test]
    fn what_is_malformed_is_named() {
        let truncated = AtomicRequest::parse(&[0; REQUEST_LEN - 1]);
        assert!(matches!(truncated, Err(AtomicRequestError::Truncated(_))));
        for code in (0..16).filter(|code| ![0, 2].contains(code)) {
            let mut octets = [0; REQUEST_LEN];
            octets[3] = 0xf0 | code;
            let parsed = AtomicRequest::parse(&octets);
            assert_eq!(parsed, Err(AtomicRequestError::Code(code)));
        }
        assert!(AtomicResponse::parse(&[0; RESPONSE_LEN - 1]).is_err());
    }

    /// The program of RFC 7306 §5.1.1, bit by bit.
    fn fetch_add_of_the_rfc(original: u64, add: u64, mask: u64) -> u64 {
        let mut carry = 0;
        let mut value = 0;
        for bit in 0..64 {
            let location = 1u64 << bit;
            let sum = carry + ((original & location) >> bit) + ((add & location) >> bit);
            carry = (sum & 2) >> 1;
            if sum & 1 != 0 {
                value |= location;
            }
            carry = u64::from(carry != 0 && mask & location == 0);
        }
        value
    }

    #[test]
    fn compare_swap_under_masks() {
        let swap = |compare, compare_mask, swap_mask, held| {
            AtomicOperation::CompareSwap {
                compare,
                compare_mask,
                swap: 0xaaaa,
                swap_mask,
            }
            .apply(held)
        };
        assert_eq!(swap(0x1234, u64::MAX, u64::MAX, 0x1234), 0xaaaa);
        assert_eq!(swap(0x1235, u64::MAX, u64::MAX, 0x1234), 0x1234);
        assert_eq!(swap(0xff34, 0xff, 0xff00, 0x1234), 0xaa34);
        assert_eq!(swap(0, 0, u64::MAX, 0x1234), 0xaaaa);
    }

    proptest! {
        #[test]
        fn fetch_add_is_that_of_the_rfc(held: u64, add: u64, mask: u64) {
            for mask in [mask, 0, mask & 0x8000_8000_8000_8000] {
                let ours = AtomicOperation::FetchAdd { add, mask }.apply(held);
                prop_assert_eq!(ours, fetch_add_of_the_rfc(held, add, mask));
            }
            let plain = AtomicOperation::FetchAdd { add, mask: 0 }.apply(held);
            prop_assert_eq!(plain, held.wrapping_add(add));
        }

        #[test]
        fn any_octets_return_and_what_was_understood_survives(bytes: [u8; REQUEST_LEN], rest: Vec<u8>) {
            let all = [&bytes[..], &rest].concat();
            if let Ok((request, tail)) = AtomicRequest::parse(&all) {
                prop_assert_eq!(AtomicRequest::parse(&request.emit()).unwrap().0, request);
                prop_assert_eq!(tail, &rest[..]);
            }
            let _ = AtomicRequest::parse(&rest);
            let _ = AtomicResponse::parse(&rest);
        }
    }
}

//! The RDMA Read Request header (RFC 5040 §4.4): 28 octets behind the untagged DDP header.
//!
//! ```text
//! octet 0 sink STag | 4 sink TO | 12 message size | 16 source STag | 20 source TO
//! ```

use std::fmt;

use dgiwarp_codec::{Truncated, split_header, u32_at, u64_at};
use dgiwarp_ddp::{STag, TaggedOffset};

/// Length in octets.
pub const LEN: usize = 28;

/// A Read Request: source and sink of a Read.
///
/// The responder copies the sink fields into its response and checks only the source fields, and these only when the size is not
/// zero (RFC 5040 §5.2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadRequest {
    /// Data Sink STag: names the requester's buffer.
    pub sink_stag: STag,
    /// Data Sink Tagged Offset: TO of the first octet there.
    pub sink_offset: TaggedOffset,
    /// RDMA Read Message Size in octets.
    pub size: u32,
    /// Data Source STag: names the responder's buffer.
    pub source_stag: STag,
    /// Data Source Tagged Offset: TO of the first octet there.
    pub source_offset: TaggedOffset,
}

impl ReadRequest {
    /// Parses a header and returns it with the octets behind it. RFC 5040 §4.2 allows none.
    ///
    /// # Errors
    /// [`Truncated`] for fewer than 28 octets.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Truncated> {
        let (header, rest) = split_header::<LEN>(bytes)?;
        let request = Self {
            sink_stag: STag::new(u32_at::<0, LEN>(header)),
            sink_offset: TaggedOffset::new(u64_at::<4, LEN>(header)),
            size: u32_at::<12, LEN>(header),
            source_stag: STag::new(u32_at::<16, LEN>(header)),
            source_offset: TaggedOffset::new(u64_at::<20, LEN>(header)),
        };
        Ok((request, rest))
    }

    /// Octets of the header.
    #[must_use]
    pub fn emit(&self) -> [u8; LEN] {
        let [i0, i1, i2, i3] = self.sink_stag.get().to_be_bytes();
        let [j0, j1, j2, j3, j4, j5, j6, j7] = self.sink_offset.get().to_be_bytes();
        let [l0, l1, l2, l3] = self.size.to_be_bytes();
        let [o0, o1, o2, o3] = self.source_stag.get().to_be_bytes();
        let [p0, p1, p2, p3, p4, p5, p6, p7] = self.source_offset.get().to_be_bytes();
        [
            i0, i1, i2, i3, j0, j1, j2, j3, j4, j5, j6, j7, l0, l1, l2, l3, o0, o1, o2, o3, p0, p1,
            p2, p3, p4, p5, p6, p7,
        ]
    }

    /// The request without its first `octets`: for a Terminate in the middle of the response (RFC 5040 §4.8), or to request the
    /// rest. `None` if the request is shorter, or an offset would wrap.
    #[must_use]
    pub fn after(&self, octets: u32) -> Option<Self> {
        Some(Self {
            sink_offset: self.sink_offset.checked_add(octets.into())?,
            size: self.size.checked_sub(octets)?,
            source_offset: self.source_offset.checked_add(octets.into())?,
            ..*self
        })
    }
}

impl fmt::Display for ReadRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "read {} octets of {} at {} to {} at {}",
            self.size, self.source_stag, self.source_offset, self.sink_stag, self.sink_offset
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RFC 5040 §4.4, figure 5: Data Sink STag and TO, size, Data Source STag and TO, in this order.
    #[test]
    fn the_figures_order() {
        let request = ReadRequest {
            sink_stag: STag::new(0x0102_0304),
            sink_offset: TaggedOffset::new(0x1112_1314_1516_1718),
            size: 0x2122_2324,
            source_stag: STag::new(0x3132_3334),
            source_offset: TaggedOffset::new(0x4142_4344_4546_4748),
        };
        let octets = [
            1, 2, 3, 4, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x21, 0x22, 0x23, 0x24,
            0x31, 0x32, 0x33, 0x34, 0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48,
        ];
        assert_eq!(request.emit(), octets);
        assert_eq!(
            request.to_string(),
            "read 555885348 octets of 0x31323334 at 0x4142434445464748 to 0x01020304 at 0x1112131415161718"
        );
    }

    #[test]
    fn a_short_header_is_named() {
        assert!(ReadRequest::parse(&[0; LEN - 1]).is_err());
    }

    #[test]
    fn what_is_left_never_wraps() {
        let (request, _) = ReadRequest::parse(&[0xff; LEN]).unwrap();
        assert_eq!(request.after(0), Some(request));
        assert_eq!(request.after(1), None, "the offsets would wrap");
        let (request, _) = ReadRequest::parse(&[0; LEN]).unwrap();
        assert_eq!(request.after(1), None, "nothing is left");
    }

    proptest! {
        #[test]
        fn parse_and_emit_are_inverse(bytes: [u8; LEN], rest: Vec<u8>) {
            let all = [&bytes[..], &rest].concat();
            let (request, tail) = ReadRequest::parse(&all).unwrap();
            prop_assert_eq!(request.emit(), bytes);
            prop_assert_eq!(tail, &rest[..]);
        }
    }
}

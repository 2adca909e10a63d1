//! Outgoing messages: headers and segmentation.

use arrayvec::ArrayVec;
use dgiwarp_ddp::wire::{Control, TaggedHeader, UntaggedHeader, untagged};
use dgiwarp_ddp::{MessageOffset, Msn, QueueNumber, STag, Segment, Segmenter, TaggedOffset};

use crate::wire::Opcode;

/// A DDP header, tagged or untagged.
pub type Header = ArrayVec<u8, { untagged::LEN }>;

/// Variants of a Send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SendKind {
    /// The message raises a solicited event.
    pub solicited: bool,
    /// STag of the receiver that the message invalidates.
    pub invalidate: Option<STag>,
}

impl SendKind {
    pub(super) const fn opcode(self) -> Opcode {
        match (self.solicited, self.invalidate.is_some()) {
            (false, false) => Opcode::Send,
            (true, false) => Opcode::SendSolicited,
            (false, true) => Opcode::SendInvalidate,
            (true, true) => Opcode::SendSolicitedInvalidate,
        }
    }
}

/// A Send or RDMA Write that is being sent.
#[derive(Debug, Clone)]
pub struct Message {
    target: Target,
    segmenter: Segmenter,
}

#[derive(Debug, Clone, Copy)]
enum Target {
    Untagged { opcode: Opcode, word: u32, msn: Msn },
    Tagged { stag: STag, start: TaggedOffset },
}

impl Message {
    pub(super) fn untagged(opcode: Opcode, word: u32, msn: Msn, length: u32) -> Self {
        Self {
            target: Target::Untagged { opcode, word, msn },
            segmenter: Segmenter::new(length),
        }
    }

    pub(super) fn write(stag: STag, start: TaggedOffset, length: u32) -> Self {
        Self {
            target: Target::Tagged { stag, start },
            segmenter: Segmenter::new(length),
        }
    }

    /// Header of the next segment and its part of the message, together at most `mulpdu` octets. `None` after the last.
    ///
    /// # Panics
    /// If `mulpdu` has no room for a header and an octet; the MULPDU of MPA is at least 128.
    pub fn next_segment(&mut self, mulpdu: u16) -> Option<(Header, Segment)> {
        let segment = self.peek(mulpdu)?;
        self.segmenter.advance(segment);
        Some((self.header(segment), segment))
    }

    /// Header of the segment that is the whole message, and its length. The octets behind it are zero.
    #[inline]
    #[must_use]
    pub fn sole_header(&self) -> ([u8; untagged::LEN], usize) {
        match self.target {
            Target::Untagged { opcode, word, msn } => {
                let header = untagged_fields(opcode, word, (queue(opcode), msn, 0), true);
                (header.emit(), untagged::LEN)
            }
            Target::Tagged { stag, start } => {
                let header = tagged_fields(Opcode::Write, stag, start, true).emit();
                let mut octets = [0; _];
                octets[..header.len()].copy_from_slice(&header);
                (octets, header.len())
            }
        }
    }

    #[inline]
    fn header(&self, segment: Segment) -> Header {
        match self.target {
            Target::Untagged { opcode, word, msn } => untagged_header(
                opcode,
                word,
                (queue(opcode), msn, segment.offset),
                segment.last,
            ),
            Target::Tagged { stag, start } => {
                // If this wraps, an earlier segment was outside the peer's buffer.
                let offset = TaggedOffset::new(start.get().wrapping_add(segment.offset.into()));
                tagged_header(Opcode::Write, stag, offset, segment.last)
            }
        }
    }

    /// Part of the message in the next segment. `None` after the last.
    ///
    /// # Panics
    /// As [`next_segment`](Self::next_segment).
    #[must_use]
    pub fn peek(&self, mulpdu: u16) -> Option<Segment> {
        let header_len = match self.target {
            Target::Untagged { .. } => 18,
            Target::Tagged { .. } => 14,
        };
        let most = u32::from(mulpdu).saturating_sub(header_len);
        self.segmenter.peek_equal(most)
    }

    /// Whether it is a Send.
    pub(super) const fn is_untagged(&self) -> bool {
        matches!(self.target, Target::Untagged { .. })
    }

    /// Whether a segment with payload was taken.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.peek(u16::MAX).is_none_or(|segment| segment.offset > 0)
    }

    /// Whether every segment was taken.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        self.segmenter.is_done()
    }
}

/// The queue of an untagged message (RFC 5040 §5.2.1, §5.3, §5.4, RFC 7306 §5.2).
#[inline]
fn queue(opcode: Opcode) -> QueueNumber {
    match opcode {
        Opcode::ReadRequest | Opcode::AtomicRequest => QueueNumber::READ_REQUEST,
        Opcode::Terminate => QueueNumber::TERMINATE,
        Opcode::AtomicResponse => QueueNumber::ATOMIC_RESPONSE,
        Opcode::Send
        | Opcode::SendInvalidate
        | Opcode::SendSolicited
        | Opcode::SendSolicitedInvalidate
        | Opcode::Immediate
        | Opcode::ImmediateSolicited
        | Opcode::Write
        | Opcode::ReadResponse
        | Opcode::WriteRecord
        | Opcode::SegmentedSend => QueueNumber::SEND,
    }
}

#[inline]
pub(super) fn tagged_header(
    opcode: Opcode,
    stag: STag,
    tagged_offset: TaggedOffset,
    last: bool,
) -> Header {
    let header = tagged_fields(opcode, stag, tagged_offset, last);
    header.emit().into_iter().collect()
}

#[inline]
const fn tagged_fields(
    opcode: Opcode,
    stag: STag,
    tagged_offset: TaggedOffset,
    last: bool,
) -> TaggedHeader {
    TaggedHeader {
        control: Control::new(true, last),
        rsvd_ulp: opcode.emit(),
        stag,
        tagged_offset,
    }
}

#[inline]
fn untagged_header(
    opcode: Opcode,
    word: u32,
    place: (QueueNumber, Msn, u32),
    last: bool,
) -> Header {
    untagged_fields(opcode, word, place, last).emit().into()
}

#[inline]
const fn untagged_fields(
    opcode: Opcode,
    word: u32,
    (queue_number, msn, offset): (QueueNumber, Msn, u32),
    last: bool,
) -> UntaggedHeader {
    UntaggedHeader {
        control: Control::new(false, last),
        rsvd_ulp: opcode.emit(),
        rsvd_ulp_word: word,
        queue_number,
        msn,
        message_offset: MessageOffset::new(offset),
    }
}

/// A message of one untagged segment that only RDMAP reads.
pub(super) fn short<const LEN: usize>(opcode: Opcode, msn: Msn, body: &[u8]) -> ArrayVec<u8, LEN> {
    let header = untagged_header(opcode, 0, (queue(opcode), msn, 0), true);
    header.into_iter().chain(body.iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(mut message: Message, mulpdu: u16) -> Vec<u32> {
        assert!(!message.is_done());
        let lengths = std::iter::from_fn(|| {
            let next = message.peek(mulpdu)?;
            let (header, segment) = message.next_segment(mulpdu)?;
            assert_eq!(segment, next);
            assert!(header.len() + segment.length as usize <= usize::from(mulpdu));
            Some(segment.length)
        })
        .collect();
        assert!(message.is_done());
        lengths
    }

    fn send(length: u32) -> Message {
        Message::untagged(Opcode::Send, 0, Msn::FIRST, length)
    }

    fn write(length: u32) -> Message {
        Message::write(STag::new(1), TaggedOffset::new(0), length)
    }

    #[test]
    fn segments_fill_the_mulpdu_and_large_ones_are_equal() {
        assert_eq!(lengths(send(200), 128), [110, 90]);
        assert_eq!(lengths(write(200), 128), [114, 86]);
        assert_eq!(lengths(write(0), 128), [0]);
        // One octet below the limit they are filled, from there on they are equal in cache lines.
        assert_eq!(lengths(write(20_000), 16_397), [16_383, 3617]);
        assert_eq!(lengths(write(20_000), 16_398), [10_048, 9952]);
        assert_eq!(lengths(send(100_000), 64_768), [50_048, 49_952]);
        assert_eq!(lengths(write(64_754), 64_768), [64_754]);
        assert_eq!(lengths(write(64_755), 64_768), [32_384, 32_371]);
        // A cache line more would not fit.
        assert_eq!(lengths(write(2 * 16_390), 16_404), [16_390, 16_390]);
    }

    #[test]
    fn offsets_of_a_write_wrap_with_its_start() {
        let start = TaggedOffset::new(u64::MAX - 99);
        let mut message = Message::write(STag::new(1), start, 228);
        for offset in [u64::MAX - 99, 14] {
            let (header, _) = message.next_segment(128).unwrap();
            let (header, _) = TaggedHeader::parse(&header).unwrap();
            assert_eq!(header.tagged_offset.get(), offset);
        }
    }
}

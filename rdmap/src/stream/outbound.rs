//! The sending half of a stream.

use dgiwarp_ddp::wire::control::DV;
use dgiwarp_ddp::wire::{Control, TaggedHeader, UntaggedHeader, tagged, untagged};
use dgiwarp_ddp::{MessageOffset, Msn, QueueNumber, STag, Segment, Segmenter, TaggedOffset};

use crate::wire::Opcode;

/// Numbers the messages that leave on a stream.
#[derive(Debug)]
pub struct Outbound {
    /// MSN of the next Send (queue 0).
    msn: Msn,
}

impl Default for Outbound {
    fn default() -> Self {
        Self { msn: Msn::FIRST }
    }
}

impl Outbound {
    /// The whole of a zero-length RDMA Write, as it serves for an RTR indication (RFC 6581 §9.2). Its STag and TO name nothing,
    /// and nobody may look at them (RFC 5041 §5.2).
    #[must_use]
    pub fn rtr_write() -> [u8; tagged::LEN] {
        let header = TaggedHeader {
            control: Control {
                tagged: true,
                last: true,
                format: 0,
                version: DV,
            },
            rsvd_ulp: Opcode::Write.emit(),
            stag: STag::new(0),
            tagged_offset: TaggedOffset::new(0),
        };
        header.emit()
    }

    /// Starts a Send of `length` octets. Its segments have to leave before those of the next message.
    pub fn send(&mut self, length: u32, solicited: bool) -> SendMessage {
        let msn = self.msn;
        self.msn = msn.next();
        SendMessage {
            opcode: if solicited {
                Opcode::SendSolicited
            } else {
                Opcode::Send
            },
            msn,
            segmenter: Segmenter::new(length),
        }
    }
}

/// A Send on its way: which of its segments have left.
#[derive(Debug)]
pub struct SendMessage {
    opcode: Opcode,
    msn: Msn,
    segmenter: Segmenter,
}

impl SendMessage {
    /// The header of the next segment and the part of the message that follows it, together at most `mulpdu`
    /// octets. `None` after the last.
    ///
    /// # Panics
    /// If `mulpdu` has no room for a header and an octet; MPA never offers less than 128.
    pub fn next_segment(&mut self, mulpdu: u16) -> Option<([u8; untagged::LEN], Segment)> {
        let header_len = u32::try_from(untagged::LEN).expect("18 octets");
        let segment = self
            .segmenter
            .peek(u32::from(mulpdu).saturating_sub(header_len))?;
        self.segmenter.advance(segment);
        let header = UntaggedHeader {
            control: Control {
                tagged: false,
                last: segment.last,
                format: 0,
                version: DV,
            },
            rsvd_ulp: self.opcode.emit(),
            rsvd_ulp_word: 0,
            queue_number: QueueNumber::SEND,
            msn: self.msn,
            message_offset: MessageOffset::new(segment.offset),
        };
        Some((header.emit(), segment))
    }

    /// Whether every segment has left.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        self.segmenter.is_done()
    }
}

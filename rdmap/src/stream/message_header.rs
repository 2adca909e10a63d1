//! Headers of segments whose payload is placed from where it lies.

use dgiwarp_ddp::QueueNumber;
use dgiwarp_ddp::wire::control::DV;
use dgiwarp_ddp::wire::{Control, TaggedHeader, UntaggedHeader, tagged, untagged};

use super::Header;
use crate::wire::Opcode;

/// Header of a segment of a Send, of Immediate Data, of an RDMA Write, or of a Read Response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageHeader {
    /// A segment of an RDMA Write.
    Write(TaggedHeader),
    /// A segment of a Read Response.
    ReadResponse(TaggedHeader),
    /// A segment of a message of queue 0.
    Queued(UntaggedHeader, Opcode),
}

impl MessageHeader {
    /// Parses the header of a ULPDU of `ulpdu_len` octets, of which `front` are the first. `None` if too few are there, and for all other segments,
    /// among them notices and such as end the stream.
    #[must_use]
    pub fn parse(front: &[u8], ulpdu_len: usize) -> Option<Self> {
        let control = Control::parse(*front.first()?);
        if control.version != DV {
            return None;
        }
        if control.tagged {
            let (header, _) = TaggedHeader::parse(front).ok()?;
            // RTR indications and notices are empty Writes.
            if ulpdu_len <= tagged::LEN {
                return None;
            }
            return match Opcode::parse(header.rsvd_ulp) {
                Ok(Opcode::Write) => Some(Self::Write(header)),
                Ok(Opcode::ReadResponse) => Some(Self::ReadResponse(header)),
                Ok(_) | Err(_) => None,
            };
        }
        let (header, _) = UntaggedHeader::parse(front).ok()?;
        let opcode = Opcode::parse(header.rsvd_ulp).ok()?;
        let is_message = matches!(
            opcode,
            Opcode::Send
                | Opcode::SendInvalidate
                | Opcode::SendSolicited
                | Opcode::SendSolicitedInvalidate
                | Opcode::Immediate
                | Opcode::ImmediateSolicited
        );
        let is_queued = is_message && header.queue_number == QueueNumber::SEND;
        (is_queued && ulpdu_len >= untagged::LEN).then_some(Self::Queued(header, opcode))
    }

    /// Whether it may complete work requests of this end.
    #[must_use]
    pub const fn is_answer(&self) -> bool {
        matches!(self, Self::ReadResponse(_))
    }

    /// Octets of the header.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "no header is empty")]
    pub const fn len(&self) -> usize {
        match self {
            Self::Write(_) | Self::ReadResponse(_) => tagged::LEN,
            Self::Queued(..) => untagged::LEN,
        }
    }

    pub(super) fn emit(&self) -> Header {
        match self {
            Self::Write(header) | Self::ReadResponse(header) => header.emit().into_iter().collect(),
            Self::Queued(header, _) => header.emit().into_iter().collect(),
        }
    }
}

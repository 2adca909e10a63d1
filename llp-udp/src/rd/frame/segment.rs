//! Segment frame (§3.1): an unchanged DDP segment without CRC, and its place among messages.

use std::fmt;

use super::super::octets::{Fixed, HEADER_LEN, Reader};

pub(super) const KIND: u8 = 0x01;
/// Octets of the body before the segment.
pub(super) const LEN: usize = 16;
/// Octets of the shortest segment: DDP control and RDMAP control.
pub(super) const SHORTEST: usize = 2;

const LAST: u8 = 0x01;
const RECEIVE: u8 = 0x02;

/// Place of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The last segment of its message.
    pub last: bool,
    /// The message consumes a posted receive.
    pub receive: bool,
    /// Number of the segment in its association and direction; kept when sent again.
    pub number: u32,
    /// Number of the message in its association and direction.
    pub message: u32,
    /// Position of the segment in its message, from 0.
    pub index: u32,
    /// Stream of the message.
    pub stream: u16,
    /// Distance back to the message after which this one is delivered; 0 for none.
    pub after: u16,
}

impl SegmentHeader {
    /// The header of a frame with these flags; `octets` are the first of its body.
    pub(super) fn parse(flags: u8, octets: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(octets);
        Some(Self {
            last: flags & LAST != 0,
            receive: flags & RECEIVE != 0,
            number: reader.u32()?,
            message: reader.u32()?,
            index: reader.u32()?,
            stream: reader.u16()?,
            after: reader.u16()?,
        })
    }

    /// Appends the frame up to its segment of `length` octets, which the caller appends. Lengths above 65,519 do not fit.
    pub fn emit(&self, out: &mut Vec<u8>, length: u16) {
        let last = if self.last { LAST } else { 0 };
        let receive = if self.receive { RECEIVE } else { 0 };
        let head = u16::try_from(LEN).unwrap_or(u16::MAX);
        Fixed::<{ HEADER_LEN + LEN }>::new()
            .put([KIND, last + receive])
            .put(length.saturating_add(head).to_be_bytes())
            .put(self.number.to_be_bytes())
            .put(self.message.to_be_bytes())
            .put(self.index.to_be_bytes())
            .put(self.stream.to_be_bytes())
            .put(self.after.to_be_bytes())
            .emit(out);
    }
}

impl fmt::Display for SegmentHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            number,
            message,
            index,
            stream,
            after,
            ..
        } = self;
        write!(
            f,
            "segment {number} message {message} index {index} stream {stream} after {after}"
        )?;
        if self.last {
            f.write_str(" last")?;
        }
        if self.receive {
            f.write_str(" receive")?;
        }
        Ok(())
    }
}

//! Credit frame (§3.4): room that the receiver grants.

use std::fmt;

use super::super::octets::{Reader, emit_header};

pub(super) const KIND: u8 = 0x04;
const LEN: u16 = 8;

/// Room at the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Credit {
    /// Messages that consume a receive and may begin, counted from the start of the association, modulo 2^32.
    pub receives: u32,
    /// Octets of datagrams with segments that may be in flight.
    pub window: u32,
}

impl Credit {
    pub(super) fn parse(octets: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(octets);
        let credit = Self {
            receives: reader.u32()?,
            window: reader.u32()?,
        };
        reader.end(credit)
    }

    /// Appends the frame.
    pub fn emit(&self, out: &mut Vec<u8>) {
        emit_header(out, KIND, 0, LEN);
        out.extend(self.receives.to_be_bytes());
        out.extend(self.window.to_be_bytes());
    }
}

impl fmt::Display for Credit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "credit of {} receives, window {}",
            self.receives, self.window
        )
    }
}

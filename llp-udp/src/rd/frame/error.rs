//! Error frame (§3.6): a message failed at the receiver.

use std::fmt;

use super::super::octets::{Reader, emit_header};

pub(super) const KIND: u8 = 0x06;
const LEN: u16 = 8;

/// Failure of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageError {
    /// Number of the message.
    pub message: u32,
    /// Cause: the four octets of Terminate Control as RFC 5040 has them.
    pub control: u32,
}

impl MessageError {
    pub(super) fn parse(octets: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(octets);
        let error = Self {
            message: reader.u32()?,
            control: reader.u32()?,
        };
        reader.end(error)
    }

    /// Appends the frame.
    pub fn emit(&self, out: &mut Vec<u8>) {
        emit_header(out, KIND, 0, LEN);
        out.extend(self.message.to_be_bytes());
        out.extend(self.control.to_be_bytes());
    }
}

impl fmt::Display for MessageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "error {:#010x} of message {}",
            self.control, self.message
        )
    }
}

//! Receiver-not-ready frame (§3.5): a datagram whose Send found no posted receive.

use std::fmt;

use super::super::octets::{Reader, emit_header};

pub(super) const KIND: u8 = 0x05;
const LEN: u16 = 16;

/// RNR for one datagram: it arrived, and is not acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotReady {
    /// Packet number of the datagram.
    pub packet: u64,
    /// Number of the message that found no receive.
    pub message: u32,
    /// Microseconds after which the message may be sent again without credit.
    pub delay: u32,
}

impl NotReady {
    pub(super) fn parse(octets: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(octets);
        let not_ready = Self {
            packet: reader.u64()?,
            message: reader.u32()?,
            delay: reader.u32()?,
        };
        reader.end(not_ready)
    }

    /// Appends the frame.
    pub fn emit(&self, out: &mut Vec<u8>) {
        emit_header(out, KIND, 0, LEN);
        out.extend(self.packet.to_be_bytes());
        out.extend(self.message.to_be_bytes());
        out.extend(self.delay.to_be_bytes());
    }
}

impl fmt::Display for NotReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "receiver not ready for message {} in {}, {} µs",
            self.message, self.packet, self.delay
        )
    }
}

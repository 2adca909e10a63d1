//! Frames as octets, protected where the connection has keys.

use crate::protection::FrameProtection;
use crate::wire::{Frame, HEADER, Header, Malformed, PROTECTED};

/// Writes and reads the frames of a connection.
#[derive(Debug, Default)]
pub(crate) struct FrameCodec {
    protection: Option<FrameProtection>,
}

impl FrameCodec {
    /// Protects frames from now on.
    pub(crate) fn protect(&mut self, protection: FrameProtection) {
        self.protection = Some(protection);
    }

    /// Octets of a frame.
    pub(crate) fn emit(&mut self, taken: u32, frame: &Frame) -> Vec<u8> {
        let mut octets = frame.emit(taken);
        if let Some(protection) = &mut self.protection {
            protection.protect(&mut octets);
        }
        octets
    }

    /// Parses a frame, of whose header these are the octets.
    pub(crate) fn parse(
        &mut self,
        (header, octets): (&Header, &[u8; HEADER]),
        body: &mut [u8],
    ) -> Result<Frame, Malformed> {
        let Some(protection) = &mut self.protection else {
            return Frame::parse(header.kind, body);
        };
        if header.kind & PROTECTED == 0 {
            return Err(Malformed::Unprotected(header.kind));
        }
        let body = protection.open(octets, body)?;
        Frame::parse(header.kind & !PROTECTED, body)
    }
}

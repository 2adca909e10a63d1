//! Close frame (§3.9): the end of an association.

use std::fmt;

use super::super::octets::{Reader, emit_header};

pub(super) const KIND: u8 = 0x0a;
const LEN: u16 = 16;

/// Reason of a close.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseReason {
    /// The queue pair ends, or needs the peer no more.
    Done,
    /// No association has the identifier: the sender of the close restarted, or forgot it.
    Unknown,
    /// The peer violated the protocol.
    Violation,
    /// A message failed, and with it all to and from this peer.
    Failed,
    /// The process of the queue pair ended without closing it.
    Exited,
    /// Another reason.
    Other(u32),
}

impl CloseReason {
    const fn code(self) -> u32 {
        match self {
            Self::Done => 1,
            Self::Unknown => 2,
            Self::Violation => 3,
            Self::Failed => 4,
            Self::Exited => 5,
            Self::Other(code) => code,
        }
    }

    const fn of(code: u32) -> Self {
        match code {
            1 => Self::Done,
            2 => Self::Unknown,
            3 => Self::Violation,
            4 => Self::Failed,
            5 => Self::Exited,
            other => Self::Other(other),
        }
    }
}

/// A close.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Close {
    /// The reason.
    pub reason: CloseReason,
    /// With [`CloseReason::Unknown`], identifier of the datagram that caused the close; else 0.
    pub association: u32,
    /// With [`CloseReason::Unknown`], packet number of the datagram that caused the close; else 0.
    pub packet: u64,
}

impl Close {
    /// A close with a reason of its own.
    #[must_use]
    pub const fn new(reason: CloseReason) -> Self {
        Self {
            reason,
            association: 0,
            packet: 0,
        }
    }

    pub(super) fn parse(octets: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(octets);
        let close = Self {
            reason: CloseReason::of(reader.u32()?),
            association: reader.u32()?,
            packet: reader.u64()?,
        };
        reader.end(close)
    }

    /// Appends the frame.
    pub fn emit(&self, out: &mut Vec<u8>) {
        emit_header(out, KIND, 0, LEN);
        out.extend(self.reason.code().to_be_bytes());
        out.extend(self.association.to_be_bytes());
        out.extend(self.packet.to_be_bytes());
    }
}

impl fmt::Display for Close {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "close {:?}", self.reason)
    }
}

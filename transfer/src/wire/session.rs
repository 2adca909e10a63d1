//! HELLO and ABORT: beginning and end of a session.
//!
//! ```text
//! HELLO  role 1 | abilities 1 | receives 2 | block 4 | token 16
//! ABORT  reason 1 | text
//! STREAMS  streams 2 | reserved 2 | key 16
//! LEFT   stream 2 | reserved 2 | taken 4
//! ```

use super::Malformed;
use super::octets::{Reader, cut};

/// Part of an end in a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Has the files.
    Source,
    /// Gets the files.
    Sink,
}

/// Ability: LIST, ANSWER, STORED and packed blocks.
const PACKS: u8 = 1;
/// Ability: further streams.
const STREAMS: u8 = 2;
/// The connection is a further stream.
const JOINS: u8 = 4;

/// Ability: SIGNATURES and delta blocks.
const DELTAS: u8 = 8;
/// Blocks are to be encrypted.
const ENCRYPTS: u8 = 16;
/// Ability: ATTRIBUTES and REMARK.
const ATTRIBUTES: u8 = 32;

/// First frame of each end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// Part of the sender.
    pub role: Role,
    /// Short files may be packed: the lowest bit of the abilities.
    pub packs: bool,
    /// Further streams may join: the second bit.
    pub streams: bool,
    /// The connection joins a session, whose key is the token, as the stream whose number the block length is: the third bit.
    pub joins: bool,
    /// Files that changed may come as deltas: the fourth bit.
    pub deltas: bool,
    /// Octets of blocks are to be encrypted, whether or not the peer wants it: the fifth bit.
    pub encrypts: bool,
    /// Entries may have extended attributes: the sixth bit.
    pub attributes: bool,
    /// Frames that the sender can take at a time.
    pub receives: u16,
    /// Longest block in octets, a power of two; that of the session is the smaller of both.
    pub block: u32,
    /// Secret that the sink and the source were given for this session.
    pub token: [u8; 16],
}

impl Hello {
    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let role = reader.u8()?;
        let known = match role {
            1 => Some(Role::Source),
            2 => Some(Role::Sink),
            _ => None,
        };
        let role = reader.value("role", role, known)?;
        let abilities = reader.u8()?;
        Ok(Self {
            role,
            packs: abilities & PACKS != 0,
            streams: abilities & STREAMS != 0,
            joins: abilities & JOINS != 0,
            deltas: abilities & DELTAS != 0,
            encrypts: abilities & ENCRYPTS != 0,
            attributes: abilities & ATTRIBUTES != 0,
            receives: reader.u16()?,
            block: reader.u32()?,
            token: reader.array()?,
        })
    }

    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        let role = match self.role {
            Role::Source => 1,
            Role::Sink => 2,
        };
        let flag = |is: bool, flag| if is { flag } else { 0 };
        let abilities = flag(self.packs, PACKS) | flag(self.streams, STREAMS);
        let abilities = abilities | flag(self.joins, JOINS) | flag(self.deltas, DELTAS);
        let abilities = abilities | flag(self.encrypts, ENCRYPTS);
        let abilities = abilities | flag(self.attributes, ATTRIBUTES);
        out.extend([role, abilities]);
        out.extend(self.receives.to_be_bytes());
        out.extend(self.block.to_be_bytes());
        out.extend(self.token);
    }
}

/// Further streams may join.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offering {
    /// How many at a time, beside the first.
    pub streams: u16,
    /// Token of their HELLOs.
    pub key: [u8; 16],
}

impl Offering {
    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let streams = reader.u16()?;
        reader.u16()?;
        let key = reader.array()?;
        Ok(Self { streams, key })
    }

    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        out.extend(self.streams.to_be_bytes());
        out.extend([0; 2]);
        out.extend(self.key);
    }
}

/// A stream is gone at the sender's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    /// Its number.
    pub stream: u16,
    /// Frames that the sender took from it since the beginning, modulo 2^32.
    pub taken: u32,
}

impl Left {
    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let stream = reader.u16()?;
        reader.u16()?;
        let taken = reader.u32()?;
        Ok(Self { stream, taken })
    }

    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        out.extend(self.stream.to_be_bytes());
        out.extend([0; 2]);
        out.extend(self.taken.to_be_bytes());
    }
}

/// Why a session ends before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// A user or program ended it.
    Cancelled,
    /// The peer broke a rule of the protocol.
    Violation,
    /// The token is not that of the session.
    Token,
    /// A failure of the sender's own.
    Failure,
}

/// The session ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Abort {
    /// Why.
    pub reason: Reason,
    /// The reason for people.
    pub text: String,
}

impl Abort {
    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let reason = reader.u8()?;
        let known = match reason {
            1 => Some(Reason::Cancelled),
            2 => Some(Reason::Violation),
            3 => Some(Reason::Token),
            4 => Some(Reason::Failure),
            _ => None,
        };
        let reason = reader.value("reason", reason, known)?;
        Ok(Self {
            reason,
            text: reader.text(),
        })
    }

    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        out.push(match self.reason {
            Reason::Cancelled => 1,
            Reason::Violation => 2,
            Reason::Token => 3,
            Reason::Failure => 4,
        });
        out.extend(cut(&self.text));
    }
}

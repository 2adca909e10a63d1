//! Hello frame (§3.7): identifiers, first credit and cookies of an association.

use std::fmt;

use super::super::malformed::Malformed;
use super::super::octets::{Reader, emit_header};
use super::credit::Credit;

pub(super) const KIND: u8 = 0x07;
pub(super) const LEN: usize = 32;
/// Version of this specification.
pub const VERSION: u8 = 1;

const RETRY: u8 = 0x01;
const CONNECTION: u8 = 0x02;
/// Bits of a life.
const LIFE: u32 = 0x00ff_ffff;

/// A hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// The sender keeps no state: the receiver repeats its hello with the cookie.
    pub retry: bool,
    /// Life of an RC queue pair: its SQ PSN, 24 bits (§9.1); `None` for a queue pair with any number of peers.
    pub life: Option<u32>,
    /// Identifier that the sender drew; 0 in a retry.
    pub association: u32,
    /// First credit.
    pub credit: Credit,
    /// Cookie that the receiver gave the sender earlier; 0 for none.
    pub proof: u64,
    /// Cookie that the receiver may show later; 0 for none.
    pub cookie: u64,
}

impl Hello {
    pub(super) fn parse(flags: u8, octets: &[u8]) -> Option<Result<Self, Malformed>> {
        let mut reader = Reader::new(octets);
        // Behind the version, features and reserved octets, or a life.
        let word = reader.u32()?;
        let [version, ..] = word.to_be_bytes();
        let hello = Self {
            retry: flags & RETRY != 0,
            life: (flags & CONNECTION != 0).then_some(word & LIFE),
            association: reader.u32()?,
            credit: Credit {
                receives: reader.u32()?,
                window: reader.u32()?,
            },
            proof: reader.u64()?,
            cookie: reader.u64()?,
        };
        reader.end(if version == VERSION {
            Ok(hello)
        } else {
            Err(Malformed::Version(version))
        })
    }

    /// Appends the frame.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let length = u16::try_from(LEN).unwrap_or(u16::MAX);
        let connection = self.life.map_or(0, |_| CONNECTION);
        emit_header(out, KIND, u8::from(self.retry) | connection, length);
        let word = u32::from(VERSION) << 24 | self.life.unwrap_or(0) & LIFE;
        out.extend(word.to_be_bytes());
        out.extend(self.association.to_be_bytes());
        out.extend(self.credit.receives.to_be_bytes());
        out.extend(self.credit.window.to_be_bytes());
        out.extend(self.proof.to_be_bytes());
        out.extend(self.cookie.to_be_bytes());
    }
}

impl fmt::Display for Hello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let retry = if self.retry { " retry" } else { "" };
        write!(
            f,
            "hello{retry} association {:#010x}, {}",
            self.association, self.credit
        )?;
        self.life
            .map_or(Ok(()), |life| write!(f, ", life {life:#08x}"))
    }
}

//! Ping and pong frames (§3.8): probes, and proof that an address receives.

use std::fmt;

use super::super::octets::{Reader, emit_header};

pub(super) const PING: u8 = 0x08;
pub(super) const PONG: u8 = 0x09;
const LEN: u16 = 8;

/// A ping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ping(
    /// Octets that the pong repeats.
    pub u64,
);

/// A pong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pong(
    /// Octets of the ping.
    pub u64,
);

fn parse(octets: &[u8]) -> Option<u64> {
    let mut reader = Reader::new(octets);
    let data = reader.u64()?;
    reader.end(data)
}

impl Ping {
    pub(super) fn parse(octets: &[u8]) -> Option<Self> {
        parse(octets).map(Self)
    }

    /// Appends the frame.
    pub fn emit(&self, out: &mut Vec<u8>) {
        emit_header(out, PING, 0, LEN);
        out.extend(self.0.to_be_bytes());
    }
}

impl Pong {
    pub(super) fn parse(octets: &[u8]) -> Option<Self> {
        parse(octets).map(Self)
    }

    /// Appends the frame.
    pub fn emit(&self, out: &mut Vec<u8>) {
        emit_header(out, PONG, 0, LEN);
        out.extend(self.0.to_be_bytes());
    }
}

impl fmt::Display for Ping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ping {:#018x}", self.0)
    }
}

impl fmt::Display for Pong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pong {:#018x}", self.0)
    }
}

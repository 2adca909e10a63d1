//! Work requests that an end makes.

use crate::wire::{IoMap, Sge};

/// Memory of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Address.
    pub addr: u64,
    /// Remote key.
    pub key: u32,
}

/// Where the octets of a Write come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// From the program's memory, as inline data.
    Inline,
    /// From the send buffer.
    Buffer {
        /// Offset of the first octets.
        at: u32,
        /// Octets there.
        first: u32,
        /// Octets at the beginning of the buffer, behind those.
        rest: u32,
    },
}

/// An RDMA Write, followed by a Send where there is a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Post {
    /// Its octets.
    pub part: Part,
    /// Number of its octets.
    pub octets: u32,
    /// Its target.
    pub to: Place,
    /// The message behind it, four octets.
    pub message: Option<[u8; 4]>,
    /// Work request identifier of the last of the two, which alone makes a completion; `None` where it makes none either.
    pub id: Option<Sent>,
}

/// A message of credits, behind an RDMA Write of a new target where there is room for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Credits {
    /// The target, and where it is written.
    pub target: Option<(Place, [u8; Sge::LEN])>,
    /// The message.
    pub message: [u8; 4],
}

/// A completion that a work request makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// Data or an I/O map, and the messages before it that made no completion.
    Message {
        /// Octets of the send buffer that are free.
        octets: u32,
        /// Entries of the send queue that are.
        entries: u16,
    },
    /// An RDMA Write alone: so many octets and one entry.
    Write(u32),
    /// A message of credits or a control message.
    Control,
}

impl Sent {
    const MESSAGE: u64 = 1 << 48;
    const WRITE: u64 = 2 << 48;
    const CONTROL: u64 = 3 << 48;

    /// The work request identifier.
    #[must_use]
    pub fn to_id(self) -> u64 {
        match self {
            Self::Message { octets, entries } => {
                Self::MESSAGE | u64::from(entries) << 32 | u64::from(octets)
            }
            Self::Write(octets) => Self::WRITE | u64::from(octets),
            Self::Control => Self::CONTROL,
        }
    }

    /// The completion with this work request identifier.
    #[must_use]
    pub fn from_id(id: u64) -> Option<Self> {
        let octets = u32::try_from(id & u64::from(u32::MAX)).ok()?;
        let entries = u16::try_from(id >> 32 & u64::from(u16::MAX)).ok()?;
        match id & !(Self::MESSAGE - 1) {
            Self::MESSAGE => Some(Self::Message { octets, entries }),
            Self::WRITE => Some(Self::Write(octets)),
            Self::CONTROL => Some(Self::Control),
            _ => None,
        }
    }
}

/// Octets of an I/O map on the wire.
pub(crate) const MAP_OCTETS: u32 = 24;

const _: () = assert!(MAP_OCTETS as usize == IoMap::LEN);

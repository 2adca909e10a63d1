//! Messages: 32 bits, the type in the uppermost three (§3).

use std::fmt;

/// Longest value of a message.
pub const MAX_VALUE: u32 = (1 << SHIFT) - 1;

const SHIFT: u32 = 29;
const DATA: u32 = 0;
const CREDITS: u32 = 4;
const IO_MAP: u32 = 6;
const CONTROL: u32 = 7;

/// A message, which follows the RDMA Write that it is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Message {
    /// So many octets were written to the target.
    Data(u32),
    /// Messages of data with sequence numbers below this one, modulo 2^16, may be sent.
    Credits(u32),
    /// The I/O map of this index was written.
    IoMap(u32),
    /// A change of the connection.
    Control(Control),
}

/// A change of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Control {
    /// The sender neither sends nor takes data any more.
    Disconnect,
    /// Nothing.
    KeepAlive,
    /// The sender sends no data any more.
    Shutdown,
}

impl Control {
    const fn code(self) -> u32 {
        match self {
            Self::Disconnect => 0,
            Self::KeepAlive => 1,
            Self::Shutdown => 2,
        }
    }
}

/// A message of a type or a control code that the protocol does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("message {0:#010x} has no meaning")]
pub struct UnknownMessage(pub u32);

impl Message {
    /// Reads a message.
    ///
    /// # Errors
    /// [`UnknownMessage`] for the types 1, 2, 3 and 5 and for control codes above 2.
    pub const fn parse(word: u32) -> Result<Self, UnknownMessage> {
        let value = word & MAX_VALUE;
        match (word >> SHIFT, value) {
            (DATA, _) => Ok(Self::Data(value)),
            (CREDITS, _) => Ok(Self::Credits(value)),
            (IO_MAP, _) => Ok(Self::IoMap(value)),
            (CONTROL, 0) => Ok(Self::Control(Control::Disconnect)),
            (CONTROL, 1) => Ok(Self::Control(Control::KeepAlive)),
            (CONTROL, 2) => Ok(Self::Control(Control::Shutdown)),
            _ => Err(UnknownMessage(word)),
        }
    }

    /// Writes the message. Values are taken modulo 2^29.
    #[must_use]
    pub const fn emit(self) -> u32 {
        let (kind, value) = match self {
            Self::Data(octets) => (DATA, octets),
            Self::Credits(limit) => (CREDITS, limit),
            Self::IoMap(index) => (IO_MAP, index),
            Self::Control(control) => (CONTROL, control.code()),
        };
        kind << SHIFT | value & MAX_VALUE
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Data(octets) => write!(f, "data of {octets} octets"),
            Self::Credits(limit) => write!(f, "credits up to {limit}"),
            Self::IoMap(index) => write!(f, "I/O map {index}"),
            Self::Control(control) => write!(f, "{control:?}"),
        }
    }
}

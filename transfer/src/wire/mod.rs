//! Frames (`rfc-notes/transfer.md` §3): a header of twelve octets and a body.
//!
//! ```text
//! octet 0 "DG" | 2 version | 3 protected 1 bit, kind 7 bits | 4..8 length of the body | 8..12 taken
//! ```

mod attributes;
mod block;
mod delta;
mod file;
mod grant;
mod key_share;
mod octets;
mod pack;
mod request;
mod session;

pub use attributes::{
    ATTRIBUTE_NAME_LIMIT, ATTRIBUTES_LIMIT, Attribute, Attributes, AttributesPart, NAMESPACE,
    Remark, VALUE_LIMIT,
};
pub use block::{Ack, Block, Level, Nack};
pub use delta::{Part, SIGNATURES_LIMIT, Signature, Signatures};
pub use file::{Done, End, EndStatus, Entry, FileKind, Offer, Status, Want};
pub use grant::{Grant, Window};
pub use key_share::{KeyShare, Method, PRESHARED_SHARE, SPAKE2_SHARE};
pub use pack::{Answer, Answers, List, PACKED, RECORD, Record, Stored};
pub use request::{Removal, Removed, Request, Unreadable, Wish};
pub use session::{Abort, Hello, Left, Offering, Reason, Role};

use octets::Reader;

/// Octets of a header.
pub const HEADER: usize = 12;
/// Most octets of a frame, with its header.
pub const FRAME_LIMIT: usize = 8192;
/// Octets of the authentication tag behind a protected body.
pub const TAG: usize = 16;
/// Bit of the kind: the body is protected.
pub const PROTECTED: u8 = 0x80;
/// Most octets of a text in a frame.
pub const TEXT_LIMIT: usize = 1024;
/// Most octets of a name or a link's target.
pub const NAME_LIMIT: usize = 4096 - 256;
/// First octets of a frame.
pub const MAGIC: [u8; 2] = *b"DG";
/// Version of the protocol.
pub const VERSION: u8 = 1;

/// A frame breaks a rule of its format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// It does not begin with `DG`.
    #[error("a frame begins with {0:02x?}")]
    Magic([u8; 2]),
    /// Another version.
    #[error("version {0} of the transfer protocol is not supported")]
    Version(u8),
    /// An unknown kind.
    #[error("a frame of unknown kind {0}")]
    Kind(u8),
    /// Longer than any frame may be.
    #[error("a frame with a body of {0} octets")]
    Length(u32),
    /// The body ends inside of a field.
    #[error("a frame of kind {kind} is too short")]
    Short {
        /// Kind of the frame.
        kind: u8,
    },
    /// The body goes on behind the last field.
    #[error("a frame of kind {kind} has {octets} octets too many")]
    Long {
        /// Kind of the frame.
        kind: u8,
        /// How many.
        octets: usize,
    },
    /// Its body is not protected, as that of each frame of the connection is.
    #[error("a frame of kind {0} that is not protected")]
    Unprotected(u8),
    /// It was changed, or protected with another key.
    #[error("a protected frame that is not authentic")]
    NotAuthentic,
    /// Extended attributes that are out of order, over a limit or of a namespace that is not taken.
    #[error("extended attributes out of order, over a limit, or not of the namespace user")]
    Attributes,
    /// A field has a value that has no meaning.
    #[error("a frame of kind {kind} has {field} {value}")]
    Value {
        /// Kind of the frame.
        kind: u8,
        /// Name of the field.
        field: &'static str,
        /// Its value.
        value: u8,
    },
}

/// Header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Kind of the frame, with [`PROTECTED`] where its body is.
    pub kind: u8,
    /// Octets of the body.
    pub length: u32,
    /// Frames that the sender has taken from its receives since the beginning, modulo 2^32.
    pub taken: u32,
}

impl Header {
    /// Parses a header.
    ///
    /// # Errors
    /// [`Malformed`] for another magic, version or a length over the limit.
    pub fn parse(bytes: &[u8; HEADER]) -> Result<Self, Malformed> {
        let [m0, m1, version, kind, l0, l1, l2, l3, t0, t1, t2, t3] = *bytes;
        if [m0, m1] != MAGIC {
            return Err(Malformed::Magic([m0, m1]));
        }
        if version != VERSION {
            return Err(Malformed::Version(version));
        }
        let length = u32::from_be_bytes([l0, l1, l2, l3]);
        let tag = if kind & PROTECTED == 0 { 0 } else { TAG };
        if length as usize > FRAME_LIMIT - HEADER + tag {
            return Err(Malformed::Length(length));
        }
        let taken = u32::from_be_bytes([t0, t1, t2, t3]);
        Ok(Self {
            kind,
            length,
            taken,
        })
    }

    /// Octets of the header.
    #[must_use]
    pub fn emit(&self) -> [u8; HEADER] {
        let [l0, l1, l2, l3] = self.length.to_be_bytes();
        let [t0, t1, t2, t3] = self.taken.to_be_bytes();
        let [m0, m1] = MAGIC;
        [m0, m1, VERSION, self.kind, l0, l1, l2, l3, t0, t1, t2, t3]
    }
}

/// A frame without its header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// First of each end.
    Hello(Hello),
    /// The slots of the sink.
    Window(Window),
    /// Slots that the source may fill.
    Grant(Grant),
    /// A file that the source has.
    Offer(Offer),
    /// Ranges of a file that the sink lacks.
    Want(Want),
    /// A slot is filled.
    Block(Block),
    /// Ranges are placed or durable.
    Ack(Ack),
    /// A block is wanted again.
    Nack(Nack),
    /// A file has no further blocks.
    End(End),
    /// A file is finished at the sink.
    Done(Done),
    /// No further files; the sink's answer: all are finished.
    Finish,
    /// Sign of life, and carrier of `taken`.
    Ping,
    /// The session ends.
    Abort(Abort),
    /// Entries that the source has.
    List(List),
    /// Listed entries are checked.
    Answer(Answers),
    /// Packed files have their names.
    Stored(Stored),
    /// Order of the end that dialled.
    Request(Request),
    /// All that the source has was offered or listed, and is finished: the sink may remove anything else.
    Prune,
    /// Entries that the sink removed.
    Removed(Removed),
    /// An entry is left out.
    Unreadable(Unreadable),
    /// Further streams may join.
    Streams(Offering),
    /// A stream is gone.
    Left(Left),
    /// Pieces of an old copy of a file.
    Signatures(Signatures),
    /// Before the session: agreement on keys.
    KeyShare(KeyShare),
    /// Extended attributes of an entry that follows.
    Attributes(AttributesPart),
    /// For people of both ends.
    Remark(Remark),
}

impl Frame {
    /// Number of the kind.
    #[must_use]
    pub const fn kind(&self) -> u8 {
        match self {
            Self::Hello(_) => 1,
            Self::Window(_) => 2,
            Self::Grant(_) => 3,
            Self::Offer(_) => 4,
            Self::Want(_) => 5,
            Self::Block(_) => 6,
            Self::Ack(_) => 7,
            Self::Nack(_) => 8,
            Self::End(_) => 9,
            Self::Done(_) => 10,
            Self::Finish => 11,
            Self::Ping => 12,
            Self::Abort(_) => 13,
            Self::List(_) => 14,
            Self::Answer(_) => 15,
            Self::Stored(_) => 16,
            Self::Request(_) => 17,
            Self::Prune => 18,
            Self::Removed(_) => 19,
            Self::Unreadable(_) => 20,
            Self::Streams(_) => 21,
            Self::Left(_) => 22,
            Self::Signatures(_) => 23,
            Self::KeyShare(_) => 24,
            Self::Attributes(_) => 25,
            Self::Remark(_) => 26,
        }
    }

    /// Octets of the frame with its header.
    #[must_use]
    pub fn emit(&self, taken: u32) -> Vec<u8> {
        let mut out = vec![0; HEADER];
        match self {
            Self::Hello(it) => it.emit(&mut out),
            Self::Window(it) => it.emit(&mut out),
            Self::Grant(it) => it.emit(&mut out),
            Self::Offer(it) => it.emit(&mut out),
            Self::Want(it) => it.emit(&mut out),
            Self::Block(it) => it.emit(&mut out),
            Self::Ack(it) => it.emit(&mut out),
            Self::Nack(it) => it.emit(&mut out),
            Self::End(it) => it.emit(&mut out),
            Self::Done(it) => it.emit(&mut out),
            Self::Abort(it) => it.emit(&mut out),
            Self::List(it) => it.emit(&mut out),
            Self::Answer(it) => it.emit(&mut out),
            Self::Stored(it) => it.emit(&mut out),
            Self::Request(it) => it.emit(&mut out),
            Self::Removed(it) => it.emit(&mut out),
            Self::Unreadable(it) => it.emit(&mut out),
            Self::Streams(it) => it.emit(&mut out),
            Self::Left(it) => it.emit(&mut out),
            Self::Signatures(it) => it.emit(&mut out),
            Self::KeyShare(it) => it.emit(&mut out),
            Self::Attributes(it) => it.emit(&mut out),
            Self::Remark(it) => it.emit(&mut out),
            Self::Finish | Self::Ping | Self::Prune => {}
        }
        let length = u32::try_from(out.len() - HEADER).unwrap_or(u32::MAX);
        let kind = self.kind();
        let header = Header {
            kind,
            length,
            taken,
        };
        out[..HEADER].copy_from_slice(&header.emit());
        out
    }

    /// Parses a body by the kind that its header has.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn parse(kind: u8, body: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(kind, body);
        let frame = match kind {
            1 => Self::Hello(Hello::parse(&mut reader)?),
            2 => Self::Window(Window::parse(&mut reader)?),
            3 => Self::Grant(Grant::parse(&mut reader)?),
            4 => Self::Offer(Offer::parse(&mut reader)?),
            5 => Self::Want(Want::parse(&mut reader)?),
            6 => Self::Block(Block::parse(&mut reader)?),
            7 => Self::Ack(Ack::parse(&mut reader)?),
            8 => Self::Nack(Nack::parse(&mut reader)?),
            9 => Self::End(End::parse(&mut reader)?),
            10 => Self::Done(Done::parse(&mut reader)?),
            11 => Self::Finish,
            12 => Self::Ping,
            13 => Self::Abort(Abort::parse(&mut reader)?),
            14 => Self::List(List::parse(&mut reader)?),
            15 => Self::Answer(Answers::parse(&mut reader)?),
            16 => Self::Stored(Stored::parse(&mut reader)?),
            17 => Self::Request(Request::parse(&mut reader)?),
            18 => Self::Prune,
            19 => Self::Removed(Removed::parse(&mut reader)?),
            20 => Self::Unreadable(Unreadable::parse(&mut reader)?),
            21 => Self::Streams(Offering::parse(&mut reader)?),
            22 => Self::Left(Left::parse(&mut reader)?),
            23 => Self::Signatures(Signatures::parse(&mut reader)?),
            24 => Self::KeyShare(KeyShare::parse(&mut reader)?),
            25 => Self::Attributes(AttributesPart::parse(&mut reader)?),
            26 => Self::Remark(Remark::parse(&mut reader)),
            other => return Err(Malformed::Kind(other)),
        };
        reader.end()?;
        Ok(frame)
    }
}

#[cfg(test)]
mod tests;

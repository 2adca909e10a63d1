//! The datagram mapping (`rfc-notes/datagram-mapping.md`): one UDP datagram is one DDP segment, a cookie exchange, or a service lookup.

mod parse;
#[cfg(test)]
mod tests;
mod text;

use dgiwarp_codec::crc;
use thiserror::Error;

use super::ddp::{Place, ReadRequest, TAGGED, TAGGED_LAST, Terminate, UNTAGGED_LAST};
use super::reliable::Reliable;

/// Octets of the extension of Write-Records and Segmented Sends (Datagram §3).
pub const EXTENSION: usize = 24;
/// Octets of a cookie exchange, CRC included (Datagram §6).
pub const EXCHANGE: usize = 36;
/// Octets of a service lookup, CRC included (Datagram §10).
pub const LOOKUP: usize = 284;
/// The longest Message of Write-Records and Reads (Datagram §3).
pub const MOST: u32 = 1 << 30;

/// RV in its place, as [`super::ddp::RV`].
const RV: u8 = super::ddp::RV;

/// Opcodes that the mapping has (Datagram §1.2); those of RFC 5040 that it shares are in [`super::ddp::opcode`].
pub mod opcode {
    pub use crate::wire::ddp::opcode::{READ_REQUEST, READ_RESPONSE, SEND, SEND_SE, TERMINATE};
    /// Write-Record, and the Write of UC queue pairs.
    pub const WRITE_RECORD: u8 = 12;
    /// Segmented Send, or one with an immediate.
    pub const SEGMENTED_SEND: u8 = 13;
}

/// Formats: the four bits that RFC 5041 §4.1 reserves (Datagram §1.1).
pub mod format {
    /// A segment.
    pub const SEGMENT: u8 = 0;
    /// A segment with a cookie.
    pub const WITH_COOKIE: u8 = 1;
    /// A cookie exchange.
    pub const EXCHANGE: u8 = 2;
    /// Service lookup.
    pub const LOOKUP: u8 = 3;
    /// A reliable datagram.
    pub const RELIABLE: u8 = 4;
}

/// Flags of the extension (Datagram §3).
pub mod flag {
    /// The immediate is valid.
    pub const IMMEDIATE: u8 = 1;
    /// Solicited event.
    pub const SOLICITED: u8 = 2;
    /// A UC Write: no record.
    pub const WRITE: u8 = 4;
}

/// The extension behind the header of Write-Records and Segmented Sends (Datagram §3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extension {
    /// [`flag`]s.
    pub flags: u8,
    /// The three reserved octets.
    pub reserved: [u8; 3],
    /// The sender's epoch.
    pub epoch: u32,
    /// The number of the Message.
    pub number: u32,
    /// Octets of the whole Message.
    pub length: u32,
    /// Where this segment's payload begins in it.
    pub offset: u32,
    /// The immediate, valid with [`flag::IMMEDIATE`].
    pub immediate: u32,
}

impl Extension {
    /// The 24 octets.
    #[must_use]
    pub fn to_bytes(self) -> [u8; EXTENSION] {
        let mut octets = [0; EXTENSION];
        octets[0] = self.flags;
        octets[1..4].copy_from_slice(&self.reserved);
        let words = [
            self.epoch,
            self.number,
            self.length,
            self.offset,
            self.immediate,
        ];
        for (to, word) in octets[4..].chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_be_bytes());
        }
        octets
    }
}

/// A DDP segment in a datagram: formats 0 and 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The first octet: T, L, format, DV.
    pub first: u8,
    /// RDMAP's control octet.
    pub control: u8,
    /// STag and TO, or the RsvdULP word (Q_Key or epoch), QN, MSN and MO.
    pub place: Place,
    /// The extension; Write-Records and Segmented Sends have one.
    pub extension: Option<Extension>,
    /// The cookie; format 1 has one.
    pub cookie: Option<u64>,
    /// The payload.
    pub payload: Vec<u8>,
}

impl Segment {
    /// A Send of one segment (Datagram §2).
    #[must_use]
    pub fn send(qkey: u32, msn: u32, payload: &[u8]) -> Self {
        Self::untagged(opcode::SEND, qkey, 0, msn, payload)
    }

    /// A segment to a queue, the last of its Message. `word` is the Q_Key on queue 0, else the sender's epoch.
    #[must_use]
    pub fn untagged(opcode: u8, word: u32, qn: u32, msn: u32, payload: &[u8]) -> Self {
        Self {
            first: UNTAGGED_LAST,
            control: RV | opcode,
            place: Place::Untagged {
                rsvd: word,
                qn,
                msn,
                mo: 0,
            },
            extension: None,
            cookie: None,
            payload: payload.to_vec(),
        }
    }

    /// A tagged segment without an extension, the last of its Message.
    #[must_use]
    pub fn tagged(opcode: u8, stag: u32, to: u64, payload: &[u8]) -> Self {
        Self {
            first: TAGGED_LAST,
            control: RV | opcode,
            place: Place::Tagged { stag, to },
            extension: None,
            cookie: None,
            payload: payload.to_vec(),
        }
    }

    /// One segment of a Write-Record to `base` (Datagram §5): the extension says which of the Message's octets it carries.
    #[must_use]
    pub fn write_record(stag: u32, base: u64, extension: Extension, payload: &[u8]) -> Self {
        let to = base.wrapping_add(extension.offset.into());
        let mut segment = Self::tagged(opcode::WRITE_RECORD, stag, to, payload);
        if !ends(extension, payload) {
            segment.first = TAGGED;
        }
        segment.extension = Some(extension);
        segment
    }

    /// One segment of a Segmented Send (Datagram §7).
    #[must_use]
    pub fn segmented_send(qkey: u32, extension: Extension, payload: &[u8]) -> Self {
        let mut segment =
            Self::untagged(opcode::SEGMENTED_SEND, qkey, 0, extension.number, payload);
        if let Place::Untagged { mo, .. } = &mut segment.place {
            *mo = extension.offset;
        }
        if !ends(extension, payload) {
            segment.first &= !0x40;
        }
        segment.extension = Some(extension);
        segment
    }

    /// A Read Request of one chunk (Datagram §7.1).
    #[must_use]
    pub fn read_request(epoch: u32, msn: u32, request: ReadRequest) -> Self {
        Self::untagged(opcode::READ_REQUEST, epoch, 1, msn, &request.to_bytes())
    }

    /// One segment of a Read Response (Datagram §7.1).
    #[must_use]
    pub fn read_response(stag: u32, to: u64, last: bool, payload: &[u8]) -> Self {
        let mut segment = Self::tagged(opcode::READ_RESPONSE, stag, to, payload);
        if !last {
            segment.first = TAGGED;
        }
        segment
    }

    /// The segment with a cookie, as format 1.
    #[must_use]
    pub fn with_cookie(mut self, cookie: u64) -> Self {
        self.first = self.first & !0x3c | format::WITH_COOKIE << 2;
        self.cookie = Some(cookie);
        self
    }

    /// RDMAP's opcode.
    #[must_use]
    pub fn opcode(&self) -> u8 {
        self.control & 0x0f
    }

    /// Whether it is the last of its Message.
    #[must_use]
    pub fn is_last(&self) -> bool {
        self.first & 0x40 != 0
    }

    /// Octets before the CRC.
    fn to_bytes(&self) -> Vec<u8> {
        let mut octets = vec![self.first, self.control];
        match self.place {
            Place::Tagged { stag, to } => {
                octets.extend(stag.to_be_bytes());
                octets.extend(to.to_be_bytes());
            }
            Place::Untagged { rsvd, qn, msn, mo } => {
                for word in [rsvd, qn, msn, mo] {
                    octets.extend(word.to_be_bytes());
                }
            }
        }
        octets.extend(self.extension.into_iter().flat_map(Extension::to_bytes));
        octets.extend(self.cookie.into_iter().flat_map(u64::to_be_bytes));
        octets.extend(&self.payload);
        octets
    }
}

/// Whether the payload ends its Message.
fn ends(extension: Extension, payload: &[u8]) -> bool {
    u32::try_from(payload.len())
        .ok()
        .and_then(|length| extension.offset.checked_add(length))
        == Some(extension.length)
}

/// A cookie that is asked for or given, or an invitation to share memory: format 2 (Datagram §6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// The first octet.
    pub first: u8,
    /// 1 asks, 2 answers, 3 invites a peer on the same host.
    pub kind: u8,
    /// The two reserved octets.
    pub reserved: [u8; 2],
    /// The requester's epoch.
    pub epoch: u32,
    /// The requester's nonce.
    pub nonce: u64,
    /// The cookie; zero in a request.
    pub cookie: u64,
    /// The eight reserved octets at the end.
    pub end: [u8; 8],
}

impl Exchange {
    /// Asks for a cookie.
    #[must_use]
    pub fn request(epoch: u32, nonce: u64) -> Self {
        Self {
            first: 0x49,
            kind: 1,
            reserved: [0; 2],
            epoch,
            nonce,
            cookie: 0,
            end: [0; 8],
        }
    }

    /// Whether it is an invitation to share memory, with a token in place of nonce and cookie.
    #[must_use]
    pub const fn is_invitation(&self) -> bool {
        self.kind == 3
    }

    /// Answers with a cookie.
    #[must_use]
    pub fn answer(epoch: u32, nonce: u64, cookie: u64) -> Self {
        Self {
            kind: 2,
            cookie,
            ..Self::request(epoch, nonce)
        }
    }

    fn to_bytes(self) -> Vec<u8> {
        let mut octets = vec![self.first, self.kind];
        octets.extend(self.reserved);
        octets.extend(self.epoch.to_be_bytes());
        octets.extend(self.nonce.to_be_bytes());
        octets.extend(self.cookie.to_be_bytes());
        octets.extend(self.end);
        octets
    }
}

/// Service lookup: format 3 (Datagram §10).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// The first octet.
    pub first: u8,
    /// 1 lookup, 2 answer, 3 reject, 4 waiting, 5 port query, 6 port answer.
    pub kind: u8,
    /// Of a reject, why.
    pub status: u16,
    /// The question's random number.
    pub transaction: u64,
    /// The service's number.
    pub port: u16,
    /// The length that the private data claims to have.
    pub length: u16,
    /// The queue pair's number.
    pub qpn: u32,
    /// The queue pair's Q_Key.
    pub qkey: u32,
    /// The private data that it has.
    pub private_data: Vec<u8>,
    /// Octets between the private data and the CRC.
    pub fill: Vec<u8>,
}

impl Lookup {
    /// A lookup, filled to its length.
    #[must_use]
    pub fn question(transaction: u64, port: u16, private_data: &[u8]) -> Self {
        let length = u16::try_from(private_data.len()).unwrap_or(u16::MAX);
        let fill = (LOOKUP - 28).saturating_sub(private_data.len());
        Self {
            first: 0x4d,
            kind: 1,
            status: 0,
            transaction,
            port,
            length,
            qpn: 0,
            qkey: 0,
            private_data: private_data.to_vec(),
            fill: vec![0; fill],
        }
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut octets = vec![self.first, self.kind];
        octets.extend(self.status.to_be_bytes());
        octets.extend(self.transaction.to_be_bytes());
        octets.extend(self.port.to_be_bytes());
        octets.extend(self.length.to_be_bytes());
        octets.extend(self.qpn.to_be_bytes());
        octets.extend(self.qkey.to_be_bytes());
        octets.extend(&self.private_data);
        octets.extend(&self.fill);
        octets
    }
}

/// Contents of one UDP datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Datagram {
    /// Formats 0 and 1.
    Segment(Segment),
    /// Format 2.
    Exchange(Exchange),
    /// Format 3.
    Lookup(Lookup),
    /// Format 4.
    Reliable(Reliable),
}

impl Datagram {
    /// The datagram's octets, with a right CRC.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        sealed(match self {
            Self::Segment(segment) => segment.to_bytes(),
            Self::Exchange(exchange) => exchange.to_bytes(),
            Self::Lookup(lookup) => lookup.to_bytes(),
            Self::Reliable(reliable) => reliable.to_bytes(),
        })
    }

    /// Reads a datagram's octets; with what else the mapping demands of every datagram of its kind.
    ///
    /// # Errors
    /// [`Dropped`]: why every receiver has to drop it.
    pub fn parse(octets: &[u8]) -> Result<Self, Dropped> {
        parse::datagram(octets)
    }

    /// The segment, if it is one.
    #[must_use]
    pub fn segment(&self) -> Option<&Segment> {
        match self {
            Self::Segment(segment) => Some(segment),
            Self::Exchange(_) | Self::Lookup(_) | Self::Reliable(_) => None,
        }
    }
}

impl From<Segment> for Datagram {
    fn from(segment: Segment) -> Self {
        Self::Segment(segment)
    }
}

impl From<Exchange> for Datagram {
    fn from(exchange: Exchange) -> Self {
        Self::Exchange(exchange)
    }
}

impl From<Lookup> for Datagram {
    fn from(lookup: Lookup) -> Self {
        Self::Lookup(lookup)
    }
}

/// Octets with their CRC behind them (Datagram §1).
#[must_use]
pub fn sealed(mut octets: Vec<u8>) -> Vec<u8> {
    octets.extend(crc::to_wire(crc::crc32c(&octets)));
    octets
}

/// Why every receiver has to drop a datagram, whatever its state: the first step of Datagram §5, by the names of §9.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Dropped {
    /// The CRC is not that of the octets before it.
    #[error("bad-crc: {got:#010x} in place of {expected:#010x}")]
    BadCrc {
        /// Value in the datagram.
        got: u32,
        /// Computed value.
        expected: u32,
    },
    /// The format is none that the mapping assigns.
    #[error("unknown-format: {0}")]
    UnknownFormat(u8),
    /// DV is not 1, or RV is not.
    #[error("bad-version: DV {dv}, RV {rv}")]
    BadVersion {
        /// DDP's version.
        dv: u8,
        /// RDMAP's version.
        rv: u8,
    },
    /// The opcode is none that datagrams have; or the type of a service lookup.
    #[error("unexpected-opcode: {0}")]
    UnexpectedOpcode(u8),
    /// A check of Datagram §1.2, §2, §3, §6, §7.1, §7.2 or §10 fails.
    #[error("malformed: {0}")]
    Malformed(&'static str),
}

/// Subject of a Terminate on a datagram (Datagram §7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// A Read Request.
    Request(ReadRequest),
    /// The message with this extension.
    Message(Extension),
}

/// Reads what a Terminate is about; its payload is RFC 5040 §4.8's with another ending.
#[must_use]
pub fn about(terminate: &Terminate) -> Option<About> {
    match terminate.header_control & 0b011 {
        0b001 if terminate.rest.len() == 28 => {
            ReadRequest::parse(&terminate.rest).map(About::Request)
        }
        0b010 => {
            let octets = terminate.rest.first_chunk()?;
            (terminate.rest.len() == EXTENSION).then(|| About::Message(parse::extension(octets)))
        }
        _ => None,
    }
}

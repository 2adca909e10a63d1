//! Private data of the MPA startup: hello and Reject (`rfc-notes/ripc.md`, "Connection and handshake").

use dgiwarp_codec::{split_header, u32_at, u64_at};

use super::{FormatError, VERSION, check, split, u16_at};

const MARK: u32 = 0x5249_5043;
/// Octets of a hello without the handshake message behind it.
pub(crate) const LEN: usize = 32;
const REJECT_LEN: usize = 8;
/// Least and greatest length of the longest message, in octets.
pub(crate) const MESSAGE_LENGTHS: (u32, u32) = (1024, 65_536);

/// A handshake message follows.
const HANDSHAKE: u16 = 1;
/// The sender wants all messages sealed.
const SEALED: u16 = 2;
/// Octets of the handshake message of a Request, and of a Reply.
pub(crate) const NOISE_LENGTHS: (usize, usize) = (96, 80);

/// First words of either end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) version: u16,
    /// A handshake message follows.
    pub(crate) handshake: bool,
    /// The sender wants all messages sealed; with `handshake` only.
    pub(crate) sealed: bool,
    /// Not 0.
    pub(crate) instance: u64,
    /// Octets.
    pub(crate) longest: u32,
    /// First grant of each stream of a call, in octets; 0 of an end that takes no streams.
    pub(crate) stream: u32,
    /// Octets.
    pub(crate) credit: u64,
}

impl Hello {
    /// A hello of a higher version is one too: it has these fields.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, FormatError> {
        let (header, _) = split_header::<LEN>(bytes)?;
        let mark = u32_at::<0, LEN>(header);
        if mark != MARK {
            return Err(FormatError::Mark(mark));
        }
        let flags = u16_at::<6, LEN>(header);
        let handshake = flags & HANDSHAKE != 0;
        let hello = Self {
            version: u16_at::<4, LEN>(header),
            handshake,
            sealed: handshake && flags & SEALED != 0,
            instance: u64_at::<8, LEN>(header),
            longest: u32_at::<16, LEN>(header),
            stream: u32_at::<20, LEN>(header),
            credit: u64_at::<24, LEN>(header),
        };
        if hello.version < VERSION {
            return Err(FormatError::Version(hello.version));
        }
        if hello.instance == 0 {
            return Err(FormatError::Zero("instance"));
        }
        let (least, most) = MESSAGE_LENGTHS;
        check("longest message", hello.longest.into(), most.into())?;
        if hello.longest < least {
            return Err(FormatError::Limit {
                what: "longest message, at least,",
                value: hello.longest.into(),
                limit: least.into(),
            });
        }
        Ok(hello)
    }

    pub(crate) fn emit(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(LEN);
        bytes.extend(MARK.to_be_bytes());
        bytes.extend(self.version.to_be_bytes());
        let sealed = self.handshake && self.sealed;
        let flags = u16::from(self.handshake) * HANDSHAKE + u16::from(sealed) * SEALED;
        bytes.extend(flags.to_be_bytes());
        bytes.extend(self.instance.to_be_bytes());
        bytes.extend(self.longest.to_be_bytes());
        bytes.extend(self.stream.to_be_bytes());
        bytes.extend(self.credit.to_be_bytes());
        bytes
    }
}

/// The handshake message behind a hello that announces one, `length` octets. Octets behind it are those of a later version.
pub(crate) fn parse_noise(bytes: &[u8], length: usize) -> Result<&[u8], FormatError> {
    let (_, rest) = split(bytes, LEN)?;
    let (announced, rest) = split(rest, 2)?;
    let announced = u16::from_be_bytes([announced[0], announced[1]]);
    if usize::from(announced) != length {
        return Err(FormatError::Limit {
            what: "handshake message",
            value: announced.into(),
            limit: length as u64,
        });
    }
    Ok(split(rest, length)?.0)
}

/// Appends a handshake message to its hello.
pub(crate) fn emit_noise(hello: &mut Vec<u8>, message: &[u8]) {
    let length = u16::try_from(message.len()).unwrap_or(u16::MAX);
    hello.extend(length.to_be_bytes());
    hello.extend(message);
}

/// Why a Responder takes no connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    Version,
    Malformed,
    NoRoom,
    HandshakeRequired,
    HandshakeFailed,
    UnknownKey,
}

impl Refusal {
    pub(crate) fn parse(bytes: &[u8]) -> Result<(u16, Self), FormatError> {
        let (header, _) = split_header::<REJECT_LEN>(bytes)?;
        let mark = u32_at::<0, REJECT_LEN>(header);
        if mark != MARK {
            return Err(FormatError::Mark(mark));
        }
        let refusal = match u16_at::<6, REJECT_LEN>(header) {
            1 => Self::Version,
            2 => Self::Malformed,
            3 => Self::NoRoom,
            4 => Self::HandshakeRequired,
            5 => Self::HandshakeFailed,
            6 => Self::UnknownKey,
            code => {
                return Err(FormatError::Limit {
                    what: "code",
                    value: code.into(),
                    limit: 6,
                });
            }
        };
        Ok((u16_at::<4, REJECT_LEN>(header), refusal))
    }

    pub(crate) fn emit(self) -> Vec<u8> {
        let code: u16 = match self {
            Self::Version => 1,
            Self::Malformed => 2,
            Self::NoRoom => 3,
            Self::HandshakeRequired => 4,
            Self::HandshakeFailed => 5,
            Self::UnknownKey => 6,
        };
        let mut bytes = Vec::with_capacity(REJECT_LEN);
        bytes.extend(MARK.to_be_bytes());
        bytes.extend(VERSION.to_be_bytes());
        bytes.extend(code.to_be_bytes());
        bytes
    }
}

//! Segments of the datagram mapping: parsing with every check of §1 to §3, and emitting.

#![deny(clippy::indexing_slicing)]

use dgiwarp_ddp::wire::{Control, TaggedHeader, UntaggedHeader, control, tagged, untagged};
use dgiwarp_ddp::{MessageOffset, Msn, QueueNumber, STag, Segment, TaggedOffset};

use super::format::{FORMAT_COOKIE, FORMAT_EXCHANGE, FORMAT_SEGMENT, parse_cookie};
use super::read::segment::{self as read, ReadSegment};
use super::{Cookie, DropReason};
use crate::wire::{ControlError, Extension, Flags, Opcode, extension};

/// Longest Write-Record in octets.
pub const MAX_WRITE_RECORD: u32 = 1 << 30;
/// Longest Send in octets.
pub const MAX_SEND: u32 = 1 << 24;
/// Most octets that a segment has before its payload.
pub const MAX_HEADER: usize = untagged::LEN + extension::LEN + Cookie::LEN;

/// A received segment that passed the checks of §1 to §3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parsed<'a> {
    /// A whole Send message.
    Send {
        /// The Q_Key that the sender named.
        qkey: u32,
        /// Whether the receiver raises a solicited event.
        solicited: bool,
        /// The message.
        payload: &'a [u8],
    },
    /// A part of a Send.
    SegmentedSend {
        /// The Q_Key that the sender named.
        qkey: u32,
        /// Which part of which message.
        extension: Extension,
        /// The part.
        payload: &'a [u8],
    },
    /// A part of a Write-Record, or of a UC Write if flag W is set.
    WriteRecord(WriteSegment<'a>),
    /// A segment of a Read, of a Terminate or of a cookie exchange.
    Read(ReadSegment<'a>),
}

/// A segment of a Write-Record or of a UC Write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteSegment<'a> {
    /// The target buffer.
    pub stag: STag,
    /// TO of this segment.
    pub tagged_offset: TaggedOffset,
    /// TO of the message's first octet: the segment's TO minus its message offset.
    pub base: TaggedOffset,
    /// Identifies the message and the segment's part of it.
    pub extension: Extension,
    /// Octets of that part.
    pub payload: &'a [u8],
}

/// Parses a segment: a datagram without its CRC, which was checked before. A cookie is skipped, but for Read Requests:
/// [`cookie_of`](super::read::segment::cookie_of) has it for those who want to verify it.
///
/// # Errors
/// The reason to drop it. Nothing was looked at beyond the headers.
#[inline]
pub fn parse(bytes: &[u8]) -> Result<Parsed<'_>, DropReason> {
    let [first, ulp, ..] = *bytes else {
        return Err(DropReason::Malformed);
    };
    let control = Control::parse(first);
    if control.format > FORMAT_EXCHANGE {
        return Err(DropReason::UnknownFormat);
    }
    if control.version != control::DV {
        return Err(DropReason::BadVersion);
    }
    if control.format == FORMAT_EXCHANGE {
        return ReadSegment::parse_exchange(bytes).map(Parsed::Read);
    }
    let opcode = Opcode::parse(ulp).map_err(|error| match error {
        ControlError::Version(_) => DropReason::BadVersion,
        ControlError::Opcode(_) => DropReason::UnexpectedOpcode,
    })?;
    let cookie = control.format == FORMAT_COOKIE;
    match opcode {
        Opcode::WriteRecord => parse_write_record(bytes, cookie),
        Opcode::Send => parse_send(bytes, cookie, false),
        Opcode::SendSolicited => parse_send(bytes, cookie, true),
        Opcode::SegmentedSend => parse_segmented_send(bytes, cookie),
        Opcode::ReadResponse => read::parse_response(bytes, cookie).map(Parsed::Read),
        Opcode::ReadRequest => read::parse_request(bytes, cookie).map(Parsed::Read),
        Opcode::Terminate => read::parse_terminate(bytes, cookie).map(Parsed::Read),
        Opcode::Write
        | Opcode::SendInvalidate
        | Opcode::SendSolicitedInvalidate
        | Opcode::Immediate
        | Opcode::ImmediateSolicited
        | Opcode::AtomicRequest
        | Opcode::AtomicResponse => Err(DropReason::UnexpectedOpcode),
    }
}

#[inline]
fn parse_write_record(bytes: &[u8], cookie: bool) -> Result<Parsed<'_>, DropReason> {
    let (header, rest) = TaggedHeader::parse(bytes).map_err(|_| DropReason::Malformed)?;
    let (extension, rest) = Extension::parse(rest).map_err(|_| DropReason::Malformed)?;
    let (_, payload) = parse_cookie(rest, cookie)?;
    check_extension(&extension, header.control, payload.len(), MAX_WRITE_RECORD)?;
    if !header.control.tagged {
        return Err(DropReason::Malformed);
    }
    let base = header
        .tagged_offset
        .checked_sub(extension.offset.into())
        .ok_or(DropReason::Malformed)?;
    base.checked_add(extension.length.into())
        .ok_or(DropReason::Malformed)?;
    Ok(Parsed::WriteRecord(WriteSegment {
        stag: header.stag,
        tagged_offset: header.tagged_offset,
        base,
        extension,
        payload,
    }))
}

fn parse_untagged(bytes: &[u8]) -> Result<(UntaggedHeader, &[u8]), DropReason> {
    let (header, rest) = UntaggedHeader::parse(bytes).map_err(|_| DropReason::Malformed)?;
    if header.control.tagged || header.queue_number != QueueNumber::SEND {
        return Err(DropReason::Malformed);
    }
    Ok((header, rest))
}

#[inline]
fn parse_send(bytes: &[u8], cookie: bool, solicited: bool) -> Result<Parsed<'_>, DropReason> {
    let (header, rest) = parse_untagged(bytes)?;
    let (_, payload) = parse_cookie(rest, cookie)?;
    if !header.control.last || header.message_offset.get() != 0 {
        return Err(DropReason::Malformed);
    }
    Ok(Parsed::Send {
        qkey: header.rsvd_ulp_word,
        solicited,
        payload,
    })
}

fn parse_segmented_send(bytes: &[u8], cookie: bool) -> Result<Parsed<'_>, DropReason> {
    let (header, rest) = parse_untagged(bytes)?;
    let (extension, rest) = Extension::parse(rest).map_err(|_| DropReason::Malformed)?;
    let (_, payload) = parse_cookie(rest, cookie)?;
    check_extension(&extension, header.control, payload.len(), MAX_SEND)?;
    let agrees = header.msn.get() == extension.number
        && header.message_offset.get() == extension.offset
        && !extension.flags.contains(Flags::WRITE);
    if !agrees {
        return Err(DropReason::Malformed);
    }
    Ok(Parsed::SegmentedSend {
        qkey: header.rsvd_ulp_word,
        extension,
        payload,
    })
}

#[inline]
fn check_extension(
    extension: &Extension,
    control: Control,
    payload: usize,
    max_length: u32,
) -> Result<(), DropReason> {
    let end = u32::try_from(payload)
        .ok()
        .and_then(|payload| extension.offset.checked_add(payload))
        .ok_or(DropReason::Malformed)?;
    let fits = end <= extension.length && extension.length <= max_length;
    let last_is_last = control.last == (end == extension.length);
    let empty_only_alone = payload > 0 || extension.length == 0;
    if fits && last_is_last && empty_only_alone {
        Ok(())
    } else {
        Err(DropReason::Malformed)
    }
}

/// The headers of an outgoing message, but for what differs between its segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Template {
    /// A Send in one segment, without immediate.
    Send {
        /// The receiver's Q_Key.
        qkey: u32,
        /// The sender's count of plain Sends.
        msn: Msn,
        /// Whether the receiver raises a solicited event.
        solicited: bool,
    },
    /// A Send in any number of segments.
    SegmentedSend {
        /// The receiver's Q_Key.
        qkey: u32,
        /// The message; its offset is that of the first segment.
        extension: Extension,
    },
    /// A Write-Record, or a UC Write if flag W is set.
    WriteRecord {
        /// The target buffer.
        stag: STag,
        /// Where the message goes. The caller saw to it that it does not wrap.
        base: TaggedOffset,
        /// The message; its offset is that of the first segment.
        extension: Extension,
    },
}

impl Template {
    /// Octets of header in each segment.
    #[must_use]
    #[inline]
    pub const fn header_len(&self) -> usize {
        match self {
            Self::Send { .. } => untagged::LEN,
            Self::SegmentedSend { .. } => untagged::LEN + extension::LEN,
            Self::WriteRecord { .. } => tagged::LEN + extension::LEN,
        }
    }

    /// Writes the header of `segment` to the front of `out` and returns its length.
    ///
    /// # Panics
    /// If `out` is shorter than [`header_len`](Self::header_len).
    #[inline]
    pub fn emit(&self, segment: Segment, out: &mut [u8]) -> usize {
        match *self {
            Self::Send {
                qkey,
                msn,
                solicited,
            } => {
                let opcode = if solicited {
                    Opcode::SendSolicited
                } else {
                    Opcode::Send
                };
                put(out, 0, &untagged_header(segment, opcode, qkey, msn).emit())
            }
            Self::SegmentedSend { qkey, extension } => {
                let msn = Msn::new(extension.number);
                let header = untagged_header(segment, Opcode::SegmentedSend, qkey, msn);
                let end = put(out, 0, &header.emit());
                put(out, end, &at(extension, segment).emit())
            }
            Self::WriteRecord {
                stag,
                base,
                extension,
            } => {
                let header = TaggedHeader {
                    control: first_octet(true, segment),
                    rsvd_ulp: Opcode::WriteRecord.emit(),
                    stag,
                    tagged_offset: base
                        .checked_add(segment.offset.into())
                        .expect("the caller checked that the message does not wrap"),
                };
                let end = put(out, 0, &header.emit());
                put(out, end, &at(extension, segment).emit())
            }
        }
    }
}

/// What stands before the payload of an outgoing message's segments: headers, and the peer's cookie where one is carried (§1, format 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    template: Template,
    cookie: Option<Cookie>,
}

impl Prefix {
    /// Of a message with these headers.
    #[must_use]
    pub const fn new(template: Template, cookie: Option<Cookie>) -> Self {
        Self { template, cookie }
    }

    /// The headers.
    #[must_use]
    pub const fn template(&self) -> &Template {
        &self.template
    }

    /// Octets in each segment.
    #[must_use]
    #[inline]
    pub const fn length(&self) -> usize {
        let cookie = if self.cookie.is_some() {
            Cookie::LEN
        } else {
            0
        };
        self.template.header_len() + cookie
    }

    /// Writes what stands before `segment` to the front of `out` and returns its length.
    ///
    /// # Panics
    /// If `out` is shorter than [`length`](Self::length).
    #[inline]
    pub fn emit(&self, segment: Segment, out: &mut [u8]) -> usize {
        let end = self.template.emit(segment, out);
        let Some(cookie) = self.cookie else {
            return end;
        };
        if let Some(first) = out.first_mut() {
            let control = Control {
                format: FORMAT_COOKIE,
                ..Control::parse(*first)
            };
            *first = control.emit();
        }
        put(out, end, &cookie.get().to_be_bytes())
    }
}

fn first_octet(tagged: bool, segment: Segment) -> Control {
    Control {
        tagged,
        last: segment.last,
        format: FORMAT_SEGMENT,
        version: control::DV,
    }
}

fn untagged_header(segment: Segment, opcode: Opcode, qkey: u32, msn: Msn) -> UntaggedHeader {
    UntaggedHeader {
        control: first_octet(false, segment),
        rsvd_ulp: opcode.emit(),
        rsvd_ulp_word: qkey,
        queue_number: QueueNumber::SEND,
        msn,
        message_offset: MessageOffset::new(segment.offset),
    }
}

fn at(extension: Extension, segment: Segment) -> Extension {
    Extension {
        offset: segment.offset,
        ..extension
    }
}

fn put(out: &mut [u8], start: usize, bytes: &[u8]) -> usize {
    let end = start + bytes.len();
    out.get_mut(start..end)
        .expect("the caller left room for the header")
        .copy_from_slice(bytes);
    end
}

#[cfg(test)]
mod tests;

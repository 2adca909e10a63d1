//! Segments of the datagram mapping: parsing with every check of §1 to §3, and emitting.

#![deny(clippy::indexing_slicing)]

use dgiwarp_codec::{Payload, PayloadSlice};
use dgiwarp_ddp::wire::{Control, TaggedHeader, UntaggedHeader, control, tagged, untagged};
use dgiwarp_ddp::{MessageOffset, Msn, QueueNumber, STag, Segment, TaggedOffset};

use super::parts::Parts;
use super::read::segment::{self as read, ReadSegment};
use super::{Cookie, DropReason};
use crate::wire::{ControlError, Extension, Flags, Opcode, extension};

/// Longest Write-Record in octets.
pub const MAX_WRITE_RECORD: u32 = 1 << 30;
/// Longest Send in octets.
pub const MAX_SEND: u32 = 1 << 24;
/// Most octets that a segment has before its payload.
pub const MAX_HEADER: usize = untagged::LEN + extension::LEN + Cookie::LEN;
/// Octets at the front of a received segment that are parsed: no segment has more before its payload.
pub const PARSED: usize = 64;
const _: () = assert!(MAX_HEADER <= PARSED && read::MAX_SHORT <= PARSED);

/// A received segment that passed the checks of §1 to §3.
#[derive(Debug, PartialEq)]
pub enum Parsed<'a, P: Payload + ?Sized> {
    /// A whole Send message.
    Send {
        /// Q_Key of the message.
        qkey: u32,
        /// The message raises a solicited event.
        solicited: bool,
        /// Octets of the message.
        payload: PayloadSlice<'a, P>,
    },
    /// A segment of a Segmented Send.
    SegmentedSend {
        /// Q_Key of the message.
        qkey: u32,
        /// Identifies the message and the segment's part of it.
        extension: Extension,
        /// Octets of that part.
        payload: PayloadSlice<'a, P>,
    },
    /// A segment of a Write-Record, or of a UC Write if flag W is set.
    WriteRecord(WriteSegment<'a, P>),
    /// A segment of a Read, or a Terminate.
    Read(ReadSegment<'a, P>),
}

/// A segment of a Write-Record or of a UC Write.
#[derive(Debug, PartialEq)]
pub struct WriteSegment<'a, P: Payload + ?Sized> {
    /// Names the target buffer.
    pub stag: STag,
    /// TO of this segment.
    pub tagged_offset: TaggedOffset,
    /// TO of the message's first octet: the segment's TO minus its message offset.
    pub base: TaggedOffset,
    /// Identifies the message and the segment's part of it.
    pub extension: Extension,
    /// Octets of that part.
    pub payload: PayloadSlice<'a, P>,
}

/// Buffer that a written message goes to: equal in all segments of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) stag: STag,
    /// TO of the message's first octet.
    pub(super) base: TaggedOffset,
    /// Octets of the message.
    pub(super) length: u32,
}

impl<P: Payload + ?Sized> WriteSegment<'_, P> {
    #[inline]
    pub(super) fn target(&self) -> Target {
        Target {
            stag: self.stag,
            base: self.base,
            length: self.extension.length,
        }
    }

    /// The segment's range of the message.
    #[inline]
    pub(super) fn range(&self) -> (u32, u32) {
        let length = u32::try_from(self.payload.len()).unwrap_or(0);
        (self.extension.offset, self.extension.offset + length)
    }

    /// Whether the message has no other segment.
    #[inline]
    pub(super) fn is_whole(&self) -> bool {
        self.payload.len() == self.extension.length as usize
    }
}

/// Parses a segment of format 0, or of format 1: `with_cookie`. The cookie is skipped, but for Read Requests;
/// [`cookie_of`](super::read::segment::cookie_of) finds the others.
///
/// # Errors
/// The reason to drop it. Only headers were read.
#[inline]
pub fn parse<'a, P: Payload + ?Sized>(
    segment: impl Into<PayloadSlice<'a, P>>,
    with_cookie: bool,
) -> Result<Parsed<'a, P>, DropReason> {
    let segment = segment.into();
    let mut copy = [0; PARSED];
    let octets = segment.head(&mut copy);
    let [first, ulp, ..] = *octets else {
        return Err(DropReason::Malformed);
    };
    if Control::parse(first).version != control::DV {
        return Err(DropReason::BadVersion);
    }
    let opcode = Opcode::parse(ulp).map_err(|error| match error {
        ControlError::Version(_) => DropReason::BadVersion,
        ControlError::Opcode(_) => DropReason::UnexpectedOpcode,
    })?;
    let parts = Parts {
        segment,
        octets,
        with_cookie,
    };
    match opcode {
        Opcode::WriteRecord => parse_write_record(parts),
        Opcode::Send => parse_send(parts, false),
        Opcode::SendSolicited => parse_send(parts, true),
        Opcode::SegmentedSend => parse_segmented_send(parts),
        Opcode::ReadResponse => read::parse_response(parts).map(Parsed::Read),
        Opcode::ReadRequest => read::parse_request(parts).map(Parsed::Read),
        Opcode::Terminate => read::parse_terminate(parts).map(Parsed::Read),
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
fn parse_write_record<'a, P: Payload + ?Sized>(
    parts: Parts<'a, '_, P>,
) -> Result<Parsed<'a, P>, DropReason> {
    let (header, rest) = TaggedHeader::parse(parts.octets).map_err(|_| DropReason::Malformed)?;
    let (extension, rest) = Extension::parse(rest).map_err(|_| DropReason::Malformed)?;
    let (_, rest) = Cookie::split(parts.with_cookie, rest)?;
    let payload = parts.behind(rest)?;
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

#[inline(always)]
fn parse_untagged(bytes: &[u8]) -> Result<(UntaggedHeader, &[u8]), DropReason> {
    let (header, rest) = UntaggedHeader::parse(bytes).map_err(|_| DropReason::Malformed)?;
    if header.control.tagged || header.queue_number != QueueNumber::SEND {
        return Err(DropReason::Malformed);
    }
    Ok((header, rest))
}

/// Made a part of its callers, as [`parse_untagged`] is: most datagrams of few octets are plain Sends.
#[inline(always)]
fn parse_send<'a, P: Payload + ?Sized>(
    parts: Parts<'a, '_, P>,
    solicited: bool,
) -> Result<Parsed<'a, P>, DropReason> {
    let (header, rest) = parse_untagged(parts.octets)?;
    let (_, rest) = Cookie::split(parts.with_cookie, rest)?;
    let payload = parts.behind(rest)?;
    if !header.control.last || header.message_offset.get() != 0 {
        return Err(DropReason::Malformed);
    }
    Ok(Parsed::Send {
        qkey: header.rsvd_ulp_word,
        solicited,
        payload,
    })
}

fn parse_segmented_send<'a, P: Payload + ?Sized>(
    parts: Parts<'a, '_, P>,
) -> Result<Parsed<'a, P>, DropReason> {
    let (header, rest) = parse_untagged(parts.octets)?;
    let (extension, rest) = Extension::parse(rest).map_err(|_| DropReason::Malformed)?;
    let (_, rest) = Cookie::split(parts.with_cookie, rest)?;
    let payload = parts.behind(rest)?;
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

/// Headers of an outgoing message, without the fields that differ between its segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Template {
    /// A Send in one segment, without immediate.
    Send {
        /// The receiver's Q_Key.
        qkey: u32,
        /// The sender's count of plain Sends.
        msn: Msn,
        /// The message raises a solicited event.
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
        /// Names the target buffer.
        stag: STag,
        /// TO of the message's first octet. The caller has checked that the message does not wrap.
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
                    control: Control::new(true, segment.last),
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

/// Octets before the payload in each segment of an outgoing message: headers, and the peer's cookie where the message carries one (§1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    template: Template,
    cookie: Option<Cookie>,
}

impl Prefix {
    /// The prefix of a message with these headers.
    #[must_use]
    pub const fn new(template: Template, cookie: Option<Cookie>) -> Self {
        Self { template, cookie }
    }

    /// The headers.
    #[must_use]
    pub const fn template(&self) -> &Template {
        &self.template
    }

    /// Whether segments have a cookie.
    #[must_use]
    #[inline]
    pub const fn has_cookie(&self) -> bool {
        self.cookie.is_some()
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

    /// Writes the prefix of `segment` to the front of `out` and returns its length.
    ///
    /// # Panics
    /// If `out` is shorter than [`length`](Self::length).
    #[inline]
    pub fn emit(&self, segment: Segment, out: &mut [u8]) -> usize {
        let end = self.template.emit(segment, out);
        let Some(cookie) = self.cookie else {
            return end;
        };
        put(out, end, &cookie.get().to_be_bytes())
    }
}

fn untagged_header(segment: Segment, opcode: Opcode, qkey: u32, msn: Msn) -> UntaggedHeader {
    UntaggedHeader {
        control: Control::new(false, segment.last),
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

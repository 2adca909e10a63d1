//! What Reads and their errors are made of on the wire: Read Request, Read Response, Terminate, cookie exchange (§6, §7.1, §7.2).

#![deny(clippy::indexing_slicing)]

use arrayvec::ArrayVec;
use dgiwarp_ddp::wire::{Control, TaggedHeader, UntaggedHeader, control, tagged, untagged};
use dgiwarp_ddp::{MessageOffset, Msn, QueueNumber, STag, TaggedOffset};

use crate::datagram::format::{FORMAT_COOKIE, FORMAT_EXCHANGE, FORMAT_SEGMENT, parse_cookie};
use crate::datagram::{Cookie, DropReason};
use crate::wire::terminate::{Cause, TerminateControl};
use crate::wire::{Extension, Opcode, ReadRequest, extension, read_request};

/// Longest Read in octets.
pub const MAX_READ: u32 = 1 << 30;
/// Octets before the payload of a Read Response.
pub const RESPONSE_HEADER: usize = tagged::LEN;
/// Octets of a cookie exchange without its CRC.
pub const EXCHANGE_LEN: usize = 32;
/// Octets of the longest segment that is not a Read Response, without its CRC.
pub const MAX_SHORT: usize = untagged::LEN + Cookie::LEN + 4 + read_request::LEN;

/// A short segment, ready to be sent but for its CRC.
pub type Short = ArrayVec<u8, MAX_SHORT>;

/// A received segment of a Read, of a Terminate or of a cookie exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadSegment<'a> {
    /// A peer wants to read.
    Request {
        /// The requester's epoch.
        epoch: u32,
        /// The requester's cookie, not yet verified.
        cookie: Option<Cookie>,
        /// What it wants.
        request: ReadRequest,
    },
    /// A part of what we read.
    Response {
        /// Names the Read.
        stag: STag,
        /// Where in the Read's message.
        tagged_offset: TaggedOffset,
        /// L: the last segment that answers its request.
        last: bool,
        /// The part.
        payload: &'a [u8],
    },
    /// A peer reports an error.
    Terminate(TerminateReport),
    /// A cookie is asked for or given.
    Exchange(CookieExchange),
}

/// A Terminate of the datagram mapping (§7.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminateReport {
    /// Which error it was.
    pub cause: Cause,
    /// What of the offending segment it brings.
    pub about: About,
}

/// Which segment a Terminate is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum About {
    /// A Read Request: its 28 octets.
    Request(ReadRequest),
    /// A segment with an extension: its 24 octets.
    Message(Extension),
}

/// Which way a cookie goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ExchangeKind {
    /// A requester asks.
    Request = 1,
    /// The target answers.
    Answer = 2,
}

/// Asks for a cookie, or gives one (§6); both are equally long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CookieExchange {
    /// Which way it goes.
    pub kind: ExchangeKind,
    /// The requester's epoch.
    pub epoch: u32,
    /// Drawn by the requester, repeated by the target.
    pub nonce: u64,
    /// The cookie; zero in a request.
    pub cookie: Cookie,
}

/// Parses a segment with opcode Read Request.
pub(crate) fn parse_request(
    bytes: &[u8],
    with_cookie: bool,
) -> Result<ReadSegment<'_>, DropReason> {
    let (epoch, rest) = parse_untagged(bytes, QueueNumber::READ_REQUEST)?;
    let (cookie, rest) = parse_cookie(rest, with_cookie)?;
    let (request, rest) = ReadRequest::parse(rest).map_err(|_| DropReason::Malformed)?;
    // The sink offset is the requester's own: it must leave room for the message, as for every tagged one.
    let fits = request.sink_offset.checked_add(request.size.into());
    // RFC 5040 §4.2: nothing follows the header.
    if !rest.is_empty() || request.size > MAX_READ || fits.is_none() {
        return Err(DropReason::Malformed);
    }
    Ok(ReadSegment::Request {
        epoch,
        cookie,
        request,
    })
}

/// Parses a segment with opcode Read Response.
pub(crate) fn parse_response(
    bytes: &[u8],
    with_cookie: bool,
) -> Result<ReadSegment<'_>, DropReason> {
    let (header, rest) = TaggedHeader::parse(bytes).map_err(|_| DropReason::Malformed)?;
    let (_, payload) = parse_cookie(rest, with_cookie)?;
    if !header.control.tagged {
        return Err(DropReason::Malformed);
    }
    Ok(ReadSegment::Response {
        stag: header.stag,
        tagged_offset: header.tagged_offset,
        last: header.control.last,
        payload,
    })
}

/// Parses a segment with opcode Terminate.
pub(crate) fn parse_terminate(
    bytes: &[u8],
    with_cookie: bool,
) -> Result<ReadSegment<'_>, DropReason> {
    let (_, rest) = parse_untagged(bytes, QueueNumber::TERMINATE)?;
    let (_, rest) = parse_cookie(rest, with_cookie)?;
    let (control, rest) = TerminateControl::parse(rest).map_err(|_| DropReason::Malformed)?;
    let (about, rest) = match (control.rdma_header, control.ddp_header) {
        (true, false) => {
            let (request, rest) = ReadRequest::parse(rest).map_err(|_| DropReason::Malformed)?;
            (About::Request(request), rest)
        }
        (false, true) => {
            let (extension, rest) = Extension::parse(rest).map_err(|_| DropReason::Malformed)?;
            (About::Message(extension), rest)
        }
        (true, true) | (false, false) => return Err(DropReason::Malformed),
    };
    if !rest.is_empty() {
        return Err(DropReason::Malformed);
    }
    Ok(ReadSegment::Terminate(TerminateReport {
        cause: control.cause,
        about,
    }))
}

/// The epoch, and what follows the header, of a segment on queue 1 or 2. Its MSN is not looked at.
fn parse_untagged(bytes: &[u8], queue: QueueNumber) -> Result<(u32, &[u8]), DropReason> {
    let (header, rest) = UntaggedHeader::parse(bytes).map_err(|_| DropReason::Malformed)?;
    let whole = header.control.last && header.message_offset.get() == 0;
    if header.control.tagged || header.queue_number != queue || !whole {
        return Err(DropReason::Malformed);
    }
    Ok((header.rsvd_ulp_word, rest))
}

impl ReadSegment<'_> {
    /// Parses a datagram of format 2, whose first octet was looked at.
    pub(crate) fn parse_exchange(bytes: &[u8]) -> Result<Self, DropReason> {
        CookieExchange::parse(bytes).map(Self::Exchange)
    }
}

impl CookieExchange {
    fn parse(bytes: &[u8]) -> Result<Self, DropReason> {
        let Ok(&octets) = <&[u8; EXCHANGE_LEN]>::try_from(bytes) else {
            return Err(DropReason::Malformed);
        };
        let [first, kind, _, _, e0, e1, e2, e3, rest @ ..] = octets;
        let control = Control::parse(first);
        let kind = match kind {
            1 => ExchangeKind::Request,
            2 => ExchangeKind::Answer,
            _ => return Err(DropReason::Malformed),
        };
        if control.tagged || !control.last {
            return Err(DropReason::Malformed);
        }
        let [
            n0,
            n1,
            n2,
            n3,
            n4,
            n5,
            n6,
            n7,
            c0,
            c1,
            c2,
            c3,
            c4,
            c5,
            c6,
            c7,
            ..,
        ] = rest;
        Ok(Self {
            kind,
            epoch: u32::from_be_bytes([e0, e1, e2, e3]),
            nonce: u64::from_be_bytes([n0, n1, n2, n3, n4, n5, n6, n7]),
            cookie: Cookie::new(u64::from_be_bytes([c0, c1, c2, c3, c4, c5, c6, c7])),
        })
    }

    /// The octets, reserved ones zero, without CRC.
    #[must_use]
    pub fn emit(&self) -> Short {
        let first = Control {
            tagged: false,
            last: true,
            format: FORMAT_EXCHANGE,
            version: control::DV,
        };
        let kind: u8 = match self.kind {
            ExchangeKind::Request => 1,
            ExchangeKind::Answer => 2,
        };
        join(&[
            &[first.emit(), kind, 0, 0],
            &self.epoch.to_be_bytes(),
            &self.nonce.to_be_bytes(),
            &self.cookie.get().to_be_bytes(),
            &[0; 8],
        ])
    }
}

/// A Read Request, without CRC.
#[must_use]
pub fn emit_request(request: &ReadRequest, epoch: u32, cookie: Option<Cookie>, msn: Msn) -> Short {
    let header = untagged_header(Opcode::ReadRequest, cookie, epoch, msn);
    let cookie = cookie.map(|cookie| cookie.get().to_be_bytes());
    join(&[
        &header.emit(),
        cookie.as_ref().map_or(&[], |cookie| &cookie[..]),
        &request.emit(),
    ])
}

/// The header of a Read Response segment.
#[must_use]
pub fn emit_response_header(
    stag: STag,
    tagged_offset: TaggedOffset,
    last: bool,
) -> [u8; RESPONSE_HEADER] {
    TaggedHeader {
        control: Control {
            tagged: true,
            last,
            format: FORMAT_SEGMENT,
            version: control::DV,
        },
        rsvd_ulp: Opcode::ReadResponse.emit(),
        stag,
        tagged_offset,
    }
    .emit()
}

/// A Terminate, without CRC.
#[must_use]
pub fn emit_terminate(report: &TerminateReport, epoch: u32, msn: Msn) -> Short {
    let header = untagged_header(Opcode::Terminate, None, epoch, msn);
    let is_request = matches!(report.about, About::Request(_));
    let control = TerminateControl {
        cause: report.cause,
        length_valid: false,
        ddp_header: !is_request,
        rdma_header: is_request,
    };
    match &report.about {
        About::Request(request) => join(&[&header.emit(), &control.emit(), &request.emit()]),
        About::Message(extension) => join(&[&header.emit(), &control.emit(), &extension.emit()]),
    }
}

fn untagged_header(opcode: Opcode, cookie: Option<Cookie>, epoch: u32, msn: Msn) -> UntaggedHeader {
    let (format, queue_number) = match (cookie, opcode) {
        (_, Opcode::Terminate) => (FORMAT_SEGMENT, QueueNumber::TERMINATE),
        (Some(_), _) => (FORMAT_COOKIE, QueueNumber::READ_REQUEST),
        (None, _) => (FORMAT_SEGMENT, QueueNumber::READ_REQUEST),
    };
    UntaggedHeader {
        control: Control {
            tagged: false,
            last: true,
            format,
            version: control::DV,
        },
        rsvd_ulp: opcode.emit(),
        rsvd_ulp_word: epoch,
        queue_number,
        msn,
        message_offset: MessageOffset::new(0),
    }
}

fn join(parts: &[&[u8]]) -> Short {
    let mut out = Short::new();
    for part in parts {
        out.try_extend_from_slice(part)
            .expect("the longest of these segments fits");
    }
    out
}

/// The cookie of a segment of format 1 that [`parse`](crate::datagram::segment::parse) accepted, not yet verified. For the few that
/// depend on it: it takes the headers apart again.
#[must_use]
pub fn cookie_of(segment: &[u8]) -> Option<Cookie> {
    let [first, ulp, ..] = *segment else {
        return None;
    };
    if Control::parse(first).format != FORMAT_COOKIE {
        return None;
    }
    let before = match Opcode::parse(ulp).ok()? {
        Opcode::ReadResponse => tagged::LEN,
        Opcode::WriteRecord => tagged::LEN + extension::LEN,
        Opcode::SegmentedSend => untagged::LEN + extension::LEN,
        Opcode::Send | Opcode::SendSolicited | Opcode::ReadRequest | Opcode::Terminate => {
            untagged::LEN
        }
        Opcode::Write
        | Opcode::SendInvalidate
        | Opcode::SendSolicitedInvalidate
        | Opcode::Immediate
        | Opcode::ImmediateSolicited
        | Opcode::AtomicRequest
        | Opcode::AtomicResponse => return None,
    };
    parse_cookie(segment.get(before..)?, true).ok()?.0
}

/// The extension of a segment that has one.
#[must_use]
pub fn extension_of(segment: &[u8]) -> Option<Extension> {
    let [_, ulp, ..] = *segment else {
        return None;
    };
    let before = match Opcode::parse(ulp).ok()? {
        Opcode::WriteRecord => tagged::LEN,
        Opcode::SegmentedSend => untagged::LEN,
        Opcode::Write
        | Opcode::ReadRequest
        | Opcode::ReadResponse
        | Opcode::Send
        | Opcode::SendInvalidate
        | Opcode::SendSolicited
        | Opcode::SendSolicitedInvalidate
        | Opcode::Terminate
        | Opcode::Immediate
        | Opcode::ImmediateSolicited
        | Opcode::AtomicRequest
        | Opcode::AtomicResponse => return None,
    };
    Extension::parse(segment.get(before..)?)
        .ok()
        .map(|(it, _)| it)
}

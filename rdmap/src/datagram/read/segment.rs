//! Segments of Reads and of their errors: Read Request, Read Response, Terminate (§7.1, §7.2).

#![deny(clippy::indexing_slicing)]

use arrayvec::ArrayVec;
use dgiwarp_codec::{Payload, PayloadSlice};
use dgiwarp_ddp::wire::{Control, TaggedHeader, UntaggedHeader, tagged, untagged};
use dgiwarp_ddp::{MessageOffset, Msn, QueueNumber, STag, TaggedOffset};

use crate::datagram::parts::Parts;
use crate::datagram::{Cookie, DropReason};
use crate::wire::terminate::{Cause, TerminateControl};
use crate::wire::{Extension, Opcode, ReadRequest, extension, read_request};

/// Longest Read in octets.
pub const MAX_READ: u32 = 1 << 30;
/// Octets before the payload of a Read Response.
pub const RESPONSE_HEADER: usize = tagged::LEN;
/// Octets of the longest segment that is not a Read Response.
pub const MAX_SHORT: usize = untagged::LEN + Cookie::LEN + 4 + read_request::LEN;

/// A whole segment without payload, to be sealed by the lower layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Short {
    /// Layout of the segment, which decides the format of its datagram.
    pub layout: Layout,
    /// Octets of the segment, format 0.
    pub octets: ArrayVec<u8, MAX_SHORT>,
}

/// A short segment to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outgoing<K, V> {
    /// Peer that it is sent to.
    pub peer: K,
    /// Local address that it is sent from.
    pub via: V,
    /// The segment.
    pub segment: Short,
}

/// Layouts of short segments (§1.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Headers alone.
    Plain,
    /// A cookie behind the header.
    WithCookie,
    /// A cookie exchange.
    Exchange,
}

/// A received segment of a Read, or a Terminate.
#[derive(Debug, PartialEq)]
pub enum ReadSegment<'a, P: Payload + ?Sized> {
    /// A Read Request.
    Request {
        /// The requester's epoch.
        epoch: u32,
        /// The requester's cookie, not yet verified.
        cookie: Option<Cookie>,
        /// Its header.
        request: ReadRequest,
    },
    /// A Read Response.
    Response {
        /// Names the Read.
        stag: STag,
        /// Offset in the Read's message.
        tagged_offset: TaggedOffset,
        /// L: the last segment that answers its request.
        last: bool,
        /// Octets of the message.
        payload: PayloadSlice<'a, P>,
    },
    /// A Terminate.
    Terminate(TerminateReport),
}

/// A Terminate of the datagram mapping (§7.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminateReport {
    /// Error.
    pub cause: Cause,
    /// Header of the offending segment.
    pub about: About,
}

/// Offending segment of a Terminate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum About {
    /// A Read Request: its 28 octets.
    Request(ReadRequest),
    /// A segment with an extension: its 24 octets.
    Message(Extension),
}

/// Parses a segment with opcode Read Request.
pub(crate) fn parse_request<'a, P: Payload + ?Sized>(
    parts: Parts<'a, '_, P>,
) -> Result<ReadSegment<'a, P>, DropReason> {
    let (epoch, rest) = parse_untagged(parts.octets, QueueNumber::READ_REQUEST)?;
    let (cookie, rest) = Cookie::split(parts.with_cookie, rest)?;
    let (request, rest) = ReadRequest::parse(rest).map_err(|_| DropReason::Malformed)?;
    // The sink offset is the requester's own: it must leave room for the message, as for every tagged one.
    let fits = request.sink_offset.checked_add(request.size.into());
    // RFC 5040 §4.2: nothing follows the header.
    if !parts.ends(rest) || request.size > MAX_READ || fits.is_none() {
        return Err(DropReason::Malformed);
    }
    Ok(ReadSegment::Request {
        epoch,
        cookie,
        request,
    })
}

/// Parses a segment with opcode Read Response.
pub(crate) fn parse_response<'a, P: Payload + ?Sized>(
    parts: Parts<'a, '_, P>,
) -> Result<ReadSegment<'a, P>, DropReason> {
    let (header, rest) = TaggedHeader::parse(parts.octets).map_err(|_| DropReason::Malformed)?;
    let (_, rest) = Cookie::split(parts.with_cookie, rest)?;
    let payload = parts.behind(rest)?;
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
pub(crate) fn parse_terminate<'a, P: Payload + ?Sized>(
    parts: Parts<'a, '_, P>,
) -> Result<ReadSegment<'a, P>, DropReason> {
    let (_, rest) = parse_untagged(parts.octets, QueueNumber::TERMINATE)?;
    let (_, rest) = Cookie::split(parts.with_cookie, rest)?;
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
    if !parts.ends(rest) {
        return Err(DropReason::Malformed);
    }
    Ok(ReadSegment::Terminate(TerminateReport {
        cause: control.cause,
        about,
    }))
}

/// Epoch, and octets behind the header, of a segment on queue 1 or 2. Its MSN is not checked.
fn parse_untagged(bytes: &[u8], queue: QueueNumber) -> Result<(u32, &[u8]), DropReason> {
    let (header, rest) = UntaggedHeader::parse(bytes).map_err(|_| DropReason::Malformed)?;
    let whole = header.control.last && header.message_offset.get() == 0;
    if header.control.tagged || header.queue_number != queue || !whole {
        return Err(DropReason::Malformed);
    }
    Ok((header.rsvd_ulp_word, rest))
}

/// A Read Request.
#[must_use]
pub fn emit_request(request: &ReadRequest, epoch: u32, cookie: Option<Cookie>, msn: Msn) -> Short {
    let header = untagged_header(Opcode::ReadRequest, QueueNumber::READ_REQUEST, epoch, msn);
    let layout = match cookie {
        Some(_) => Layout::WithCookie,
        None => Layout::Plain,
    };
    let cookie = cookie.map(|cookie| cookie.get().to_be_bytes());
    Short::of(
        layout,
        &[
            &header.emit(),
            cookie.as_ref().map_or(&[], |cookie| &cookie[..]),
            &request.emit(),
        ],
    )
}

/// The header of a Read Response segment.
#[must_use]
pub fn emit_response_header(
    stag: STag,
    tagged_offset: TaggedOffset,
    last: bool,
) -> [u8; RESPONSE_HEADER] {
    TaggedHeader {
        control: Control::new(true, last),
        rsvd_ulp: Opcode::ReadResponse.emit(),
        stag,
        tagged_offset,
    }
    .emit()
}

/// A Terminate.
#[must_use]
pub fn emit_terminate(report: &TerminateReport, epoch: u32, msn: Msn) -> Short {
    let header = untagged_header(Opcode::Terminate, QueueNumber::TERMINATE, epoch, msn);
    let is_request = matches!(report.about, About::Request(_));
    let control = TerminateControl {
        cause: report.cause,
        length_valid: false,
        ddp_header: !is_request,
        rdma_header: is_request,
    };
    match &report.about {
        About::Request(request) => Short::of(
            Layout::Plain,
            &[&header.emit(), &control.emit(), &request.emit()],
        ),
        About::Message(extension) => Short::of(
            Layout::Plain,
            &[&header.emit(), &control.emit(), &extension.emit()],
        ),
    }
}

fn untagged_header(
    opcode: Opcode,
    queue_number: QueueNumber,
    epoch: u32,
    msn: Msn,
) -> UntaggedHeader {
    UntaggedHeader {
        control: Control::new(false, true),
        rsvd_ulp: opcode.emit(),
        rsvd_ulp_word: epoch,
        queue_number,
        msn,
        message_offset: MessageOffset::new(0),
    }
}

impl Short {
    pub(in crate::datagram) fn of(layout: Layout, parts: &[&[u8]]) -> Self {
        let mut octets = ArrayVec::new();
        for part in parts {
            octets
                .try_extend_from_slice(part)
                .expect("the longest of these segments fits");
        }
        Self { layout, octets }
    }
}

/// The cookie in the first octets of a segment of format 1, not yet verified: parses the headers again, for the few segments
/// whose acceptance depends on it.
#[must_use]
pub fn cookie_of(head: &[u8]) -> Option<Cookie> {
    let [_, ulp, ..] = *head else {
        return None;
    };
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
    Cookie::split(true, head.get(before..)?).ok()?.0
}

/// The extension in the first octets of a segment that has one.
#[must_use]
pub fn extension_of(head: &[u8]) -> Option<Extension> {
    let [_, ulp, ..] = *head else {
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
    Extension::parse(head.get(before..)?).ok().map(|(it, _)| it)
}

//! DDP segments in format 4: the messages that they belong to, and the checks that need nothing but the segment.

use dgiwarp_codec::PayloadSlice;
use dgiwarp_ddp::error::{TaggedError, UntaggedError};
use dgiwarp_ddp::wire::{Control, TaggedHeader, UntaggedHeader, control::DV, tagged, untagged};
use dgiwarp_ddp::{MessageOffset, Msn, QueueNumber, STag, TaggedOffset};
use dgiwarp_llp_udp::rd::Verdict;
use dgiwarp_llp_udp::rd::frame::SegmentHeader;
use dgiwarp_memory::Placeable;
use dgiwarp_rdmap::stream::StreamError;
use dgiwarp_rdmap::wire::{
    AtomicRequest, AtomicRequestError, AtomicResponse, Cause, ImmediateData, Opcode, ReadRequest,
    TerminateControl, atomic, immediate, read_request,
};

/// Octets that RD puts around each segment: envelope, frame and CRC.
pub(super) const AROUND: u16 = 48;
/// Octets of an untagged header.
pub(super) const UNTAGGED: u16 = 18;
/// Octets of a tagged header.
pub(super) const TAGGED: u16 = 14;
/// Octets of the segment of Immediate Data at the end of a message.
pub(super) const IMMEDIATE: u16 = UNTAGGED + 8;
/// Queue of Sends and Immediate Data (RFC 5040 §5.1, RFC 7306 §6.3).
const SENDS: u32 = 0;
/// Queue of Read Requests and atomic requests (RFC 7306 §5.2).
pub(super) const REQUESTS: u32 = 1;
/// Queue of atomic responses (RFC 7306 §5.2).
pub(super) const RESPONSES: u32 = 3;

/// Part of a message whose octets are placed when they arrive.
#[derive(Debug)]
pub(super) enum Part<'p, P: ?Sized> {
    /// Of a Send.
    Send {
        /// Offset in the message.
        offset: u32,
        /// STag that delivery invalidates.
        invalidate: Option<STag>,
        /// Q_Key of a Send that invalidates nothing.
        qkey: Option<u32>,
        solicited: bool,
        /// The segment is the last one of the Send.
        ends: bool,
        payload: PayloadSlice<'p, P>,
    },
    /// Of a Write.
    Write {
        stag: STag,
        start: TaggedOffset,
        /// The segment is the last one of the Write.
        ends: bool,
        payload: PayloadSlice<'p, P>,
    },
    /// Immediate Data behind a Send or a Write.
    Immediate {
        data: ImmediateData,
        solicited: bool,
    },
}

/// A request of the peer.
#[derive(Debug, Clone, Copy)]
pub(super) enum Request {
    Read(ReadRequest),
    Atomic(AtomicRequest),
}

/// A segment of a response to a request of ours.
#[derive(Debug)]
pub(super) enum Answer<'p, P: ?Sized> {
    Read {
        /// Number of the request.
        request: u32,
        offset: u64,
        payload: PayloadSlice<'p, P>,
    },
    Atomic(AtomicResponse),
}

/// A segment by its purpose.
#[derive(Debug)]
pub(super) enum Segment<'p, P: ?Sized> {
    Part(Part<'p, P>),
    Request(Request),
    Answer(Answer<'p, P>),
}

const TRUNCATED: StreamError = StreamError::Truncated(0);

/// Parses a segment and checks what does not depend on memory or queues.
pub(super) fn parse<'p, P: Placeable + ?Sized>(
    header: &SegmentHeader,
    segment: PayloadSlice<'p, P>,
) -> Result<Segment<'p, P>, StreamError> {
    let mut copy = [0; untagged::LEN];
    let head = segment.head(&mut copy);
    let [first, ..] = *head else {
        return Err(TRUNCATED);
    };
    let control = Control::parse(first);
    if control.tagged {
        return parse_tagged(header, segment);
    }
    let (untagged, _) = UntaggedHeader::parse(head).map_err(|_| TRUNCATED)?;
    if untagged.control.version != DV {
        return Err(UntaggedError::Version.into());
    }
    let payload = segment.after(untagged::LEN).ok_or(TRUNCATED)?;
    let opcode = Opcode::parse(untagged.rsvd_ulp)?;
    let (queue, single) = match opcode {
        Opcode::Send
        | Opcode::SendSolicited
        | Opcode::SendInvalidate
        | Opcode::SendSolicitedInvalidate => (SENDS, false),
        Opcode::Immediate | Opcode::ImmediateSolicited => (SENDS, true),
        Opcode::ReadRequest | Opcode::AtomicRequest => (REQUESTS, true),
        Opcode::AtomicResponse => (RESPONSES, true),
        Opcode::Write
        | Opcode::ReadResponse
        | Opcode::Terminate
        | Opcode::WriteRecord
        | Opcode::SegmentedSend => return Err(StreamError::UnexpectedOpcode(opcode)),
    };
    if untagged.queue_number.get() != queue {
        return Err(UntaggedError::InvalidQueue.into());
    }
    if untagged.msn.get() != header.message.wrapping_add(1) {
        return Err(UntaggedError::MsnRange.into());
    }
    let ends = untagged.control.last;
    let offset = untagged.message_offset.get();
    let length = || StreamError::Length {
        opcode,
        length: u32::try_from(payload.len()).unwrap_or(u32::MAX),
    };
    // Whole in one segment, which is the last one of its message.
    if single && !(ends && header.last && offset == 0) {
        return Err(length());
    }
    let alone = header.index == 0 && !header.receive;
    let send = |invalidate: bool, solicited| Part::Send {
        offset,
        invalidate: invalidate.then(|| STag::new(untagged.rsvd_ulp_word)),
        qkey: (!invalidate).then_some(untagged.rsvd_ulp_word),
        solicited,
        ends,
        payload,
    };
    let part = match opcode {
        Opcode::Send => send(false, false),
        Opcode::SendSolicited => send(false, true),
        Opcode::SendInvalidate => send(true, false),
        Opcode::SendSolicitedInvalidate => send(true, true),
        Opcode::Immediate | Opcode::ImmediateSolicited => {
            let octets = exact::<{ immediate::LEN }, P>(payload).ok_or_else(length)?;
            Part::Immediate {
                data: ImmediateData::parse(&octets).ok_or_else(length)?,
                solicited: opcode == Opcode::ImmediateSolicited,
            }
        }
        Opcode::ReadRequest if alone => {
            let octets = exact::<{ read_request::LEN }, P>(payload).ok_or_else(length)?;
            let (request, _) = ReadRequest::parse(&octets).map_err(|_| length())?;
            return Ok(Segment::Request(Request::Read(request)));
        }
        Opcode::AtomicRequest if alone => {
            let octets = exact::<{ atomic::REQUEST_LEN }, P>(payload).ok_or_else(length)?;
            let (request, _) = AtomicRequest::parse(&octets).map_err(|error| match error {
                AtomicRequestError::Code(code) => StreamError::AtomicCode(code),
                AtomicRequestError::Truncated(_) => length(),
            })?;
            return Ok(Segment::Request(Request::Atomic(request)));
        }
        Opcode::AtomicResponse if alone => {
            let octets = exact::<{ atomic::RESPONSE_LEN }, P>(payload).ok_or_else(length)?;
            let (response, _) = AtomicResponse::parse(&octets).map_err(|_| length())?;
            return Ok(Segment::Answer(Answer::Atomic(response)));
        }
        Opcode::ReadRequest
        | Opcode::AtomicRequest
        | Opcode::AtomicResponse
        | Opcode::Write
        | Opcode::ReadResponse
        | Opcode::Terminate
        | Opcode::WriteRecord
        | Opcode::SegmentedSend => return Err(StreamError::UnexpectedOpcode(opcode)),
    };
    // A Send and Immediate Data take a receive.
    if header.receive && (ends || !header.last) {
        Ok(Segment::Part(part))
    } else {
        Err(length())
    }
}

fn parse_tagged<'p, P: Placeable + ?Sized>(
    header: &SegmentHeader,
    segment: PayloadSlice<'p, P>,
) -> Result<Segment<'p, P>, StreamError> {
    let mut copy = [0; tagged::LEN];
    let (tagged, _) = TaggedHeader::parse(segment.head(&mut copy)).map_err(|_| TRUNCATED)?;
    if tagged.control.version != DV {
        return Err(TaggedError::Version.into());
    }
    let payload = segment.after(tagged::LEN).ok_or(TRUNCATED)?;
    let ends = tagged.control.last;
    let opcode = Opcode::parse(tagged.rsvd_ulp)?;
    // Only with an immediate, another segment follows the last one of a Write.
    let whole = if header.receive {
        !header.last
    } else {
        ends == header.last
    };
    match opcode {
        Opcode::Write if whole => Ok(Segment::Part(Part::Write {
            stag: tagged.stag,
            start: tagged.tagged_offset,
            ends,
            payload,
        })),
        Opcode::ReadResponse if whole && !header.receive => Ok(Segment::Answer(Answer::Read {
            request: tagged.stag.get(),
            offset: tagged.tagged_offset.get(),
            payload,
        })),
        Opcode::Write | Opcode::ReadResponse => Err(StreamError::Length {
            opcode,
            length: u32::try_from(payload.len()).unwrap_or(u32::MAX),
        }),
        other => Err(StreamError::UnexpectedOpcode(other)),
    }
}

/// The octets, if there are so many.
fn exact<const N: usize, P: Placeable + ?Sized>(payload: PayloadSlice<'_, P>) -> Option<[u8; N]> {
    if payload.len() != N {
        return None;
    }
    payload.head(&mut [0; N]).try_into().ok()
}

/// The header of an untagged segment of the message with a number.
pub(super) fn untagged(
    opcode: Opcode,
    (queue, message): (u32, u32),
    last: bool,
    offset: u32,
    word: u32,
) -> [u8; untagged::LEN] {
    UntaggedHeader {
        control: Control::new(false, last),
        rsvd_ulp: opcode.emit(),
        rsvd_ulp_word: word,
        queue_number: QueueNumber::new(queue),
        msn: Msn::new(message.wrapping_add(1)),
        message_offset: MessageOffset::new(offset),
    }
    .emit()
}

/// The header of a segment of Immediate Data, and its octets.
pub(super) fn immediate(
    message: u32,
    solicited: bool,
    data: ImmediateData,
) -> [u8; IMMEDIATE as usize] {
    let opcode = if solicited {
        Opcode::ImmediateSolicited
    } else {
        Opcode::Immediate
    };
    let mut octets = [0; IMMEDIATE as usize];
    let (head, body) = octets.split_at_mut(untagged::LEN);
    head.copy_from_slice(&untagged(opcode, (SENDS, message), true, 0, 0));
    body.copy_from_slice(&data.emit());
    octets
}

/// The header of a Send's segment.
pub(super) fn send(opcode: Opcode, message: u32, last: bool, offset: u32, word: u32) -> [u8; 18] {
    untagged(opcode, (SENDS, message), last, offset, word)
}

/// The header of a tagged segment.
pub(super) fn tagged(
    opcode: Opcode,
    stag: STag,
    offset: TaggedOffset,
    last: bool,
) -> [u8; tagged::LEN] {
    TaggedHeader {
        control: Control::new(true, last),
        rsvd_ulp: opcode.emit(),
        stag,
        tagged_offset: offset,
    }
    .emit()
}

/// Terminate Control of an error (§9).
pub(super) fn control_of(error: StreamError) -> u32 {
    let control = TerminateControl {
        cause: error.cause().unwrap_or(Cause::UNSPECIFIED_OPERATION),
        length_valid: false,
        ddp_header: false,
        rdma_header: false,
    };
    u32::from_be_bytes(control.emit())
}

/// The message fails.
pub(super) fn refuse(error: StreamError) -> Verdict {
    Verdict::Failed(control_of(error))
}

const _: () = assert!(UNTAGGED as usize == untagged::LEN && TAGGED as usize == tagged::LEN);

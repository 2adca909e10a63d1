//! Headers and PDUs, all of them on the same octets.

use dgiwarp_conform::wire::datagram::{Datagram, Dropped, sealed};
use dgiwarp_ddp::Segment;
use dgiwarp_ddp::wire::{Control, TaggedHeader, UntaggedHeader, tagged, untagged};
use dgiwarp_llp_tcp_mpa::startup::{FrameKind, HEADER_LEN, MAX_PRIVATE_DATA, StartupReader};
use dgiwarp_llp_udp::rd::Envelope;
use dgiwarp_llp_udp::rd::envelope;
use dgiwarp_llp_udp::rd::frame::{Frame, Frames};
use dgiwarp_llp_udp::{Format, plain};
use dgiwarp_rdmap::datagram::read::segment::{
    About, Layout, ReadSegment, Short, cookie_of, emit_request, emit_response_header,
    emit_terminate, extension_of,
};
use dgiwarp_rdmap::datagram::segment::{self, MAX_SEND, Parsed, Prefix, Template, WriteSegment};
use dgiwarp_rdmap::datagram::{Cookie, CookieExchange, DropReason, Invitation};
use dgiwarp_rdmap::wire::{
    AtomicRequest, AtomicResponse, Extension, Flags, ImmediateData, Opcode, ReadRequest, Terminate,
    TerminateControl, atomic, extension, read_request,
};

/// Gives the octets to every parser. A parsed value is emitted again and has to be what it was: octet by octet where the header has no
/// reserved bits, else as the same value.
pub fn parsers(data: &[u8]) {
    octets(data);
    ddp_headers(data);
    rdmap_headers(data);
    terminates(data);
    datagrams(data);
    startup_frames(data);
    reliable(data);
    stranger(data);
}

/// A reliable datagram as it comes, one with an envelope that is put around these octets, and these as frames alone.
fn reliable(data: &[u8]) {
    if let Ok((_, frames)) = Envelope::open::<[u8]>(data.into()) {
        frames_of(frames.octets());
    }
    if let Some(inner) = data.get(envelope::LEN..) {
        let mut datagram = data.to_vec();
        envelope::seal(&mut datagram, 0);
        match Envelope::open::<[u8]>((&datagram[..]).into()) {
            Ok((_, frames)) => assert_eq!(frames.octets(), inner),
            Err(_) => assert_ne!(data.first(), Some(&envelope::FIRST)),
        }
        frames_of(inner);
    }
    frames_of(data);
}

/// Reserved bits and octets apart, frames are emitted as they came.
fn frames_of(data: &[u8]) {
    let parsed: Vec<Result<Frame<'_, [u8]>, _>> = Frames::new(data.into()).collect();
    let mut again = Vec::new();
    for frame in parsed.iter().flatten() {
        frame.emit(&mut again);
        assert!(!frame.to_string().is_empty());
    }
    let whole = parsed.iter().all(Result::is_ok);
    assert!(whole && again.len() == data.len() || !whole && again.len() < data.len());
    let reparsed: Vec<Result<Frame<'_, [u8]>, _>> = Frames::new((&again[..]).into()).collect();
    assert_eq!(
        reparsed.iter().flatten().collect::<Vec<_>>(),
        parsed.iter().flatten().collect::<Vec<_>>()
    );
}

/// The conformance tester, which reads datagrams by code of its own, takes and drops the same ones. Service lookups are not among what is parsed here.
fn stranger(data: &[u8]) {
    let theirs = Datagram::parse(&sealed(data.to_vec()));
    if matches!(theirs, Ok(Datagram::Lookup(_))) || data.first().is_some_and(|it| it & 0x3c == 0x0c)
    {
        return;
    }
    // No datagram of the mapping; both have readers of their own for it.
    if data.first() == Some(&envelope::FIRST) {
        return reliable_stranger(data, &theirs);
    }
    let same = match (parse(data), &theirs) {
        (Ok(_), Ok(_))
        | (Err(DropReason::UnknownFormat), Err(Dropped::UnknownFormat(_)))
        | (Err(DropReason::BadVersion), Err(Dropped::BadVersion { .. }))
        | (Err(DropReason::UnexpectedOpcode), Err(Dropped::UnexpectedOpcode(_)))
        | (Err(DropReason::Malformed), Err(Dropped::Malformed(_))) => true,
        // A single octet is too short, whatever format it names.
        (Err(_), Err(_)) => data.len() < 2,
        // The tester has rules of its own for what a Read Request asks for and for the flags and length of a Send.
        (Err(DropReason::Malformed), Ok(Datagram::Segment(found))) => {
            asks_for_too_much(&found.payload) || is_no_send(data)
        }
        (Ok(_), Err(_)) | (Err(_), Ok(_)) => false,
    };
    assert!(same, "{:?}, and the tester: {theirs:?}", parse(data));
}

/// The conformance tester takes and drops the same reliable datagrams, but for those with a HELLO that is not the first frame: a receiver may take it.
fn reliable_stranger(data: &[u8], theirs: &Result<Datagram, Dropped>) {
    let sealed = sealed(data.to_vec());
    let ours = Envelope::open::<[u8]>((&sealed[..]).into())
        .is_ok_and(|(_, frames)| Frames::new(frames).all(|frame| frame.is_ok()));
    let same = match theirs {
        Ok(Datagram::Reliable(_)) => ours,
        Err(Dropped::Malformed("a HELLO that is not the first frame")) => true,
        Err(_) => !ours,
        Ok(_) => false,
    };
    assert!(same, "taken: {ours}, and the tester: {theirs:?}");
}

/// Whether these are the 28 octets of a Read Request of more than 2^30 octets, or of some whose sink wraps.
fn asks_for_too_much(payload: &[u8]) -> bool {
    ReadRequest::parse(payload).is_ok_and(|(request, rest)| {
        let end = request.sink_offset.checked_add(request.size.into());
        rest.is_empty() && (request.size > 1 << 30 || end.is_none())
    })
}

/// Whether these are a Segmented Send that says that it is a Write, or is of more than 2^24 octets.
fn is_no_send(data: &[u8]) -> bool {
    extension_of(data).is_some_and(|extension| {
        let is_send = data
            .first()
            .is_some_and(|first| !Control::parse(*first).tagged);
        is_send && (extension.flags.contains(Flags::WRITE) || extension.length > MAX_SEND)
    })
}

fn octets(data: &[u8]) {
    let Some(&first) = data.first() else {
        return;
    };
    assert_eq!(Control::parse(first).emit(), first);
    if let Ok(opcode) = Opcode::parse(first) {
        // RFC 5040 §4.1: the two bits between version and opcode are ignored.
        assert_eq!(opcode.emit(), first & 0xcf);
    }
}

fn ddp_headers(data: &[u8]) {
    match TaggedHeader::parse(data) {
        Ok((header, rest)) => assert!(data.starts_with(&header.emit()) && data.ends_with(rest)),
        Err(_) => assert!(data.len() < tagged::LEN),
    }
    match UntaggedHeader::parse(data) {
        Ok((header, rest)) => assert!(data.starts_with(&header.emit()) && data.ends_with(rest)),
        Err(_) => assert!(data.len() < untagged::LEN),
    }
}

fn rdmap_headers(data: &[u8]) {
    match ReadRequest::parse(data) {
        Ok((request, rest)) => {
            assert!(data.starts_with(&request.emit()) && data.ends_with(rest));
            let half = request.size / 2;
            if let Some(left) = request.after(half) {
                assert_eq!(left.size, request.size - half);
            }
            assert!(
                request
                    .after(request.size)
                    .is_none_or(|left| left.size == 0)
            );
        }
        Err(_) => assert!(data.len() < read_request::LEN),
    }
    if let Ok((request, _)) = AtomicRequest::parse(data) {
        assert_eq!(
            AtomicRequest::parse(&request.emit()).map(|it| it.0),
            Ok(request)
        );
    }
    match AtomicResponse::parse(data) {
        Ok((response, _)) => assert!(data.starts_with(&response.emit())),
        Err(_) => assert!(data.len() < atomic::RESPONSE_LEN),
    }
    match ImmediateData::parse(data) {
        Some(immediate) => assert_eq!(immediate.emit(), data),
        None => assert_ne!(data.len(), 8),
    }
    match Extension::parse(data) {
        Ok((parsed, _)) => assert_eq!(Extension::parse(&parsed.emit()).map(|it| it.0), Ok(parsed)),
        Err(_) => assert!(data.len() < extension::LEN),
    }
}

fn terminates(data: &[u8]) {
    if let Ok((control, _)) = TerminateControl::parse(data) {
        assert_eq!(
            TerminateControl::parse(&control.emit()).map(|it| it.0),
            Ok(control)
        );
    }
    if let Ok(terminate) = Terminate::parse(data) {
        let again = terminate.emit();
        assert_eq!(Terminate::parse(&again), Ok(terminate));
        assert!(again.len() <= data.len());
    }
}

/// A datagram with its CRC, and the same octets as a segment without one: else a fuzzer would have to guess CRCs.
fn datagrams(data: &[u8]) {
    if let Ok((format, segment)) = plain::open::<[u8]>(data.into()) {
        assert_eq!(segment.len() + plain::OVERHEAD.total(), data.len());
        assert_eq!(Ok(format), Format::parse(data[0]));
        datagram_segment(segment.octets());
    }
    datagram_segment(data);
}

/// Contents of a datagram within the overhead of the lower layer.
#[derive(Debug, PartialEq)]
enum Held<'a> {
    Segment(Parsed<'a, [u8]>),
    Exchange(CookieExchange),
    Invitation(Invitation),
}

fn parse(data: &[u8]) -> Result<Held<'_>, DropReason> {
    let [first, _, ..] = *data else {
        return Err(DropReason::Malformed);
    };
    match Format::parse(first) {
        Ok(Format::Segment) => segment::parse(data, false).map(Held::Segment),
        Ok(Format::Cookie) => segment::parse(data, true).map(Held::Segment),
        Ok(Format::Exchange) => match Invitation::parse(data) {
            Some(invitation) => Ok(Held::Invitation(invitation)),
            None => CookieExchange::parse(data).map(Held::Exchange),
        },
        Ok(Format::Sidr) | Err(_) => Err(DropReason::UnknownFormat),
    }
}

/// The octets of a short segment, with its format.
fn marked(short: &Short) -> Vec<u8> {
    let format = match short.layout {
        Layout::Plain => Format::Segment,
        Layout::WithCookie => Format::Cookie,
        Layout::Exchange => Format::Exchange,
    };
    let mut octets = short.octets.to_vec();
    octets[0] = format.emit(octets[0]);
    octets
}

fn datagram_segment(data: &[u8]) {
    let extension = extension_of(data);
    let parsed = match parse(data) {
        Ok(Held::Segment(parsed)) => parsed,
        Ok(Held::Invitation(invitation)) => {
            let again = marked(&invitation.emit());
            assert_eq!(parse(&again), Ok(Held::Invitation(invitation)));
            return;
        }
        Ok(Held::Exchange(exchange)) => {
            let again = marked(&exchange.emit());
            assert_eq!(parse(&again), Ok(Held::Exchange(exchange)));
            return;
        }
        Err(_) => return,
    };
    let with_cookie = Format::parse(data[0]) == Ok(Format::Cookie);
    let cookie = with_cookie.then(|| cookie_of(data).expect("the format has one"));
    let again = match &parsed {
        Parsed::Send {
            qkey,
            solicited,
            payload,
        } => {
            let (header, _) = UntaggedHeader::parse(data).expect("it was parsed before");
            let template = Template::Send {
                qkey: *qkey,
                msn: header.msn,
                solicited: *solicited,
            };
            emitted(Prefix::new(template, cookie), 0, true, payload.octets())
        }
        Parsed::SegmentedSend {
            qkey,
            extension: found,
            payload,
        } => {
            assert_eq!(extension, Some(*found));
            let template = Template::SegmentedSend {
                qkey: *qkey,
                extension: *found,
            };
            let prefix = Prefix::new(template, cookie);
            emitted(prefix, found.offset, is_last(data), payload.octets())
        }
        Parsed::WriteRecord(WriteSegment {
            stag,
            base,
            extension: found,
            payload,
            ..
        }) => {
            assert_eq!(extension, Some(*found));
            let template = Template::WriteRecord {
                stag: *stag,
                base: *base,
                extension: *found,
            };
            let prefix = Prefix::new(template, cookie);
            emitted(prefix, found.offset, is_last(data), payload.octets())
        }
        Parsed::Read(part) => read_segment(data, cookie, part),
    };
    assert_eq!(parse(&again), Ok(Held::Segment(parsed)));
}

fn is_last(data: &[u8]) -> bool {
    data.first()
        .is_some_and(|first| Control::parse(*first).last)
}

fn emitted(prefix: Prefix, offset: u32, last: bool, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("inputs are short");
    let part = Segment {
        offset,
        length,
        last,
    };
    let mut out = vec![0; prefix.length()];
    assert_eq!(prefix.emit(part, &mut out), out.len());
    out[0] = Format::with_cookie(prefix.has_cookie()).emit(out[0]);
    out.extend_from_slice(payload);
    out
}

fn read_segment(data: &[u8], found: Option<Cookie>, part: &ReadSegment<'_, [u8]>) -> Vec<u8> {
    let msn = || {
        let (header, _) = UntaggedHeader::parse(data).expect("it was parsed before");
        header.msn
    };
    match part {
        ReadSegment::Request {
            epoch,
            cookie,
            request,
        } => {
            assert_eq!(*cookie, found);
            marked(&emit_request(request, *epoch, *cookie, msn()))
        }
        ReadSegment::Response {
            stag,
            tagged_offset,
            last,
            payload,
        } => {
            let mut out = emit_response_header(*stag, *tagged_offset, *last).to_vec();
            out.extend_from_slice(payload.octets());
            out
        }
        ReadSegment::Terminate(report) => {
            match report.about {
                About::Request(request) => assert!(request.emit().len() <= data.len()),
                About::Message(about) => assert!(about.emit().len() <= data.len()),
            }
            marked(&emit_terminate(report, 0, msn()))
        }
    }
}

/// MPA's Request and Reply. Octets behind the frame stay in the input, and no more is kept than the longest frame has.
fn startup_frames(data: &[u8]) {
    for kind in [FrameKind::Request, FrameKind::Reply] {
        let mut rest = data;
        let taken = StartupReader::new(kind).read(&mut rest);
        if let Ok(Some(frame)) = taken {
            assert!(data.len() - rest.len() <= HEADER_LEN + MAX_PRIVATE_DATA);
            let again = frame.emit();
            assert_eq!(again.len(), data.len() - rest.len());
            let reread = StartupReader::new(kind).read(&mut &again[..]);
            assert_eq!(reread, Ok(Some(frame)));
        }
    }
}

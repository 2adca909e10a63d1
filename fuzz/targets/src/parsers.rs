//! Headers and PDUs, all of them on the same octets.

use dgiwarp_conform::wire::datagram::{Datagram, Dropped, sealed};
use dgiwarp_ddp::Segment;
use dgiwarp_ddp::wire::{Control, TaggedHeader, UntaggedHeader, tagged, untagged};
use dgiwarp_llp_tcp_mpa::startup::{FrameKind, HEADER_LEN, MAX_PRIVATE_DATA, StartupReader};
use dgiwarp_llp_udp::digest;
use dgiwarp_rdmap::datagram::DropReason;
use dgiwarp_rdmap::datagram::format;
use dgiwarp_rdmap::datagram::read::segment::{
    About, ReadSegment, cookie_of, emit_request, emit_response_header, emit_terminate, extension_of,
};
use dgiwarp_rdmap::datagram::segment::{self, MAX_SEND, Parsed, Prefix, Template, WriteSegment};
use dgiwarp_rdmap::wire::{
    AtomicRequest, AtomicResponse, Extension, Flags, ImmediateData, Opcode, ReadRequest, Terminate,
    TerminateControl, atomic, extension, read_request,
};

/// Gives the octets to every parser. What parses is emitted again and has to be what it was: octet by octet where the header has no reserved
/// bits, else as the same value.
pub fn parsers(data: &[u8]) {
    octets(data);
    ddp_headers(data);
    rdmap_headers(data);
    terminates(data);
    datagrams(data);
    startup_frames(data);
    stranger(data);
}

/// The conformance tester, which reads datagrams by code of its own, takes and drops the same ones. Service lookups are not among what is parsed here.
fn stranger(data: &[u8]) {
    let theirs = Datagram::parse(&sealed(data.to_vec()));
    if matches!(theirs, Ok(Datagram::Lookup(_))) || data.first().is_some_and(|it| it & 0x3c == 0x0c)
    {
        return;
    }
    let same = match (segment::parse(data), &theirs) {
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
    assert!(
        same,
        "{:?}, and the tester: {theirs:?}",
        segment::parse(data)
    );
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
    if let Ok(covered) = digest::check(data) {
        assert_eq!(covered.len() + digest::LEN, data.len());
        datagram_segment(covered);
    }
    datagram_segment(data);
}

fn datagram_segment(data: &[u8]) {
    let (cookie, extension) = (cookie_of(data), extension_of(data));
    let Ok(parsed) = segment::parse(data) else {
        return;
    };
    assert_eq!(cookie.is_some(), cookie_is_due(data, &parsed));
    let again = match parsed {
        Parsed::Send {
            qkey,
            solicited,
            payload,
        } => {
            let (header, _) = UntaggedHeader::parse(data).expect("it was parsed before");
            let template = Template::Send {
                qkey,
                msn: header.msn,
                solicited,
            };
            emitted(Prefix::new(template, cookie), 0, true, payload)
        }
        Parsed::SegmentedSend {
            qkey,
            extension: found,
            payload,
        } => {
            assert_eq!(extension, Some(found));
            let template = Template::SegmentedSend {
                qkey,
                extension: found,
            };
            let prefix = Prefix::new(template, cookie);
            emitted(prefix, found.offset, is_last(data), payload)
        }
        Parsed::WriteRecord(WriteSegment {
            stag,
            base,
            extension: found,
            payload,
            ..
        }) => {
            assert_eq!(extension, Some(found));
            let template = Template::WriteRecord {
                stag,
                base,
                extension: found,
            };
            let prefix = Prefix::new(template, cookie);
            emitted(prefix, found.offset, is_last(data), payload)
        }
        Parsed::Read(part) => read_segment(data, part),
    };
    assert_eq!(segment::parse(&again), Ok(parsed));
}

fn is_last(data: &[u8]) -> bool {
    data.first()
        .is_some_and(|first| Control::parse(*first).last)
}

/// Whether what was parsed has a cookie that can be read. Only the answers to Reads and errors are emitted without the one that they came with.
fn cookie_is_due(data: &[u8], parsed: &Parsed<'_>) -> bool {
    match parsed {
        Parsed::Read(ReadSegment::Exchange(_)) => false,
        Parsed::Read(_)
        | Parsed::Send { .. }
        | Parsed::SegmentedSend { .. }
        | Parsed::WriteRecord(_) => format::has_cookie(data),
    }
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
    out.extend_from_slice(payload);
    out
}

fn read_segment(data: &[u8], part: ReadSegment<'_>) -> Vec<u8> {
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
            assert_eq!(cookie, cookie_of(data));
            emit_request(&request, epoch, cookie, msn()).to_vec()
        }
        ReadSegment::Response {
            stag,
            tagged_offset,
            last,
            payload,
        } => {
            let mut out = emit_response_header(stag, tagged_offset, last).to_vec();
            out.extend_from_slice(payload);
            out
        }
        ReadSegment::Terminate(report) => {
            match report.about {
                About::Request(request) => assert!(request.emit().len() <= data.len()),
                About::Message(about) => assert!(about.emit().len() <= data.len()),
            }
            emit_terminate(&report, 0, msn()).to_vec()
        }
        ReadSegment::Exchange(exchange) => exchange.emit().to_vec(),
    }
}

/// MPA's Request and Reply. What follows the frame stays in the input, and no more is kept than the longest frame has.
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

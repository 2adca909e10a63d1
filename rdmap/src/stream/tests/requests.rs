//! Reads and atomics: credit, responses, and what a Terminate of them says.

use dgiwarp_ddp::STag;
use dgiwarp_ddp::error::{TaggedError, UntaggedError};

use super::*;
use crate::wire::{AtomicOperation, Cause, ImmediateData, Opcode};

fn source(start: u64, length: u32) -> ReadSource {
    ReadSource {
        stag: STag::new(STAG),
        start: TaggedOffset::new(start),
        length,
    }
}

const ADD_FIVE: AtomicOperation = AtomicOperation::FetchAdd { add: 5, mask: 0 };

fn at(start: u64) -> (STag, TaggedOffset) {
    (STag::new(STAG), TaggedOffset::new(start))
}

/// A requester with sinks, and a responder whose buffer counts up.
fn pair() -> ((TestStream, Memory), (TestStream, Memory)) {
    let mut served = Memory::with_receives(&[]);
    for (octet, value) in served.tagged.iter_mut().zip((0..=255u8).cycle()) {
        *octet = value;
    }
    ((stream(), Memory::with_receives(&[])), (stream(), served))
}

/// The memory of a ULPDU of fixed length has room for it and no more.
#[test]
fn short_ulpdus_fill_their_memory() {
    let ((mut asking, _), (mut asked, mut memory)) = pair();
    let data = ImmediateData {
        immediate: 1,
        written: 0,
    };
    let immediate = asking.immediate(data, false);
    assert_eq!((immediate.len(), immediate.capacity()), (26, 26));
    let rtr = stream().rtr_read(0);
    assert_eq!((rtr.len(), rtr.capacity()), (46, 46));
    let atomic = asking.atomic(ADD_FIVE, at(BASE), 0).unwrap();
    assert_eq!((atomic.len(), atomic.capacity()), (70, 70));
    assert_eq!(asked.handle_ulpdu(&atomic, &mut memory), Ok(Handled::Taken));
    let response = asked.atomic_done(0).unwrap();
    assert_eq!((response.len(), response.capacity()), (30, 30));
    let read = asking.read(source(BASE, 1), 1).unwrap();
    assert_eq!((read.len(), read.capacity()), (46, 46));
}

#[test]
fn reads_of_all_sizes_whatever_the_segments() {
    for (length, mulpdu) in [
        (0, 128),
        (1, 128),
        (114, 128),
        (115, 128),
        (900, 200),
        (900, 1442),
    ] {
        let ((mut asking, mut memory), (mut asked, mut served)) = pair();
        let sink = memory.sink(length);
        let request = asking.read(source(BASE + 3, length), sink).unwrap();
        assert_eq!(
            asked.handle_ulpdu(&request, &mut served),
            Ok(Handled::Taken)
        );
        assert!(asked.has_responses());
        let ulpdus = answers(&mut asked, &mut served, mulpdu);
        assert!(!asked.has_responses());
        for ulpdu in ulpdus {
            assert!(ulpdu.len() <= usize::from(mulpdu) && memory.reads.is_empty());
            assert_eq!(asking.handle_ulpdu(&ulpdu, &mut memory), Ok(Handled::Taken));
        }
        assert_eq!(memory.reads, [sink]);
        assert_eq!(memory.sinks[sink], served.tagged[3..3 + length as usize]);
        assert_eq!(asking.outstanding(), 0);
    }
}

/// RFC 5040 §5.2.1: with size zero neither STag nor TO is looked at.
#[test]
fn a_read_of_nothing_needs_no_buffer() {
    let ((mut asking, mut memory), (mut asked, mut served)) = pair();
    let nowhere = ReadSource {
        stag: STag::new(0xdead),
        start: TaggedOffset::new(u64::MAX),
        length: 0,
    };
    let sink = memory.sink(0);
    let request = asking.read(nowhere, sink).unwrap();
    assert_eq!(
        asked.handle_ulpdu(&request, &mut served),
        Ok(Handled::Taken)
    );
    for ulpdu in answers(&mut asked, &mut served, 128) {
        assert_eq!(asking.handle_ulpdu(&ulpdu, &mut memory), Ok(Handled::Taken));
    }
    assert_eq!(memory.reads, [sink]);
}

#[test]
fn the_depths_limit_each_end() {
    let mut stream = TestStream::new(Depths { ird: 1, ord: 3 });
    assert_eq!((stream.request_limit(), stream.outstanding()), (3, 0));
    for expected in 1..=2 {
        stream.read(source(BASE, 8), 0).unwrap();
        assert_eq!(stream.outstanding(), expected);
    }
    stream.atomic(ADD_FIVE, at(BASE), 0).unwrap();
    assert_eq!(stream.outstanding(), 3);
    assert_eq!(stream.atomic(ADD_FIVE, at(BASE), 0), None);
    // An RTR indication needs no credit.
    stream.rtr_read(0);
    assert_eq!(stream.outstanding(), 4);
}

/// The end of a stream leaves no response, and none is made without a request.
#[test]
fn an_atomic_response_needs_a_request_and_a_stream_that_lives() {
    let ((mut asking, _), (mut asked, mut served)) = pair();
    assert_eq!(asked.atomic_done(0), None);
    let atomic = asking.atomic(ADD_FIVE, at(BASE), 0).unwrap();
    asked.handle_ulpdu(&atomic, &mut served).unwrap();
    asked.fail(StreamError::LocalProtection);
    assert!(asked.take_terminate().is_some());
    assert_eq!(asked.atomic_done(0), None);
}

#[test]
fn credit_is_shared_and_comes_back_with_responses() {
    let ((mut asking, mut memory), (mut asked, mut served)) = pair();
    let sink = memory.sink(8);
    let read = asking.read(source(BASE, 8), sink).unwrap();
    let atomic = asking.atomic(ADD_FIVE, at(BASE), 7).unwrap();
    assert_eq!(asking.read(source(BASE, 8), sink), None);
    assert_eq!(asking.atomic(ADD_FIVE, at(BASE), 7), None);
    for ulpdu in [&read[..], &atomic] {
        assert_eq!(asked.handle_ulpdu(ulpdu, &mut served), Ok(Handled::Taken));
    }
    let before = u64::from_ne_bytes(served.tagged[..8].try_into().unwrap());
    for ulpdu in answers(&mut asked, &mut served, 128) {
        assert_eq!(asking.handle_ulpdu(&ulpdu, &mut memory), Ok(Handled::Taken));
    }
    assert_eq!(memory.sinks[sink], before.to_ne_bytes());
    assert_eq!(memory.atomics, [(7, before)]);
    assert_eq!(served.tagged[..8], (before + 5).to_ne_bytes());
    assert!(asking.atomic(ADD_FIVE, at(BASE), 8).is_some());
}

/// RFC 5040 §5.2.2: there are as many buffers on queue 1 as were negotiated.
#[test]
fn a_peer_that_exceeds_our_ird_finds_no_buffer() {
    let mut greedy = TestStream::new(Depths { ird: 0, ord: 9 });
    let (_, (mut asked, mut served)) = pair();
    for expected in [
        Ok(Handled::Taken),
        Ok(Handled::Taken),
        Err(UntaggedError::NoBuffer.into()),
    ] {
        let request = greedy.read(source(BASE, 8), 0).unwrap();
        assert_eq!(asked.handle_ulpdu(&request, &mut served), expected);
    }
    // Requests from before may be answered until the Terminate leaves.
    assert!(asked.next_response(128).is_some());
    assert!(asked.take_terminate().is_some());
    assert_eq!(asked.next_response(128), None);
    assert!(!asked.has_responses());
}

#[test]
fn the_requested_buffer_is_checked_and_the_terminate_brings_the_request_back() {
    let rows = [
        (
            at(BASE + OCTETS as u64),
            TaggedError::BaseOrBounds,
            Cause::BASE_OR_BOUNDS,
        ),
        (at(u64::MAX - 2), TaggedError::Wrap, Cause::WRAP),
        (
            (STag::new(1), TaggedOffset::new(BASE)),
            TaggedError::InvalidStag,
            Cause::INVALID_STAG,
        ),
    ];
    for ((stag, start), error, cause) in rows {
        let ((mut asking, mut memory), (mut asked, mut served)) = pair();
        let first = asking.read(source(BASE, 8), 0).unwrap();
        assert_eq!(asked.handle_ulpdu(&first, &mut served), Ok(Handled::Taken));
        let refused = ReadSource {
            stag,
            start,
            length: 8,
        };
        let request = asking.read(refused, 1).unwrap();
        let error = StreamError::Source(error);
        assert_eq!(asked.handle_ulpdu(&request, &mut served), Err(error));
        let terminate = asked.take_terminate().unwrap();
        assert_eq!(terminate[18..24], [0x01, cause.code, 0xe0, 0, 0, 46]);
        assert_eq!(terminate[24..], request[..], "DDP header and Read Request");
        assert_eq!(terminate.len(), terminate.capacity(), "none is longer");
        let ended = asking.handle_ulpdu(&terminate, &mut memory);
        assert_eq!(ended, Err(StreamError::Terminated(cause)));
        assert_eq!(asking.blamed(), Some(Blamed::Request(1)));

        // RFC 7306 §8.1: an atomic request is not brought back, but its DDP header tells which one it was.
        let ((mut asking, mut memory), (mut asked, mut served)) = pair();
        let request = asking.atomic(ADD_FIVE, (stag, start), 3).unwrap();
        assert_eq!(asked.handle_ulpdu(&request, &mut served), Err(error));
        let terminate = asked.take_terminate().unwrap();
        assert_eq!(terminate[18..24], [0x01, cause.code, 0xc0, 0, 0, 70]);
        assert_eq!(terminate[24..], request[..18]);
        let _ = asking.handle_ulpdu(&terminate, &mut memory);
        assert_eq!(asking.blamed(), Some(Blamed::Request(3)));
    }
}

#[test]
fn an_unaligned_atomic_leaves_memory_alone() {
    let ((mut asking, _), (mut asked, mut served)) = pair();
    let before = served.tagged.clone();
    let request = asking.atomic(ADD_FIVE, at(BASE + 4), 0).unwrap();
    let error = StreamError::Misaligned(TaggedOffset::new(BASE + 4));
    assert_eq!(asked.handle_ulpdu(&request, &mut served), Err(error));
    assert_eq!(asked.next_response(128), None);
    assert_eq!(served.tagged, before);
    // RFC 7306 §8.2.
    assert_eq!(asked.take_terminate().unwrap()[18..20], [0x02, 0x07]);
}

/// RFC 5040 §4.8: a Terminate in the middle of a response tells how far it came.
#[test]
fn a_buffer_that_goes_away_ends_its_response() {
    let ((mut asking, mut memory), (mut asked, mut served)) = pair();
    let sink = memory.sink(300);
    let request = asking.read(source(BASE, 300), sink).unwrap();
    assert_eq!(
        asked.handle_ulpdu(&request, &mut served),
        Ok(Handled::Taken)
    );
    assert!(!asked.is_amid_response());
    let first = answer(&mut asked, &mut served, 128).unwrap();
    assert!(asked.is_amid_response());
    assert_eq!(asking.handle_ulpdu(&first, &mut memory), Ok(Handled::Taken));
    let error = asked.fail_response(TaggedError::InvalidStag);
    assert_eq!(error, StreamError::Source(TaggedError::InvalidStag));
    let terminate = asked.take_terminate().unwrap();
    assert_eq!(terminate[18..24], [0x01, 0x00, 0xe0, 0, 0, 46]);
    assert_eq!(terminate[24..42], request[..18]);
    let (left, _) = crate::wire::ReadRequest::parse(&terminate[42..]).unwrap();
    assert_eq!((left.size, left.sink_offset.get()), (300 - 114, 114));
    assert_eq!(left.source_offset.get(), BASE + 114);
    let _ = asking.handle_ulpdu(&terminate, &mut memory);
    assert_eq!(asking.blamed(), Some(Blamed::Request(sink)));
}

fn response(stag: u32, offset: u64, payload: &[u8], last: bool) -> Vec<u8> {
    let mut ulpdu = vec![if last { 0xc1 } else { 0x81 }, 0x42];
    ulpdu.extend(stag.to_be_bytes());
    ulpdu.extend(offset.to_be_bytes());
    ulpdu.extend(payload);
    ulpdu
}

/// The kernel's siw placed Read Responses that were longer than asked for (2026-06).
#[test]
fn a_read_response_reaches_only_what_its_request_asked_for() {
    let invalid = StreamError::from(TaggedError::InvalidStag);
    let bounds = StreamError::from(TaggedError::BaseOrBounds);
    let short = |length| StreamError::Length {
        opcode: Opcode::ReadResponse,
        length,
    };
    let rows = [
        (response(1, 0, &[9; 11], false), bounds),
        (response(1, 0, &[9; 11], true), bounds),
        (response(1, 1, &[9; 9], true), bounds),
        (response(1, u64::MAX, &[9; 1], true), bounds),
        (response(2, 0, &[9; 10], true), invalid),
        (response(1, 0, &[9; 9], true), short(9)),
        (response(1, 0, &[], true), short(0)),
    ];
    for (ulpdu, error) in rows {
        let ((mut asking, mut memory), _) = pair();
        let sink = memory.sink(10);
        assert!(asking.read(source(BASE, 10), sink).is_some());
        assert_eq!(asking.handle_ulpdu(&ulpdu, &mut memory), Err(error));
        assert!(memory.reads.is_empty());
        if !matches!(error, StreamError::Length { .. }) {
            assert_eq!(memory.sinks[sink], [0xee; 10]);
        }
    }
    // Nobody asked, or not any more.
    let ((mut asking, mut memory), _) = pair();
    let unasked = asking.handle_ulpdu(&response(1, 0, &[9], true), &mut memory);
    assert_eq!(unasked, Err(invalid));
    // The rest after what was asked for.
    let ((mut asking, mut memory), _) = pair();
    let sink = memory.sink(10);
    assert!(asking.read(source(BASE, 10), sink).is_some());
    let whole = response(1, 0, &[9; 10], false);
    assert_eq!(asking.handle_ulpdu(&whole, &mut memory), Ok(Handled::Taken));
    let more = response(1, 10, &[9], true);
    assert_eq!(asking.handle_ulpdu(&more, &mut memory), Err(bounds));
}

#[test]
fn an_atomic_response_needs_its_request() {
    let ((mut asking, mut memory), (mut asked, mut served)) = pair();
    let request = asking.atomic(ADD_FIVE, at(BASE), 0).unwrap();
    assert_eq!(
        asked.handle_ulpdu(&request, &mut served),
        Ok(Handled::Taken)
    );
    let good = answers(&mut asked, &mut served, 128).remove(0);
    let error = stream().handle_ulpdu(&good, &mut memory);
    assert_eq!(error, Err(UntaggedError::NoBuffer.into()));
    let mut other = good.clone();
    other[21] ^= 1;
    let error = asking.handle_ulpdu(&other, &mut memory).unwrap_err();
    assert!(matches!(error, StreamError::AtomicIdentifier { .. }));
    assert!(memory.atomics.is_empty());
}

/// The kernel's siw read headers that were not all there (2026-01, 2026-05).
#[test]
fn short_and_long_requests_are_refused() {
    let mut asking = stream();
    let read = asking.read(source(BASE, 8), 0).unwrap().to_vec();
    let atomic = stream().atomic(ADD_FIVE, at(BASE), 0).unwrap().to_vec();
    for (good, opcode) in [(read, Opcode::ReadRequest), (atomic, Opcode::AtomicRequest)] {
        for length in (18..good.len()).chain([good.len() + 1, 18 + 53]) {
            let mut ulpdu = good.clone();
            ulpdu.resize(length, 0);
            let (_, (mut asked, mut served)) = pair();
            let error = asked.handle_ulpdu(&ulpdu, &mut served).unwrap_err();
            let length = u32::try_from(length - 18).unwrap();
            let expected = if length > 52 {
                UntaggedError::TooLong.into()
            } else {
                StreamError::Length { opcode, length }
            };
            assert_eq!(error, expected);
        }
    }
    let mut unknown = stream().atomic(ADD_FIVE, at(BASE), 0).unwrap();
    unknown[21] = 1;
    let (_, (mut asked, mut served)) = pair();
    let error = asked.handle_ulpdu(&unknown, &mut served);
    assert_eq!(error, Err(StreamError::AtomicCode(1)));
}

/// RFC 5041 §5.2 lets a peer cut even a Read Request.
#[test]
fn a_request_may_come_in_pieces() {
    let ((mut asking, mut memory), (mut asked, mut served)) = pair();
    let sink = memory.sink(20);
    let whole = asking.read(source(BASE, 20), sink).unwrap();
    let (header, body) = whole.split_at(18);
    let mut at = 0;
    for piece in [&body[..5], &body[5..5], &body[5..]] {
        let mut ulpdu = [header, piece].concat();
        if at + piece.len() < body.len() {
            ulpdu[0] &= !0x40;
        }
        ulpdu[17] = u8::try_from(at).unwrap();
        at += piece.len();
        assert_eq!(asked.handle_ulpdu(&ulpdu, &mut served), Ok(Handled::Taken));
    }
    for ulpdu in answers(&mut asked, &mut served, 128) {
        assert_eq!(asking.handle_ulpdu(&ulpdu, &mut memory), Ok(Handled::Taken));
    }
    assert_eq!(memory.sinks[sink], served.tagged[..20]);
}

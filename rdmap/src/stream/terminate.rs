//! Terminate messages: error and offending segment.

use arrayvec::ArrayVec;
use dgiwarp_ddp::wire::{Control, tagged, untagged};
use dgiwarp_ddp::{Msn, STag, TaggedOffset};

use super::StreamError;
use super::message::short;
use crate::wire::{Cause, Opcode, ReadRequest, Terminate, terminate};

/// Octets of the longest ULPDU with a Terminate.
const MAX_LEN: usize = untagged::LEN + terminate::MAX_LEN;

/// Message of this end that a Terminate of the peer is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blamed<Q> {
    /// A Read or atomic.
    Request(Q),
    /// A message to the peer's receive queue: the one this many before the next one, at least 1.
    Queued(u32),
    /// A Write that has octets at this place.
    Write(STag, TaggedOffset),
}

/// A ULPDU that holds a Terminate.
pub type TerminateMessage = ArrayVec<u8, MAX_LEN>;

/// Segment with an error.
#[derive(Debug, Clone, Copy)]
pub(super) struct Offender<'a> {
    /// Octets of the segment, at least its DDP header if it has a whole one.
    pub(super) octets: &'a [u8],
    /// Octets of the whole segment.
    pub(super) length: u16,
    /// The Read Request whose last segment it is.
    pub(super) read_request: Option<ReadRequest>,
}

/// Terminate of a stream that ends before its first segment; `None` for an error without a report.
#[must_use]
pub fn last_word(error: StreamError) -> Option<TerminateMessage> {
    message(error, None)
}

/// Terminate for an error; `None` for an error without a report.
pub(super) fn message(
    error: StreamError,
    offender: Option<Offender<'_>>,
) -> Option<TerminateMessage> {
    let cause = error.cause()?;
    let offender = offender.filter(|_| is_about_segment(cause));
    let ddp_header = offender.and_then(|it| ddp_header(it.octets));
    let terminate = Terminate {
        cause,
        // RFC 5040 §4.8 figure 10 gives length and header together, "if possible".
        segment_length: ddp_header.and(offender).map(|it| it.length),
        ddp_header,
        // RFC 5040 §4.8 figure 10: only remote protection errors bring the request back.
        read_request: offender
            .and_then(|it| it.read_request)
            .filter(|_| cause.is_protection()),
    };
    // RFC 5040 §5.4: queue 2, a single one, the first and last message of its queue.
    Some(short(Opcode::Terminate, Msn::FIRST, &terminate.emit()))
}

/// RFC 5040 §4.8 figure 10: local errors, and errors of the lower layer, are about no segment.
const fn is_about_segment(cause: Cause) -> bool {
    match cause.layer {
        0 => cause.error_type != 0,
        layer => layer == 1,
    }
}

/// DDP header of a segment, if it is whole.
fn ddp_header(segment: &[u8]) -> Option<&[u8]> {
    let len = if Control::parse(*segment.first()?).tagged {
        tagged::LEN
    } else {
        untagged::LEN
    };
    segment.get(..len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dgiwarp_ddp::error::{TaggedError, UntaggedError};

    const REQUEST: ReadRequest = ReadRequest {
        sink_stag: STag::new(1),
        sink_offset: TaggedOffset::new(2),
        size: 3,
        source_stag: STag::new(4),
        source_offset: TaggedOffset::new(5),
    };

    fn parsed(ulpdu: &TerminateMessage) -> Terminate<'_> {
        assert_eq!(
            ulpdu[..untagged::LEN],
            *b"\x41\x47\0\0\0\0\0\0\0\x02\0\0\0\x01\0\0\0\0"
        );
        Terminate::parse(&ulpdu[untagged::LEN..]).unwrap()
    }

    /// RFC 5040 §4.8 figure 10: which errors bring which headers.
    #[test]
    fn headers_are_those_of_the_figure() {
        let segment = [[0x41; untagged::LEN], [7; untagged::LEN]].concat();
        let offender = Offender {
            octets: &segment,
            length: 36,
            read_request: Some(REQUEST),
        };
        for (error, has_header, has_request) in [
            (StreamError::LocalProtection, false, false),
            (StreamError::Llp(2), false, false),
            (TaggedError::InvalidStag.into(), true, false),
            (UntaggedError::NoBuffer.into(), true, false),
            (StreamError::UnexpectedOpcode(Opcode::Send), true, false),
            (StreamError::Source(TaggedError::Wrap), true, true),
        ] {
            let ulpdu = message(error, Some(offender)).unwrap();
            let terminate = parsed(&ulpdu);
            assert_eq!(Some(terminate.cause), error.cause());
            let header = has_header.then_some(&segment[..untagged::LEN]);
            assert_eq!(terminate.ddp_header, header, "{error}");
            assert_eq!(
                terminate.segment_length,
                has_header.then_some(36),
                "{error}"
            );
            assert_eq!(
                terminate.read_request,
                has_request.then_some(REQUEST),
                "{error}"
            );
            let alone = message(error, None).unwrap();
            assert_eq!(parsed(&alone).ddp_header, None);
            assert_eq!(last_word(error), Some(alone));
        }
        assert_eq!(last_word(StreamError::Terminated(Cause::LOCAL)), None);
    }

    #[test]
    fn a_header_is_brought_if_it_is_whole() {
        for (first, len) in [(0xc1, tagged::LEN), (0x41, untagged::LEN)] {
            let segment = [first; 40];
            for octets in [len - 1, len, 40] {
                let header = (octets >= len).then_some(&segment[..len]);
                assert_eq!(ddp_header(&segment[..octets]), header);
            }
        }
        assert_eq!(ddp_header(&[]), None);
    }
}

//! Terminate messages: error and offending segment.

use arrayvec::ArrayVec;
use dgiwarp_ddp::Msn;
use dgiwarp_ddp::wire::{Control, tagged, untagged};

use super::StreamError;
use super::message::short;
use crate::wire::{Cause, Opcode, ReadRequest, Terminate, terminate};

/// Octets of the longest ULPDU with a Terminate.
const MAX_LEN: usize = untagged::LEN + terminate::MAX_LEN;

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

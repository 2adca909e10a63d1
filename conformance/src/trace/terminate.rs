//! Form of a Terminate (RFC 5040 §4.8, figures 7 to 10).

use super::stream::half::Spoken;
use super::{Report, rules};
use crate::wire::datagram;
use crate::wire::ddp::{ReadRequest, TAGGED_HEADER, Terminate, UNTAGGED_HEADER};

/// Octets of a terminated Read Request.
const READ_REQUEST: usize = 28;

/// The bits of the header control field: M, D, R.
const M: u8 = 4;
const D: u8 = 2;
const R: u8 = 1;

/// Checks the payload of a Terminate.
pub(super) fn check(payload: &[u8], report: &mut Report<'_>) {
    let Some(terminate) = Terminate::parse(payload) else {
        let detail = format!(
            "{} octets have no room for the control field",
            payload.len()
        );
        return report(rules::TERMINATE_HEADERS, detail);
    };
    control(&terminate, report);
    if !headers(&terminate, report) {
        // Bits that announce what is not there may be the wrong ones.
        return;
    }
    let (layer, etype) = (terminate.layer, terminate.etype);
    let bits = terminate.header_control;
    if let Some(allowed) = figure_10(layer, etype)
        && !allowed.contains(&bits)
    {
        report(
            rules::TERMINATE_FIGURE,
            format!("M, D, R are {bits:03b} in a Terminate of layer {layer}, type {etype}"),
        );
    }
}

/// Checks a Terminate of a datagram, whose headers are others (Datagram §7.2).
pub(super) fn check_of_datagram(segment: &datagram::Segment, report: &mut Report<'_>) {
    let Some(terminate) = segment.terminate() else {
        return;
    };
    control(&terminate, report);
    if segment.cookie.is_some() || terminate.header_control & M != 0 {
        report(rules::TERMINATE_DATAGRAM, segment.to_string());
    }
}

/// Checks what all Terminates begin with.
fn control(terminate: &Terminate, report: &mut Report<'_>) {
    let Terminate {
        layer, etype, code, ..
    } = *terminate;
    if !is_defined(layer, etype, code) {
        let detail = format!("layer {layer}, type {etype}, code {code:#04x} is in no figure");
        report(rules::TERMINATE_CONTROL, detail);
    }
    if terminate.reserved != 0 {
        let detail = format!("{:#x} in the 13 reserved bits", terminate.reserved);
        report(rules::TERMINATE_RESERVED, detail);
    }
}

/// Whether D and R announce what is there; if not, that is reported.
fn headers(terminate: &Terminate, report: &mut Report<'_>) -> bool {
    let bits = terminate.header_control;
    let mut need = 0;
    if bits & (M | D) != 0 {
        need += 2;
    }
    if bits & D != 0 {
        // T of the header's first octet says how long it is.
        let tagged = terminate.rest.get(2).is_some_and(|first| first & 0x80 != 0);
        need += if tagged {
            TAGGED_HEADER
        } else {
            UNTAGGED_HEADER
        };
    }
    if bits & R != 0 {
        need += READ_REQUEST;
    }
    let there = terminate.rest.len();
    if there < need {
        let detail =
            format!("M, D, R are {bits:03b}, which takes {need} octets, and there are {there}");
        report(rules::TERMINATE_HEADERS, detail);
    }
    there >= need
}

/// Checks that a Terminate is about a segment of the other end, which said no more than this.
pub(super) fn check_subject(payload: &[u8], spoken: &Spoken, report: &mut Report<'_>) {
    let Some(terminate) = Terminate::parse(payload) else {
        return;
    };
    let bits = terminate.header_control;
    let Some((length, rest)) = terminate.rest.split_first_chunk() else {
        return;
    };
    if bits & (M | D) == 0 {
        return;
    }
    let length = usize::from(u16::from_be_bytes(*length));
    let same_length = |there: usize| bits & M == 0 || there == length;
    if spoken.denies(|there, _| same_length(there)) {
        let detail = format!("no segment of {length} octets came");
        return report(rules::TERMINATE_ABOUT, detail);
    }
    if bits & D == 0 {
        return;
    }
    let tagged = rest.first().is_some_and(|first| first & 0x80 != 0);
    let size = if tagged {
        TAGGED_HEADER
    } else {
        UNTAGGED_HEADER
    };
    let Some((header, behind)) = rest.split_at_checked(size) else {
        return;
    };
    let same_header = |there: usize, head: &[u8]| {
        // A segment that is shorter than its header has no octets for all of it.
        same_length(there) && header.starts_with(&head[..head.len().min(size)])
    };
    if spoken.denies(same_header) {
        let detail = format!("no segment of {length} octets with this header came");
        return report(rules::TERMINATE_ABOUT, detail);
    }
    let Some(at) = ReadRequest::parse(behind).filter(|_| bits & R != 0) else {
        return;
    };
    // The Read may be under way already (RFC 5040 §4.8).
    let same_read = |there: usize, head: &[u8]| {
        let request = head.get(size..).and_then(ReadRequest::parse);
        same_header(there, head) && request.is_none_or(|request| is_part(&at, &request))
    };
    if spoken.denies(same_read) {
        report(
            rules::TERMINATE_ABOUT,
            format!("no such Read Request came: {at:x?}"),
        );
    }
}

/// Whether the first is the second, or what is left of it.
fn is_part(at: &ReadRequest, of: &ReadRequest) -> bool {
    let done = of.size.checked_sub(at.size).map(u64::from);
    (at.sink_stag, at.source_stag) == (of.sink_stag, of.source_stag)
        && done.is_some_and(|done| {
            at.sink_to == of.sink_to.wrapping_add(done)
                && at.source_to == of.source_to.wrapping_add(done)
        })
}

/// RFC 5040 §4.8 figure 9, RFC 5041 §7.2, RFC 5044 §8 and RFC 6581 §8.
fn is_defined(layer: u8, etype: u8, code: u8) -> bool {
    match (layer, etype) {
        // A local catastrophic error has no code, so any will do.
        (0 | 1, 0) => true,
        (0, 1) => matches!(code, 0..=4 | 9 | 0xff),
        (0, 2) => matches!(code, 5..=9 | 0xff),
        (1, 1) => code <= 4,
        (1, 2) => matches!(code, 1..=6),
        (2, 0) => matches!(code, 1..=7),
        _ => false,
    }
}

/// The values of M, D and R that figure 10 has for an error; "if possible" allows that they are clear.
fn figure_10(layer: u8, etype: u8) -> Option<&'static [u8]> {
    match (layer, etype) {
        (0, 0) | (2, _) => Some(&[0]),
        // A Send with Invalidate has no RDMA header that could be included.
        (0, 1) => Some(&[M | D | R, M | D, R, 0]),
        (0, 2) => Some(&[M | D, 0]),
        (1, 1 | 2) => Some(&[M | D]),
        _ => None,
    }
}

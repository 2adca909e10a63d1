//! Plain datagrams: a segment and the CRC32c of all its octets (§1).
//!
//! Datagrams of service ID resolution (§10) are plain whatever shim the queue pair has, because they precede it.

use dgiwarp_codec::{Payload, PayloadSlice, crc};

use super::{OpenError, Overhead, format_of};
use crate::Format;

/// The CRC behind the segment.
pub const OVERHEAD: Overhead = Overhead {
    head: 0,
    tail: crc::LEN,
};

/// Seals a datagram: `datagram` holds a segment of format 0 and room for the CRC.
///
/// # Panics
/// If `datagram` is shorter than the CRC and one octet.
#[inline]
pub fn seal(format: Format, datagram: &mut [u8]) {
    let (segment, trailer) = datagram
        .split_last_chunk_mut::<{ crc::LEN }>()
        .expect("the caller left room for the CRC");
    mark(format, segment);
    *trailer = crc::to_wire(crc::crc32c(segment));
}

#[inline]
pub(super) fn seal_gathered(
    format: Format,
    header: &mut [u8],
    payload: &impl Payload,
    trailer: &mut [u8],
) {
    mark(format, header);
    let crc = payload.crc(0, payload.len(), crc::crc32c(header));
    trailer.copy_from_slice(&crc::to_wire(crc));
}

#[inline]
fn mark(format: Format, segment: &mut [u8]) {
    if format != Format::Segment {
        segment[0] = format.emit(segment[0]);
    }
}

/// Opens a datagram.
///
/// # Errors
/// [`OpenError`]: the datagram is to be dropped.
#[inline]
pub fn open<P: Payload + ?Sized>(
    datagram: PayloadSlice<'_, P>,
) -> Result<(Format, PayloadSlice<'_, P>), OpenError> {
    let (segment, trailer) = datagram
        .split_last::<{ crc::LEN }>()
        .ok_or(OpenError::TooShort(datagram.len()))?;
    let found = crc::from_wire(trailer);
    let computed = segment.crc32c();
    if found != computed {
        return Err(OpenError::Mismatch { found, computed });
    }
    Ok((format_of(datagram.len(), segment)?, segment))
}

/// Opens a datagram whose CRC is not checked.
///
/// # Errors
/// [`OpenError`]: the datagram is to be dropped.
#[inline]
pub(super) fn open_unchecked<P: Payload + ?Sized>(
    datagram: PayloadSlice<'_, P>,
) -> Result<(Format, PayloadSlice<'_, P>), OpenError> {
    let (segment, _) = datagram
        .split_last::<{ crc::LEN }>()
        .ok_or(OpenError::TooShort(datagram.len()))?;
    Ok((format_of(datagram.len(), segment)?, segment))
}

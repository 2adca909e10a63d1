//! Formats of a datagram (§1): the four bits of the first octet that RFC 5041 §4.1 reserves.

use dgiwarp_codec::split_header;
use dgiwarp_ddp::wire::Control;

use super::{Cookie, DropReason};

/// Plain segments.
pub(super) const FORMAT_SEGMENT: u8 = 0;
/// Segments with a cookie behind header and extension.
pub(super) const FORMAT_COOKIE: u8 = 1;
/// Cookie exchanges.
pub(super) const FORMAT_EXCHANGE: u8 = 2;

/// Whether a datagram's first octet says that it carries a cookie.
#[must_use]
#[inline]
pub fn has_cookie(datagram: &[u8]) -> bool {
    let first = datagram.first();
    first.is_some_and(|first| Control::parse(*first).format == FORMAT_COOKIE)
}

/// Splits the cookie off the octets behind header and extension, in a segment whose format has one.
pub(super) fn parse_cookie(
    rest: &[u8],
    with_cookie: bool,
) -> Result<(Option<Cookie>, &[u8]), DropReason> {
    if !with_cookie {
        return Ok((None, rest));
    }
    let (&cookie, rest) =
        split_header::<{ Cookie::LEN }>(rest).map_err(|_| DropReason::Malformed)?;
    Ok((Some(Cookie::new(u64::from_be_bytes(cookie))), rest))
}

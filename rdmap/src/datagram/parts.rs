//! A received segment while it is parsed.

use dgiwarp_codec::{Payload, PayloadSlice};

use super::DropReason;

/// A received segment, and the octets that hold its headers, which nobody writes.
#[derive(Debug)]
pub(crate) struct Parts<'a, 'h, P: ?Sized> {
    pub(super) segment: PayloadSlice<'a, P>,
    /// The first octets of `segment`; the headers are among them.
    pub(super) octets: &'h [u8],
    /// Format 1: a cookie stands before the payload.
    pub(super) with_cookie: bool,
}

impl<'a, P: Payload + ?Sized> Parts<'a, '_, P> {
    /// The payload: octets behind the headers, where `rest` of the first octets is left.
    #[inline]
    pub(super) fn behind(&self, rest: &[u8]) -> Result<PayloadSlice<'a, P>, DropReason> {
        let headers = self.octets.len() - rest.len();
        self.segment.after(headers).ok_or(DropReason::Malformed)
    }

    /// Whether nothing is behind the headers.
    pub(super) fn ends(&self, rest: &[u8]) -> bool {
        rest.is_empty() && self.octets.len() == self.segment.len()
    }
}

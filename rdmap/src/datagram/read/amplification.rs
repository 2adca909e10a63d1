//! Limit of what a target sends to an address that is not validated (§6).

use dgiwarp_ddp::wire::{tagged, untagged};

use crate::wire::read_request;

/// Octets that a target sends at most for each octet of a request without a valid cookie.
pub(super) const AMPLIFICATION: usize = 3;

/// Longest Read in octets that a target answers without a cookie, where the lower layer adds `overhead` octets to each segment: its
/// one response segment stays within the limit.
pub(super) fn max_unvalidated_read(overhead: usize) -> u32 {
    let request = untagged::LEN + read_request::LEN + overhead;
    let response = tagged::LEN + overhead;
    u32::try_from((AMPLIFICATION * request).saturating_sub(response)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// §6, with the CRC of plain datagrams.
    #[test]
    fn a_short_read_needs_no_cookie() {
        assert_eq!(max_unvalidated_read(4), 3 * (18 + 28 + 4) - 14 - 4);
    }
}

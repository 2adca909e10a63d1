//! Limit of what a target sends to an address that is not validated (§6).

use dgiwarp_ddp::wire::{tagged, untagged};

use crate::wire::read_request;

/// Octets that a target sends at most for each octet of a request without a valid cookie.
pub(super) const AMPLIFICATION: usize = 3;

/// Octets of the CRC of each datagram.
pub(super) const CRC: usize = 4;

/// Longest Read in octets that a target answers without a cookie: its one response segment stays within the limit.
pub(super) const MAX_UNVALIDATED_READ: u32 = {
    let response = AMPLIFICATION * (untagged::LEN + read_request::LEN + CRC);
    #[expect(
        clippy::cast_possible_truncation,
        reason = "three times a request is some hundred octets"
    )]
    let payload = (response - tagged::LEN - CRC) as u32;
    payload
};

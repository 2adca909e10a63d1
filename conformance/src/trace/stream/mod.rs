//! One direction of a TCP connection as a stream of octets, and where FPDUs begin in it.

pub(super) mod half;
pub(super) mod seek;
pub(super) mod tcp;

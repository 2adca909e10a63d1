//! Full Operation: ULPDUs to FPDUs and back (RFC 5044 §4, §6).
//!
//! ```text
//! +---------------+------------------+-----------+-----+
//! | ULPDU_Length  |      ULPDU       | PAD (0-3) | CRC |     a multiple of four octets
//! |      16       |                  |           | 32  |
//! +---------------+------------------+-----------+-----+
//! ```
//!
//! With Markers, four more octets stand at every 512th octet of the stream, counted from
//! the first FPDU's start.

mod deframer;
mod framer;
mod marker;

pub use deframer::{Deframer, LONGEST_FPDU};
pub use framer::Framer;
pub use marker::{MARKER_INTERVAL, MARKER_LEN};

/// Octets of ULPDU_Length and CRC.
pub const FPDU_OVERHEAD: u16 = 6;

/// Octets of ULPDU_Length.
const LENGTH_LEN: usize = 2;

/// Octets of PAD after a ULPDU of `ulpdu_len` octets: they make the FPDU an integral
/// multiple of four (RFC 5044 §4.1).
const fn pad_len(ulpdu_len: usize) -> usize {
    (4 - (LENGTH_LEN + ulpdu_len) % 4) % 4
}

#[cfg(test)]
mod tests;

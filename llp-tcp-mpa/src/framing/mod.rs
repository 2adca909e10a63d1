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

pub mod bare;
mod deframer;
mod fpdu;
mod framer;
mod marker;

pub use deframer::{Deframer, LONGEST_FPDU};
pub use fpdu::FPDU_OVERHEAD;
pub use framer::Framer;
pub use marker::{MARKER_INTERVAL, MARKER_LEN};

#[cfg(test)]
mod tests;

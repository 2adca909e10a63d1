//! Direct Data Placement (RFC 5041), sans I/O.
//!
//! This crate holds what DDP is whatever carries it: header formats ([`wire`]), the numbers with their
//! arithmetic ([`STag`], [`TaggedOffset`], [`Msn`], …), the checks before placement and the trait
//! through which bytes are placed ([`placement`]), which octets of a message are there ([`RangeMap`]),
//! and the cutting of messages into segments ([`Segmenter`]). To *place* is not to *deliver*: placing
//! happens per segment as it arrives; delivery of messages is decided by RDMAP above.
//!
//! It knows neither sockets nor time nor memory.

#![forbid(unsafe_code)]

pub mod error;
pub mod placement;
mod ranges;
mod segmenter;
mod types;
pub mod wire;

pub use ranges::{MAX_RANGES, MapFull, RangeMap};
pub use segmenter::{Segment, Segmenter};
pub use types::{MessageOffset, Msn, QueueNumber, STag, TaggedOffset};

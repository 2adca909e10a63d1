//! Direct Data Placement (RFC 5041), sans I/O.
//!
//! DDP over any lower layer: header formats ([`wire`]), numbers with their arithmetic ([`STag`],
//! [`TaggedOffset`], [`Msn`], …), the trait through which octets are placed ([`placement`]), untagged queues
//! ([`UntaggedQueue`]), validity maps ([`RangeMap`]) and the segmentation of messages ([`Segmenter`]). Segments are *placed* as they arrive;
//! the ULP, RDMAP, decides when a message is *delivered*.
//!
//! No socket, clock or memory is used here.

#![forbid(unsafe_code)]

pub mod error;
pub mod placement;
mod ranges;
mod segmenter;
mod types;
mod untagged_queue;
pub mod wire;

pub use ranges::{MAX_RANGES, MapFull, RangeMap};
pub use segmenter::{Segment, Segmenter, equal};
pub use types::{MessageOffset, Msn, QueueNumber, STag, TaggedOffset};
pub use untagged_queue::{ExpectedSegment, Placement, UntaggedQueue};

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

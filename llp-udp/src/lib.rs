//! The datagram lower layer: DDP segments in UDP datagrams, sans I/O.
//!
//! What UDP itself gives is unreliable and unordered; this layer adds the CRC32c at the end of each
//! datagram ([`digest`]), names peers ([`Peer`]), knows how large a segment a path takes ([`Path`]) and
//! how many datagrams go to the network in one call ([`Train`]). The specification is
//! `rfc-notes/datagram-mapping.md` §1 and §8; reliable datagrams and encryption will be a stage between this layer and DDP.

#![forbid(unsafe_code)]

pub mod digest;
mod path;
mod peer;
mod train;

pub use path::{Path, PathKind, SegmentLimit};
pub use peer::Peer;
pub use train::{MAX_TRAIN_DATAGRAMS, MAX_TRAIN_OCTETS, Train};

//! The datagram lower layer of dgiwarp: DDP segments in UDP datagrams, sans I/O.
//!
//! The layer below DDP (LLP in RFC 5041's terms) for UD and UC queue pairs. UDP itself is unreliable and unordered; this layer
//! - names peers ([`Peer`]) and formats of datagrams ([`Format`]);
//! - seals segments into datagrams and opens datagrams into segments ([`Shim`]): plain ones end with a CRC32c;
//! - derives the longest segment from the path ([`Path`], [`DatagramLimit`], [`Shim::mulpdu`]);
//! - puts datagrams of equal length into trains that leave in one call ([`Train`], [`TrainBuilder`]).
//!
//! The specification is `rfc-notes/datagram-mapping.md` §1 and §8.
//!
//! ```
//! use std::time::Instant;
//!
//! use dgiwarp_llp_udp::{Format, Opened, PathKind, Peer, Shim, ShimConfig, TrainBuilder};
//!
//! let mut shim = Shim::new(ShimConfig::Plain);
//! let peer = Peer::ip("192.0.2.1:4000".parse().unwrap());
//! let mut staging = [0; 1472];
//! let mut builder = TrainBuilder::new(&mut shim, peer, PathKind::Network, &mut staging);
//! builder.add(Format::Segment, 2, |segment| {
//!     segment.copy_from_slice(&[0x41, 0x43]);
//!     Ok::<(), ()>(())
//! })?;
//! let train = builder.finish();
//! let datagram = &staging[..train.octets()];
//! let Ok(Opened::Segment(Format::Segment, segment)) = shim.open(Instant::now(), peer, datagram.into()) else {
//!     panic!("an intact datagram");
//! };
//! assert_eq!(segment.octets(), [0x41, 0x43]);
//! # Ok::<(), ()>(())
//! ```

#![forbid(unsafe_code)]

mod format;
mod path;
mod peer;
pub mod rd;
mod shim;
mod train;

pub use format::{Format, UnknownFormat};
pub use path::{DatagramLimit, Path, PathKind};
pub use peer::Peer;
#[cfg(any(test, feature = "keyed-shim"))]
pub use shim::Keyed;
pub use shim::{OpenError, Opened, Overhead, Shim, ShimConfig, plain};
pub use train::{MAX_TRAIN_DATAGRAMS, MAX_TRAIN_OCTETS, Train, TrainBuilder};

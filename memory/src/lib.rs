//! Registered memory: bytes that the application and a peer may write at any moment.
//!
//! This is one of the two crates of dgiwarp that contain `unsafe` code; it exists to keep that code
//! small. It offers
//! - [`Buffer`], page-aligned memory owned by safe Rust code;
//! - [`Region`], memory that may be registered: of a `Buffer`, of a file, or of a C program through one `unsafe` constructor;
//! - [`RegionSlice`], a checked part of a region. It **never yields `&[u8]` or `&mut [u8]`**: bytes are
//!   copied in ([`place`](RegionSlice::place)), copied out, checksummed, or handed to the kernel;
//! - [`check_mapped`], the check of a C program's range before it is registered;
//! - [`Piece`], a part of an outgoing message.
//!
//! With the feature `sockets` also:
//! - [`socket::send`], the vectored socket call that sends bytes where they lie;
//! - [`tcp_progress`], the state of a TCP connection (`TCP_INFO`);
//! - [`move_up`], which gives a descriptor a high number;
//! - [`lane`], octet streams through memory that two processes share;
//! - [`PeerMemory`], the memory of another process.
//!
//! # What concurrent access means here
//! Bulk copies are plain `memcpy`. Where the application writes a byte while a copy reads it, the copy
//! holds the old or the new byte; where a peer and the application write the same byte, either wins.
//! RFC 5040 §5.5 has this rule for applications: bytes of a buffer are indeterminate from the time it
//! is handed over until the completion that gives it back. No length, index or pointer is ever read
//! out of registered memory.
//!
//! Nothing is pinned or locked. A region whose pages come on demand is accessed through the kernel ([`Region::on_demand`]).

#![allow(
    unsafe_code,
    reason = "registered memory is raw memory; this crate confines it"
)]

// Counters and lanes are 64-bit atomics, and verbs has 64-bit addresses; lanes hold numbers as the processor has them.
#[cfg(not(all(target_pointer_width = "64", target_endian = "little")))]
compile_error!("dgiwarp is for 64-bit little-endian processors: x86-64 and aarch64");

mod access;
mod buffer;
#[cfg(feature = "sockets")]
mod descriptor;
mod file;
#[cfg(feature = "sockets")]
pub mod lane;
mod mapped;
mod mapping;
mod on_demand;
#[cfg(feature = "sockets")]
mod peer_memory;
mod piece;
mod placeable;
mod region;
#[cfg(feature = "sockets")]
pub mod socket;
#[cfg(feature = "sockets")]
mod tcp_info;

pub use access::Access;
pub use buffer::Buffer;
#[cfg(feature = "sockets")]
pub use descriptor::move_up;
pub use file::FileError;
pub use mapped::{MappedError, check_mapped};
pub use mapping::MemoryFile;
pub use on_demand::{enter_background, guard};
#[cfg(feature = "sockets")]
pub use peer_memory::{PeerMemory, allow_tracing, is_process_gone};
pub use piece::{Framed, MAX_PIECES, Piece};
pub use placeable::Placeable;
pub use region::{AtomicError, OutOfBounds, Region, RegionSlice};
#[cfg(feature = "sockets")]
pub use tcp_info::{TcpProgress, tcp_progress};

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

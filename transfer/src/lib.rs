#![doc = include_str!("../README.md")]
//!
//! # Order of calls
//!
//! One end dials a [`Connection`], the other accepts it at a [`Port`]; then one calls [`send`] with a [`Source`], the other [`receive`] with a [`Sink`]. Both
//! return when all files are finished. [`disk::TreeSource`] and [`disk::TreeSink`] are files and trees; a program may have sources and sinks of its own.
//!
//! The wire format is `rfc-notes/transfer.md` of the repository; [`wire`] has the frames, [`engine`] the decisions.

#![forbid(unsafe_code)]

mod carrier;
pub mod delta;
pub mod disk;
pub mod engine;
pub mod hash;
pub mod journal;
mod protection;
mod session;
pub mod wire;

pub use carrier::{CarrierError, RcPort, rc_config};
pub use engine::{Event, Waits};
pub use protection::Secret;
pub use session::{
    Arriving, Cancel, Connection, Control, Dial, Error, Join, Options, Packer, Port, Request,
    Short, Sink, Source, Stranger, Summary, Unpacker, Watch, receive, send,
};

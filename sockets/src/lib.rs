//! The wire protocol of rsockets, as rdma-core speaks it, sans I/O.
//!
//! A stream copies octets by RDMA Writes into a buffer that its peer has advertised, each followed by a Send of four octets with
//! their number. [`wire`] has the formats, [`Stream`] the state machine of one end: credits, targets, half-close, I/O maps.
//! [`Destinations`] is that of a datagram socket, whose first datagrams to a peer travel as plain UDP.
//!
//! The specification is `rfc-notes/rsockets.md`.
//!
//! ```
//! use dgiwarp_sockets::wire::{ConnectionData, Message};
//!
//! assert_eq!(Message::parse(0x8000_0180), Ok(Message::Credits(0x180)));
//! assert_eq!(Message::Data(9).emit(), 9);
//! assert!(ConnectionData::parse(&[1; 39]).is_err());
//! ```

#![forbid(unsafe_code)]

mod datagram;
mod stream;
pub mod wire;

pub use datagram::{Arrived, Destinations, MAX_DESTINATIONS, Route};
pub use stream::config::{Config, Local};
pub use stream::machine::{Shutdown, Stream};
pub use stream::post::{Credits, Part, Place, Post, Sent};
pub use stream::violation::{Refusal, Violation};

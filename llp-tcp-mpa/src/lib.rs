//! Marker PDU Aligned framing for TCP: [RFC 5044] with the enhanced connection
//! establishment of [RFC 6581].
//!
//! MPA carries ULPDUs, which are DDP Segments here, over TCP's stream of octets. A
//! [`Connection`] is one end of it, for both roles, without any I/O: octets of the stream go
//! in and come out, ULPDUs come out and go in. The TCP socket, its clock and the decision
//! to accept are the caller's; what a ULPDU means is DDP's.
//!
//! ```
//! use std::time::Instant;
//! use dgiwarp_llp_tcp_mpa::{Config, Connection, Event, ReadDepths};
//!
//! let now = Instant::now();
//! let mut client = Connection::initiator(now, Config::default(), b"hello").unwrap();
//! let mut server = Connection::responder(now, Config::default());
//! // What one end transmits is the other's input; here without a TCP connection between.
//! let deliver = |from: &mut Connection, to: &mut Connection| {
//!     let bytes = from.poll_transmit(now).to_vec();
//!     from.transmitted(bytes.len());
//!     let mut input = &bytes[..];
//!     let mut ulpdus = Vec::new();
//!     while !input.is_empty() {
//!         ulpdus.extend(to.handle_input(now, &mut input).map(<[u8]>::to_vec));
//!     }
//!     ulpdus
//! };
//!
//! deliver(&mut client, &mut server);
//! let Some(Event::Request(request)) = server.poll_event() else { panic!() };
//! assert_eq!(request.private_data, b"hello");
//! server.accept(ReadDepths { ird: 4, ord: 4 }, b"welcome").unwrap();
//!
//! deliver(&mut server, &mut client);
//! let Some(Event::Established(established)) = client.poll_event() else { panic!() };
//! assert_eq!(established.private_data, b"welcome");
//! assert_eq!(established.negotiation.depths, ReadDepths { ird: 16, ord: 4 });
//!
//! client.send_ulpdu(b"header ", b"payload".as_slice()).unwrap();
//! assert_eq!(deliver(&mut client, &mut server), [b"header payload"]);
//! ```
//!
//! [RFC 5044]: https://www.rfc-editor.org/rfc/rfc5044
//! [RFC 6581]: https://www.rfc-editor.org/rfc/rfc6581

#![forbid(unsafe_code)]

mod connection;
mod error;
mod event;
pub mod framing;
mod mulpdu;
mod outgoing;
pub mod startup;

pub use connection::Connection;
pub use error::{ConfigError, Error, ErrorCode, FrameError, SendError};
pub use event::{Event, TcpEnd};
pub use mulpdu::{MULPDU_CEILING, MULPDU_FLOOR, mulpdu};
pub use startup::{
    Config, CrcPreference, DatagramTerms, Enhanced, Established, Negotiation, ReadDepth,
    ReadDepths, Rejection, Request, Revision, Role, Rtr, RtrSet,
};

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

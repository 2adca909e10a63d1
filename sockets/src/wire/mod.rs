//! Formats on the wire: `rfc-notes/rsockets.md`.

mod connection;
mod datagram;
mod message;
mod order;
mod route;
mod sge;
#[cfg(test)]
mod specification_tests;

pub use connection::{ConnectionData, MalformedConnection, scale_of, slots_of};
pub use datagram::{DatagramHeader, MalformedDatagram, Operation, UdpHeader};
pub use message::{Control, MAX_VALUE, Message, UnknownMessage};
pub use order::ByteOrder;
pub use route::{MalformedRoute, RouteAnswer, RouteRequest, mark_name, mark_names};
pub use sge::{IoMap, Sge};

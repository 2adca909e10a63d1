//! RDMAP over unreliable datagrams.
//!
//! The specification is `rfc-notes/datagram-mapping.md`; sections without a document in this module are its sections.
//!
//! - [`segment`] parses received segments and emits outgoing ones (§1 to §3);
//! - [`Associations`] hold what a QP has for each peer: the count of messages to it (§3), and the cookie exchange (§6);
//! - [`Receiver`] handles received segments: late ones are dropped (§4), Write-Records placed and recorded (§5), UC Writes placed
//!   (§5.2), Sends matched with receives (§7). Memory and queues are reached through [`Ulp`];
//! - [`read`]: RDMA Read, and Terminates (§7.1, §7.2).
//!
//! Order of calls on a [`Receiver`]: `handle_segment(now, …)` for each segment whose CRC is right;
//! `handle_timeout(now, …)` at or after `poll_timeout()`; `release` for every record delivered. Spurious
//! calls do no harm.

mod assembly;
mod association;
mod drop_reason;
mod exchange;
mod open_writes;
mod parts;
pub mod read;
mod receiver;
mod records;
mod secret;
pub mod segment;
mod source;

pub use association::{AssociationConfig, Associations, HandshakeId};
pub use drop_reason::DropReason;
pub use exchange::{CookieExchange, EXCHANGE_LEN, ExchangeKind, Invitation};
pub use receiver::{Delivery, Origin, PlaceFailed, Receiver, ReceiverConfig, TakeError, Ulp};
pub use records::{Record, RecordHandle};
pub use secret::{Cookie, Secret};

#[cfg(test)]
mod specification_tests;
#[cfg(test)]
mod test_octets;

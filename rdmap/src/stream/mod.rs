//! RDMAP over a reliable, ordered lower layer: one stream of RFC 5040 and RFC 7306 on one of RFC 5041.
//!
//! A [`Stream`] is one end, plain state without I/O. ULPDUs that MPA delivers go into [`Stream::handle_ulpdu`], which checks each
//! segment, places it, and delivers messages; memory, receive queue and completions are reached through [`Ulp`]. The caller
//! sends in this order:
//!
//! 1. [`Stream::take_terminate`]: no ULPDU may follow a Terminate;
//! 2. the segments left of a message that has begun: two messages are never mixed;
//! 3. [`Stream::next_response`]: answers to the peer's Read Requests and atomic requests, in order of arrival;
//! 4. the next work request: [`Stream::send`], [`Stream::write`], [`Stream::immediate`], [`Stream::read`], [`Stream::atomic`].
//!
//! Two dgiwarp peers also exchange the notices of [`DgiwarpExt`].
//!
//! Requests take credit (ORD), which their responses return; a fence waits until [`Stream::outstanding`] is zero.

mod control_queue;
mod dgiwarp_ext;
mod error;
mod message;
mod message_header;
mod requester;
mod responder;
mod rnr_bypass;
mod sends;
mod state;
mod terminate;
mod ulp;

pub use dgiwarp_ext::{AckRequest, Capabilities, DgiwarpExt, Peer, UNLIMITED_RETRIES, VERSION};
pub use error::StreamError;
pub use message::{Header, Message, SendKind};
pub use message_header::MessageHeader;
pub use requester::ReadSource;
pub use responder::Response;
pub use rnr_bypass::{begins_work, carries_message, ends_message, overtakes};
pub use sends::{Handled, SoleSend};
pub use state::{Depths, Stream};
pub use terminate::{Blamed, TerminateMessage, last_word};
pub use ulp::{Delivered, SourceUse, Ulp};

#[cfg(test)]
mod tests;

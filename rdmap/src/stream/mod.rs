//! RDMAP over a reliable, ordered lower layer: one stream of RFC 5040 and RFC 7306 on one of RFC 5041.
//!
//! A [`Stream`] is one end of it, plain state without I/O. ULPDUs that MPA delivers go into [`Stream::handle_ulpdu`], which checks each
//! segment, places it, and delivers messages; memory, receive queue and completions are reached through [`Upper`]. What leaves is
//! made by the caller in this order:
//!
//! 1. [`Stream::take_terminate`]: once there is one, nothing else may leave any more;
//! 2. a message that has begun goes on until its last segment: segments of two messages are never mixed;
//! 3. [`Stream::next_response`], for the peer's Read Requests and atomic requests, in their order;
//! 4. the next work request: [`Stream::send`], [`Stream::write`], [`Stream::immediate`], [`Stream::read`], [`Stream::atomic`].
//!
//! Between two ends of this kind there is more to tell: [`OwnEnds`].
//!
//! Requests take credit (ORD), which their responses give back; a fence is to wait until [`Stream::outstanding`] is zero.

mod control_queue;
mod error;
mod message;
mod own_ends;
mod parking;
mod requester;
mod responder;
mod sends;
mod state;
mod terminate;
mod upper;

pub use error::StreamError;
pub use message::{Header, Message, SendKind};
pub use own_ends::{Capabilities, OwnEnds, Peer, Question, VERSION};
pub use parking::{ends_message, overtakes};
pub use requester::ReadSource;
pub use responder::Response;
pub use sends::Handled;
pub use state::{Depths, Stream};
pub use terminate::{TerminateMessage, last_word};
pub use upper::{Delivered, SourceUse, Upper};

#[cfg(test)]
mod tests;

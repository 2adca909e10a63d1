//! What a stream needs of the layer above: memory, receive queue, completions.

use dgiwarp_ddp::STag;
use dgiwarp_ddp::error::TaggedError;
use dgiwarp_ddp::placement::{TaggedBuffers, TaggedSpan};

use super::StreamError;
use crate::datagram::PlaceFailed;
use crate::wire::ImmediateData;

/// A message of queue 0 that was received in full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivered {
    /// Octets placed into the receive.
    pub length: u32,
    /// Whether the sender asked for a solicited event.
    pub solicited: bool,
    /// The STag that the message invalidated.
    pub invalidated: Option<STag>,
    /// The message is Immediate Data: this.
    pub immediate: Option<ImmediateData>,
    /// The message is a Send with an immediate, which ends of this kind alone make: this.
    pub attached: Option<u32>,
}

/// What a peer asks of a buffer that it reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceUse {
    /// An RDMA Read.
    Read,
    /// An atomic operation.
    Atomic,
}

/// The stream's way to memory, receive queue and completions. RDMA Writes are placed through [`TaggedBuffers`].
pub trait Upper: TaggedBuffers {
    /// A receive taken from the queue.
    type Receive;
    /// Names a Read or atomic work request of ours.
    type Request: Copy;

    /// Takes the receive at the head of the queue.
    fn take_receive(&mut self) -> Option<Self::Receive>;

    /// Whether a message without a receive waits for one. Else it ends the stream, as RFC 5041 §7.2 has it.
    fn waits(&self) -> bool {
        false
    }

    /// Octets that a receive can hold.
    fn capacity(&self, receive: &Self::Receive) -> u32;

    /// Places octets of a message at `offset` of a receive; they fit.
    ///
    /// # Errors
    /// [`PlaceFailed`] if the receive names memory that is not there.
    fn place_untagged(
        &mut self,
        receive: &Self::Receive,
        offset: u32,
        payload: &[u8],
    ) -> Result<(), PlaceFailed>;

    /// Invalidates an STag of this stream (RFC 5040 §5.3). When this returns, no octet lands there any more.
    ///
    /// # Errors
    /// The row that says why it is not one; then nothing happened.
    fn invalidate(&mut self, stag: STag) -> Result<(), TaggedError>;

    /// Completes a receive.
    fn deliver(&mut self, receive: Self::Receive, delivered: Delivered);

    /// Completes a receive whose message cannot be taken.
    fn fail(&mut self, receive: Self::Receive, error: StreamError);

    /// Checks that the peer may read the whole span, or change it atomically, now.
    ///
    /// # Errors
    /// The row that the span violates.
    fn check_source(&self, span: TaggedSpan, purpose: SourceUse) -> Result<(), TaggedError>;

    /// Places octets of a Read Response at `offset` of the Read's buffers; they fit.
    ///
    /// # Errors
    /// [`PlaceFailed`] if the work request names memory that is not there.
    fn place_response(
        &mut self,
        request: Self::Request,
        offset: u32,
        payload: &[u8],
    ) -> Result<(), PlaceFailed>;

    /// A Read has all its octets.
    fn complete_read(&mut self, request: Self::Request);

    /// An atomic operation was done; the buffer held `original` before.
    ///
    /// # Errors
    /// [`PlaceFailed`] if the work request names memory that is not there.
    fn complete_atomic(&mut self, request: Self::Request, original: u64)
    -> Result<(), PlaceFailed>;
}

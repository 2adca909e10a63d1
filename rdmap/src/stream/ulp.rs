//! ULP of a stream: memory, receive queue, completions.

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
    /// The message raises a solicited event.
    pub solicited: bool,
    /// STag that the message invalidated.
    pub invalidated: Option<STag>,
    /// Content, if the message is Immediate Data, with the octets that the Write before it placed.
    pub immediate: Option<ImmediateData>,
    /// Immediate of a Send, which only a dgiwarp peer makes.
    pub attached: Option<u32>,
}

/// Operation of a peer on a buffer that it names in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceUse {
    /// An RDMA Read.
    Read,
    /// An atomic operation.
    Atomic,
}

/// Memory, receive queue and completions behind a stream. RDMA Writes are placed through [`TaggedBuffers`]. `P` is the payload of a segment.
pub trait Ulp<P: ?Sized = [u8]>: TaggedBuffers<P> {
    /// A receive taken from the queue.
    type Receive;
    /// Names a Read or atomic work request.
    type Request: Copy;

    /// Takes the receive at the head of the queue.
    fn take_receive(&mut self) -> Option<Self::Receive>;

    /// Whether a message without a posted receive waits in an RNR queue. Otherwise it ends the stream (RFC 5041 §7.2).
    fn has_rnr_queue(&self) -> bool;

    /// Capacity of a receive in octets.
    fn capacity(&self, receive: &Self::Receive) -> u32;

    /// Places octets of a message at `offset` of a receive; they fit.
    ///
    /// # Errors
    /// [`PlaceFailed`] if the memory of the receive is not registered.
    fn place_untagged(
        &mut self,
        receive: &Self::Receive,
        offset: u32,
        payload: &P,
    ) -> Result<(), PlaceFailed>;

    /// Invalidates an STag of this stream (RFC 5040 §5.3). No octet is placed there after the return.
    ///
    /// # Errors
    /// The row that the STag violates; it is not invalidated.
    fn invalidate(&mut self, stag: STag) -> Result<(), TaggedError>;

    /// Completes a receive.
    fn deliver(&mut self, receive: Self::Receive, delivered: Delivered);

    /// Completes a receive in error: its message ends the stream.
    fn fail(&mut self, receive: Self::Receive, error: StreamError);

    /// Checks that the peer may now read the whole span, or change it atomically.
    ///
    /// # Errors
    /// The row that the span violates.
    fn check_source(&self, span: TaggedSpan, purpose: SourceUse) -> Result<(), TaggedError>;

    /// Places octets of a Read Response at `offset` of the Read's buffers; they fit.
    ///
    /// # Errors
    /// [`PlaceFailed`] if the memory of the work request is not registered.
    fn place_response(
        &mut self,
        request: Self::Request,
        offset: u32,
        payload: &P,
    ) -> Result<(), PlaceFailed>;

    /// Completes a Read, whose octets are all placed.
    fn complete_read(&mut self, request: Self::Request);

    /// Completes an atomic operation; `original` is the value before it.
    ///
    /// # Errors
    /// [`PlaceFailed`] if the memory of the work request is not registered.
    fn complete_atomic(&mut self, request: Self::Request, original: u64)
    -> Result<(), PlaceFailed>;
}

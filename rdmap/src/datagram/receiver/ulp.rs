//! ULP of the receiver: memory, receive queue and completion queue.

use dgiwarp_codec::{Payload, PayloadSlice};
use dgiwarp_ddp::placement::TaggedSpan;
use dgiwarp_ddp::{STag, TaggedOffset};

use crate::datagram::DropReason;
use crate::datagram::records::{Record, RecordHandle};

/// Error of taking a receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TakeError {
    /// No receive is posted.
    #[error("no receive is posted")]
    Empty,
    /// The receive at the head is shorter than the message.
    #[error("the receive is shorter than the message")]
    TooShort,
}

/// The memory of a receive is not registered any more; the receive completes with a local protection error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the memory of a posted receive is not registered")]
pub struct PlaceFailed;

/// Origin of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin<K> {
    /// Peer that sent it.
    pub peer: K,
    /// The segment was sent to a group address, and is never answered (§6).
    pub to_group: bool,
    /// The segment carries the peer's valid cookie (§6).
    pub cookie_valid: bool,
}

impl<K> From<K> for Origin<K> {
    /// A segment from `peer` to this host alone, without a cookie.
    fn from(peer: K) -> Self {
        Self {
            peer,
            to_group: false,
            cookie_valid: false,
        }
    }
}

/// A message that completes a receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery<K> {
    /// Peer that sent it.
    pub source: K,
    /// Octets of the message.
    pub length: u32,
    /// Immediate, if the message has one.
    pub immediate: Option<u32>,
    /// The message raises a solicited event.
    pub solicited: bool,
    /// The message is a UC Write with immediate: its octets are in the region written to, not in the receive.
    pub written: bool,
}

/// Memory, receive queue and completion queue behind the receiver.
pub trait Ulp<K> {
    /// A receive taken from the queue.
    type Receive;
    /// Memory that received payload lies in.
    type Payload: Payload + ?Sized;

    /// Releases memory that is held between placements: state of a new source or message is made next, which may
    /// allocate.
    fn prepare_state(&mut self) {}

    /// Checks that the peer may write the whole span now: §5 steps 3 to 7, in this order.
    ///
    /// # Errors
    /// The drop reason of the first check that fails.
    fn check_write(&self, origin: Origin<K>, span: TaggedSpan) -> Result<(), DropReason>;

    /// Checks the span of `payload.len()` octets at `start` and writes `payload` there, the last octet last. Each write
    /// has its own check, because the buffer may have been invalidated since [`check_write`](Self::check_write).
    ///
    /// # Errors
    /// As [`check_write`](Self::check_write); no octet was written.
    fn place_write(
        &mut self,
        origin: Origin<K>,
        stag: STag,
        start: TaggedOffset,
        payload: PayloadSlice<'_, Self::Payload>,
    ) -> Result<(), DropReason>;

    /// Takes the receive at the head of the queue, if `length` octets fit it.
    ///
    /// # Errors
    /// [`TakeError`]; the queue is unchanged.
    fn take_receive(&mut self, length: u32) -> Result<Self::Receive, TakeError>;

    /// Places octets of a message at `offset` of a receive.
    ///
    /// # Errors
    /// [`PlaceFailed`]; the caller completes the receive in error with [`fail`](Self::fail).
    fn place_untagged(
        &mut self,
        receive: &Self::Receive,
        offset: u32,
        payload: PayloadSlice<'_, Self::Payload>,
    ) -> Result<(), PlaceFailed>;

    /// Completes a receive.
    fn deliver(&mut self, receive: Self::Receive, delivery: Delivery<K>);

    /// Completes a receive in error.
    fn fail(&mut self, receive: Self::Receive);

    /// Returns a receive to the head of the queue.
    fn give_back(&mut self, receive: Self::Receive);

    /// Completes a record.
    fn deliver_record(&mut self, handle: RecordHandle, record: &Record<K>);

    /// Reports `length` octets of a record, from `offset` on, that became valid. Returns whether there was room for the report.
    fn deliver_segment(
        &mut self,
        handle: RecordHandle,
        record: &Record<K>,
        offset: u32,
        length: u32,
    ) -> bool;

    /// Reports that a message found no slot for its record; the next report comes after a slot was released.
    fn record_ring_full(&mut self);

    /// Counts what was not the fault of the segment at hand.
    fn count(&mut self, reason: DropReason);
}

impl From<TakeError> for DropReason {
    fn from(error: TakeError) -> Self {
        match error {
            TakeError::Empty => Self::NoReceive,
            TakeError::TooShort => Self::ReceiveTooShort,
        }
    }
}

//! Queues 1 to 3: short messages that RDMAP consumes itself.

use arrayvec::ArrayVec;
use dgiwarp_ddp::UntaggedQueue;
use dgiwarp_ddp::error::UntaggedError;
use dgiwarp_ddp::wire::UntaggedHeader;

use super::StreamError;
use crate::wire::Opcode;
use crate::wire::{atomic, terminate};

/// Octets of the longest message: requests have 28 or 52, a Terminate no more.
pub(super) const CAPACITY: u32 = 52;
const _: () =
    assert!(CAPACITY as usize >= atomic::REQUEST_LEN && CAPACITY as usize >= terminate::MAX_LEN);

/// A message of such a queue.
pub(super) type ControlMessage = ArrayVec<u8, { CAPACITY as usize }>;

/// The receiving end of such a queue. A peer may cut even these messages into segments.
#[derive(Debug, Default)]
pub(super) struct ControlQueue {
    queue: UntaggedQueue,
    /// The message that is arriving, with the opcode of its first segment.
    arriving: Option<(Opcode, ControlMessage)>,
}

impl ControlQueue {
    /// Takes a segment. Returns the message once it is complete.
    pub(super) fn take(
        &mut self,
        header: &UntaggedHeader,
        opcode: Opcode,
        payload: &[u8],
    ) -> Result<Option<ControlMessage>, StreamError> {
        let expected = self.queue.check(header)?;
        let (begun, mut message) = self
            .arriving
            .take()
            .unwrap_or_else(|| (opcode, ControlMessage::new()));
        if begun != opcode {
            return Err(StreamError::UnexpectedOpcode(opcode));
        }
        let placement = expected.fit(payload.len(), CAPACITY)?;
        message
            .try_extend_from_slice(payload)
            .map_err(|_| UntaggedError::TooLong)?;
        self.queue.advance(placement);
        if placement.is_last() {
            return Ok(Some(message));
        }
        self.arriving = Some((opcode, message));
        Ok(None)
    }
}

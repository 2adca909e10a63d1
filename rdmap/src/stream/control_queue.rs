//! Queues 1 to 3: short messages that RDMAP consumes itself.

use arrayvec::ArrayVec;
use dgiwarp_ddp::Msn;
use dgiwarp_ddp::error::UntaggedError;
use dgiwarp_ddp::wire::UntaggedHeader;

use super::StreamError;
use crate::wire::Opcode;
use crate::wire::{atomic, terminate};

/// Octets of the longest message: requests have 28 or 52, a Terminate no more.
pub(super) const CAPACITY: usize = 52;
const _: () = assert!(CAPACITY >= atomic::REQUEST_LEN && CAPACITY >= terminate::MAX_LEN);

/// A message of such a queue.
pub(super) type ControlMessage = ArrayVec<u8, CAPACITY>;

/// The receiving end of such a queue. A peer may cut even these messages.
#[derive(Debug)]
pub(super) struct ControlQueue {
    /// MSN of the message that is arriving or comes next.
    msn: Msn,
    /// The message that is arriving.
    arriving: Option<(Opcode, ControlMessage)>,
}

impl Default for ControlQueue {
    fn default() -> Self {
        Self {
            msn: Msn::FIRST,
            arriving: None,
        }
    }
}

impl ControlQueue {
    /// Takes a segment and gives the message that it ends, if it ends one.
    pub(super) fn take(
        &mut self,
        header: &UntaggedHeader,
        opcode: Opcode,
        payload: &[u8],
    ) -> Result<Option<ControlMessage>, StreamError> {
        if header.msn != self.msn {
            return Err(UntaggedError::MsnRange.into());
        }
        let (begun, mut message) = self
            .arriving
            .take()
            .unwrap_or_else(|| (opcode, ControlMessage::new()));
        let placed = u32::try_from(message.len()).expect("no more than the capacity");
        if header.message_offset.get() != placed {
            return Err(UntaggedError::InvalidOffset.into());
        }
        if begun != opcode {
            return Err(StreamError::UnexpectedOpcode(opcode));
        }
        message
            .try_extend_from_slice(payload)
            .map_err(|_| UntaggedError::TooLong)?;
        if header.control.last {
            self.msn = self.msn.next();
            return Ok(Some(message));
        }
        self.arriving = Some((opcode, message));
        Ok(None)
    }
}

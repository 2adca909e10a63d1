//! Queue 0: Sends and Immediate Data, each of which takes a posted receive.

use dgiwarp_ddp::error::UntaggedError;
use dgiwarp_ddp::wire::UntaggedHeader;
use dgiwarp_ddp::{Msn, STag};

use super::{Delivered, StreamError, Upper};
use crate::wire::{ImmediateData, Opcode};

/// The receiving end of queue 0. `R` is a posted receive.
#[derive(Debug)]
pub(super) struct Sends<R> {
    /// MSN of the message that is arriving or comes next.
    msn: Msn,
    arriving: Option<Arriving<R>>,
}

/// A Send of which not all segments are there.
#[derive(Debug)]
struct Arriving<R> {
    receive: R,
    placed: u32,
    opcode: Opcode,
    /// RFC 5041 §4.3: the RsvdULP of any segment will do; this is the first one's.
    invalidate: Option<STag>,
}

impl<R> Default for Sends<R> {
    fn default() -> Self {
        Self {
            msn: Msn::FIRST,
            arriving: None,
        }
    }
}

impl<R> Sends<R> {
    /// A segment. All checks of RFC 5041 §7.1 come before placement.
    pub(super) fn handle<U: Upper<Receive = R>>(
        &mut self,
        header: &UntaggedHeader,
        opcode: Opcode,
        payload: &[u8],
        upper: &mut U,
    ) -> Result<(), StreamError> {
        // The lower layer keeps the order, so there is one MSN and one offset that can come.
        if header.msn != self.msn {
            return Err(UntaggedError::MsnRange.into());
        }
        let placed = self.arriving.as_ref().map_or(0, |arriving| arriving.placed);
        if header.message_offset.get() != placed {
            return Err(UntaggedError::InvalidOffset.into());
        }
        let begun = self.arriving.as_ref().map(|arriving| arriving.opcode);
        if begun.is_some_and(|begun| begun != opcode) {
            return Err(StreamError::UnexpectedOpcode(opcode));
        }
        match opcode {
            Opcode::Send | Opcode::SendSolicited => {
                self.handle_send(header, opcode, None, payload, upper)
            }
            Opcode::SendInvalidate | Opcode::SendSolicitedInvalidate => {
                let invalidate = Some(STag::new(header.rsvd_ulp_word));
                self.handle_send(header, opcode, invalidate, payload, upper)
            }
            Opcode::Immediate | Opcode::ImmediateSolicited => {
                self.handle_immediate(header, opcode, payload, upper)
            }
            Opcode::Write
            | Opcode::ReadRequest
            | Opcode::ReadResponse
            | Opcode::Terminate
            | Opcode::AtomicRequest
            | Opcode::AtomicResponse
            | Opcode::WriteRecord
            | Opcode::SegmentedSend => Err(StreamError::UnexpectedOpcode(opcode)),
        }
    }

    fn handle_send<U: Upper<Receive = R>>(
        &mut self,
        header: &UntaggedHeader,
        opcode: Opcode,
        invalidate: Option<STag>,
        payload: &[u8],
        upper: &mut U,
    ) -> Result<(), StreamError> {
        let Arriving {
            receive,
            placed,
            opcode,
            invalidate,
        } = match self.arriving.take() {
            Some(arriving) => arriving,
            None => Arriving {
                receive: upper.take_receive().ok_or(UntaggedError::NoBuffer)?,
                placed: 0,
                opcode,
                invalidate,
            },
        };
        let end = u32::try_from(payload.len())
            .ok()
            .and_then(|length| placed.checked_add(length));
        let Some(end) = end.filter(|end| *end <= upper.capacity(&receive)) else {
            upper.fail(receive, UntaggedError::TooLong.into());
            return Err(UntaggedError::TooLong.into());
        };
        if !payload.is_empty() && upper.place_untagged(&receive, placed, payload).is_err() {
            upper.fail(receive, StreamError::LocalProtection);
            return Err(StreamError::LocalProtection);
        }
        if !header.control.last {
            self.arriving = Some(Arriving {
                receive,
                placed: end,
                opcode,
                invalidate,
            });
            return Ok(());
        }
        // RFC 5040 §5.3: invalidation comes before delivery, and an STag that is not the stream's costs it.
        if let Some(stag) = invalidate
            && upper.invalidate(stag).is_err()
        {
            let error = StreamError::CannotInvalidate(stag);
            upper.fail(receive, error);
            return Err(error);
        }
        self.msn = self.msn.next();
        let delivered = Delivered {
            length: end,
            solicited: matches!(
                opcode,
                Opcode::SendSolicited | Opcode::SendSolicitedInvalidate
            ),
            invalidated: invalidate,
            immediate: None,
        };
        upper.deliver(receive, delivered);
        Ok(())
    }

    fn handle_immediate<U: Upper<Receive = R>>(
        &mut self,
        header: &UntaggedHeader,
        opcode: Opcode,
        payload: &[u8],
        upper: &mut U,
    ) -> Result<(), StreamError> {
        let immediate = ImmediateData::parse(payload).filter(|_| header.control.last);
        let Some(immediate) = immediate else {
            return Err(StreamError::Length {
                opcode,
                length: u32::try_from(payload.len()).unwrap_or(u32::MAX),
            });
        };
        let receive = upper.take_receive().ok_or(UntaggedError::NoBuffer)?;
        self.msn = self.msn.next();
        let delivered = Delivered {
            length: 0,
            solicited: opcode == Opcode::ImmediateSolicited,
            invalidated: None,
            immediate: Some(immediate),
        };
        upper.deliver(receive, delivered);
        Ok(())
    }

    /// Gives back the receive of a Send that will not arrive in full.
    pub(super) fn abandon(&mut self) -> Option<R> {
        self.arriving.take().map(|arriving| arriving.receive)
    }
}

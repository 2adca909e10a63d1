//! Queue 0: Sends and Immediate Data, each of which takes a posted receive.

use dgiwarp_ddp::error::UntaggedError;
use dgiwarp_ddp::wire::UntaggedHeader;
use dgiwarp_ddp::{Msn, STag};

use super::{Delivered, OwnEnds, StreamError, Upper};
use crate::wire::{ImmediateData, Opcode};

/// What became of a ULPDU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handled {
    /// It was taken.
    Taken,
    /// It begins a message for which there is no receive, and [`Upper::waits`] for one: nothing has happened. It is to be offered again, and what
    /// arrived behind it only afterwards.
    Waits,
}

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
    /// The immediate that our own kind sends with it.
    immediate: Option<u32>,
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
        own_ends: &mut OwnEnds,
    ) -> Result<Handled, StreamError> {
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
                self.handle_send(header, opcode, None, payload, upper, own_ends)
            }
            Opcode::SendInvalidate | Opcode::SendSolicitedInvalidate => {
                let invalidate = Some(STag::new(header.rsvd_ulp_word));
                self.handle_send(header, opcode, invalidate, payload, upper, own_ends)
            }
            Opcode::Immediate | Opcode::ImmediateSolicited => {
                self.handle_immediate(header, opcode, payload, upper, own_ends)
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
        own_ends: &mut OwnEnds,
    ) -> Result<Handled, StreamError> {
        let Arriving {
            receive,
            placed,
            opcode,
            invalidate,
            immediate,
        } = match self.arriving.take() {
            Some(arriving) => arriving,
            None => {
                let Some(receive) = take_receive(upper)? else {
                    return Ok(Handled::Waits);
                };
                Arriving {
                    receive,
                    placed: 0,
                    opcode,
                    invalidate,
                    immediate: own_ends.take_immediate(),
                }
            }
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
                immediate,
            });
            return Ok(Handled::Taken);
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
            attached: immediate,
        };
        own_ends.count_placed();
        upper.deliver(receive, delivered);
        Ok(Handled::Taken)
    }

    fn handle_immediate<U: Upper<Receive = R>>(
        &mut self,
        header: &UntaggedHeader,
        opcode: Opcode,
        payload: &[u8],
        upper: &mut U,
        own_ends: &mut OwnEnds,
    ) -> Result<Handled, StreamError> {
        let immediate = ImmediateData::parse(payload).filter(|_| header.control.last);
        let Some(immediate) = immediate else {
            return Err(StreamError::Length {
                opcode,
                length: u32::try_from(payload.len()).unwrap_or(u32::MAX),
            });
        };
        let Some(receive) = take_receive(upper)? else {
            return Ok(Handled::Waits);
        };
        // It has one of its own.
        own_ends.take_immediate();
        self.msn = self.msn.next();
        let delivered = Delivered {
            length: 0,
            solicited: opcode == Opcode::ImmediateSolicited,
            invalidated: None,
            immediate: Some(immediate),
            attached: None,
        };
        own_ends.count_placed();
        upper.deliver(receive, delivered);
        Ok(Handled::Taken)
    }

    /// Gives back the receive of a Send that will not arrive in full.
    pub(super) fn abandon(&mut self) -> Option<R> {
        self.arriving.take().map(|arriving| arriving.receive)
    }
}

/// Takes the receive for a message. `None` if the message is to wait for one.
fn take_receive<U: Upper>(upper: &mut U) -> Result<Option<U::Receive>, UntaggedError> {
    match upper.take_receive() {
        None if !upper.waits() => Err(UntaggedError::NoBuffer),
        receive => Ok(receive),
    }
}

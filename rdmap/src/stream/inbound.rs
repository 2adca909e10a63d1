//! The receiving half of a stream.

use dgiwarp_codec::split_header;
use dgiwarp_ddp::error::{TaggedError, UntaggedError};
use dgiwarp_ddp::placement::TaggedBuffers;
use dgiwarp_ddp::wire::control::DV;
use dgiwarp_ddp::wire::{Control, TaggedHeader, UntaggedHeader};
use dgiwarp_ddp::{Msn, QueueNumber};

use super::{StreamError, TerminateCause};
use crate::datagram::PlaceFailed;
use crate::wire::Opcode;

/// A Send that was received in full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivered {
    /// Octets.
    pub length: u32,
    /// Whether the sender asked for a solicited event.
    pub solicited: bool,
}

/// The stream's way to memory and receive queue.
pub trait Upper: TaggedBuffers {
    /// A receive taken from the queue.
    type Receive;

    /// Takes the receive at the head of the queue.
    fn take_receive(&mut self) -> Option<Self::Receive>;

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

    /// Completes a receive.
    fn deliver(&mut self, receive: Self::Receive, delivered: Delivered);

    /// Completes a receive whose message cannot be taken.
    fn fail(&mut self, receive: Self::Receive, error: StreamError);
}

/// The receiving half of a stream. `R` is a posted receive.
#[derive(Debug)]
pub struct Inbound<R> {
    /// MSN of the Send that is arriving or comes next.
    msn: Msn,
    /// The receive of the Send that is arriving, and how many of its octets are placed.
    arriving: Option<(R, u32)>,
}

impl<R> Default for Inbound<R> {
    fn default() -> Self {
        Self {
            msn: Msn::FIRST,
            arriving: None,
        }
    }
}

impl<R> Inbound<R> {
    /// Handles one ULPDU: a DDP segment.
    ///
    /// # Errors
    /// [`StreamError`]; nothing of the segment was placed, and the stream is over.
    pub fn handle_ulpdu<U: Upper<Receive = R>>(
        &mut self,
        ulpdu: &[u8],
        upper: &mut U,
    ) -> Result<(), StreamError> {
        let Some(&first) = ulpdu.first() else {
            return Err(StreamError::Truncated(0));
        };
        // RFC 5041 §4.1: reserved bits are ignored over a reliable lower layer.
        if Control::parse(first).tagged {
            Self::handle_tagged(ulpdu, upper)
        } else {
            self.handle_untagged(ulpdu, upper)
        }
    }

    fn handle_tagged<U: Upper<Receive = R>>(
        ulpdu: &[u8],
        upper: &mut U,
    ) -> Result<(), StreamError> {
        let (header, payload) =
            TaggedHeader::parse(ulpdu).map_err(|_| StreamError::Truncated(ulpdu.len()))?;
        if header.control.version != DV {
            return Err(TaggedError::Version.into());
        }
        let opcode = Opcode::parse(header.rsvd_ulp)?;
        if opcode != Opcode::Write {
            return Err(StreamError::UnexpectedOpcode(opcode));
        }
        // RFC 5041 §5.2: STag and TO of a zero-length segment are not checked. Such a Write is
        // also what peers send as RTR indication.
        if !payload.is_empty() {
            upper.place(header.stag, header.tagged_offset, payload)?;
        }
        Ok(())
    }

    fn handle_untagged<U: Upper<Receive = R>>(
        &mut self,
        ulpdu: &[u8],
        upper: &mut U,
    ) -> Result<(), StreamError> {
        let (header, payload) =
            UntaggedHeader::parse(ulpdu).map_err(|_| StreamError::Truncated(ulpdu.len()))?;
        if header.control.version != DV {
            return Err(UntaggedError::Version.into());
        }
        let opcode = Opcode::parse(header.rsvd_ulp)?;
        match header.queue_number {
            QueueNumber::SEND => match send_kind(opcode) {
                Some(solicited) => self.handle_send(&header, solicited, payload, upper),
                None => Err(StreamError::UnexpectedOpcode(opcode)),
            },
            QueueNumber::TERMINATE if opcode == Opcode::Terminate => Err(terminated(payload)),
            QueueNumber::READ_REQUEST | QueueNumber::TERMINATE => {
                Err(StreamError::UnexpectedOpcode(opcode))
            }
            _ => Err(UntaggedError::InvalidQueue.into()),
        }
    }

    /// A segment of a Send. All checks of RFC 5041 §7.1 come before placement.
    fn handle_send<U: Upper<Receive = R>>(
        &mut self,
        header: &UntaggedHeader,
        solicited: bool,
        payload: &[u8],
        upper: &mut U,
    ) -> Result<(), StreamError> {
        // The lower layer keeps the order, so there is one MSN and one offset that can come.
        if header.msn != self.msn {
            return Err(UntaggedError::MsnRange.into());
        }
        let placed = self.arriving.as_ref().map_or(0, |(_, placed)| *placed);
        if header.message_offset.get() != placed {
            return Err(UntaggedError::InvalidOffset.into());
        }
        let receive = match self.arriving.take() {
            Some((receive, _)) => receive,
            None => upper.take_receive().ok_or(UntaggedError::NoBuffer)?,
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
        if header.control.last {
            self.msn = self.msn.next();
            upper.deliver(
                receive,
                Delivered {
                    length: end,
                    solicited,
                },
            );
        } else {
            self.arriving = Some((receive, end));
        }
        Ok(())
    }

    /// Gives back the receive of a Send that will not arrive in full, when the stream ends.
    pub fn abandon(&mut self) -> Option<R> {
        self.arriving.take().map(|(receive, _)| receive)
    }
}

/// Whether an opcode is a Send that is done here, and then whether it asks for a solicited event.
fn send_kind(opcode: Opcode) -> Option<bool> {
    match opcode {
        Opcode::Send => Some(false),
        Opcode::SendSolicited => Some(true),
        Opcode::Write
        | Opcode::ReadRequest
        | Opcode::ReadResponse
        | Opcode::SendInvalidate
        | Opcode::SendSolicitedInvalidate
        | Opcode::Terminate
        | Opcode::Immediate
        | Opcode::ImmediateSolicited
        | Opcode::AtomicRequest
        | Opcode::AtomicResponse
        | Opcode::WriteRecord
        | Opcode::SegmentedSend => None,
    }
}

/// Reads the control field of a Terminate (RFC 5040 §4.8): layer and type in the first octet, the code
/// in the second.
fn terminated(payload: &[u8]) -> StreamError {
    match split_header::<4>(payload) {
        Ok((&[kind, code, _, _], _)) => StreamError::Terminated(TerminateCause {
            layer: kind >> 4,
            error_type: kind & 0x0f,
            code,
        }),
        Err(truncated) => StreamError::Truncated(truncated.available),
    }
}

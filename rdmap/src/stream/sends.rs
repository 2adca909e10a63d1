//! Queue 0: Sends and Immediate Data, each of which takes a posted receive.

use dgiwarp_codec::Payload;
use dgiwarp_ddp::error::UntaggedError;
use dgiwarp_ddp::wire::{Control, UntaggedHeader, untagged};
use dgiwarp_ddp::{ExpectedSegment, QueueNumber, STag, UntaggedQueue};

use super::{Delivered, DgiwarpExt, Peer, StreamError, Ulp};
use crate::wire::{ImmediateData, Opcode, immediate};

/// Result of handling a ULPDU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handled {
    /// The ULPDU was taken.
    Taken,
    /// RNR: the ULPDU begins a message without a posted receive, and the ULP [has an RNR queue](Ulp::has_rnr_queue). No state has changed; the
    /// ULPDU is to be offered again, and later ULPDUs only behind it.
    ReceiverNotReady,
    /// XRC: the requests behind it are for the shared receive queue of this number. Only at an end with
    /// [`Capabilities::XRC_TARGET`](super::Capabilities::XRC_TARGET).
    SrqSelected(u32),
}

/// A segment that is all of the next Send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SoleSend<'a> {
    /// Octets of the message.
    pub payload: &'a [u8],
    /// The message raises a solicited event.
    pub solicited: bool,
}

/// Octets of an Immediate Data message.
const IMMEDIATE_LEN: u32 = 8;
const _: () = assert!(IMMEDIATE_LEN as usize == immediate::LEN);

/// The receiving end of queue 0. `R` is a posted receive.
#[derive(Debug)]
pub(super) struct Sends<R> {
    queue: UntaggedQueue,
    /// The Send of which some segments are placed; the queue is in its middle then.
    arriving: Option<Arriving<R>>,
    pub(super) last_write: LastWrite,
}

/// Length of the Write that came last on queue 0's side of the stream: an Immediate Data message reports it.
#[derive(Debug, Default)]
pub(super) struct LastWrite {
    /// Octets placed of it; zero once another message of queue 0 came.
    octets: u32,
    /// Its last segment has not arrived.
    is_arriving: bool,
}

impl LastWrite {
    /// A segment of a Write was placed.
    #[inline]
    pub(super) fn count(&mut self, length: usize, is_last: bool) {
        let before = if self.is_arriving { self.octets } else { 0 };
        self.octets = before.saturating_add(u32::try_from(length).unwrap_or(u32::MAX));
        self.is_arriving = !is_last;
    }

    /// Octets of the complete Write before the message that has come.
    fn take(&mut self) -> u32 {
        let Self {
            octets,
            is_arriving,
        } = std::mem::take(self);
        if is_arriving { 0 } else { octets }
    }
}

/// A Send of which the last segment has not arrived.
#[derive(Debug)]
struct Arriving<R> {
    receive: R,
    opcode: Opcode,
    /// STag to invalidate, from RsvdULP of the first segment (RFC 5041 §4.3 allows any).
    invalidate: Option<STag>,
    /// Immediate from a notice of a dgiwarp peer.
    immediate: Option<u32>,
}

impl<R> Default for Sends<R> {
    fn default() -> Self {
        Self {
            queue: UntaggedQueue::new(),
            arriving: None,
            last_write: LastWrite::default(),
        }
    }
}

impl<R> Sends<R> {
    /// Whether a ULPDU with this header is all of a Send without Invalidate that comes next: then, whether it raises a solicited event.
    #[inline]
    pub(super) fn sole(&self, header: &[u8; untagged::LEN]) -> Option<bool> {
        let [control, opcode, ..] = *header;
        let solicited = opcode == Opcode::SendSolicited.emit();
        let is_sole = Control::parse(control) == Control::new(false, true)
            && (solicited || opcode == Opcode::Send.emit())
            && self.queue.is_next(QueueNumber::SEND, header)
            && self.arriving.is_none();
        is_sole.then_some(solicited)
    }

    /// The message of [`sole`](Self::sole) is placed.
    #[inline]
    pub(super) fn placed_sole(&mut self) {
        self.last_write = LastWrite::default();
        self.queue.pass();
    }

    /// Handles a segment. All checks of RFC 5041 §7.1 come before placement.
    pub(super) fn handle<P: Payload + ?Sized, U: Ulp<P, Receive = R>>(
        &mut self,
        header: &UntaggedHeader,
        opcode: Opcode,
        payload: &P,
        ulp: &mut U,
        dgiwarp_ext: &mut DgiwarpExt,
    ) -> Result<Handled, StreamError> {
        let expected = self.queue.check(header)?;
        let begun = self.arriving.as_ref().map(|arriving| arriving.opcode);
        if begun.is_some_and(|begun| begun != opcode) {
            return Err(StreamError::UnexpectedOpcode(opcode));
        }
        match opcode {
            Opcode::Send | Opcode::SendSolicited => {
                self.handle_send(expected, (opcode, None), payload, ulp, dgiwarp_ext)
            }
            Opcode::SendInvalidate | Opcode::SendSolicitedInvalidate => {
                let invalidate = Some(STag::new(header.rsvd_ulp_word));
                self.handle_send(expected, (opcode, invalidate), payload, ulp, dgiwarp_ext)
            }
            Opcode::Immediate | Opcode::ImmediateSolicited => {
                self.handle_immediate(expected, opcode, payload, ulp, dgiwarp_ext)
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

    fn handle_send<P: Payload + ?Sized, U: Ulp<P, Receive = R>>(
        &mut self,
        expected: ExpectedSegment,
        (opcode, invalidate): (Opcode, Option<STag>),
        payload: &P,
        ulp: &mut U,
        dgiwarp_ext: &mut DgiwarpExt,
    ) -> Result<Handled, StreamError> {
        if let Some(arriving) = self.arriving.take() {
            return self.place(expected, arriving, payload, ulp, dgiwarp_ext);
        }
        let Some(receive) = take_receive::<P, U>(ulp)? else {
            return Ok(Handled::ReceiverNotReady);
        };
        self.last_write = LastWrite::default();
        let arriving = Arriving {
            receive,
            opcode,
            invalidate,
            immediate: dgiwarp_ext.take_immediate(),
        };
        self.place(expected, arriving, payload, ulp, dgiwarp_ext)
    }

    /// Places a segment of a Send whose receive is taken, and delivers the message with the last one.
    #[inline(always)]
    fn place<P: Payload + ?Sized, U: Ulp<P, Receive = R>>(
        &mut self,
        expected: ExpectedSegment,
        arriving: Arriving<R>,
        payload: &P,
        ulp: &mut U,
        dgiwarp_ext: &mut DgiwarpExt,
    ) -> Result<Handled, StreamError> {
        let receive = &arriving.receive;
        let placement = match expected.fit(payload.len(), ulp.capacity(receive)) {
            Ok(placement) => placement,
            Err(error) => {
                ulp.fail(arriving.receive, error.into());
                return Err(error.into());
            }
        };
        let start = placement.start();
        if !payload.is_empty() && ulp.place_untagged(receive, start, payload).is_err() {
            ulp.fail(arriving.receive, StreamError::LocalProtection);
            return Err(StreamError::LocalProtection);
        }
        self.queue.advance(placement);
        if !placement.is_last() {
            self.arriving = Some(arriving);
            return Ok(Handled::Taken);
        }
        // RFC 5040 §5.3: invalidation comes before delivery, and an STag of another stream ends this one.
        if let Some(stag) = arriving.invalidate
            && ulp.invalidate(stag).is_err()
        {
            let error = StreamError::CannotInvalidate(stag);
            ulp.fail(arriving.receive, error);
            return Err(error);
        }
        let delivered = Delivered {
            length: placement.end(),
            solicited: matches!(
                arriving.opcode,
                Opcode::SendSolicited | Opcode::SendSolicitedInvalidate
            ),
            invalidated: arriving.invalidate,
            immediate: None,
            attached: arriving.immediate,
        };
        dgiwarp_ext.count_placed();
        ulp.deliver(arriving.receive, delivered);
        Ok(Handled::Taken)
    }

    fn handle_immediate<P: Payload + ?Sized, U: Ulp<P, Receive = R>>(
        &mut self,
        expected: ExpectedSegment,
        opcode: Opcode,
        payload: &P,
        ulp: &mut U,
        dgiwarp_ext: &mut DgiwarpExt,
    ) -> Result<Handled, StreamError> {
        let placement = expected.fit(payload.len(), IMMEDIATE_LEN).ok();
        let placement = placement.filter(|placement| placement.is_last());
        let (Some(placement), Some(data)) = (placement, immediate_data(payload)) else {
            return Err(StreamError::Length {
                opcode,
                length: u32::try_from(payload.len()).unwrap_or(u32::MAX),
            });
        };
        let Some(receive) = take_receive::<P, U>(ulp)? else {
            return Ok(Handled::ReceiverNotReady);
        };
        let placed = self.last_write.take();
        // RFC 7306 §6.2 leaves the octets to the ULP: from a plain peer they may be anything, and are not taken for a length.
        let is_dgiwarp = matches!(dgiwarp_ext.peer(), Peer::Dgiwarp(_));
        if is_dgiwarp && data.written != placed {
            let error = StreamError::Written {
                reported: data.written,
                placed,
            };
            ulp.fail(receive, error);
            return Err(error);
        }
        let immediate = ImmediateData {
            written: placed,
            ..data
        };
        // An Immediate Data message drops the immediate of a notice before it.
        dgiwarp_ext.take_immediate();
        self.queue.advance(placement);
        let delivered = Delivered {
            length: 0,
            solicited: opcode == Opcode::ImmediateSolicited,
            invalidated: None,
            immediate: Some(immediate),
            attached: None,
        };
        dgiwarp_ext.count_placed();
        ulp.deliver(receive, delivered);
        Ok(Handled::Taken)
    }

    /// Whether a Send has begun to arrive and not ended.
    pub(super) const fn is_arriving(&self) -> bool {
        self.arriving.is_some()
    }

    /// Returns the receive of the Send that is arriving, for the end of the stream.
    pub(super) fn abandon(&mut self) -> Option<R> {
        self.arriving.take().map(|arriving| arriving.receive)
    }
}

/// Content of an Immediate Data message. `None` if its length is another one.
fn immediate_data<P: Payload + ?Sized>(payload: &P) -> Option<ImmediateData> {
    let mut octets = [0; immediate::LEN];
    if payload.len() != octets.len() {
        return None;
    }
    payload.copy(0, &mut octets);
    ImmediateData::parse(&octets)
}

/// Takes the receive for a message. `None` if the message goes to the RNR queue.
fn take_receive<P: ?Sized, U: Ulp<P>>(ulp: &mut U) -> Result<Option<U::Receive>, UntaggedError> {
    match ulp.take_receive() {
        None if !ulp.has_rnr_queue() => Err(UntaggedError::NoBuffer),
        receive => Ok(receive),
    }
}

//! A stream: what arrives, what leaves, and its end.

use arrayvec::ArrayVec;
use dgiwarp_ddp::error::{TaggedError, UntaggedError};
use dgiwarp_ddp::wire::control::DV;
use dgiwarp_ddp::wire::{Control, TaggedHeader, UntaggedHeader, tagged, untagged};
use dgiwarp_ddp::{Msn, QueueNumber, STag, TaggedOffset};

use super::control_queue::{ControlMessage, ControlQueue};
use super::message::{short, tagged_header};
use super::requester::Requester;
use super::responder::{Responder, Segment};
use super::sends::Sends;
use super::terminate::{Offender, message};
use super::{
    Capabilities, Handled, Header, Message, OwnEnds, ReadSource, Response, SendKind, StreamError,
    TerminateMessage, Upper,
};
use crate::wire::{
    AtomicOperation, AtomicRequest, AtomicRequestError, AtomicResponse, ImmediateData, Opcode,
    ReadRequest, Terminate, TerminateControl, atomic, immediate, read_request,
};

/// How many requests may be outstanding (RFC 5040 §6.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Depths {
    /// Inbound: requests of the peer that are taken before the first of them is answered.
    pub ird: u16,
    /// Outbound: requests of ours before the first of them is answered.
    pub ord: u16,
}

/// One end of a stream. `R` is a posted receive, `Q` names a Read or atomic work request.
#[derive(Debug)]
pub struct Stream<R, Q> {
    sends: Sends<R>,
    requests: ControlQueue,
    terminates: ControlQueue,
    atomic_responses: ControlQueue,
    requester: Requester<Q>,
    responder: Responder,
    own_ends: OwnEnds,
    /// MSN of the next message on queue 0.
    msn: Msn,
    /// Nothing is taken or given any more.
    ended: bool,
    terminate: Option<TerminateMessage>,
    blamed: Option<Q>,
}

impl<R, Q: Copy> Stream<R, Q> {
    /// A stream on which nothing has happened.
    #[must_use]
    pub fn new(depths: Depths) -> Self {
        Self {
            sends: Sends::default(),
            requests: ControlQueue::default(),
            terminates: ControlQueue::default(),
            atomic_responses: ControlQueue::default(),
            requester: Requester::new(depths.ord.into()),
            responder: Responder::new(depths.ird.into()),
            own_ends: OwnEnds::new(None),
            msn: Msn::FIRST,
            ended: false,
            terminate: None,
            blamed: None,
        }
    }

    /// The same stream with the extensions that ends of this kind speak among themselves; `ours` is told the peer.
    #[must_use]
    pub fn with_extensions(self, ours: Capabilities) -> Self {
        Self {
            own_ends: OwnEnds::new(Some(ours)),
            ..self
        }
    }

    /// What ends of this kind tell each other.
    #[must_use]
    pub const fn own_ends(&self) -> &OwnEnds {
        &self.own_ends
    }

    /// The same, to make what is to be told.
    pub const fn own_ends_mut(&mut self) -> &mut OwnEnds {
        &mut self.own_ends
    }

    // What arrives.

    /// Looks at a ULPDU that is to be handled next, for who the peer is.
    pub fn meet(&mut self, ulpdu: &[u8]) {
        self.own_ends.meet(ulpdu);
    }

    /// Handles one ULPDU: a DDP segment. After the end it is dropped without a word (RFC 5041 §7.1).
    ///
    /// # Errors
    /// [`StreamError`]; nothing of the segment was placed, the stream is over, and unless the peer terminated there is a Terminate to
    /// send.
    #[inline]
    pub fn handle_ulpdu<U: Upper<Receive = R, Request = Q>>(
        &mut self,
        ulpdu: &[u8],
        upper: &mut U,
    ) -> Result<Handled, StreamError> {
        if self.ended {
            return Ok(Handled::Taken);
        }
        self.own_ends.meet(ulpdu);
        let result = match ulpdu.first() {
            None => Err(StreamError::Truncated(0)),
            // RFC 5041 §4.1: reserved bits are ignored over a reliable lower layer.
            Some(first) if Control::parse(*first).tagged => {
                self.handle_tagged(ulpdu, upper).map(|()| Handled::Taken)
            }
            Some(_) => self.handle_untagged(ulpdu, upper),
        };
        if let Err(error) = result {
            self.end_by(error, ulpdu);
        }
        result
    }

    fn handle_tagged<U: Upper<Receive = R, Request = Q>>(
        &mut self,
        ulpdu: &[u8],
        upper: &mut U,
    ) -> Result<(), StreamError> {
        let (header, payload) =
            TaggedHeader::parse(ulpdu).map_err(|_| StreamError::Truncated(ulpdu.len()))?;
        if header.control.version != DV {
            return Err(TaggedError::Version.into());
        }
        match Opcode::parse(header.rsvd_ulp)? {
            Opcode::Write => {
                // RFC 5041 §5.2: STag and TO of a zero-length segment are not checked. Such a Write is also what peers send as RTR
                // indication, and what our own kind says.
                if !payload.is_empty() {
                    upper.place(header.stag, header.tagged_offset, payload)?;
                } else if self.own_ends.hear(header.stag, header.tagged_offset) {
                    return Ok(());
                }
                if header.control.last {
                    self.own_ends.count_placed();
                }
                Ok(())
            }
            Opcode::ReadResponse => self.requester.handle_read_response(&header, payload, upper),
            opcode @ (Opcode::ReadRequest
            | Opcode::Send
            | Opcode::SendInvalidate
            | Opcode::SendSolicited
            | Opcode::SendSolicitedInvalidate
            | Opcode::Terminate
            | Opcode::Immediate
            | Opcode::ImmediateSolicited
            | Opcode::AtomicRequest
            | Opcode::AtomicResponse
            | Opcode::WriteRecord
            | Opcode::SegmentedSend) => Err(StreamError::UnexpectedOpcode(opcode)),
        }
    }

    fn handle_untagged<U: Upper<Receive = R, Request = Q>>(
        &mut self,
        ulpdu: &[u8],
        upper: &mut U,
    ) -> Result<Handled, StreamError> {
        let (header, payload) =
            UntaggedHeader::parse(ulpdu).map_err(|_| StreamError::Truncated(ulpdu.len()))?;
        if header.control.version != DV {
            return Err(UntaggedError::Version.into());
        }
        let opcode = Opcode::parse(header.rsvd_ulp)?;
        match (header.queue_number, opcode) {
            (QueueNumber::SEND, opcode) => {
                let own_ends = &mut self.own_ends;
                self.sends.handle(&header, opcode, payload, upper, own_ends)
            }
            (QueueNumber::READ_REQUEST, Opcode::ReadRequest | Opcode::AtomicRequest) => {
                match self.requests.take(&header, opcode, payload)? {
                    Some(message) => {
                        self.handle_request(&header, opcode, &message, upper)?;
                        Ok(Handled::Taken)
                    }
                    None => Ok(Handled::Taken),
                }
            }
            (QueueNumber::TERMINATE, Opcode::Terminate) => {
                match self.terminates.take(&header, opcode, payload)? {
                    Some(message) => Err(self.handle_terminate(&message)),
                    None => Ok(Handled::Taken),
                }
            }
            (QueueNumber::ATOMIC_RESPONSE, Opcode::AtomicResponse) => {
                match self.atomic_responses.take(&header, opcode, payload)? {
                    Some(message) => {
                        self.handle_atomic_response(&message, upper)?;
                        Ok(Handled::Taken)
                    }
                    None => Ok(Handled::Taken),
                }
            }
            (
                QueueNumber::READ_REQUEST | QueueNumber::TERMINATE | QueueNumber::ATOMIC_RESPONSE,
                opcode,
            ) => Err(StreamError::UnexpectedOpcode(opcode)),
            (_, _) => Err(UntaggedError::InvalidQueue.into()),
        }
    }

    fn handle_request<U: Upper<Receive = R, Request = Q>>(
        &mut self,
        header: &UntaggedHeader,
        opcode: Opcode,
        message: &ControlMessage,
        upper: &U,
    ) -> Result<(), StreamError> {
        let wrong_length = StreamError::Length {
            opcode,
            length: u32::try_from(message.len()).unwrap_or(u32::MAX),
        };
        // What a Terminate of it will say: the length of a segment that holds all of the request.
        let length = u16::try_from(untagged::LEN + message.len()).unwrap_or(u16::MAX);
        let segment = Segment { header, length };
        if opcode == Opcode::ReadRequest {
            match ReadRequest::parse(message) {
                Ok((request, [])) => self.responder.handle_read(request, &segment, upper),
                Ok((_, _)) | Err(_) => Err(wrong_length),
            }
        } else {
            match AtomicRequest::parse(message) {
                Ok((request, [])) => self.responder.handle_atomic(request, &segment, upper),
                Ok((_, _)) | Err(AtomicRequestError::Truncated(_)) => Err(wrong_length),
                Err(AtomicRequestError::Code(code)) => Err(StreamError::AtomicCode(code)),
            }
        }
    }

    fn handle_atomic_response<U: Upper<Receive = R, Request = Q>>(
        &mut self,
        message: &ControlMessage,
        upper: &mut U,
    ) -> Result<(), StreamError> {
        match AtomicResponse::parse(message) {
            Ok((response, [])) => self.requester.handle_atomic_response(response, upper),
            Ok((_, _)) | Err(_) => Err(StreamError::Length {
                opcode: Opcode::AtomicResponse,
                length: u32::try_from(message.len()).unwrap_or(u32::MAX),
            }),
        }
    }

    /// The control of a Terminate is enough: what else is in it only helps to find out whom to blame, and peers differ in how they
    /// announce it.
    fn handle_terminate(&mut self, message: &ControlMessage) -> StreamError {
        let Ok((control, _)) = TerminateControl::parse(message) else {
            return StreamError::Length {
                opcode: Opcode::Terminate,
                length: u32::try_from(message.len()).unwrap_or(u32::MAX),
            };
        };
        if let Ok(terminate) = Terminate::parse(message) {
            self.blamed = self.requester.blamed(&terminate);
        }
        StreamError::Terminated(control.cause)
    }

    // What leaves.

    /// The whole of a zero-length RDMA Write, as it serves for an RTR indication (RFC 6581 §9.2). Its STag and TO name nothing,
    /// and nobody may look at them (RFC 5041 §5.2).
    #[must_use]
    pub fn rtr_write() -> Header {
        tagged_header(Opcode::Write, STag::new(0), TaggedOffset::new(0), true)
    }

    /// Starts a Send of `length` octets.
    pub fn send(&mut self, length: u32, kind: SendKind) -> Message {
        self.own_ends.count_sent();
        let msn = self.next_msn();
        let word = kind.invalidate.map_or(0, STag::get);
        Message::untagged(kind.opcode(), word, msn, length)
    }

    /// Starts an RDMA Write of `length` octets.
    pub fn write(&mut self, stag: STag, start: TaggedOffset, length: u32) -> Message {
        self.own_ends.count_sent();
        // Of a Write of nothing no STag is looked at; but one that our own kind would take for a notice must not leave.
        let stag = if length == 0 && OwnEnds::is_notice(stag) {
            STag::new(0)
        } else {
            stag
        };
        Message::write(stag, start, length)
    }

    /// The whole of an Immediate Data message.
    pub fn immediate(
        &mut self,
        data: ImmediateData,
        solicited: bool,
    ) -> ArrayVec<u8, { untagged::LEN + immediate::LEN }> {
        let opcode = if solicited {
            Opcode::ImmediateSolicited
        } else {
            Opcode::Immediate
        };
        self.own_ends.count_sent();
        short(opcode, self.next_msn(), &data.emit())
    }

    fn next_msn(&mut self) -> Msn {
        let msn = self.msn;
        self.msn = msn.next();
        msn
    }

    /// The whole of a Read Request; `None` while there is no credit.
    pub fn read(
        &mut self,
        source: ReadSource,
        request: Q,
    ) -> Option<ArrayVec<u8, { untagged::LEN + read_request::LEN }>> {
        let (msn, header) = self.requester.read(source, request)?;
        Some(short(Opcode::ReadRequest, msn, &header.emit()))
    }

    /// The whole of a Read Request of nothing, as it serves for an RTR indication (RFC 6581 §9.2): the first request of all, which needs no
    /// credit.
    pub fn rtr_read(&mut self, request: Q) -> ArrayVec<u8, { untagged::LEN + read_request::LEN }> {
        let (msn, header) = self.requester.rtr_read(request);
        short(Opcode::ReadRequest, msn, &header.emit())
    }

    /// The whole of an atomic request; `None` while there is no credit.
    pub fn atomic(
        &mut self,
        operation: AtomicOperation,
        at: (STag, TaggedOffset),
        request: Q,
    ) -> Option<ArrayVec<u8, { untagged::LEN + atomic::REQUEST_LEN }>> {
        let (msn, header) = self.requester.atomic(operation, at, request)?;
        Some(short(Opcode::AtomicRequest, msn, &header.emit()))
    }

    /// Requests of ours that are not answered yet.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.requester.outstanding()
    }

    /// Requests of ours that may be outstanding at most: ORD.
    #[must_use]
    pub fn request_limit(&self) -> usize {
        self.requester.limit()
    }

    /// What is due next in answer to the peer's requests, in ULPDUs of at most `mulpdu` octets; `None` if nothing is. It stays due until
    /// [`read_segment_sent`](Self::read_segment_sent), [`atomic_done`](Self::atomic_done) or
    /// [`fail_response`](Self::fail_response) says what became of it.
    #[must_use]
    pub fn next_response(&self, mulpdu: u16) -> Option<Response> {
        if self.ended {
            return None;
        }
        self.responder.peek(mulpdu)
    }

    /// Whether a Read Response has begun and has to go on before any other message.
    #[must_use]
    pub fn is_amid_response(&self) -> bool {
        self.responder.is_amid()
    }

    /// Whether a request of the peer waits for its answer.
    #[must_use]
    pub fn has_responses(&self) -> bool {
        !self.ended && !self.responder.is_idle()
    }

    /// The segment of a Read Response, with so many octets of payload, is on its way.
    pub fn read_segment_sent(&mut self, length: u32) {
        self.responder.sent(length);
    }

    /// The atomic operation that was due is done; gives the whole of its response. `None` if none was due.
    pub fn atomic_done(
        &mut self,
        original: u64,
    ) -> Option<ArrayVec<u8, { untagged::LEN + atomic::RESPONSE_LEN }>> {
        let (msn, response) = self.responder.atomic_done(original)?;
        Some(short(Opcode::AtomicResponse, msn, &response.emit()))
    }

    // The end.

    /// The buffer of the request that is being answered cannot be used any more: the stream is over.
    pub fn fail_response(&mut self, error: TaggedError) -> StreamError {
        let error = StreamError::Source(error);
        let terminate = self.responder.head().and_then(|asked| {
            let offender = Offender {
                octets: &asked.header,
                length: asked.segment_length,
                read_request: asked.read_request(),
            };
            message(error, Some(offender))
        });
        self.end_with(terminate);
        error
    }

    /// Something that no segment of the peer's caused ends the stream.
    pub fn fail(&mut self, error: StreamError) {
        let terminate = message(error, None);
        self.end_with(terminate);
    }

    /// A ULPDU that waited for a receive ends the stream.
    pub fn fail_at(&mut self, error: StreamError, ulpdu: &[u8]) {
        self.end_by(error, ulpdu);
    }

    fn end_by(&mut self, error: StreamError, ulpdu: &[u8]) {
        // Errors of a request are found right after it was taken into the queue.
        let read_request = match error {
            StreamError::Source(_) => self.responder.latest().and_then(|it| it.read_request()),
            StreamError::Truncated(_)
            | StreamError::Control(_)
            | StreamError::UnexpectedOpcode(_)
            | StreamError::Length { .. }
            | StreamError::Tagged(_)
            | StreamError::Untagged(_)
            | StreamError::CannotInvalidate(_)
            | StreamError::Misaligned(_)
            | StreamError::AtomicCode(_)
            | StreamError::AtomicIdentifier { .. }
            | StreamError::LocalProtection
            | StreamError::Llp(_)
            | StreamError::Terminated(_) => None,
        };
        let offender = Offender {
            octets: ulpdu,
            length: u16::try_from(ulpdu.len()).unwrap_or(u16::MAX),
            read_request,
        };
        self.end_with(message(error, Some(offender)));
    }

    /// RFC 5040 §7.1 rule 4: the first error is the one that is told.
    fn end_with(&mut self, terminate: Option<TerminateMessage>) {
        if !self.ended {
            self.ended = true;
            self.terminate = terminate;
            self.responder.clear();
        }
    }

    /// The Terminate that is to be sent, once, after what has been sent before. Nothing may follow it (RFC 5040 §5.4).
    pub fn take_terminate(&mut self) -> Option<TerminateMessage> {
        self.terminate.take()
    }

    /// Whether the stream is over.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.ended
    }

    /// The work request that the peer's Terminate was about, if it says so.
    #[must_use]
    pub fn blamed(&self) -> Option<Q> {
        self.blamed
    }

    /// Gives back the receive of a Send that will not arrive in full, when the stream ends.
    pub fn abandon(&mut self) -> Option<R> {
        self.sends.abandon()
    }
}

const _: () = assert!(tagged::LEN < untagged::LEN);

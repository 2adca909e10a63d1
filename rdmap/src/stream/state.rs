//! A stream: receipt, transmission, and its end.

use arrayvec::ArrayVec;
use dgiwarp_codec::Payload;
use dgiwarp_ddp::error::{TaggedError, UntaggedError};
use dgiwarp_ddp::wire::control::DV;
use dgiwarp_ddp::wire::{Control, TaggedHeader, UntaggedHeader, tagged, untagged};
use dgiwarp_ddp::{Msn, QueueNumber, STag, TaggedOffset};

use super::control_queue::{ControlMessage, ControlQueue};
use super::message::{short, tagged_header};
use super::requester::Requester;
use super::responder::{Responder, Segment};
use super::sends::{Sends, SoleSend};
use super::terminate::{Offender, message};
use super::{
    Blamed, Capabilities, DgiwarpExt, Handled, Header, Message, MessageHeader, ReadSource,
    Response, SendKind, StreamError, TerminateMessage, Ulp,
};
use crate::wire::{
    AtomicOperation, AtomicRequest, AtomicRequestError, AtomicResponse, ImmediateData, Opcode,
    ReadRequest, Terminate, TerminateControl, atomic, immediate, read_request,
};

/// IRD and ORD of a stream (RFC 5040 §6.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Depths {
    /// Requests of the peer that may be outstanding.
    pub ird: u16,
    /// Own requests that may be outstanding.
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
    dgiwarp_ext: DgiwarpExt,
    /// MSN of the next message sent on queue 0.
    msn: Msn,
    /// The stream is over: ULPDUs are dropped and none is made but the Terminate.
    ended: bool,
    /// Terminate that is to be sent.
    terminate: Option<TerminateMessage>,
    /// Message that the peer's Terminate is about.
    blamed: Option<Blamed<Q>>,
}

impl<R, Q: Copy> Stream<R, Q> {
    /// A stream without messages.
    #[must_use]
    pub fn new(depths: Depths) -> Self {
        Self {
            sends: Sends::default(),
            requests: ControlQueue::default(),
            terminates: ControlQueue::default(),
            atomic_responses: ControlQueue::default(),
            requester: Requester::new(depths.ord.into()),
            responder: Responder::new(depths.ird.into()),
            dgiwarp_ext: DgiwarpExt::new(None),
            msn: Msn::FIRST,
            ended: false,
            terminate: None,
            blamed: None,
        }
    }

    /// The stream with the dgiwarp extensions; `ours` go into the hello.
    #[must_use]
    pub fn with_extensions(self, ours: Capabilities) -> Self {
        Self {
            dgiwarp_ext: DgiwarpExt::new(Some(ours)),
            ..self
        }
    }

    /// State of the dgiwarp extensions.
    #[must_use]
    pub const fn dgiwarp_ext(&self) -> &DgiwarpExt {
        &self.dgiwarp_ext
    }

    /// State of the dgiwarp extensions, to make notices.
    pub const fn dgiwarp_ext_mut(&mut self) -> &mut DgiwarpExt {
        &mut self.dgiwarp_ext
    }

    // Receipt.

    /// Decides from the next ULPDU whether the peer is a plain one.
    pub fn detect_peer(&mut self, ulpdu: &[u8]) {
        self.dgiwarp_ext.detect_peer(ulpdu);
    }

    /// Handles one ULPDU: a DDP segment. After the end it is dropped without a report (RFC 5041 §7.1).
    ///
    /// # Errors
    /// [`StreamError`]: no octet of the segment was placed, the stream is over, and a Terminate is to be sent unless the peer sent one.
    #[inline]
    pub fn handle_ulpdu<U: Ulp<Receive = R, Request = Q>>(
        &mut self,
        ulpdu: &[u8],
        ulp: &mut U,
    ) -> Result<Handled, StreamError> {
        if self.ended {
            return Ok(Handled::Taken);
        }
        self.dgiwarp_ext.detect_peer(ulpdu);
        let result = match ulpdu.first() {
            None => Err(StreamError::Truncated(0)),
            // RFC 5041 §4.1: reserved bits are ignored over a reliable lower layer.
            Some(first) if Control::parse(*first).tagged => self.handle_tagged(ulpdu, ulp),
            Some(_) => self.handle_untagged(ulpdu, ulp),
        };
        if let Err(error) = result {
            self.end_by(error, ulpdu, ulpdu.len());
        }
        result
    }

    /// The ULPDU as all of the next Send, if it is: without Invalidate and without an immediate from a notice. Nothing changes before
    /// [`placed_sole_send`](Self::placed_sole_send); [`handle_ulpdu`](Self::handle_ulpdu) is for all others, and for those that cannot be placed.
    #[inline]
    #[must_use]
    pub fn sole_send<'a>(&self, ulpdu: &'a [u8]) -> Option<SoleSend<'a>> {
        let (header, payload) = ulpdu.split_first_chunk()?;
        let solicited = self.sole_send_header(header)?;
        Some(SoleSend { payload, solicited })
    }

    /// As [`sole_send`](Self::sole_send), of the header alone. Returns whether the message raises a solicited event.
    #[inline]
    #[must_use]
    pub fn sole_send_header(&self, header: &[u8; untagged::LEN]) -> Option<bool> {
        if self.ended || self.dgiwarp_ext.has_immediate() {
            return None;
        }
        self.sends.sole(header)
    }

    /// The Send of [`sole_send`](Self::sole_send) is placed in a receive, all of it.
    #[inline]
    pub fn placed_sole_send(&mut self) {
        self.sends.placed_sole();
        self.dgiwarp_ext.count_placed();
    }

    /// Handles a segment of a message whose payload is apart from its header, as [`handle_ulpdu`](Self::handle_ulpdu) does.
    ///
    /// # Errors
    /// As [`handle_ulpdu`](Self::handle_ulpdu).
    #[inline]
    pub fn handle_message_segment<P, U>(
        &mut self,
        header: &MessageHeader,
        payload: &P,
        ulp: &mut U,
    ) -> Result<Handled, StreamError>
    where
        P: Payload + ?Sized,
        U: Ulp<P, Receive = R, Request = Q>,
    {
        if self.ended {
            return Ok(Handled::Taken);
        }
        let result = match header {
            MessageHeader::Write(header) => {
                let placed = ulp.place(header.stag, header.tagged_offset, payload);
                placed.map_err(StreamError::from).map(|()| {
                    self.count_write(payload.len(), header.control.last);
                    Handled::Taken
                })
            }
            MessageHeader::ReadResponse(header) => {
                let placed = self.requester.handle_read_response(header, payload, ulp);
                placed.map(|()| Handled::Taken)
            }
            MessageHeader::Queued(header, opcode) => {
                let dgiwarp_ext = &mut self.dgiwarp_ext;
                self.sends
                    .handle(header, *opcode, payload, ulp, dgiwarp_ext)
            }
        };
        if let Err(error) = result {
            let octets = header.emit();
            self.end_by(error, &octets, octets.len() + payload.len());
        }
        result
    }

    /// A segment of a Write was placed.
    #[inline]
    fn count_write(&mut self, length: usize, is_last: bool) {
        self.sends.last_write.count(length, is_last);
        if is_last {
            self.dgiwarp_ext.count_placed();
        }
    }

    fn handle_tagged<U: Ulp<Receive = R, Request = Q>>(
        &mut self,
        ulpdu: &[u8],
        ulp: &mut U,
    ) -> Result<Handled, StreamError> {
        let (header, payload) =
            TaggedHeader::parse(ulpdu).map_err(|_| StreamError::Truncated(ulpdu.len()))?;
        if header.control.version != DV {
            return Err(TaggedError::Version.into());
        }
        match Opcode::parse(header.rsvd_ulp)? {
            Opcode::Write => {
                // RFC 5041 §5.2: STag and TO of a zero-length segment are not checked. RTR indications and notices are such Writes.
                if !payload.is_empty() {
                    ulp.place(header.stag, header.tagged_offset, payload)?;
                } else if self
                    .dgiwarp_ext
                    .handle_notice(header.stag, header.tagged_offset)
                {
                    let number = self.dgiwarp_ext.take_srq_number();
                    // One in the middle of a Send has no effect: its receive belongs to the queue of before.
                    let number = number.filter(|_| !self.sends.is_arriving());
                    return Ok(number.map_or(Handled::Taken, Handled::SrqSelected));
                }
                self.count_write(payload.len(), header.control.last);
                Ok(Handled::Taken)
            }
            Opcode::ReadResponse => {
                self.requester.handle_read_response(&header, payload, ulp)?;
                Ok(Handled::Taken)
            }
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

    fn handle_untagged<U: Ulp<Receive = R, Request = Q>>(
        &mut self,
        ulpdu: &[u8],
        ulp: &mut U,
    ) -> Result<Handled, StreamError> {
        let (header, payload) =
            UntaggedHeader::parse(ulpdu).map_err(|_| StreamError::Truncated(ulpdu.len()))?;
        if header.control.version != DV {
            return Err(UntaggedError::Version.into());
        }
        let opcode = Opcode::parse(header.rsvd_ulp)?;
        match (header.queue_number, opcode) {
            (QueueNumber::SEND, opcode) => {
                let dgiwarp_ext = &mut self.dgiwarp_ext;
                self.sends
                    .handle(&header, opcode, payload, ulp, dgiwarp_ext)
            }
            (QueueNumber::READ_REQUEST, Opcode::ReadRequest | Opcode::AtomicRequest) => {
                match self.requests.take(&header, opcode, payload)? {
                    Some(message) => {
                        self.handle_request(&header, opcode, &message, ulp)?;
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
                        self.handle_atomic_response(&message, ulp)?;
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

    fn handle_request<U: Ulp<Receive = R, Request = Q>>(
        &mut self,
        header: &UntaggedHeader,
        opcode: Opcode,
        message: &ControlMessage,
        ulp: &U,
    ) -> Result<(), StreamError> {
        let wrong_length = StreamError::Length {
            opcode,
            length: u32::try_from(message.len()).unwrap_or(u32::MAX),
        };
        // Segment length in a Terminate about it: that of one segment with the whole request.
        let length = u16::try_from(untagged::LEN + message.len()).unwrap_or(u16::MAX);
        let segment = Segment { header, length };
        if opcode == Opcode::ReadRequest {
            match ReadRequest::parse(message) {
                Ok((request, [])) => self.responder.handle_read(request, &segment, ulp),
                Ok((_, _)) | Err(_) => Err(wrong_length),
            }
        } else {
            match AtomicRequest::parse(message) {
                Ok((request, [])) => self.responder.handle_atomic(request, &segment, ulp),
                Ok((_, _)) | Err(AtomicRequestError::Truncated(_)) => Err(wrong_length),
                Err(AtomicRequestError::Code(code)) => Err(StreamError::AtomicCode(code)),
            }
        }
    }

    fn handle_atomic_response<U: Ulp<Receive = R, Request = Q>>(
        &mut self,
        message: &ControlMessage,
        ulp: &mut U,
    ) -> Result<(), StreamError> {
        match AtomicResponse::parse(message) {
            Ok((response, [])) => self.requester.handle_atomic_response(response, ulp),
            Ok((_, _)) | Err(_) => Err(StreamError::Length {
                opcode: Opcode::AtomicResponse,
                length: u32::try_from(message.len()).unwrap_or(u32::MAX),
            }),
        }
    }

    /// Only the control of a Terminate is required: the rest helps to find the work request, and peers differ in its flags.
    fn handle_terminate(&mut self, message: &ControlMessage) -> StreamError {
        let Ok((control, _)) = TerminateControl::parse(message) else {
            return StreamError::Length {
                opcode: Opcode::Terminate,
                length: u32::try_from(message.len()).unwrap_or(u32::MAX),
            };
        };
        if let Ok(terminate) = Terminate::parse(message) {
            self.blamed = self.message_of(&terminate);
        }
        StreamError::Terminated(control.cause)
    }

    /// The message that a Terminate of the peer names: by the Read Request in it, or by the DDP header.
    fn message_of(&self, terminate: &Terminate<'_>) -> Option<Blamed<Q>> {
        if let Some(request) = self.requester.read_of(terminate) {
            return Some(Blamed::Request(request));
        }
        let octets = terminate.ddp_header?;
        if Control::parse(*octets.first()?).tagged {
            let (header, _) = TaggedHeader::parse(octets).ok()?;
            // A tagged segment of this end's is also one of its Read Responses.
            let is_write = Opcode::parse(header.rsvd_ulp) == Ok(Opcode::Write);
            return is_write.then_some(Blamed::Write(header.stag, header.tagged_offset));
        }
        let (header, _) = UntaggedHeader::parse(octets).ok()?;
        match header.queue_number {
            QueueNumber::SEND => {
                let behind = self.msn.get().wrapping_sub(header.msn.get());
                Some(Blamed::Queued(behind)).filter(|_| behind > 0)
            }
            QueueNumber::READ_REQUEST => {
                let request = self.requester.request_of(header.msn)?;
                Some(Blamed::Request(request))
            }
            _ => None,
        }
    }

    // Transmission.

    /// A zero-length RDMA Write, as a whole ULPDU: an RTR indication (RFC 6581 §9.2). Its STag and TO name no buffer, and are not
    /// checked (RFC 5041 §5.2).
    #[must_use]
    pub fn rtr_write() -> Header {
        tagged_header(Opcode::Write, STag::new(0), TaggedOffset::new(0), true)
    }

    /// Starts a Send of `length` octets.
    pub fn send(&mut self, length: u32, kind: SendKind) -> Message {
        let message = self.next_send(length, kind);
        self.begin(&message);
        message
    }

    /// The Send that [`send`](Self::send) would start. It has not begun before [`begin`](Self::begin).
    #[must_use]
    pub fn next_send(&self, length: u32, kind: SendKind) -> Message {
        let word = kind.invalidate.map_or(0, STag::get);
        Message::untagged(kind.opcode(), word, self.msn, length)
    }

    /// The message that is next has begun: segments of it leave.
    pub fn begin(&mut self, message: &Message) {
        self.dgiwarp_ext.count_sent();
        if message.is_untagged() {
            self.next_msn();
        }
    }

    /// Starts an RDMA Write of `length` octets.
    pub fn write(&mut self, stag: STag, start: TaggedOffset, length: u32) -> Message {
        let message = Self::next_write(stag, start, length);
        self.begin(&message);
        message
    }

    /// The RDMA Write that [`write`](Self::write) would start. It has not begun before [`begin`](Self::begin).
    #[must_use]
    pub fn next_write(stag: STag, start: TaggedOffset, length: u32) -> Message {
        // A zero-length Write of the program must differ from a notice.
        let stag = if length == 0 && DgiwarpExt::is_notice(stag) {
            STag::new(0)
        } else {
            stag
        };
        Message::write(stag, start, length)
    }

    /// An Immediate Data message, as a whole ULPDU.
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
        self.dgiwarp_ext.count_sent();
        short(opcode, self.next_msn(), &data.emit())
    }

    fn next_msn(&mut self) -> Msn {
        let msn = self.msn;
        self.msn = msn.next();
        msn
    }

    /// A Read Request, as a whole ULPDU; `None` without credit.
    pub fn read(
        &mut self,
        source: ReadSource,
        request: Q,
    ) -> Option<ArrayVec<u8, { untagged::LEN + read_request::LEN }>> {
        let (msn, header) = self.requester.read(source, request)?;
        Some(short(Opcode::ReadRequest, msn, &header.emit()))
    }

    /// A Read Request of zero octets, as a whole ULPDU: an RTR indication (RFC 6581 §9.2). The first request of all needs no credit.
    pub fn rtr_read(&mut self, request: Q) -> ArrayVec<u8, { untagged::LEN + read_request::LEN }> {
        let (msn, header) = self.requester.rtr_read(request);
        short(Opcode::ReadRequest, msn, &header.emit())
    }

    /// An atomic request, as a whole ULPDU; `None` without credit.
    pub fn atomic(
        &mut self,
        operation: AtomicOperation,
        at: (STag, TaggedOffset),
        request: Q,
    ) -> Option<ArrayVec<u8, { untagged::LEN + atomic::REQUEST_LEN }>> {
        let (msn, header) = self.requester.atomic(operation, at, request)?;
        Some(short(Opcode::AtomicRequest, msn, &header.emit()))
    }

    /// Own requests without an answer.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.requester.outstanding()
    }

    /// Own requests that may be outstanding: ORD.
    #[must_use]
    pub fn request_limit(&self) -> usize {
        self.requester.limit()
    }

    /// The next response to the peer's requests, in ULPDUs of at most `mulpdu` octets; `None` if no request waits. The response stays
    /// the next one until [`read_segment_sent`](Self::read_segment_sent), [`atomic_done`](Self::atomic_done) or
    /// [`fail_response`](Self::fail_response).
    #[must_use]
    pub fn next_response(&self, mulpdu: u16) -> Option<Response> {
        self.responder.peek(mulpdu)
    }

    /// Whether a Read Response has begun: no other message may be sent before its last segment.
    #[must_use]
    pub fn is_amid_response(&self) -> bool {
        self.responder.is_amid()
    }

    /// Whether a request of the peer waits for its response. After an error, those that came before it do until the
    /// [Terminate](Self::take_terminate) is taken.
    #[must_use]
    pub fn has_responses(&self) -> bool {
        !self.responder.is_idle()
    }

    /// A segment of the Read Response was sent, with `length` octets of payload.
    pub fn read_segment_sent(&mut self, length: u32) {
        self.responder.sent(length);
    }

    /// The next response's atomic operation was executed. Returns the Atomic Response, as a whole ULPDU; `None` if none was due.
    pub fn atomic_done(
        &mut self,
        original: u64,
    ) -> Option<ArrayVec<u8, { untagged::LEN + atomic::RESPONSE_LEN }>> {
        let (msn, response) = self.responder.atomic_done(original)?;
        Some(short(Opcode::AtomicResponse, msn, &response.emit()))
    }

    // The end.

    /// Ends the stream: the buffer of the request that is being answered is no longer valid.
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
        self.responder.clear();
        error
    }

    /// Ends the stream for an error that no segment of the peer caused.
    pub fn fail(&mut self, error: StreamError) {
        let terminate = message(error, None);
        self.end_with(terminate);
    }

    /// Ends the stream for an error of a ULPDU in the RNR queue.
    pub fn fail_at(&mut self, error: StreamError, ulpdu: &[u8]) {
        self.end_by(error, ulpdu, ulpdu.len());
    }

    /// Ends the stream by an error of the segment that begins with `octets`, at least its DDP header, and has this length.
    fn end_by(&mut self, error: StreamError, octets: &[u8], length: usize) {
        // A request is checked right after it was admitted to the queue.
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
            | StreamError::Written { .. }
            | StreamError::Terminated(_) => None,
        };
        let offender = Offender {
            octets,
            length: u16::try_from(length).unwrap_or(u16::MAX),
            read_request,
        };
        let terminate = message(error, Some(offender));
        if let StreamError::Source(_) | StreamError::Misaligned(_) = error {
            self.responder.drop_latest();
        }
        self.end_with(terminate);
    }

    /// RFC 5040 §7.1 rule 4: the first error is reported.
    fn end_with(&mut self, terminate: Option<TerminateMessage>) {
        if !self.ended {
            self.ended = true;
            if terminate.is_none() {
                self.responder.clear();
            }
            self.terminate = terminate;
        }
    }

    /// The Terminate that is to be sent, once, behind all earlier ULPDUs. No ULPDU may follow it (RFC 5040 §5.4).
    pub fn take_terminate(&mut self) -> Option<TerminateMessage> {
        if self.ended {
            self.responder.clear();
        }
        self.terminate.take()
    }

    /// Whether the stream is over.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.ended
    }

    /// The message that the peer's Terminate names, if it names one.
    #[must_use]
    pub fn blamed(&self) -> Option<Blamed<Q>> {
        self.blamed
    }

    /// Returns the receive of the Send that is arriving, when the stream ends.
    pub fn abandon(&mut self) -> Option<R> {
        self.sends.abandon()
    }
}

const _: () = assert!(tagged::LEN < untagged::LEN);

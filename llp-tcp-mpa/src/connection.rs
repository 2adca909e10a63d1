//! One MPA connection: startup, then full operation.

use crate::error::{ConfigError, Error, FrameError, SendError};
use crate::event::{Event, TcpEnd};
use crate::framing::{Deframer, Framer};
use crate::mulpdu::{MULPDU_FLOOR, mulpdu};
use crate::outgoing::Outgoing;
use crate::startup::{
    Config, DatagramTerms, Established, FrameKind, Negotiation, ReadDepths, Rejection, Request,
    Role, RtrSet, StartupFrame, StartupReader, accept_reply, reject_reply, request_frame, settle,
    takes_request, terms_of,
};
use dgiwarp_codec::Payload;
use std::collections::VecDeque;
use std::time::Instant;

/// One end of an MPA connection, without its TCP connection.
///
/// Nothing here reads a clock; the time is an argument. The order of calls:
/// 1. Make one with [`initiator`](Self::initiator) or [`responder`](Self::responder) once TCP
///    is connected.
/// 2. Give what arrives to [`handle_input`](Self::handle_input) until the input is empty, the
///    end of TCP to [`handle_end`](Self::handle_end), and call
///    [`handle_timeout`](Self::handle_timeout) when [`poll_timeout`](Self::poll_timeout) is
///    reached.
/// 3. After each of these drain [`poll_event`](Self::poll_event), and write what
///    [`poll_transmit`](Self::poll_transmit) shows to TCP, reporting how much went with
///    [`transmitted`](Self::transmitted).
///
/// Calls at other times do no harm.
#[derive(Debug)]
pub struct Connection {
    config: Config,
    state: State,
    /// Time at which the startup fails; `None` once the peer's frame has arrived.
    deadline: Option<Instant>,
    out: Outgoing,
    events: VecDeque<Event>,
    /// MULPDU of the caller's choice in octets, within the range of [`mulpdu`](crate::mulpdu) when used.
    chosen_mulpdu: Option<u16>,
}

#[derive(Debug)]
enum State {
    /// Responder: the Request has not arrived in full.
    ExpectRequest(StartupReader),
    /// Responder: the Request awaits the ULP.
    Deciding(Request),
    /// Initiator: the Reply has not arrived in full.
    ExpectReply(StartupReader),
    /// Both frames are exchanged.
    FullOperation(FullOperation),
    /// Rejected, or failed before full operation.
    Exited,
}

#[derive(Debug)]
struct FullOperation {
    negotiation: Negotiation,
    framer: Framer,
    deframer: Deframer,
    /// RFC 5044 §7.1.2 rule 4: a Responder sends only after it has received an FPDU.
    may_send: bool,
    /// RFC 5044 §8: after an error no FPDU is delivered any more.
    stopped: bool,
}

impl FullOperation {
    fn new(negotiation: Negotiation) -> Self {
        Self {
            framer: Framer::new(negotiation.crc, negotiation.send_markers),
            deframer: Deframer::new(negotiation.crc, negotiation.receive_markers),
            may_send: negotiation.role == Role::Initiator,
            stopped: false,
            negotiation,
        }
    }
}

impl Connection {
    /// The Initiator's end. The Request is ready to be transmitted.
    ///
    /// # Errors
    /// [`ConfigError`] if the private data is too long (512 octets, 508 with revision 2), or
    /// peer-to-peer mode is asked for in revision 1 or without an RTR indication.
    pub fn initiator(
        now: Instant,
        config: Config,
        private_data: &[u8],
    ) -> Result<Self, ConfigError> {
        let request = request_frame(&config, private_data)?;
        let mut connection = Self::start(
            now,
            config,
            State::ExpectReply(StartupReader::new(FrameKind::Reply)),
        );
        connection.out.bytes().extend_from_slice(&request.emit());
        Ok(connection)
    }

    /// The Responder's end, waiting for a Request.
    pub fn responder(now: Instant, config: Config) -> Self {
        Self::start(
            now,
            config,
            State::ExpectRequest(StartupReader::new(FrameKind::Request)),
        )
    }

    fn start(now: Instant, config: Config, state: State) -> Self {
        Self {
            deadline: now.checked_add(config.startup_timeout),
            config,
            state,
            out: Outgoing::default(),
            events: VecDeque::new(),
            chosen_mulpdu: None,
        }
    }

    /// Accepts the Request: full operation begins, and the Reply is ready to be transmitted.
    /// The depths are what this end can do; what is used follows from them and the Request.
    ///
    /// # Errors
    /// [`ConfigError`] if there is no Request to answer, if the private data is too long (512
    /// octets, 508 to an enhanced Request), or if peer-to-peer mode is asked for and
    /// [`Config::rtr`] is empty. The Request then still waits.
    pub fn accept(&mut self, depths: ReadDepths, private_data: &[u8]) -> Result<(), ConfigError> {
        self.accept_with(depths, (None, private_data))
    }

    /// Accepts the Request so that messages go by reliable datagrams, on these terms, where the Request [offers](Request::datagrams) that; else it
    /// accepts as [`accept`](Self::accept).
    ///
    /// # Errors
    /// As for [`accept`](Self::accept), with 16 octets less of private data.
    pub fn accept_by_datagrams(
        &mut self,
        depths: ReadDepths,
        terms: DatagramTerms,
        private_data: &[u8],
    ) -> Result<(), ConfigError> {
        self.accept_with(depths, (Some(terms), private_data))
    }

    fn accept_with(
        &mut self,
        depths: ReadDepths,
        content: (Option<DatagramTerms>, &[u8]),
    ) -> Result<(), ConfigError> {
        let State::Deciding(request) = &self.state else {
            return Err(ConfigError::NoRequest);
        };
        let (reply, negotiation) = accept_reply(&self.config, request, depths, content)?;
        self.out.bytes().extend_from_slice(&reply.emit());
        self.state = State::FullOperation(FullOperation::new(negotiation));
        self.events.push_back(Event::Established(Established {
            negotiation,
            send_rtr: None,
            private_data: Vec::new(),
            datagrams: None,
        }));
        Ok(())
    }

    /// Rejects the Request. MPA is over once the Reply is transmitted; TCP is left open
    /// (RFC 5044 §7.1.2 rule 2).
    ///
    /// # Errors
    /// As for [`accept`](Self::accept).
    pub fn reject(&mut self, depths: ReadDepths, private_data: &[u8]) -> Result<(), ConfigError> {
        let State::Deciding(request) = &self.state else {
            return Err(ConfigError::NoRequest);
        };
        let reply = reject_reply(&self.config, request, depths, private_data)?;
        self.out.bytes().extend_from_slice(&reply.emit());
        self.state = State::Exited;
        Ok(())
    }

    /// Takes octets from the front of `input`, some at least, and gives a ULPDU once one is
    /// complete. Call it until `input` is empty, and until it gives nothing; drain the events after each call, since
    /// octets behind a startup frame in the same input are not handled before the next call.
    ///
    /// A ULPDU that lies whole in `input` is given where it lies.
    pub fn handle_input<'s, 'b: 's>(
        &'s mut self,
        _now: Instant,
        input: &mut &'b [u8],
    ) -> Option<&'s [u8]> {
        if !matches!(self.state, State::FullOperation(_)) {
            self.handle_startup(input);
            return None;
        }
        let State::FullOperation(full) = &mut self.state else {
            return None;
        };
        if full.stopped {
            *input = &[];
            return None;
        }
        match full.deframer.next(input) {
            Ok(Some(ulpdu)) => {
                full.may_send = true;
                Some(ulpdu)
            }
            Ok(None) => None,
            Err(error) => {
                full.stopped = true;
                self.events.push_back(Event::Failed(error));
                *input = &[];
                None
            }
        }
    }

    /// Deframer of the input, in full operation, for callers that read input into an FPDU's memory ([`Deframer::room`]) or lend
    /// memory.
    pub fn deframer(&mut self) -> Option<&mut Deframer> {
        match &mut self.state {
            State::FullOperation(full) if !full.stopped => Some(&mut full.deframer),
            State::ExpectRequest(_)
            | State::Deciding(_)
            | State::ExpectReply(_)
            | State::FullOperation(_)
            | State::Exited => None,
        }
    }

    /// Octets that were moved because they ended an input inside an FPDU.
    pub fn octets_kept(&self) -> u64 {
        self.full().map_or(0, |full| full.deframer.kept())
    }

    /// Input before full operation, and after the end.
    fn handle_startup(&mut self, input: &mut &[u8]) {
        match &mut self.state {
            State::ExpectRequest(reader) => match reader.read(input) {
                Ok(None) => {}
                Ok(Some(frame)) => self.on_request(frame),
                Err(error) => self.fail_startup(input, error.into()),
            },
            State::ExpectReply(reader) => match reader.read(input) {
                Ok(None) => {}
                Ok(Some(frame)) => self.on_reply(input, &frame),
                Err(error) => self.fail_startup(input, error.into()),
            },
            // RFC 5044 §7.1.2 rules 3 and 9: an Initiator has nothing to send before the
            // Reply; what it sent makes its PD_Length wrong.
            State::Deciding(_) if !input.is_empty() => {
                let error = FrameError::TrailingOctets(input.len());
                self.fail_startup(input, error.into());
            }
            State::Deciding(_) | State::FullOperation(_) | State::Exited => *input = &[],
        }
    }

    fn on_request(&mut self, frame: StartupFrame) {
        let request = takes_request(frame);
        self.deadline = None;
        self.events.push_back(Event::Request(request.clone()));
        self.state = State::Deciding(request);
    }

    fn on_reply(&mut self, input: &mut &[u8], reply: &StartupFrame) {
        self.deadline = None;
        if reply.reject {
            self.state = State::Exited;
            self.events.push_back(Event::Rejected(Rejection {
                enhanced: reply.enhanced,
                private_data: reply.private_data.clone(),
            }));
            return;
        }
        let (negotiation, refusal) = match settle(&self.config, reply) {
            Ok(settled) => settled,
            Err(error) => return self.fail_startup(input, error.into()),
        };
        let mut full = FullOperation::new(negotiation);
        if let Some(error) = refusal {
            // RFC 6581 §9.1, §9.2: the error is reported to the Responder in a Terminate, which
            // needs full operation; no input is taken any more.
            full.stopped = true;
            self.events.push_back(Event::Failed(error));
        } else {
            let (datagrams, private_data) = terms_of(&self.config, reply);
            self.events.push_back(Event::Established(Established {
                negotiation,
                send_rtr: negotiation.rtr.and_then(RtrSet::preferred),
                private_data: private_data.to_vec(),
                datagrams,
            }));
        }
        self.state = State::FullOperation(full);
    }

    fn fail_startup(&mut self, input: &mut &[u8], error: Error) {
        *input = &[];
        self.exit(error);
    }

    /// Ends a connection that can neither send nor receive.
    fn exit(&mut self, error: Error) {
        self.deadline = None;
        self.state = State::Exited;
        self.out.clear();
        self.events.push_back(Event::Failed(error));
    }

    /// TCP has ended; after a FIN our half of it may still send.
    pub fn handle_end(&mut self, _now: Instant, end: TcpEnd) {
        match (&mut self.state, end) {
            (State::ExpectRequest(_) | State::Deciding(_) | State::ExpectReply(_), TcpEnd::Fin) => {
                self.exit(Error::ClosedInStartup);
            }
            (
                State::ExpectRequest(_) | State::Deciding(_) | State::ExpectReply(_),
                TcpEnd::Lost,
            ) => {
                self.exit(Error::TcpLost);
            }
            (State::FullOperation(full), TcpEnd::Fin) => {
                if !full.stopped {
                    full.stopped = true;
                    let received = full.deframer.unfinished();
                    self.events.push_back(if received == 0 {
                        Event::PeerClosed
                    } else {
                        Event::Failed(Error::ClosedInFpdu { received })
                    });
                }
            }
            (State::FullOperation(full), TcpEnd::Lost) => {
                if full.stopped {
                    self.state = State::Exited;
                    self.out.clear();
                } else {
                    self.exit(Error::TcpLost);
                }
            }
            (State::Exited, TcpEnd::Fin | TcpEnd::Lost) => {}
        }
    }

    /// Handles the time. The startup fails if it has taken too long
    /// (RFC 5044 §7.1.2 rules 8 and 10).
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.exit(Error::StartupTimeout(self.config.startup_timeout));
        }
    }

    /// Time at which [`handle_timeout`](Self::handle_timeout) is to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.deadline
    }

    /// The oldest event not taken yet.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The octets to write to TCP next; empty if there are none.
    pub fn poll_transmit(&self, _now: Instant) -> &[u8] {
        self.out.unsent()
    }

    /// Whether TCP has taken all octets.
    pub fn is_drained(&self) -> bool {
        self.out.unsent().is_empty()
    }

    /// TCP took the first `len` octets of [`poll_transmit`](Self::poll_transmit).
    pub fn transmitted(&mut self, len: usize) {
        self.out.advance(len);
    }

    /// Sends a ULPDU: `header` followed by `payload`, which is copied, each octet loaded
    /// once.
    ///
    /// # Errors
    /// [`SendError`]: not in full operation, a Responder before its first FPDU, or longer
    /// than [`mulpdu`](Self::mulpdu). Nothing is sent then.
    pub fn send_ulpdu<P: Payload + ?Sized>(
        &mut self,
        header: &[u8],
        payload: &P,
    ) -> Result<(), SendError> {
        let mulpdu = self.mulpdu();
        let framer = checked(&mut self.state, mulpdu, header.len() + payload.len())?;
        framer.frame(self.out.bytes(), header, payload);
        Ok(())
    }

    /// FPDUs that are made from now on have no CRC, whatever was negotiated: the octets that leave from now on stay in the memory of one host.
    pub fn omit_sent_crc(&mut self) {
        if let State::FullOperation(full) = &mut self.state {
            full.framer.omit_crc();
        }
    }

    /// The octets of the next input, and all behind it, come from the memory of this host: FPDUs that begin there have no CRC to check.
    pub fn omit_received_crc(&mut self) {
        if let State::FullOperation(full) = &mut self.state {
            full.deframer.omit_crc();
        }
    }

    /// Whether FPDUs that are made now are [bare](crate::framing::bare), and none is left to transmit.
    #[inline]
    pub fn sends_bare(&self) -> bool {
        let bare = |full: &FullOperation| full.may_send && full.framer.is_bare();
        self.full().is_some_and(bare) && self.out.unsent().is_empty()
    }

    /// Whether an FPDU that begins with the next octet of the input is [bare](crate::framing::bare).
    #[inline]
    pub fn receives_bare(&self) -> bool {
        let bare = |full: &FullOperation| !full.stopped && full.deframer.is_bare();
        self.full().is_some_and(bare)
    }

    /// Whether a ULPDU may be sent without a copy of its payload: with Markers it may not.
    pub fn leaves_payload_whole(&self) -> bool {
        self.full()
            .is_some_and(|full| full.framer.leaves_payload_whole())
    }

    /// Sends a ULPDU whose payload stays where it lies; here it is read for the CRC alone. Returns behind how many octets of
    /// [`poll_transmit`](Self::poll_transmit) it belongs. The caller puts it there on the way to TCP, or with
    /// [`open`](Self::open), or takes the ULPDU back with [`take_back`](Self::take_back).
    ///
    /// # Errors
    /// As [`send_ulpdu`](Self::send_ulpdu).
    ///
    /// # Panics
    /// If Markers stand in the payload ([`leaves_payload_whole`](Self::leaves_payload_whole)).
    pub fn send_ulpdu_around<P: Payload + ?Sized>(
        &mut self,
        header: &[u8],
        payload: &P,
    ) -> Result<usize, SendError> {
        let mulpdu = self.mulpdu();
        let framer = checked(&mut self.state, mulpdu, header.len() + payload.len())?;
        let at = framer.frame_around(self.out.bytes(), header, payload);
        Ok(at - self.out.sent())
    }

    /// Room for `len` octets behind the first `at` of [`poll_transmit`](Self::poll_transmit): for payload that could not leave from where
    /// it lies after all.
    pub fn open(&mut self, at: usize, len: usize) -> &mut [u8] {
        self.out.open(at, len)
    }

    /// Takes back the last FPDUs of which TCP took nothing, so that [`poll_transmit`](Self::poll_transmit) shows `len` octets. Only without
    /// Markers, whose positions are fixed.
    pub fn take_back(&mut self, len: usize) {
        debug_assert!(self.leaves_payload_whole(), "Markers were counted");
        self.out.truncate(len);
    }

    /// Makes FPDUs in `room` from now on, which belongs to the caller and whose capacity is large enough for what is to come. Returns
    /// room that is not needed.
    pub fn lend(&mut self, room: Vec<u8>) -> Vec<u8> {
        self.out.lend(room)
    }

    /// Returns the room, if TCP has taken all octets.
    pub fn reclaim(&mut self) -> Option<Vec<u8>> {
        self.out.reclaim()
    }

    /// Makes room for `octets` more octets of FPDUs, for callers that must not allocate while they send ULPDUs.
    pub fn reserve(&mut self, octets: usize) {
        self.out.bytes().reserve(octets);
    }

    /// Whether a ULPDU can be sent now. Of a Responder this becomes true with the first
    /// ULPDU that [`handle_input`](Self::handle_input) gives.
    pub fn may_send(&self) -> bool {
        self.full().is_some_and(|full| full.may_send)
    }

    /// Negotiated values, in full operation.
    pub fn negotiation(&self) -> Option<&Negotiation> {
        self.full().map(|full| &full.negotiation)
    }

    /// The largest ULPDU that can be sent, octets (RFC 5044 §4.5).
    #[inline]
    pub fn mulpdu(&self) -> u16 {
        let markers = self
            .full()
            .is_some_and(|full| full.negotiation.send_markers);
        allowed(self.config.emss, self.chosen_mulpdu, markers)
    }

    /// TCP's effective maximum segment size has changed, octets.
    pub fn set_emss(&mut self, emss: u16) {
        self.config.emss = emss;
    }

    /// Chooses the MULPDU, octets, instead of what the EMSS makes of it; `None` is that again. It is brought into the range of
    /// [`mulpdu`](crate::mulpdu). FPDUs that are longer than TCP's segments are as good for a peer that takes the stream as it
    /// comes, and not for one that finds them in single segments.
    pub fn choose_mulpdu(&mut self, mulpdu: Option<u16>) {
        self.chosen_mulpdu = mulpdu;
    }

    #[inline]
    fn full(&self) -> Option<&FullOperation> {
        match &self.state {
            State::FullOperation(full) => Some(full),
            State::ExpectRequest(_)
            | State::Deciding(_)
            | State::ExpectReply(_)
            | State::Exited => None,
        }
    }
}

/// The MULPDU for an EMSS and what the caller chose.
fn allowed(emss: u16, chosen: Option<u16>, markers: bool) -> u16 {
    match chosen {
        Some(chosen) => chosen.clamp(MULPDU_FLOOR, mulpdu(u16::MAX, markers)),
        None => mulpdu(emss, markers),
    }
}

/// The framer, if it may take a ULPDU of `len` octets.
fn checked(state: &mut State, mulpdu: u16, len: usize) -> Result<&mut Framer, SendError> {
    let State::FullOperation(full) = state else {
        return Err(SendError::NotInFullOperation);
    };
    if !full.may_send {
        return Err(SendError::AwaitingFirstFpdu);
    }
    if len > usize::from(mulpdu) {
        return Err(SendError::TooLong { len, mulpdu });
    }
    Ok(&mut full.framer)
}

#[cfg(test)]
mod tests;

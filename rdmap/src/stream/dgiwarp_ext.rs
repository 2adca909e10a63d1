//! Extensions between two dgiwarp peers beyond the RFCs: hello, acknowledgements, immediates of Sends, XRC, RNR limit, bye. The specification is
//! `rfc-notes/rc-extensions.md`.
//!
//! Each travels as a *notice*, a zero-length RDMA Write. RFC 5041 §5.2 forbids to check its STag and TO, so a plain peer takes it
//! without effect. Before the peer's hello only the own hello is sent.

use dgiwarp_ddp::wire::{Control, TaggedHeader, UntaggedHeader};
use dgiwarp_ddp::{QueueNumber, STag, TaggedOffset};

use super::message::{Header, tagged_header};
use crate::wire::{Opcode, ReadRequest};

/// Version of the extensions.
pub const VERSION: u16 = 1;

/// STags of the notices: four ASCII letters.
const HELLO: STag = STag::new(u32::from_be_bytes(*b"DGiW"));
const ACKNOWLEDGEMENT: STag = STag::new(u32::from_be_bytes(*b"DGiA"));
const IMMEDIATE: STag = STag::new(u32::from_be_bytes(*b"DGiI"));
const BYE: STag = STag::new(u32::from_be_bytes(*b"DGiB"));
const TOKEN: STag = STag::new(u32::from_be_bytes(*b"DGiH"));
const SRQ_NUMBER: STag = STag::new(u32::from_be_bytes(*b"DGiX"));
const RNR_LIMIT: STag = STag::new(u32::from_be_bytes(*b"DGiR"));

/// RNR retries without a limit, as in `rnr_retry` of `ibv_modify_qp(3)`; the largest value that a notice carries.
pub const UNLIMITED_RETRIES: u8 = 7;

/// Low 48 bits of a TO: capabilities, or a count of messages.
const LOW: u64 = (1 << 48) - 1;
/// Bits of one half of a token.
const HALF_BITS: u32 = 60;
/// Low 60 bits of a TO: one half of a token.
const HALF: u64 = (1 << HALF_BITS) - 1;
/// Bit A of an acknowledgement: [`AckRequest::Next`].
const REQUESTS_NEXT: u64 = 1 << 63;
/// Bit N of an acknowledgement: [`AckRequest::All`].
const REQUESTS_ALL: u64 = 1 << 62;

/// Capabilities of an end, 48 bits. Unknown ones are ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capabilities(u64);

impl Capabilities {
    /// The end wants acknowledgements of its messages.
    pub const WANTS_ACKNOWLEDGEMENTS: Self = Self(1);
    /// The end takes the immediate of a Send.
    pub const TAKES_IMMEDIATES: Self = Self(2);
    /// The end requests every acknowledgement that it waits for, and answers [`AckRequest::All`].
    pub const REQUESTS_ACKS: Self = Self(4);
    /// The end takes the stream through shared memory where the peer is on its host (rfc-notes/same-host.md).
    pub const SAME_HOST: Self = Self(8);
    /// The end is an XRC target: it takes the numbers of shared receive queues.
    pub const XRC_TARGET: Self = Self(16);
    /// The end takes the peer's RNR limit.
    pub const TAKES_RNR_LIMITS: Self = Self(32);

    /// Union of both sets.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` are among these.
    #[must_use]
    pub const fn contain(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Messages that an acknowledgement request is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckRequest {
    /// The next Send or Write.
    Next,
    /// All messages that have arrived. Only for a peer with [`Capabilities::REQUESTS_ACKS`].
    All,
}

/// Content of a notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Notice {
    /// The sender is a dgiwarp peer.
    Hello {
        version: u16,
        capabilities: Capabilities,
    },
    /// Sends and Writes placed since the connection began, modulo 2^48, and an acknowledgement request in return.
    Acknowledgement {
        count: u64,
        request: Option<AckRequest>,
    },
    /// Immediate of the next Send.
    Immediate(u32),
    /// XRC: the messages behind it are for the shared receive queue of this number.
    SrqNumber(u32),
    /// RNR retries of the sender's messages; [`UNLIMITED_RETRIES`] is no limit.
    RnrLimit(u8),
    /// Orderly end: no message follows.
    Bye,
    /// Half of the token at which both ends meet on their host: 0 the high one, 1 the low one.
    TokenHalf { half: u8, bits: u64 },
}

impl Notice {
    pub(super) fn parse(stag: STag, tagged_offset: TaggedOffset) -> Option<Self> {
        let offset = tagged_offset.get();
        let [high, low, ..] = offset.to_be_bytes();
        let [.., a, b, c, d] = offset.to_be_bytes();
        match stag {
            HELLO => Some(Self::Hello {
                version: u16::from_be_bytes([high, low]),
                capabilities: Capabilities(offset & LOW),
            }),
            ACKNOWLEDGEMENT => Some(Self::Acknowledgement {
                count: offset & LOW,
                request: match offset {
                    _ if offset & REQUESTS_ALL != 0 => Some(AckRequest::All),
                    _ if offset & REQUESTS_NEXT != 0 => Some(AckRequest::Next),
                    _ => None,
                },
            }),
            IMMEDIATE => Some(Self::Immediate(u32::from_be_bytes([a, b, c, d]))),
            SRQ_NUMBER => Some(Self::SrqNumber(u32::from_be_bytes([a, b, c, d]))),
            RNR_LIMIT => Some(Self::RnrLimit(d & UNLIMITED_RETRIES)),
            BYE => Some(Self::Bye),
            TOKEN => Some(Self::TokenHalf {
                half: high >> 4,
                bits: offset & HALF,
            }),
            _ => None,
        }
    }

    fn emit(self) -> Header {
        let (stag, offset) = match self {
            Self::Hello {
                version,
                capabilities,
            } => (HELLO, u64::from(version) << 48 | capabilities.0),
            Self::Acknowledgement { count, request } => {
                let request = match request {
                    None => 0,
                    Some(AckRequest::Next) => REQUESTS_NEXT,
                    Some(AckRequest::All) => REQUESTS_ALL,
                };
                (ACKNOWLEDGEMENT, count & LOW | request)
            }
            Self::Immediate(immediate) => (IMMEDIATE, immediate.into()),
            Self::SrqNumber(number) => (SRQ_NUMBER, number.into()),
            Self::RnrLimit(retries) => (RNR_LIMIT, retries.into()),
            Self::Bye => (BYE, 0),
            Self::TokenHalf { half, bits } => (TOKEN, u64::from(half) << HALF_BITS | bits & HALF),
        };
        tagged_header(Opcode::Write, stag, TaggedOffset::new(offset), true)
    }
}

/// Kind of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// Nothing arrived yet that decides.
    Unknown,
    /// A dgiwarp peer, with its capabilities.
    Dgiwarp(Capabilities),
    /// A plain peer: any other iWARP end.
    Plain,
}

/// State of the extensions at one end of a stream. Counts are of Sends, Immediate Data messages and Writes since the stream began.
#[derive(Debug)]
pub struct DgiwarpExt {
    /// Capabilities of this end; `None` sends no notice and takes none for one.
    ours: Option<Capabilities>,
    peer: Peer,
    hello_sent: bool,
    /// Own messages that have begun to leave.
    sent: u64,
    /// Own messages that the peer has placed for certain; at most `sent`.
    acknowledged: u64,
    /// Value of `acknowledged` that answers the last acknowledgement request.
    requested: u64,
    /// Messages of the peer that were placed.
    placed: u64,
    /// Value of `placed` in the last acknowledgement sent; at most `placed`.
    reported: u64,
    /// Messages of the peer that have arrived in full and wait in the RNR queue.
    in_rnr_queue: u64,
    /// Open acknowledgement request of the peer, and the messages that had arrived with it.
    peer_request: Option<(AckRequest, u64)>,
    /// Immediate of the next Send.
    immediate: Option<u32>,
    /// Number from a notice that was not taken yet; only at an XRC target.
    srq_number: Option<u32>,
    /// RNR retries of own messages, and the value that the peer has.
    rnr_retries: u8,
    reported_rnr_retries: u8,
    /// RNR retries of the peer's messages.
    peer_rnr_retries: u8,
    bye_received: bool,
    /// Both ends share memory that has `placed`: the peer requests what it needs beside it.
    reports_in_memory: bool,
    /// Halves of the peer's token that have arrived.
    token: [Option<u64>; 2],
}

impl DgiwarpExt {
    /// Beginning of a stream. `ours` are this end's capabilities; without them it is a plain end.
    #[must_use]
    pub fn new(ours: Option<Capabilities>) -> Self {
        Self {
            ours,
            peer: if ours.is_some() {
                Peer::Unknown
            } else {
                Peer::Plain
            },
            hello_sent: false,
            sent: 0,
            acknowledged: 0,
            requested: 0,
            placed: 0,
            reported: 0,
            in_rnr_queue: 0,
            peer_request: None,
            immediate: None,
            srq_number: None,
            rnr_retries: UNLIMITED_RETRIES,
            reported_rnr_retries: UNLIMITED_RETRIES,
            peer_rnr_retries: UNLIMITED_RETRIES,
            bye_received: false,
            reports_in_memory: false,
            token: [None; 2],
        }
    }

    /// Kind of the peer.
    #[must_use]
    pub const fn peer(&self) -> Peer {
        self.peer
    }

    // Receipt.

    /// Handles a zero-length Write. Returns whether it was a notice, and no message of the program.
    pub(super) fn handle_notice(&mut self, stag: STag, tagged_offset: TaggedOffset) -> bool {
        if self.ours.is_none() {
            return false;
        }
        let Some(notice) = Notice::parse(stag, tagged_offset) else {
            return false;
        };
        match (notice, self.peer) {
            // A hello behind other messages has no effect.
            (
                Notice::Hello {
                    version: VERSION,
                    capabilities,
                },
                Peer::Unknown,
            ) => self.peer = Peer::Dgiwarp(capabilities),
            (Notice::Acknowledgement { count, request }, Peer::Dgiwarp(_)) => {
                self.handle_acknowledgement(count);
                if let Some(request) = request {
                    self.peer_request = Some((request, self.placed + self.in_rnr_queue));
                }
            }
            (Notice::Immediate(immediate), Peer::Dgiwarp(_)) => self.immediate = Some(immediate),
            (Notice::SrqNumber(number), Peer::Dgiwarp(_)) => {
                let is_target = |ours: Capabilities| ours.contain(Capabilities::XRC_TARGET);
                self.srq_number = self.ours.is_some_and(is_target).then_some(number);
            }
            (Notice::RnrLimit(retries), Peer::Dgiwarp(_)) => self.peer_rnr_retries = retries,
            (Notice::Bye, Peer::Dgiwarp(_)) => self.bye_received = true,
            (Notice::TokenHalf { half, bits }, Peer::Dgiwarp(_)) => {
                if let Some(known) = self.token.get_mut(usize::from(half)) {
                    *known = Some(bits);
                }
            }
            (
                Notice::Hello { .. }
                | Notice::Acknowledgement { .. }
                | Notice::Immediate(_)
                | Notice::SrqNumber(_)
                | Notice::RnrLimit(_)
                | Notice::Bye
                | Notice::TokenHalf { .. },
                Peer::Unknown | Peer::Dgiwarp(_) | Peer::Plain,
            ) => {}
        }
        true
    }

    /// Whether a zero-length Write to this STag is a notice.
    pub(super) fn is_notice(stag: STag) -> bool {
        Notice::parse(stag, TaggedOffset::new(0)).is_some()
    }

    /// A count beyond `sent`, or below an earlier one, is ignored.
    fn handle_acknowledgement(&mut self, count: u64) {
        let more = count.wrapping_sub(self.acknowledged) & LOW;
        if more <= self.sent - self.acknowledged {
            self.set_acknowledged(self.acknowledged + more);
        }
    }

    /// Decides by its first ULPDUs that an unknown peer is a plain one: a hello comes first or never.
    pub(super) fn detect_peer(&mut self, ulpdu: &[u8]) {
        if self.peer == Peer::Unknown && excludes_hello(ulpdu) {
            self.peer = Peer::Plain;
        }
    }

    /// A Send or Write of the peer was placed in full.
    pub(super) fn count_placed(&mut self) {
        self.placed += 1;
    }

    /// Sets the number of the peer's messages that wait in the RNR queue.
    pub fn set_in_rnr_queue(&mut self, messages: u64) {
        self.in_rnr_queue = messages;
    }

    /// Whether the message that begins next on queue 0 has an immediate.
    pub(super) const fn has_immediate(&self) -> bool {
        self.immediate.is_some()
    }

    /// Takes the immediate of the message that begins on queue 0.
    pub(super) fn take_immediate(&mut self) -> Option<u32> {
        self.immediate.take()
    }

    /// Takes the peer's token, once both halves have arrived, where both ends may meet on their host.
    pub fn take_token(&mut self) -> Option<u128> {
        let [Some(high), Some(low)] = self.token else {
            return None;
        };
        self.token = [None; 2];
        self.may_meet()
            .then_some(u128::from(high) << HALF_BITS | u128::from(low))
    }

    /// Takes the number of the shared receive queue that the last notice named.
    pub(super) fn take_srq_number(&mut self) -> Option<u32> {
        self.srq_number.take()
    }

    /// RNR retries of the peer's messages; [`UNLIMITED_RETRIES`] is no limit.
    #[must_use]
    pub const fn peer_rnr_retries(&self) -> u8 {
        self.peer_rnr_retries
    }

    // Transmission.

    /// Sets the RNR retries of own messages, at most [`UNLIMITED_RETRIES`].
    pub fn set_rnr_retries(&mut self, retries: u8) {
        self.rnr_retries = retries.min(UNLIMITED_RETRIES);
    }

    /// Whether the peer takes RNR limits, and has another one than ours.
    #[must_use]
    pub fn is_rnr_limit_due(&self) -> bool {
        self.rnr_retries != self.reported_rnr_retries
            && matches!(self.peer, Peer::Dgiwarp(theirs) if theirs.contain(Capabilities::TAKES_RNR_LIMITS))
    }

    /// The notice with the RNR limit, as a whole ULPDU. Only where it [is due](Self::is_rnr_limit_due).
    pub fn rnr_limit(&mut self) -> Header {
        self.reported_rnr_retries = self.rnr_retries;
        Notice::RnrLimit(self.rnr_retries).emit()
    }

    /// Adds to the capabilities of an end that has any. Before the hello.
    pub fn add_capabilities(&mut self, more: Capabilities) {
        self.ours = self.ours.map(|ours| ours.with(more));
    }

    /// Whether both ends have [`Capabilities::SAME_HOST`].
    #[must_use]
    pub fn may_meet(&self) -> bool {
        let ours = self.ours.unwrap_or_default();
        let Peer::Dgiwarp(theirs) = self.peer else {
            return false;
        };
        ours.contain(Capabilities::SAME_HOST) && theirs.contain(Capabilities::SAME_HOST)
    }

    /// The notices with a token of 120 bits, as whole ULPDUs. Only where both ends [may meet](Self::may_meet).
    #[must_use]
    pub fn token(token: u128) -> [Header; 2] {
        let [high, low] = [token >> HALF_BITS, token];
        [(0, high), (1, low)].map(|(half, bits)| {
            let bits = u64::try_from(bits & u128::from(HALF)).unwrap_or(HALF);
            Notice::TokenHalf { half, bits }.emit()
        })
    }

    /// Whether the hello is due: the Initiator's at once, the Responder's once the Initiator's has arrived.
    #[must_use]
    pub const fn is_hello_due(&self, is_initiator: bool) -> bool {
        let detected = matches!(self.peer, Peer::Dgiwarp(_));
        self.ours.is_some() && !self.hello_sent && (is_initiator || detected)
    }

    /// The hello, as a whole ULPDU; `None` for a plain end. A repeated hello does no harm.
    pub fn hello(&mut self) -> Option<Header> {
        let capabilities = self.ours?;
        self.hello_sent = true;
        Some(
            Notice::Hello {
                version: VERSION,
                capabilities,
            }
            .emit(),
        )
    }

    pub(super) fn count_sent(&mut self) {
        self.sent += 1;
    }

    /// Sends and Writes, Immediate Data messages included, that have begun to leave since the stream began.
    #[must_use]
    pub const fn sent(&self) -> u64 {
        self.sent
    }

    /// Number of them that the peer has placed for certain: the first ones, because the stream keeps their order.
    #[must_use]
    pub const fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// The peer has placed the first `count` messages for certain: by its acknowledgement, or because it answered a request behind them.
    pub fn set_acknowledged(&mut self, count: u64) {
        self.acknowledged = self.acknowledged.max(count.min(self.sent));
    }

    /// Whether the last acknowledgement request is answered: one is open at a time.
    #[must_use]
    pub const fn may_request_ack(&self) -> bool {
        self.requested <= self.acknowledged
    }

    /// Messages of the peer that were placed, of all that it sent.
    #[must_use]
    pub const fn placed(&self) -> u64 {
        self.placed
    }

    /// The peer finds the number of [placed](Self::placed) messages in shared memory from now on: only what it requests is acknowledged by notices, and
    /// what it would miss at the end.
    pub const fn report_in_memory(&mut self) {
        self.reports_in_memory = true;
    }

    /// Messages that are placed and to be acknowledged by a notice, to a peer that wants acknowledgements.
    #[must_use]
    pub fn pending_acks(&self) -> u64 {
        if self.acknowledges_in_memory() {
            return 0;
        }
        self.unacknowledged()
    }

    /// Whether messages that are placed are acknowledged in memory alone, as long as the peer [requests](Self::is_ack_requested) no notice.
    #[must_use]
    pub fn acknowledges_in_memory(&self) -> bool {
        self.reports_in_memory && self.peer_request.is_none() && self.peer_requests_acks()
    }

    /// Messages that are placed and that no notice has acknowledged, to a peer that wants acknowledgements.
    #[must_use]
    pub fn unacknowledged(&self) -> u64 {
        match self.peer {
            Peer::Dgiwarp(capabilities)
                if capabilities.contain(Capabilities::WANTS_ACKNOWLEDGEMENTS) =>
            {
                self.placed - self.reported
            }
            Peer::Dgiwarp(_) | Peer::Unknown | Peer::Plain => 0,
        }
    }

    /// Whether the peer waits for an acknowledgement.
    #[must_use]
    pub fn is_ack_awaited(&self) -> bool {
        self.pending_acks() > 0 && (self.is_ack_requested() || !self.peer_requests_acks())
    }

    /// Whether the peer requests every acknowledgement that it waits for.
    #[must_use]
    pub fn peer_requests_acks(&self) -> bool {
        matches!(self.peer, Peer::Dgiwarp(capabilities) if capabilities.contain(Capabilities::REQUESTS_ACKS))
    }

    /// Whether an acknowledgement request of the peer is open, and messages that it is about are placed.
    #[must_use]
    pub fn is_ack_requested(&self) -> bool {
        self.peer_request
            .is_some_and(|(request, at)| match request {
                AckRequest::Next => at < self.placed,
                AckRequest::All => true,
            })
    }

    /// An acknowledgement of all placed messages, as a whole ULPDU, with an acknowledgement request in return if wanted.
    pub fn acknowledge(&mut self, request: Option<AckRequest>) -> Header {
        self.peer_request = self.peer_request.filter(|(request, at)| match request {
            AckRequest::Next => *at >= self.placed,
            AckRequest::All => *at > self.placed,
        });
        self.reported = self.placed;
        match request {
            None => {}
            Some(AckRequest::Next) => self.requested = self.sent + 1,
            Some(AckRequest::All) => self.requested = self.sent,
        }
        Notice::Acknowledgement {
            count: self.placed,
            request,
        }
        .emit()
    }

    /// Whether the peer has announced its orderly end.
    #[must_use]
    pub const fn peer_sent_bye(&self) -> bool {
        self.bye_received
    }

    /// The bye, as a whole ULPDU, behind all other messages; `None` unless the peer is a dgiwarp peer.
    #[must_use]
    pub fn bye(&self) -> Option<Header> {
        matches!(self.peer, Peer::Dgiwarp(_)).then(|| Notice::Bye.emit())
    }

    /// The notice in front of a Send with an immediate, as a whole ULPDU. Only for peers with [`Capabilities::TAKES_IMMEDIATES`].
    #[must_use]
    pub fn immediate(immediate: u32) -> Header {
        Notice::Immediate(immediate).emit()
    }

    /// The notice in front of requests for another shared receive queue than the one before, as a whole ULPDU. Only for peers with
    /// [`Capabilities::XRC_TARGET`].
    #[must_use]
    pub fn srq_number(number: u32) -> Header {
        Notice::SrqNumber(number).emit()
    }

    /// Whether the peer is an XRC target.
    #[must_use]
    pub fn peer_is_xrc_target(&self) -> bool {
        matches!(self.peer, Peer::Dgiwarp(capabilities) if capabilities.contain(Capabilities::XRC_TARGET))
    }
}

/// Whether no hello can follow a ULPDU: it is neither an RTR indication nor the answer to one.
fn excludes_hello(ulpdu: &[u8]) -> bool {
    let Some(first) = ulpdu.first() else {
        return true;
    };
    if Control::parse(*first).tagged {
        return TaggedHeader::parse(ulpdu).is_ok_and(|(_, payload)| !payload.is_empty());
    }
    let Ok((header, payload)) = UntaggedHeader::parse(ulpdu) else {
        return true;
    };
    match header.queue_number {
        QueueNumber::READ_REQUEST => {
            !ReadRequest::parse(payload).is_ok_and(|(request, _)| request.size == 0)
        }
        // The stream may end before a hello.
        QueueNumber::TERMINATE => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests;

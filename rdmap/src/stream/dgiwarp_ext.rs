//! Extensions between two dgiwarp peers beyond the RFCs: hello, acknowledgements, immediates of Sends, bye. The specification is
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
    bye_received: bool,
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
            bye_received: false,
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

    // Transmission.

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

    /// Messages that are placed and not acknowledged, to a peer that wants acknowledgements.
    #[must_use]
    pub fn pending_acks(&self) -> u64 {
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
mod tests {
    use super::*;

    fn arrives(end: &mut DgiwarpExt, header: &Header) -> bool {
        let header: [u8; 14] = header[..].try_into().unwrap();
        let (parsed, rest) = TaggedHeader::parse(&header).unwrap();
        assert!(rest.is_empty());
        end.handle_notice(parsed.stag, parsed.tagged_offset)
    }

    const WANTS: Capabilities = Capabilities::WANTS_ACKNOWLEDGEMENTS;

    /// rfc-notes/rc-extensions.md, the examples there.
    #[test]
    fn notices_look_as_specified() {
        let both = WANTS.with(Capabilities::TAKES_IMMEDIATES);
        let mut end = DgiwarpExt::new(Some(both.with(Capabilities::REQUESTS_ACKS)));
        let hello = end.hello().unwrap();
        assert_eq!(hello[..], *b"\xc1\x40DGiW\x00\x01\x00\x00\x00\x00\x00\x07");
        end.count_sent();
        end.count_placed();
        end.count_placed();
        assert_eq!(
            end.acknowledge(None)[..],
            *b"\xc1\x40DGiA\0\0\0\0\0\0\0\x02"
        );
        assert_eq!(
            end.acknowledge(Some(AckRequest::Next))[..],
            *b"\xc1\x40DGiA\x80\0\0\0\0\0\0\x02"
        );
        let all = end.acknowledge(Some(AckRequest::All));
        assert_eq!(all[..], *b"\xc1\x40DGiA\x40\0\0\0\0\0\0\x02");
        let immediate = DgiwarpExt::immediate(0x0102_0304);
        assert_eq!(immediate[..], *b"\xc1\x40DGiI\0\0\0\0\x01\x02\x03\x04");
    }

    #[test]
    fn capabilities_are_sets() {
        let all = [
            WANTS,
            Capabilities::TAKES_IMMEDIATES,
            Capabilities::REQUESTS_ACKS,
        ];
        for one in all {
            for other in all {
                assert_eq!(one.contain(other), one == other);
                assert!(one.with(other).contain(one) && one.with(other).contain(other));
            }
        }
        // The last two share no bit with the first.
        let two = all[1].with(all[2]);
        assert!(!two.contain(WANTS) && !two.contain(WANTS.with(all[1])));
        assert_eq!(two.with(two), two);
    }

    /// Neither RTR indications nor their answers decide about the peer.
    #[test]
    fn only_other_messages_exclude_a_hello() {
        let tagged = |opcode| tagged_header(opcode, STag::new(1), TaggedOffset::new(0), true);
        let read = |size| {
            let request = ReadRequest {
                sink_stag: STag::new(1),
                sink_offset: TaggedOffset::new(0),
                size,
                source_stag: STag::new(2),
                source_offset: TaggedOffset::new(0),
            };
            let ulpdu: Vec<u8> = untagged(Opcode::ReadRequest, &request.emit());
            ulpdu
        };
        let with_octet = |header: Header| [&header[..], &[0]].concat();
        for (ulpdu, excludes) in [
            (tagged(Opcode::Write).to_vec(), false),
            (with_octet(tagged(Opcode::Write)), true),
            (tagged(Opcode::ReadResponse).to_vec(), false),
            (with_octet(tagged(Opcode::ReadResponse)), true),
            (read(0), false),
            (read(1), true),
            (read(0)[..40].to_vec(), true),
            (untagged(Opcode::Terminate, &[]), false),
            (untagged(Opcode::Send, &[]), true),
            (untagged(Opcode::AtomicResponse, &[]), true),
            (vec![], true),
            (vec![0x41], true),
            (vec![0xc1], false),
        ] {
            let mut end = DgiwarpExt::new(Some(WANTS));
            end.detect_peer(&ulpdu);
            assert_eq!(end.peer() == Peer::Plain, excludes, "{ulpdu:x?}");
            let mut end = with_dgiwarp_peer();
            end.detect_peer(&ulpdu);
            assert_eq!(end.peer(), Peer::Dgiwarp(WANTS), "decided");
        }
    }

    fn untagged(opcode: Opcode, body: &[u8]) -> Vec<u8> {
        let ulpdu: arrayvec::ArrayVec<u8, 64> =
            super::super::message::short(opcode, dgiwarp_ddp::Msn::FIRST, body);
        ulpdu.to_vec()
    }

    #[test]
    fn the_stags_of_notices_are_reserved() {
        for (name, reserved) in [
            (b"DGiW", true),
            (b"DGiA", true),
            (b"DGiI", true),
            (b"DGiB", true),
            (b"DGiC", false),
        ] {
            let stag = STag::new(u32::from_be_bytes(*name));
            assert_eq!(DgiwarpExt::is_notice(stag), reserved);
            let mut end = with_dgiwarp_peer();
            assert_eq!(end.handle_notice(stag, TaggedOffset::new(0)), reserved);
        }
    }

    #[test]
    fn an_immediate_is_taken_once_and_from_dgiwarp_peers_alone() {
        let mut end = with_dgiwarp_peer();
        end.handle_notice(IMMEDIATE, TaggedOffset::new(0xffff_ffff_0102_0304));
        assert_eq!(end.take_immediate(), Some(0x0102_0304));
        assert_eq!(end.take_immediate(), None);
        let mut unknown = DgiwarpExt::new(Some(WANTS));
        unknown.handle_notice(IMMEDIATE, TaggedOffset::new(1));
        unknown.handle_notice(BYE, TaggedOffset::new(0));
        assert_eq!(unknown.take_immediate(), None);
        assert!(!unknown.peer_sent_bye() && !end.peer_sent_bye());
    }

    #[test]
    fn an_end_without_capabilities_is_owed_nothing() {
        for (capabilities, pending) in [(Capabilities::TAKES_IMMEDIATES, 0), (WANTS, 2)] {
            let mut end = DgiwarpExt::new(Some(WANTS));
            end.handle_notice(HELLO, TaggedOffset::new(1 << 48 | capabilities.0));
            assert_eq!(end.peer(), Peer::Dgiwarp(capabilities));
            assert!(!end.peer_requests_acks() && !end.is_ack_awaited());
            end.count_placed();
            end.acknowledge(None);
            end.count_placed();
            end.count_placed();
            assert_eq!(end.pending_acks(), pending);
            assert_eq!(end.is_ack_awaited(), pending > 0);
        }
        let mut end = DgiwarpExt::new(Some(WANTS));
        let requests = WANTS.with(Capabilities::REQUESTS_ACKS);
        end.handle_notice(HELLO, TaggedOffset::new(1 << 48 | requests.0));
        assert!(end.peer_requests_acks());
        // A request about all is open although nothing is pending, and answered nevertheless.
        end.handle_notice(ACKNOWLEDGEMENT, TaggedOffset::new(REQUESTS_ALL));
        assert!(end.is_ack_requested() && !end.is_ack_awaited());
        end.count_placed();
        assert!(end.is_ack_awaited());
    }

    #[test]
    fn hellos_go_both_ways_and_come_first() {
        let (mut client, mut server) = (DgiwarpExt::new(Some(WANTS)), DgiwarpExt::new(Some(WANTS)));
        assert!(client.is_hello_due(true) && !server.is_hello_due(false));
        let hello = client.hello().unwrap();
        assert!(!client.is_hello_due(true));
        assert!(arrives(&mut server, &hello));
        assert_eq!(server.peer(), Peer::Dgiwarp(WANTS));
        assert!(server.is_hello_due(false));
        let answer = server.hello().unwrap();
        client.detect_peer(&[0x41]);
        assert_eq!(client.peer(), Peer::Plain);
        assert!(arrives(&mut client, &answer));
        assert_eq!(client.peer(), Peer::Plain, "too late");
    }

    #[test]
    fn a_plain_end_takes_no_notice() {
        let mut plain = DgiwarpExt::new(None);
        assert_eq!((plain.hello(), plain.peer()), (None, Peer::Plain));
        let hello = DgiwarpExt::new(Some(WANTS)).hello().unwrap();
        assert!(!arrives(&mut plain, &hello));
        assert_eq!((plain.pending_acks(), plain.peer()), (0, Peer::Plain));
    }

    #[test]
    fn an_unknown_version_is_no_hello() {
        let mut end = DgiwarpExt::new(Some(WANTS));
        assert!(end.handle_notice(HELLO, TaggedOffset::new(2 << 48)));
        assert_eq!(end.peer(), Peer::Unknown);
        end.detect_peer(&[0x41]);
        assert_eq!(end.peer(), Peer::Plain);
    }

    fn with_dgiwarp_peer() -> DgiwarpExt {
        let mut end = DgiwarpExt::new(Some(WANTS));
        end.handle_notice(HELLO, TaggedOffset::new(1 << 48 | WANTS.0));
        end
    }

    #[test]
    fn a_bye_is_for_dgiwarp_peers() {
        let unknown = DgiwarpExt::new(Some(WANTS));
        assert_eq!(unknown.bye(), None);
        let (leaving, mut staying) = (with_dgiwarp_peer(), with_dgiwarp_peer());
        let bye = leaving.bye().unwrap();
        assert_eq!(bye[..], *b"\xc1\x40DGiB\0\0\0\0\0\0\0\0");
        assert!(arrives(&mut staying, &bye) && staying.peer_sent_bye());
    }

    #[test]
    fn counts_go_forward_only_and_no_further_than_what_was_sent() {
        let mut end = with_dgiwarp_peer();
        for _ in 0..5 {
            end.count_sent();
        }
        for (count, expected) in [(3, 3), (2, 3), (6, 3), (LOW, 3), (5, 5), (0, 5)] {
            assert!(end.handle_notice(ACKNOWLEDGEMENT, TaggedOffset::new(count)));
            assert_eq!(end.acknowledged(), expected, "{count}");
        }
        // 48 bits of the count travel.
        let mut end = with_dgiwarp_peer();
        end.sent = LOW + 3;
        end.acknowledged = LOW;
        end.handle_notice(ACKNOWLEDGEMENT, TaggedOffset::new(1));
        assert_eq!(end.acknowledged(), LOW + 2);
    }

    #[test]
    fn one_request_is_open_at_a_time() {
        let mut end = with_dgiwarp_peer();
        assert!(end.may_request_ack());
        end.acknowledge(Some(AckRequest::Next));
        end.count_sent();
        end.count_sent();
        assert!(!end.may_request_ack(), "a request is open");
        end.set_acknowledged(1);
        assert!(end.may_request_ack());
        end.acknowledge(Some(AckRequest::Next));
        end.set_acknowledged(2);
        assert!(!end.may_request_ack(), "the request is about the next one");
        end.count_sent();
        end.set_acknowledged(3);
        assert!(end.may_request_ack());
        end.count_sent();
        end.acknowledge(Some(AckRequest::All));
        assert!(!end.may_request_ack());
        end.set_acknowledged(4);
        assert!(end.may_request_ack());
    }

    #[test]
    fn what_set_acknowledged_is_owed_until_it_is_told() {
        let mut end = with_dgiwarp_peer();
        end.count_placed();
        assert_eq!((end.pending_acks(), end.is_ack_requested()), (1, false));
        end.handle_notice(ACKNOWLEDGEMENT, TaggedOffset::new(REQUESTS_NEXT));
        assert!(!end.is_ack_requested(), "the request is about the next one");
        end.acknowledge(None);
        assert_eq!(end.pending_acks(), 0);
        end.count_placed();
        assert_eq!((end.pending_acks(), end.is_ack_requested()), (1, true));
        end.acknowledge(None);
        assert_eq!((end.pending_acks(), end.is_ack_requested()), (0, false));
    }

    #[test]
    fn a_request_is_about_all_that_arrived_even_in_the_rnr_queue() {
        for (bit, open_for) in [(REQUESTS_ALL, 3), (REQUESTS_NEXT, 4)] {
            let mut end = with_dgiwarp_peer();
            end.count_placed();
            end.set_in_rnr_queue(2);
            end.handle_notice(ACKNOWLEDGEMENT, TaggedOffset::new(bit));
            end.acknowledge(None);
            // Two that wait, the next one, and another one.
            for placed in 2..=5 {
                end.count_placed();
                let requested = end.is_ack_requested();
                let expected = match bit {
                    REQUESTS_ALL => placed <= open_for,
                    _ => placed == open_for,
                };
                assert_eq!(requested, expected, "{placed}");
                end.acknowledge(None);
            }
        }
    }

    #[test]
    fn a_peer_that_requests_waits_for_no_other_acknowledgement() {
        let mut end = DgiwarpExt::new(Some(WANTS));
        let request = WANTS.with(Capabilities::REQUESTS_ACKS);
        end.handle_notice(HELLO, TaggedOffset::new(1 << 48 | request.0));
        end.count_placed();
        assert_eq!((end.pending_acks(), end.is_ack_awaited()), (1, false));
        let mut end = with_dgiwarp_peer();
        end.count_placed();
        assert_eq!((end.pending_acks(), end.is_ack_awaited()), (1, true));
    }

    /// The example of rfc-notes/same-host.md: both halves, in any order, and only where both ends have the capability.
    #[test]
    fn a_token_has_two_halves() {
        const DGIWARP_TOKEN: u128 = 0x0012_3456_789a_bcde_fedc_ba98_7654_3210;
        let notices = DgiwarpExt::token(DGIWARP_TOKEN);
        let specification = include_str!("../../../rfc-notes/same-host.md");
        let mut end = DgiwarpExt::new(Some(WANTS));
        end.add_capabilities(Capabilities::SAME_HOST);
        let theirs = WANTS.with(Capabilities::SAME_HOST);
        let hello = |capabilities: Capabilities| TaggedOffset::new(1 << 48 | capabilities.0);
        end.handle_notice(HELLO, hello(theirs));
        assert!(end.may_meet());
        let mut plain = DgiwarpExt::new(Some(WANTS));
        plain.handle_notice(HELLO, hello(theirs));
        assert!(!plain.may_meet());
        for (notice, at) in notices.iter().zip([0, 1]).rev() {
            let (header, _) = TaggedHeader::parse(notice).unwrap();
            let digits = format!("{:016x}", header.tagged_offset.get());
            let line = format!("c1 40  44 47 69 48  {} {}", &digits[..1], &digits[1..]);
            assert!(specification.contains(&line), "{line}");
            assert_eq!(end.take_token(), None, "half {at} is missing");
            assert!(end.handle_notice(header.stag, header.tagged_offset));
            assert!(plain.handle_notice(header.stag, header.tagged_offset));
        }
        assert_eq!(end.take_token(), Some(DGIWARP_TOKEN));
        assert_eq!((end.take_token(), plain.take_token()), (None, None));
        // Another half has no meaning.
        assert!(end.handle_notice(TOKEN, TaggedOffset::new(u64::MAX)));
        assert_eq!(end.take_token(), None);
    }
}

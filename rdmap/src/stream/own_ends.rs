//! What two ends of this kind tell each other beyond the RFCs: who they are, how much was placed, the immediate of a Send. The
//! specification is `rfc-notes/rc-extensions.md`.
//!
//! All of it travels as zero-length RDMA Writes, of which nobody may look at STag and TO (RFC 5041 §5.2): to any other peer they are
//! nothing. Apart from the greeting, nothing is said before the peer's greeting was heard.

use dgiwarp_ddp::wire::{Control, TaggedHeader, UntaggedHeader};
use dgiwarp_ddp::{QueueNumber, STag, TaggedOffset};

use super::message::{Header, tagged_header};
use crate::wire::{Opcode, ReadRequest};

/// The version of these extensions that is spoken here.
pub const VERSION: u16 = 1;

/// STags of the notices: four ASCII letters.
const HELLO: STag = STag::new(u32::from_be_bytes(*b"DGiW"));
const ACKNOWLEDGEMENT: STag = STag::new(u32::from_be_bytes(*b"DGiA"));
const IMMEDIATE: STag = STag::new(u32::from_be_bytes(*b"DGiI"));
const FAREWELL: STag = STag::new(u32::from_be_bytes(*b"DGiB"));

/// The low 48 bits of a TO: capabilities, or a count of messages.
const LOW: u64 = (1 << 48) - 1;
/// Of an acknowledgement: the sender wants one back, of what comes next.
const ASKS_OF_NEXT: u64 = 1 << 63;
/// The same, of all that has come.
const ASKS_OF_ALL: u64 = 1 << 62;

/// What an end can do or wants, 48 bits. Unknown ones are ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capabilities(u64);

impl Capabilities {
    /// It wants to be told what was placed of what it sends.
    pub const WANTS_ACKNOWLEDGEMENTS: Self = Self(1);
    /// It takes the immediate of a Send.
    pub const TAKES_IMMEDIATES: Self = Self(2);
    /// It asks for every acknowledgement that it waits for, and answers questions of all that has come.
    pub const ASKS: Self = Self(4);

    /// Both.
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

/// What the peer is to tell of, once it is placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// The next Send or Write.
    Next,
    /// All that has come. Only for a peer that [asks](Capabilities::ASKS) itself.
    All,
}

/// What one zero-length Write says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Notice {
    /// An end of this kind speaks.
    Hello {
        version: u16,
        capabilities: Capabilities,
    },
    /// So many Sends and Writes were placed since the connection began, modulo 2^48; and maybe the peer is to tell the same.
    Placed { count: u64, asks: Option<Question> },
    /// The next Send carries this immediate.
    Immediate(u32),
    /// Nothing comes any more, and that is in order.
    Farewell,
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
            ACKNOWLEDGEMENT => Some(Self::Placed {
                count: offset & LOW,
                asks: match offset {
                    _ if offset & ASKS_OF_ALL != 0 => Some(Question::All),
                    _ if offset & ASKS_OF_NEXT != 0 => Some(Question::Next),
                    _ => None,
                },
            }),
            IMMEDIATE => Some(Self::Immediate(u32::from_be_bytes([a, b, c, d]))),
            FAREWELL => Some(Self::Farewell),
            _ => None,
        }
    }

    fn emit(self) -> Header {
        let (stag, offset) = match self {
            Self::Hello {
                version,
                capabilities,
            } => (HELLO, u64::from(version) << 48 | capabilities.0),
            Self::Placed { count, asks } => {
                let question = match asks {
                    None => 0,
                    Some(Question::Next) => ASKS_OF_NEXT,
                    Some(Question::All) => ASKS_OF_ALL,
                };
                (ACKNOWLEDGEMENT, count & LOW | question)
            }
            Self::Immediate(immediate) => (IMMEDIATE, immediate.into()),
            Self::Farewell => (FAREWELL, 0),
        };
        tagged_header(Opcode::Write, stag, TaggedOffset::new(offset), true)
    }
}

/// Who the peer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// It has not said anything that tells.
    Unknown,
    /// It speaks these extensions.
    Own(Capabilities),
    /// It does not.
    Foreign,
}

/// What one end of a stream knows and owes beyond the RFCs.
#[derive(Debug)]
pub struct OwnEnds {
    /// What is told the peer; `None` keeps quiet and understands nothing.
    ours: Option<Capabilities>,
    peer: Peer,
    greeted: bool,
    /// Sends and Writes of ours that have begun to leave.
    sent: u64,
    /// How many of them the peer has placed for certain.
    acknowledged: u64,
    /// How many are acknowledged once the peer has answered the last question.
    asking: u64,
    /// Sends and Writes of the peer that were placed.
    placed: u64,
    /// What the peer was told last of it.
    told: u64,
    /// Others that have come and wait for a receive.
    waiting: u64,
    /// What the peer has asked to be told, and how many had come then.
    asked: Option<(Question, u64)>,
    /// The immediate of the next Send.
    immediate: Option<u32>,
    /// The peer has said that it leaves.
    has_left: bool,
}

impl OwnEnds {
    /// The beginning. `ours` is what this end tells of itself, if it speaks the extensions at all.
    #[must_use]
    pub fn new(ours: Option<Capabilities>) -> Self {
        Self {
            ours,
            peer: if ours.is_some() {
                Peer::Unknown
            } else {
                Peer::Foreign
            },
            greeted: false,
            sent: 0,
            acknowledged: 0,
            asking: 0,
            placed: 0,
            told: 0,
            waiting: 0,
            asked: None,
            immediate: None,
            has_left: false,
        }
    }

    /// Who the peer is.
    #[must_use]
    pub const fn peer(&self) -> Peer {
        self.peer
    }

    // What arrives.

    /// A zero-length Write. Returns whether it was a notice, and no message of the program.
    pub(super) fn hear(&mut self, stag: STag, tagged_offset: TaggedOffset) -> bool {
        if self.ours.is_none() {
            return false;
        }
        let Some(notice) = Notice::parse(stag, tagged_offset) else {
            return false;
        };
        match (notice, self.peer) {
            // The greeting comes before all else or not at all: else it is none.
            (
                Notice::Hello {
                    version: VERSION,
                    capabilities,
                },
                Peer::Unknown,
            ) => self.peer = Peer::Own(capabilities),
            (Notice::Placed { count, asks }, Peer::Own(_)) => {
                self.hear_placed(count);
                if let Some(question) = asks {
                    self.asked = Some((question, self.placed + self.waiting));
                }
            }
            (Notice::Immediate(immediate), Peer::Own(_)) => self.immediate = Some(immediate),
            (Notice::Farewell, Peer::Own(_)) => self.has_left = true,
            (
                Notice::Hello { .. }
                | Notice::Placed { .. }
                | Notice::Immediate(_)
                | Notice::Farewell,
                Peer::Unknown | Peer::Own(_) | Peer::Foreign,
            ) => {}
        }
        true
    }

    /// Whether a zero-length Write to this STag is taken for a notice.
    pub(super) fn is_notice(stag: STag) -> bool {
        Notice::parse(stag, TaggedOffset::new(0)).is_some()
    }

    /// A count of more than was sent, or of less than was told before, means nothing.
    fn hear_placed(&mut self, count: u64) {
        let more = count.wrapping_sub(self.acknowledged) & LOW;
        if more <= self.sent - self.acknowledged {
            self.was_placed(self.acknowledged + more);
        }
    }

    /// Finds out from what an unknown peer says who it is: behind its greeting it is too late for one.
    pub(super) fn meet(&mut self, ulpdu: &[u8]) {
        if self.peer == Peer::Unknown && tells_another(ulpdu) {
            self.peer = Peer::Foreign;
        }
    }

    /// A Send or Write was placed in full.
    pub(super) fn count_placed(&mut self) {
        self.placed += 1;
    }

    /// So many Sends and Writes of the peer have come and wait for a receive.
    pub fn note_waiting(&mut self, waiting: u64) {
        self.waiting = waiting;
    }

    /// The immediate of the message that begins on queue 0.
    pub(super) fn take_immediate(&mut self) -> Option<u32> {
        self.immediate.take()
    }

    // What leaves.

    /// Whether the greeting is due: an Initiator's is at once, a Responder answers the Initiator's.
    #[must_use]
    pub const fn owes_hello(&self, is_initiator: bool) -> bool {
        let heard = matches!(self.peer, Peer::Own(_));
        self.ours.is_some() && !self.greeted && (is_initiator || heard)
    }

    /// The greeting, as a whole ULPDU; `None` for an end that keeps quiet. Said again it does no harm.
    pub fn hello(&mut self) -> Option<Header> {
        let capabilities = self.ours?;
        self.greeted = true;
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

    /// How many of them the peer has placed for certain: in order, so that these are the first ones.
    #[must_use]
    pub const fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// The peer has placed the first `count` of them for certain: it said so, or answered a request that came behind them.
    pub fn was_placed(&mut self, count: u64) {
        self.acknowledged = self.acknowledged.max(count.min(self.sent));
    }

    /// Whether the peer has answered all questions: one is asked at a time.
    #[must_use]
    pub const fn may_ask(&self) -> bool {
        self.asking <= self.acknowledged
    }

    /// Messages of the peer that it wants to know placed and was not told of.
    #[must_use]
    pub fn owed(&self) -> u64 {
        match self.peer {
            Peer::Own(capabilities)
                if capabilities.contain(Capabilities::WANTS_ACKNOWLEDGEMENTS) =>
            {
                self.placed - self.told
            }
            Peer::Own(_) | Peer::Unknown | Peer::Foreign => 0,
        }
    }

    /// Whether the peer waits to be told what was placed.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.owed() > 0 && (self.is_asked() || !self.peer_asks())
    }

    /// Whether the peer asks for every acknowledgement that it waits for.
    #[must_use]
    pub fn peer_asks(&self) -> bool {
        matches!(self.peer, Peer::Own(capabilities) if capabilities.contain(Capabilities::ASKS))
    }

    /// Whether the peer has asked, and what it asked about is placed.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.asked.is_some_and(|(question, at)| match question {
            Question::Next => at < self.placed,
            Question::All => true,
        })
    }

    /// An acknowledgement of what was placed, as a whole ULPDU, which may ask for one in turn.
    pub fn placed(&mut self, asks: Option<Question>) -> Header {
        self.asked = self.asked.filter(|(question, at)| match question {
            Question::Next => *at >= self.placed,
            Question::All => *at > self.placed,
        });
        self.told = self.placed;
        match asks {
            None => {}
            Some(Question::Next) => self.asking = self.sent + 1,
            Some(Question::All) => self.asking = self.sent,
        }
        Notice::Placed {
            count: self.placed,
            asks,
        }
        .emit()
    }

    /// Whether the peer has said that it leaves in order.
    #[must_use]
    pub const fn peer_has_left(&self) -> bool {
        self.has_left
    }

    /// That we leave in order, as a whole ULPDU: the last one, for a peer of our kind. `None` for any other.
    #[must_use]
    pub fn farewell(&self) -> Option<Header> {
        matches!(self.peer, Peer::Own(_)).then(|| Notice::Farewell.emit())
    }

    /// What goes before a Send with an immediate, as a whole ULPDU. Only for peers that take it.
    #[must_use]
    pub fn immediate(immediate: u32) -> Header {
        Notice::Immediate(immediate).emit()
    }
}

/// Whether a ULPDU is one that an end of this kind sends only behind its greeting: not another RTR indication, nor the answer to one.
fn tells_another(ulpdu: &[u8]) -> bool {
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
        // The stream may end before there was a greeting.
        QueueNumber::TERMINATE => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(end: &mut OwnEnds, header: &Header) -> bool {
        let header: [u8; 14] = header[..].try_into().unwrap();
        let (parsed, rest) = TaggedHeader::parse(&header).unwrap();
        assert!(rest.is_empty());
        end.hear(parsed.stag, parsed.tagged_offset)
    }

    const WANTS: Capabilities = Capabilities::WANTS_ACKNOWLEDGEMENTS;

    /// rfc-notes/rc-extensions.md, the examples there.
    #[test]
    fn notices_look_as_specified() {
        let both = WANTS.with(Capabilities::TAKES_IMMEDIATES);
        let mut end = OwnEnds::new(Some(both.with(Capabilities::ASKS)));
        let hello = end.hello().unwrap();
        assert_eq!(hello[..], *b"\xc1\x40DGiW\x00\x01\x00\x00\x00\x00\x00\x07");
        end.count_sent();
        end.count_placed();
        end.count_placed();
        assert_eq!(end.placed(None)[..], *b"\xc1\x40DGiA\0\0\0\0\0\0\0\x02");
        assert_eq!(
            end.placed(Some(Question::Next))[..],
            *b"\xc1\x40DGiA\x80\0\0\0\0\0\0\x02"
        );
        let all = end.placed(Some(Question::All));
        assert_eq!(all[..], *b"\xc1\x40DGiA\x40\0\0\0\0\0\0\x02");
        let immediate = OwnEnds::immediate(0x0102_0304);
        assert_eq!(immediate[..], *b"\xc1\x40DGiI\0\0\0\0\x01\x02\x03\x04");
    }

    #[test]
    fn greetings_go_both_ways_and_come_first() {
        let (mut client, mut server) = (OwnEnds::new(Some(WANTS)), OwnEnds::new(Some(WANTS)));
        assert!(client.owes_hello(true) && !server.owes_hello(false));
        let hello = client.hello().unwrap();
        assert!(!client.owes_hello(true));
        assert!(heard(&mut server, &hello));
        assert_eq!(server.peer(), Peer::Own(WANTS));
        assert!(server.owes_hello(false));
        let answer = server.hello().unwrap();
        client.meet(&[0x41]);
        assert_eq!(client.peer(), Peer::Foreign);
        assert!(heard(&mut client, &answer));
        assert_eq!(client.peer(), Peer::Foreign, "too late");
    }

    #[test]
    fn who_keeps_quiet_understands_nothing() {
        let mut quiet = OwnEnds::new(None);
        assert_eq!((quiet.hello(), quiet.peer()), (None, Peer::Foreign));
        let hello = OwnEnds::new(Some(WANTS)).hello().unwrap();
        assert!(!heard(&mut quiet, &hello));
        assert_eq!((quiet.owed(), quiet.peer()), (0, Peer::Foreign));
    }

    #[test]
    fn another_version_is_foreign_once_it_speaks() {
        let mut end = OwnEnds::new(Some(WANTS));
        assert!(end.hear(HELLO, TaggedOffset::new(2 << 48)));
        assert_eq!(end.peer(), Peer::Unknown);
        end.meet(&[0x41]);
        assert_eq!(end.peer(), Peer::Foreign);
    }

    fn acquainted() -> OwnEnds {
        let mut end = OwnEnds::new(Some(WANTS));
        end.hear(HELLO, TaggedOffset::new(1 << 48 | WANTS.0));
        end
    }

    #[test]
    fn a_farewell_is_for_acquaintances() {
        let stranger = OwnEnds::new(Some(WANTS));
        assert_eq!(stranger.farewell(), None);
        let (leaving, mut staying) = (acquainted(), acquainted());
        let farewell = leaving.farewell().unwrap();
        assert_eq!(farewell[..], *b"\xc1\x40DGiB\0\0\0\0\0\0\0\0");
        assert!(heard(&mut staying, &farewell) && staying.peer_has_left());
    }

    #[test]
    fn counts_go_forward_only_and_no_further_than_what_was_sent() {
        let mut end = acquainted();
        for _ in 0..5 {
            end.count_sent();
        }
        for (count, expected) in [(3, 3), (2, 3), (6, 3), (LOW, 3), (5, 5), (0, 5)] {
            assert!(end.hear(ACKNOWLEDGEMENT, TaggedOffset::new(count)));
            assert_eq!(end.acknowledged(), expected, "{count}");
        }
        // 48 bits of the count travel.
        let mut end = acquainted();
        end.sent = LOW + 3;
        end.acknowledged = LOW;
        end.hear(ACKNOWLEDGEMENT, TaggedOffset::new(1));
        assert_eq!(end.acknowledged(), LOW + 2);
    }

    #[test]
    fn one_question_at_a_time() {
        let mut end = acquainted();
        assert!(end.may_ask());
        end.placed(Some(Question::Next));
        end.count_sent();
        end.count_sent();
        assert!(!end.may_ask(), "it was asked");
        end.was_placed(1);
        assert!(end.may_ask());
        end.placed(Some(Question::Next));
        end.was_placed(2);
        assert!(!end.may_ask(), "it was asked about the next one");
        end.count_sent();
        end.was_placed(3);
        assert!(end.may_ask());
        end.count_sent();
        end.placed(Some(Question::All));
        assert!(!end.may_ask());
        end.was_placed(4);
        assert!(end.may_ask());
    }

    #[test]
    fn what_was_placed_is_owed_until_it_is_told() {
        let mut end = acquainted();
        end.count_placed();
        assert_eq!((end.owed(), end.is_asked()), (1, false));
        end.hear(ACKNOWLEDGEMENT, TaggedOffset::new(ASKS_OF_NEXT));
        assert!(!end.is_asked(), "the question is about the next one");
        end.placed(None);
        assert_eq!(end.owed(), 0);
        end.count_placed();
        assert_eq!((end.owed(), end.is_asked()), (1, true));
        end.placed(None);
        assert_eq!((end.owed(), end.is_asked()), (0, false));
    }

    #[test]
    fn a_question_is_about_what_had_come_even_if_it_waits_for_a_receive() {
        for (bit, open_for) in [(ASKS_OF_ALL, 3), (ASKS_OF_NEXT, 4)] {
            let mut end = acquainted();
            end.count_placed();
            end.note_waiting(2);
            end.hear(ACKNOWLEDGEMENT, TaggedOffset::new(bit));
            end.placed(None);
            // Two that wait, the next one, and another one.
            for placed in 2..=5 {
                end.count_placed();
                let asked = end.is_asked();
                let expected = match bit {
                    ASKS_OF_ALL => placed <= open_for,
                    _ => placed == open_for,
                };
                assert_eq!(asked, expected, "{placed}");
                end.placed(None);
            }
        }
    }

    #[test]
    fn who_asks_waits_for_nothing_that_it_did_not_ask_about() {
        let mut end = OwnEnds::new(Some(WANTS));
        let asks = WANTS.with(Capabilities::ASKS);
        end.hear(HELLO, TaggedOffset::new(1 << 48 | asks.0));
        end.count_placed();
        assert_eq!((end.owed(), end.is_awaited()), (1, false));
        let mut end = acquainted();
        end.count_placed();
        assert_eq!((end.owed(), end.is_awaited()), (1, true));
    }
}

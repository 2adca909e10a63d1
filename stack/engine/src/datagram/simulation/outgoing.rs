//! Output of a QP: each datagram is checked against the message whose turn it is, and given to the network.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use dgiwarp_llp_udp::{Peer, Train};
use dgiwarp_memory::Piece as Octets;
use dgiwarp_sim::{Address, Network, Rng};
use rand::RngExt as _;

use super::ledger::{
    self, Flaw, Kind, Ledger, Message, MessageId, Piece, Role, SentAs, socket_addr,
};
use super::reads;
use crate::datagram::{SendOutcome, TransmitSink};
use crate::types::{Route, WcStatus};

/// UDP and IPv4 headers, which an MTU of a route counts and one of a link here does not.
const IP_HEADERS: usize = 28;
const ENETUNREACH: i32 = 101;
/// Datagrams, so messages.
const MOST_OF_A_TRAIN: u32 = 64;
const CRC: usize = 4;

/// How often a socket does not take what it is given.
#[derive(Debug, Clone, Copy)]
pub(super) struct Refusals {
    /// Its buffer is full.
    pub(super) full: f64,
    /// The network cannot reach the peer.
    pub(super) unreachable: f64,
}

/// The messages that a QP was given, in order, and how far they are.
#[derive(Debug)]
pub(super) struct Outgoing {
    epoch: u32,
    /// The Q_Keys that messages were posted with.
    qkeys: HashMap<MessageId, u32>,
    /// Posted and not yet retired. Messages before `cursor` have left entirely or were refused.
    posted: VecDeque<MessageId>,
    cursor: usize,
    /// Octets of the message at the cursor that have left, once something has.
    left: Option<u32>,
    /// Messages that the network refused.
    refused: Vec<MessageId>,
    last_number: HashMap<Address, u32>,
    used_numbers: HashSet<(Address, u32)>,
    last_msn: Option<u32>,
    /// Messages that may have taken a number and never left.
    skipped: u32,
    pub(super) segments: u64,
}

impl Outgoing {
    pub(super) fn new(epoch: u32) -> Self {
        Self {
            epoch,
            qkeys: HashMap::new(),
            posted: VecDeque::new(),
            cursor: 0,
            left: None,
            refused: Vec::new(),
            last_number: HashMap::new(),
            used_numbers: HashSet::new(),
            last_msn: None,
            skipped: 0,
            segments: 0,
        }
    }

    pub(super) fn post(&mut self, message: MessageId, qkey: u32) {
        self.posted.push_back(message);
        self.qkeys.insert(message, qkey);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.posted.is_empty()
    }

    /// The message whose turn it is.
    fn current(&mut self, ledger: &Ledger) -> MessageId {
        loop {
            let id = self.posted[self.cursor];
            if !never_leaves(&ledger.messages[id]) {
                return id;
            }
            self.skipped += 1;
            self.cursor += 1;
        }
    }

    fn finish_current(&mut self) {
        self.cursor += 1;
        self.left = None;
    }

    /// The engine completed `count` messages: checks which, and the status of each.
    pub(super) fn retire(&mut self, count: usize, ledger: &Ledger) -> Vec<(MessageId, WcStatus)> {
        let done: Vec<_> = self.posted.drain(..count).collect();
        let mut skipped = 0;
        let statuses = done.into_iter().enumerate().map(|(position, id)| {
            let status = if never_leaves(&ledger.messages[id]) {
                skipped += u32::from(position >= self.cursor);
                WcStatus::LocalProtection
            } else if self.refused.contains(&id) {
                WcStatus::General
            } else {
                assert!(
                    position < self.cursor,
                    "message {id} is done before it left"
                );
                WcStatus::Success
            };
            (id, status)
        });
        let done = statuses.collect();
        self.skipped += skipped;
        self.cursor = self.cursor.saturating_sub(count);
        done
    }

    /// The QP is closed: all that is left must be flushed.
    pub(super) fn flush(&mut self) -> Vec<MessageId> {
        self.cursor = 0;
        self.left = None;
        self.posted.drain(..).collect()
    }

    /// Checks a datagram and returns what it carries.
    fn check(&mut self, octets: &[u8], to: Address, ledger: &mut Ledger) -> Piece {
        let id = self.current(ledger);
        let message = &ledger.messages[id];
        assert_eq!(message.to, to, "message {id} goes to its destination");
        let header = Header::read(octets);
        let payload = &octets[header.length..octets.len() - CRC];
        let length = u32::try_from(payload.len()).unwrap();
        let offset = self.left.unwrap_or(0);
        let end = offset + length;
        assert!(end <= message.length, "message {id} has {end} octets");
        assert_eq!(header.last, end == message.length, "L is set on the last");
        assert!(
            length > 0 || message.length == 0,
            "no empty segment of more"
        );
        let start = offset as usize;
        assert!(
            payload == &message.octets()[start..start + payload.len()],
            "the octets of message {id} at {offset}"
        );
        let sent_as = self.check_header(&header, (id, message), offset);
        if let Some(before) = message.sent_as {
            assert_eq!(sent_as, before, "all segments of message {id} say the same");
        } else {
            assert_eq!(offset, 0);
            self.number(sent_as, &header, to);
        }
        ledger.messages[id].sent_as = Some(sent_as);
        self.segments += 1;
        self.left = Some(end);
        if header.last {
            self.finish_current();
        }
        Piece {
            message: id,
            offset,
            length,
            role: match sent_as {
                SentAs::Plain => Role::Plain,
                SentAs::Numbered { .. } => Role::Numbered,
            },
        }
    }

    fn check_header(
        &self,
        header: &Header,
        (id, message): (MessageId, &Message),
        offset: u32,
    ) -> SentAs {
        let solicited = message.solicited;
        let qkey = self.qkeys[&id];
        match (&header.kind, message.kind) {
            (
                HeaderKind::Send {
                    solicited: flag, ..
                },
                Kind::Send,
            ) => {
                assert_eq!((*flag, header.qkey), (solicited, qkey));
                assert!(header.last && message.immediate.is_none());
                SentAs::Plain
            }
            (HeaderKind::Segmented { extension, .. }, Kind::Send) => {
                assert_eq!(header.qkey, qkey);
                self.check_extension(extension, message, offset)
            }
            (
                HeaderKind::Write {
                    stag,
                    to,
                    extension,
                },
                Kind::Write,
            ) => {
                let target = message.target;
                assert_eq!((*stag, *to), (target.stag, target.base + u64::from(offset)));
                self.check_extension(extension, message, offset)
            }
            (kind, wanted) => panic!("{kind:?} for {wanted:?}"),
        }
    }

    fn check_extension(&self, extension: &Extension, message: &Message, offset: u32) -> SentAs {
        let flags = u8::from(message.immediate.is_some()) | u8::from(message.solicited) << 1;
        let expected = Extension {
            flags,
            epoch: self.epoch,
            number: extension.number,
            length: message.length,
            offset,
            immediate: message.immediate.unwrap_or(0),
        };
        assert_eq!(*extension, expected);
        SentAs::Numbered {
            epoch: self.epoch,
            number: extension.number,
        }
    }

    /// §3: messages with an extension are counted per peer, plain Sends per QP. A message that did not leave may leave
    /// a gap.
    fn number(&mut self, sent_as: SentAs, header: &Header, to: Address) {
        let (last, next) = match sent_as {
            SentAs::Plain => {
                let HeaderKind::Send { msn, .. } = header.kind else {
                    unreachable!("a plain Send has its header");
                };
                (self.last_msn.replace(msn), msn)
            }
            SentAs::Numbered { number, .. } => (self.last_number.insert(to, number), number),
        };
        if matches!(sent_as, SentAs::Numbered { .. }) {
            assert!(self.used_numbers.insert((to, next)), "{next} is used once");
        }
        if let Some(last) = last {
            let step = next.wrapping_sub(last);
            let most = 1 + self.skipped;
            // A message that is cut anew takes its number after those that were to leave in the same train.
            let late = self.skipped > 0 && last.wrapping_sub(next) < MOST_OF_A_TRAIN;
            assert!((1..=most).contains(&step) || late, "{next} after {last}");
        }
    }
}

/// Whether the engine cannot even read a message.
fn never_leaves(message: &Message) -> bool {
    message.flaw == Flaw::LocalKey && message.length > 0
}

/// A header, read as the specification's pictures have it (§1 to §3).
#[derive(Debug)]
struct Header {
    length: usize,
    last: bool,
    qkey: u32,
    kind: HeaderKind,
}

#[derive(Debug)]
enum HeaderKind {
    Send {
        solicited: bool,
        msn: u32,
    },
    Segmented {
        extension: Extension,
    },
    Write {
        stag: u32,
        to: u64,
        extension: Extension,
    },
}

#[derive(Debug, PartialEq, Eq)]
struct Extension {
    flags: u8,
    epoch: u32,
    number: u32,
    length: u32,
    offset: u32,
    immediate: u32,
}

fn word(octets: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(octets[at..at + 4].try_into().unwrap())
}

impl Extension {
    fn read(octets: &[u8], at: usize) -> Self {
        assert_eq!(octets[at + 1..at + 4], [0; 3], "reserved");
        Self {
            flags: octets[at],
            epoch: word(octets, at + 4),
            number: word(octets, at + 8),
            length: word(octets, at + 12),
            offset: word(octets, at + 16),
            immediate: word(octets, at + 20),
        }
    }
}

impl Header {
    fn read(octets: &[u8]) -> Self {
        let first = octets[0];
        assert_eq!(first & 0b0011_1111, 0b01, "format 0, DV 1");
        assert_eq!(octets[1] & 0b1111_0000, 0b0100_0000, "RV 1, reserved 0");
        let opcode = octets[1] & 0b1111;
        let tagged = first & 0x80 != 0;
        assert_eq!(tagged, opcode == 0b1100, "T goes with the opcode");
        let (length, kind) = match opcode {
            0b0011 | 0b0101 => {
                let solicited = opcode == 0b0101;
                let msn = word(octets, 10);
                (18, HeaderKind::Send { solicited, msn })
            }
            0b1101 => {
                let extension = Extension::read(octets, 18);
                assert_eq!(word(octets, 10), extension.number, "MSN");
                (42, HeaderKind::Segmented { extension })
            }
            0b1100 => {
                let to = u64::from(word(octets, 6)) << 32 | u64::from(word(octets, 10));
                let (stag, extension) = (word(octets, 2), Extension::read(octets, 14));
                (
                    38,
                    HeaderKind::Write {
                        stag,
                        to,
                        extension,
                    },
                )
            }
            other => panic!("opcode {other:#06b}"),
        };
        if !tagged {
            assert_eq!(word(octets, 6), 0, "QN");
            let offset = match &kind {
                HeaderKind::Segmented { extension } => extension.offset,
                HeaderKind::Send { .. } | HeaderKind::Write { .. } => 0,
            };
            assert_eq!(word(octets, 14), offset, "MO");
        }
        Self {
            length,
            last: first & 0x40 != 0,
            qkey: word(octets, 2),
            kind,
        }
    }
}

/// The socket of a QP.
pub(super) struct Socket<'a> {
    pub(super) origin: Instant,
    pub(super) now: Duration,
    pub(super) network: &'a mut Network,
    pub(super) rng: &'a mut Rng,
    pub(super) from: Address,
    pub(super) refusals: Refusals,
    pub(super) ledger: &'a RefCell<Ledger>,
    pub(super) outgoing: &'a mut Outgoing,
    /// Reads that were posted, and whether each has not ended.
    pub(super) reads: &'a [(MessageId, bool)],
    /// To each host, by its position.
    pub(super) paths: &'a [Route],
    pub(super) scratch: &'a mut Vec<u8>,
}

impl Socket<'_> {
    /// Error of a socket that takes no datagrams, whatever they are.
    fn fails(&mut self) -> Option<SendOutcome> {
        if self.refusals.full > 0.0 && self.rng.random_bool(self.refusals.full) {
            return Some(SendOutcome::WouldBlock);
        }
        if self.refusals.unreachable > 0.0 && self.rng.random_bool(self.refusals.unreachable) {
            return Some(SendOutcome::Failed(ENETUNREACH));
        }
        None
    }

    fn is_too_big(&self, to: Address, route: &Route, train: &Train) -> bool {
        let link = self.network.link(self.from.node, to.node);
        let Err(too_big) = link.check(train.datagram()) else {
            return false;
        };
        let size = u16::try_from(train.datagram()).unwrap();
        let mtu = u32::try_from(too_big.mtu + IP_HEADERS).unwrap();
        let smaller = route.handle_too_big(self.origin + self.now, size, mtu);
        assert!(smaller, "every link takes the smallest datagrams");
        self.ledger.borrow_mut().too_big += 1;
        true
    }

    /// Checks datagrams of Reads and gives them to the network.
    fn send_of_reads(&mut self, to: Address, octets: &[u8], size: usize) {
        let known = reads::Known {
            posted: self.reads,
            may_wait: self.refusals.full > 0.0,
        };
        let mut ledger = self.ledger.borrow_mut();
        for datagram in octets.chunks(size) {
            let from = (self.from, self.outgoing.epoch);
            let piece = reads::check(datagram, from, to, known, &mut ledger);
            self.outgoing.segments += 1;
            let id = self.network.send(self.now, self.from, to, datagram);
            ledger.note(id.expect("every link takes it"), piece);
        }
    }

    /// Error of a socket that does not take this train of posted messages.
    fn refuses(&mut self, to: Address, route: &Route, train: &Train) -> Option<SendOutcome> {
        let failed = self.fails();
        if matches!(failed, Some(SendOutcome::Failed(_))) {
            let id = self.outgoing.current(&self.ledger.borrow());
            self.outgoing.refused.push(id);
            self.outgoing.skipped += 1;
            self.outgoing.finish_current();
        }
        if failed.is_some() {
            return failed;
        }
        if !self.is_too_big(to, route, train) {
            return None;
        }
        // A plain Send that is cut anew after all gives its number up.
        self.outgoing.skipped += 1;
        Some(SendOutcome::TooBig)
    }
}

impl TransmitSink for Socket<'_> {
    fn staging(&mut self) -> Vec<u8> {
        std::mem::take(self.scratch)
    }

    fn give_back(&mut self, staging: Vec<u8>) {
        *self.scratch = staging;
    }

    fn send(
        &mut self,
        peer: Peer,
        route: &Route,
        pieces: &[Octets<'_>],
        train: &Train,
    ) -> SendOutcome {
        let to = ledger::address(peer.socket_addr().unwrap());
        assert_eq!(route.destination(), socket_addr(to).ip());
        if let [Octets::Bytes(octets)] = pieces
            && reads::is_of_reads(octets)
        {
            if let Some(outcome) = self.fails() {
                return outcome;
            }
            if self.is_too_big(to, route, train) {
                return SendOutcome::TooBig;
            }
            self.send_of_reads(to, octets, train.datagram());
            return SendOutcome::Sent;
        }
        if let Some(outcome) = self.refuses(to, route, train) {
            return outcome;
        }
        let size = train
            .segment_size()
            .map_or_else(|| train.octets(), usize::from);
        let mut ledger = self.ledger.borrow_mut();
        let mut each = |datagram: &[u8]| {
            let piece = self.outgoing.check(datagram, to, &mut ledger);
            let id = self.network.send(self.now, self.from, to, datagram);
            ledger.note(id.expect("the train was checked"), piece);
        };
        if let [Octets::Bytes(octets)] = pieces {
            octets.chunks(size).for_each(&mut each);
            return SendOutcome::Sent;
        }
        let mut octets = Vec::with_capacity(train.octets());
        for piece in pieces {
            match piece {
                Octets::Bytes(bytes) => octets.extend_from_slice(bytes),
                Octets::Region(slice) => {
                    let start = octets.len();
                    octets.resize(start + slice.len(), 0);
                    slice.copy_to(&mut octets[start..]);
                }
            }
        }
        assert_eq!(octets.len(), train.octets());
        octets.chunks(size).for_each(&mut each);
        SendOutcome::Sent
    }

    fn send_short(
        &mut self,
        peer: Peer,
        from: Option<IpAddr>,
        octets: &[u8],
        train: &Train,
    ) -> SendOutcome {
        // Answers leave from the address that was asked.
        assert!(from.is_none_or(|from| from == socket_addr(self.from).ip()));
        assert!(train.datagram() <= 512 && octets.len() == train.octets());
        if let Some(outcome) = self.fails() {
            return outcome;
        }
        let to = ledger::address(peer.socket_addr().unwrap());
        self.send_of_reads(to, octets, train.datagram());
        SendOutcome::Sent
    }

    fn path(&mut self, peer: Peer, from: Option<IpAddr>) -> Option<Route> {
        assert!(from.is_none_or(|from| from == socket_addr(self.from).ip()));
        let to = ledger::address(peer.socket_addr().unwrap());
        Some(self.paths[to.node.0].clone())
    }
}

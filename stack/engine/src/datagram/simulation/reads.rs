//! RDMA Reads: what they send, checked octet by octet, and the reader's half once more (§6, §7.1, §7.2).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use dgiwarp_rdmap::datagram::DropReason;
use dgiwarp_sim::Address;

use super::ledger::{Flaw, Ledger, MessageId, Piece, Role};
use super::memory::Memory;
use super::model::{add, octets_in};
use crate::types::WcStatus;

const CRC: usize = 4;
const TAGGED: usize = 14;
const UNTAGGED: usize = 18;
const COOKIE: usize = 8;
const REQUEST: usize = 28;
const EXCHANGE: usize = 36;

/// Octets between a target and a requester without a valid cookie (§6).
#[derive(Debug, Default)]
struct Balance {
    received: usize,
    sent: usize,
    proven: bool,
}

/// Traffic of the Reads of all QPs.
#[derive(Debug, Default)]
pub(super) struct Talk {
    /// Which Read a sink STag of a QP names.
    sinks: HashMap<(Address, u32), MessageId>,
    /// The Reads that have one.
    named: HashSet<MessageId>,
    /// By target and requester.
    balances: HashMap<(Address, Address), Balance>,
}

impl Talk {
    /// A datagram of a Read arrived intact.
    pub(super) fn arrived(&mut self, from: Address, at: Address, role: Role, length: usize) {
        let Role::Asking { cookie } = role else {
            return;
        };
        let balance = self.balances.entry((at, from)).or_default();
        balance.received += length;
        balance.proven |= cookie;
    }

    /// A QP is closed: what is known of it is void, and what it knew.
    pub(super) fn forget(&mut self, address: Address) {
        self.sinks.retain(|(reader, _), _| *reader != address);
        self.balances
            .retain(|(target, requester), _| *target != address && *requester != address);
    }

    /// §6: no more than three times what came of who did not show a cookie.
    fn answers(&mut self, from: Address, to: Address, length: usize) {
        let balance = self.balances.entry((from, to)).or_default();
        if balance.proven {
            return;
        }
        balance.sent += length;
        assert!(
            balance.sent <= 3 * balance.received,
            "{from:?} answers {to:?} with {} octets to {}",
            balance.sent,
            balance.received
        );
    }
}

/// Whether a datagram belongs to Reads.
pub(super) fn is_of_reads(octets: &[u8]) -> bool {
    format(octets) == 2 || matches!(octets[1] & 0b1111, 0b0001 | 0b0010 | 0b0111)
}

fn format(octets: &[u8]) -> u8 {
    octets[0] >> 2 & 0b1111
}

fn word(octets: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(octets[at..at + 4].try_into().unwrap())
}

fn long(octets: &[u8], at: usize) -> u64 {
    u64::from(word(octets, at)) << 32 | u64::from(word(octets, at + 4))
}

/// Checks a datagram of a Read that leaves a QP, and classifies it.
pub(super) fn check(
    octets: &[u8],
    (from, epoch): (Address, u32),
    to: Address,
    reads: Known<'_>,
    ledger: &mut Ledger,
) -> Piece {
    let nothing = Piece {
        message: 0,
        offset: 0,
        length: 0,
        role: Role::Asking { cookie: false },
    };
    if format(octets) == 2 {
        assert_eq!((octets.len(), octets[0]), (EXCHANGE, 0x49));
        return match octets[1] {
            1 => {
                assert_eq!((word(octets, 4), long(octets, 16)), (epoch, 0));
                nothing
            }
            2 => {
                ledger.talk.answers(from, to, octets.len());
                Piece {
                    role: Role::Answer,
                    ..nothing
                }
            }
            kind => panic!("cookie exchange {kind}"),
        };
    }
    match octets[1] & 0b1111 {
        0b0001 => check_request(octets, (from, epoch), to, reads, ledger),
        0b0010 => check_response(octets, from, to, ledger),
        _ => {
            assert_eq!((format(octets), word(octets, 6)), (0, 2), "format and QN");
            assert_eq!(octets.len(), UNTAGGED + 4 + REQUEST + CRC);
            ledger.talk.answers(from, to, octets.len());
            let (sinks, sink) = (&ledger.talk.sinks, word(octets, UNTAGGED + 4));
            Piece {
                // The Read of a QP that was closed meanwhile has no entry.
                message: *sinks.get(&(to, sink)).unwrap_or(&MessageId::MAX),
                role: Role::Terminate,
                ..nothing
            }
        }
    }
}

fn check_request(
    octets: &[u8],
    (from, epoch): (Address, u32),
    to: Address,
    reads: Known<'_>,
    ledger: &mut Ledger,
) -> Piece {
    let cookie = format(octets) == 1;
    let at = UNTAGGED + if cookie { COOKIE } else { 0 };
    assert_eq!(octets.len(), at + REQUEST + CRC);
    assert_eq!(
        (word(octets, 2), word(octets, 6), word(octets, 14)),
        (epoch, 1, 0)
    );
    let (sink, sink_offset) = (word(octets, at), long(octets, at + 4));
    let (size, stag, source) = (
        word(octets, at + 12),
        word(octets, at + 16),
        long(octets, at + 20),
    );
    let asks_for = |id: &MessageId| {
        let message = &ledger.messages[*id];
        message.to == to
            && message.target.stag == stag
            && message.target.base.wrapping_add(sink_offset) == source
            && sink_offset + u64::from(size) <= u64::from(message.length)
    };
    let is_new = |id: &MessageId| !ledger.talk.named.contains(id);
    let mut posted = reads.posted.iter().map(|(id, _)| *id);
    let id = match ledger.talk.sinks.get(&(from, sink)) {
        Some(id) => *id,
        None => posted
            .find(|id| asks_for(id) && is_new(id))
            .expect("a posted Read asks"),
    };
    assert!(asks_for(&id), "message {id}, a Read, asks for its own");
    let is_open = reads.posted.contains(&(id, true));
    assert!(
        is_open || reads.may_wait,
        "message {id}, a Read, asks after its end"
    );
    let length = ledger.messages[id].length;
    assert!(sink_offset + u64::from(size) <= u64::from(length));
    assert!(size > 0 || length == 0);
    ledger.talk.sinks.insert((from, sink), id);
    ledger.talk.named.insert(id);
    Piece {
        message: id,
        offset: 0,
        length: 0,
        role: Role::Asking { cookie },
    }
}

fn check_response(octets: &[u8], from: Address, to: Address, ledger: &mut Ledger) -> Piece {
    assert_eq!(octets[0] & 0b1011_1111, 0x81, "T, format 0");
    ledger.talk.answers(from, to, octets.len());
    let id = ledger.talk.sinks.get(&(to, word(octets, 2))).copied();
    let payload = &octets[TAGGED..octets.len() - CRC];
    let (offset, length) = (long(octets, 6), u32::try_from(payload.len()).unwrap());
    let Some(id) = id else {
        // To a QP that was closed meanwhile: nobody takes it.
        return Piece {
            message: 0,
            offset: 0,
            length,
            role: Role::Stray,
        };
    };
    let message = &ledger.messages[id];
    assert_eq!((message.from, message.to), (to, from));
    assert!(
        message.flaw != Flaw::Key || message.length == 0,
        "nobody has that STag"
    );
    let start = usize::try_from(offset).unwrap();
    assert!(
        payload == message.part(start, payload.len()),
        "message {id} at {offset}"
    );
    Piece {
        message: id,
        offset: u32::try_from(offset).unwrap(),
        length,
        role: Role::Response,
    }
}

/// The Reads of a QP that sends.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known<'a> {
    /// Posted Reads, and whether each is outstanding.
    pub(super) posted: &'a [(MessageId, bool)],
    /// Whether a request may have waited for the socket, so that its Read ended meanwhile.
    pub(super) may_wait: bool,
}

/// A Read that was posted and has not ended.
#[derive(Debug)]
struct Open {
    /// Where its octets go in the sink memory.
    sink: usize,
    deadline: Duration,
    ranges: Vec<(u32, u32)>,
}

/// How a Read ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) message: MessageId,
    pub(super) end: End,
    pub(super) ranges: Vec<(u32, u32)>,
}

/// Why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Complete,
    Refused,
    TimedOut,
    Flushed,
    LocalProtection,
}

impl End {
    /// Whether a completion reports it.
    pub(super) fn is(self, status: WcStatus) -> bool {
        match self {
            Self::Complete => status == WcStatus::Success,
            Self::Refused => matches!(
                status,
                WcStatus::RemoteAccess | WcStatus::RemoteInvalidRequest
            ),
            Self::TimedOut => status == WcStatus::ResponseTimeout,
            Self::Flushed => status == WcStatus::Flushed,
            Self::LocalProtection => status == WcStatus::LocalProtection,
        }
    }
}

/// The Reads that a QP posted.
#[derive(Debug, Default)]
pub(super) struct Reader {
    open: BTreeMap<MessageId, Open>,
    posted: Vec<(MessageId, bool)>,
    /// Reads that ended since they were last taken.
    pub(super) ended: Vec<Ended>,
}

impl Reader {
    pub(super) fn post(&mut self, id: MessageId, sink: usize, deadline: Duration) {
        let open = Open {
            sink,
            deadline,
            ranges: Vec::new(),
        };
        self.open.insert(id, open);
        self.posted.push((id, true));
    }

    /// The Reads that were posted, and whether each has not ended.
    pub(super) fn posted(&self) -> &[(MessageId, bool)] {
        &self.posted
    }

    fn open(&self) -> Vec<MessageId> {
        self.open.keys().copied().collect()
    }

    fn end(&mut self, message: MessageId, end: End) {
        if let Some(Open { ranges, .. }) = self.open.remove(&message) {
            let mut posted = self.posted.iter_mut().rev();
            if let Some((_, is_open)) = posted.find(|(id, _)| *id == message) {
                *is_open = false;
            }
            self.ended.push(Ended {
                message,
                end,
                ranges,
            });
        }
    }

    /// A response arrived.
    pub(super) fn respond(
        &mut self,
        piece: Piece,
        ledger: &Ledger,
        sinks: &mut Memory,
    ) -> Result<(), DropReason> {
        let message = &ledger.messages[piece.message];
        let open = self
            .open
            .get_mut(&piece.message)
            .ok_or(DropReason::BadStag)?;
        add(&mut open.ranges, piece)?;
        let start = piece.offset as usize;
        sinks.expect(
            open.sink + start,
            message.part(start, piece.length as usize),
        );
        if octets_in(&open.ranges) == message.length {
            self.end(piece.message, End::Complete);
        }
        Ok(())
    }

    /// A Terminate about a Read arrived.
    pub(super) fn terminate(&mut self, id: MessageId) -> Result<(), DropReason> {
        if !self.open.contains_key(&id) {
            return Err(DropReason::Unsolicited);
        }
        self.end(id, End::Refused);
        Ok(())
    }

    /// The sender's memory is not registered.
    pub(super) fn refuse(&mut self, id: MessageId) {
        self.end(id, End::LocalProtection);
    }

    /// The engine's timers ran.
    pub(super) fn expire(&mut self, now: Duration) {
        let over = self.open.iter().filter(|(_, open)| open.deadline <= now);
        let over: Vec<_> = over.map(|(id, _)| *id).collect();
        for id in over {
            self.end(id, End::TimedOut);
        }
    }

    pub(super) fn flush(&mut self) {
        for id in self.open() {
            self.end(id, End::Flushed);
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.open.values().map(|open| open.deadline).min()
    }
}

//! One connection: its queue pair, what waits to be sent, and memory that the peer may use.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use dgiwarp::{
    Access, Buffer, Cq, Mr, Pd, QpAttr, RcOperation, RcOptions, RcQp, RcQpAttr, RcSendWr, Rnic, Srq,
};

use super::secure::sealed::Secure;
use super::stream::StreamId;
use super::work_id::{MAX_COUNT, WorkId};
use crate::engine::admission::{Grants, Presented};
use crate::engine::credit::{Credit, cost};
use crate::engine::urgency::{Outbox, Turns, Urgency};
use crate::engine::windows::{Granted, Own};
use crate::memory::Block;
use crate::payload::Payload;
use crate::security::handshake::Initiator;
use crate::wire::hello::Hello;
use crate::wire::message::{Kind, Message, Window};

/// Slot of a message that has none.
const NO_SLOT: u16 = u16::MAX;
/// Messages with octets in slots that are under way at most.
const SLOTS: usize = 16;
/// Slots that are in use without a completion to come, at most: where none is free, the completion of another message is under way.
const UNSIGNALED_SLOTS: usize = SLOTS / 2;
/// Messages under way at most.
const IN_FLIGHT: usize = 128;
/// Work requests of the send queue: messages, pieces of long items.
const SEND_WRS: usize = 256;
/// Octets of one RDMA Write or Read.
pub(crate) const PIECE: usize = 1 << 20;
/// Pieces under way at most.
const PIECES: usize = 4;
/// Number of the PING behind a GOAWAY.
pub(crate) const GOING_AWAY: u64 = 1;
/// Longest message that leaves without a slot.
const INLINE: usize = dgiwarp::MAX_INLINE_DATA;

/// Memory that is registered on one connection. The registration ends first.
#[derive(Debug)]
pub(crate) struct Registered {
    pub(crate) mr: Mr,
    pub(crate) block: Block,
}

/// Owner of memory that was offered to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    Call(u64),
    Reply(u64),
    Message(u64),
}

/// State of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Connecting,
    /// Its handshake is not confirmed.
    Unconfirmed,
    Up,
}

/// Something that waits to be sent.
#[derive(Debug, Clone)]
pub(crate) enum Out {
    /// A call of this endpoint's; its content is with the pending calls.
    Call(u64),
    /// Reply to a call of the peer, and the cost of that.
    Reply {
        number: u64,
        status: u16,
        refused: bool,
        payload: Arc<Payload>,
        consumes: u64,
    },
    /// A MESSAGE.
    Message {
        number: u64,
        to: u64,
        from: u64,
        payload: Arc<Payload>,
        windows: Vec<Block>,
    },
    /// All of its items are in place.
    Ready(Message),
}

/// RDMA Writes or Reads of long items, and what follows them.
#[derive(Debug)]
pub(crate) struct Transfer<T> {
    pub(crate) id: u32,
    /// The least element is the next one.
    pub(crate) pieces: VecDeque<Piece>,
    pub(crate) under_way: usize,
    pub(crate) memory: Vec<Registered>,
    pub(crate) urgency: Urgency,
    pub(crate) then: T,
}

/// One RDMA Write or Read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) operation: RcOperation,
    /// Index of the memory, offset and length.
    pub(crate) local: (usize, usize, usize),
}

/// PONGs that wait to be sent, at most. A peer sends one PING for each second of silence, and ends the connection after five.
const MOST_PONGS: usize = 16;

/// A peer sends PINGs and does not take the answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a PING while {MOST_PONGS} PONGs wait to be sent")]
pub(crate) struct TooManyPings;

/// Slots of registered memory for messages.
#[derive(Debug)]
struct Slots {
    mr: Mr,
    buffer: Buffer,
    length: usize,
    free: Vec<u16>,
}

/// A connection. `T` is what follows a transfer.
#[derive(Debug)]
pub(crate) struct Peer<T> {
    pub(crate) qp: RcQp,
    pub(crate) pd: Pd,
    pub(crate) phase: Phase,
    /// Address that this end connects to; `None` at the end that accepted.
    pub(crate) target: Option<SocketAddr>,
    /// Address of the peer as the connection has it.
    pub(crate) address: SocketAddr,
    /// Instance of the peer, 0 until it is known.
    pub(crate) instance: u64,
    /// Longest message that the peer takes, in octets.
    pub(crate) longest: usize,
    /// Handshake that waits for the Reply.
    pub(crate) initiator: Option<Initiator>,
    /// Keys of the handshake.
    pub(crate) secure: Option<Secure>,
    /// Tokens of the peer.
    pub(crate) grants: Grants,
    /// Tokens of this endpoint that the peer has.
    pub(crate) presented: Presented,
    pub(crate) credit: Credit,
    /// Messages of the kinds that cost nothing and go before all others.
    pub(crate) controls: VecDeque<Message>,
    /// Other messages, and streams that have something to send, each once.
    pub(crate) outbox: Outbox<Out, StreamId>,
    /// First grant of the peer to each stream, in octets; 0: it takes none.
    pub(crate) stream: u64,
    pub(crate) transfers: VecDeque<Transfer<T>>,
    transfer_turns: Turns,
    next_transfer: u32,
    /// Windows of the peer for MESSAGEs.
    pub(crate) granted: Granted,
    /// Windows of the peer for the replies to its calls.
    pub(crate) granted_for: BTreeMap<u64, Granted>,
    /// Windows of this endpoint.
    pub(crate) own: Own<Registered>,
    pub(crate) offers: BTreeMap<Subject, Vec<Registered>>,
    pub(crate) last_heard: Duration,
    pub(crate) pinged: Option<Duration>,
    /// Time at which it was told that this endpoint goes away, until it has answered.
    pub(crate) going_away: Option<Duration>,
    slots: Slots,
    /// Slots of the messages under way, in order.
    in_flight: VecDeque<u16>,
    /// Messages since the last one with a completion.
    unsignaled: u8,
    /// Slots of those messages.
    unsignaled_slots: usize,
    pieces: usize,
    message: Vec<u8>,
}

/// Parts of the device that connections share.
pub(crate) struct Parts<'a> {
    pub(crate) rnic: &'a Rnic,
    pub(crate) cq: &'a Cq,
    pub(crate) srq: &'a Srq,
}

impl<T> Peer<T> {
    /// A connection that is to be made or accepted. `longest` is of this endpoint, `credit` its first grant.
    pub(crate) fn new(
        parts: &Parts<'_>,
        address: SocketAddr,
        longest: usize,
        credit: u64,
        now: Duration,
    ) -> Result<Self, dgiwarp::Error> {
        let pd = parts.rnic.alloc_pd();
        let qp = QpAttr {
            max_send_wr: SEND_WRS,
            max_sge: 1,
            srq: Some(parts.srq),
            ..QpAttr::new(parts.cq, parts.cq)
        };
        let mut attr = RcQpAttr::from(qp);
        // A message is acknowledged by its reply; a completion means that its slot is free.
        attr.options = Some(RcOptions {
            completion: dgiwarp::Completion::Local,
            ..RcOptions::default()
        });
        let qp = pd.create_rc_qp(&attr)?;
        let buffer = Buffer::zeroed(SLOTS * longest).map_err(|_| dgiwarp::Error::Limit {
            what: "memory of a connection",
            value: SLOTS * longest,
            min: 0,
            max: 0,
        })?;
        let mr = pd.register(buffer.region(), Access::empty())?;
        Ok(Self {
            qp,
            pd,
            phase: Phase::Connecting,
            target: None,
            address,
            instance: 0,
            longest,
            initiator: None,
            secure: None,
            grants: Grants::new(),
            presented: Presented::new(),
            credit: Credit::new(0, credit),
            controls: VecDeque::new(),
            outbox: Outbox::new(),
            stream: 0,
            transfers: VecDeque::new(),
            transfer_turns: Turns::new(),
            next_transfer: 1,
            granted: Granted::default(),
            granted_for: BTreeMap::new(),
            own: Own::new(),
            offers: BTreeMap::new(),
            last_heard: now,
            pinged: None,
            going_away: None,
            slots: Slots {
                mr,
                buffer,
                length: longest,
                free: (0..SLOTS)
                    .rev()
                    .filter_map(|it| it.try_into().ok())
                    .collect(),
            },
            in_flight: VecDeque::new(),
            unsignaled: 0,
            unsignaled_slots: 0,
            pieces: 0,
            message: Vec::new(),
        })
    }

    /// Whether all messages are sealed, so that nothing is written or read beside them.
    pub(crate) fn seals_all(&self) -> bool {
        self.secure.as_ref().is_some_and(|secure| secure.all)
    }

    /// Takes the peer's hello, after the keys.
    pub(crate) fn greet(&mut self, hello: &Hello, longest: usize) {
        self.instance = hello.instance;
        let longest = longest.min(usize::try_from(hello.longest).unwrap_or(longest));
        let secure = self.secure.as_ref();
        self.longest = secure.map_or(longest, |secure| secure.longest(longest));
        self.credit.greeted(hello.credit, self.longest);
        self.stream = hello.stream.into();
    }

    /// Queues a message of the kinds that cost nothing, before all others.
    pub(crate) fn control(&mut self, number: u64, kind: Kind) {
        let message = Message {
            number,
            credit: 0,
            kind,
        };
        self.controls.push_front(message);
    }

    /// Whether messages wait to be sent.
    pub(crate) fn is_sending(&self) -> bool {
        let waits = !self.controls.is_empty() || !self.outbox.is_without_messages();
        waits || !self.transfers.is_empty()
    }

    /// Answers a PING.
    pub(crate) fn pong(&mut self, number: u64) -> Result<(), TooManyPings> {
        let is_pong = |it: &&Message| it.kind == Kind::Pong;
        if self.controls.iter().filter(is_pong).count() >= MOST_PONGS {
            return Err(TooManyPings);
        }
        self.control(number, Kind::Pong);
        Ok(())
    }

    /// Tells the peer that this endpoint goes away. The PONG to the PING behind it shows that the peer knows.
    pub(crate) fn go_away(&mut self, now: Duration) {
        if self.phase == Phase::Up {
            self.going_away = Some(now);
            self.control(GOING_AWAY, Kind::Ping);
            self.control(0, Kind::GoAway);
        }
    }

    /// Whether a message may be posted now.
    pub(crate) fn has_room(&self) -> bool {
        self.phase == Phase::Up && self.in_flight.len() < IN_FLIGHT && !self.slots.free.is_empty()
    }

    /// Posts a message. Returns it where its credit does not suffice yet, or not for one that `leaves` some to others.
    pub(crate) fn post(&mut self, mut message: Message, leaves: bool) -> Result<(), Message> {
        let mut bytes = std::mem::take(&mut self.message);
        bytes.clear();
        message.credit = self.credit.current();
        message.emit(&mut bytes);
        let pays = !message.is_charged() || self.credit.charge(cost(bytes.len()), leaves);
        if pays {
            let secure = self.secure.as_mut();
            match secure.map_or(Ok(()), |secure| secure.seal(&message, &mut bytes)) {
                Ok(()) => self.send(&bytes),
                Err(error) => tracing::error!(%error, "a message was not sealed"),
            }
            self.credit.announced();
        }
        self.message = bytes;
        if pays { Ok(()) } else { Err(message) }
    }

    fn send(&mut self, bytes: &[u8]) {
        let slot = if bytes.len() <= INLINE {
            NO_SLOT
        } else {
            // `has_room` was asked.
            self.slots.free.pop().unwrap_or(NO_SLOT)
        };
        self.unsignaled += 1;
        self.unsignaled_slots += usize::from(slot != NO_SLOT);
        let signaled = self.unsignaled_slots >= UNSIGNALED_SLOTS || self.unsignaled >= MAX_COUNT;
        let id = WorkId::Send {
            count: self.unsignaled,
        };
        if signaled {
            self.unsignaled = 0;
            self.unsignaled_slots = 0;
        }
        self.in_flight.push_back(slot);
        let start = usize::from(slot) * self.slots.length;
        let sges = if slot == NO_SLOT {
            None
        } else {
            self.slots.buffer.write(start, bytes);
            Some(self.slots.mr.sge(start..start + bytes.len()))
        };
        let wr = RcSendWr {
            signaled,
            inline: if slot == NO_SLOT { bytes } else { &[] },
            ..RcSendWr::send(id.number(), sges.as_slice())
        };
        // A queue pair in error reports the end of the connection by an event.
        if let Err(error) = self.qp.post_send(&[wr]) {
            tracing::debug!(%error, "a message was not posted");
        }
    }

    /// Takes the completion of a message and those before it.
    pub(crate) fn sent(&mut self, count: u8) {
        let count = self.in_flight.len().min(count.into());
        let slots = self.in_flight.drain(..count);
        self.slots.free.extend(slots.filter(|it| *it != NO_SLOT));
    }

    /// Registers a block on this connection.
    pub(crate) fn register(
        &self,
        block: Block,
        access: Access,
    ) -> Result<Registered, dgiwarp::Error> {
        let mr = self.pd.register(block.region(), access)?;
        Ok(Registered { mr, block })
    }

    /// Grants the peer a window.
    pub(crate) fn grant(&mut self, block: Block, call: Option<u64>) -> Option<Window> {
        let memory = self.register(block, Access::REMOTE_WRITE).ok()?;
        let (key, address) = (memory.mr.rkey(), memory.mr.addr());
        let length = memory.block.len() as u64;
        let number = self.own.grant(length, call, memory);
        Some(Window {
            number,
            key,
            address,
            length,
        })
    }

    /// Begins a transfer.
    pub(crate) fn transfer(
        &mut self,
        urgency: Urgency,
        pieces: VecDeque<Piece>,
        memory: Vec<Registered>,
        then: T,
    ) {
        let id = self.next_transfer;
        self.next_transfer = self.next_transfer.wrapping_add(1);
        self.transfers.push_back(Transfer {
            id,
            pieces,
            under_way: 0,
            memory,
            urgency,
            then,
        });
        self.post_pieces();
    }

    /// Posts pieces, of the transfers of the urgency whose turn it is by turns.
    pub(crate) fn post_pieces(&mut self) {
        while self.phase == Phase::Up && self.pieces < PIECES {
            let transfers = self.transfers.iter();
            let transfers = transfers.map(|it| (it.urgency, !it.pieces.is_empty()));
            let Some(at) = self.transfer_turns.choose(transfers) else {
                return;
            };
            let Some(mut transfer) = self.transfers.remove(at) else {
                return;
            };
            if let Some(piece) = transfer.pieces.pop_front() {
                let (memory, offset, length) = piece.local;
                if let Some(memory) = transfer.memory.get(memory) {
                    let sges = [memory.mr.sge(offset..offset + length)];
                    let id = WorkId::Piece {
                        transfer: transfer.id,
                    };
                    let wr = RcSendWr::new(id.number(), piece.operation, &sges);
                    if let Err(error) = self.qp.post_send(&[wr]) {
                        tracing::debug!(%error, "a piece was not posted");
                    }
                    transfer.under_way += 1;
                    self.pieces += 1;
                }
            }
            self.transfers.push_back(transfer);
        }
    }

    /// Takes the completion of a piece. Returns the transfer where that was the last one.
    pub(crate) fn piece_done(&mut self, id: u32) -> Option<Transfer<T>> {
        self.pieces = self.pieces.saturating_sub(1);
        let at = self.transfers.iter().position(|it| it.id == id)?;
        let transfer = self.transfers.get_mut(at)?;
        transfer.under_way = transfer.under_way.saturating_sub(1);
        let over = transfer.under_way == 0 && transfer.pieces.is_empty();
        let done = if over {
            self.transfers.remove(at)
        } else {
            None
        };
        self.post_pieces();
        done
    }
}

/// The pieces of one item: of memory `index`, from or to `key` and `address` of the peer.
pub(crate) fn pieces(
    index: usize,
    length: usize,
    key: u32,
    address: u64,
    write: bool,
) -> impl Iterator<Item = Piece> {
    (0..length).step_by(PIECE).map(move |offset| {
        // A sum that wraps is an address outside of any window: the peer's device refuses it.
        let remote_addr = address.wrapping_add(offset as u64);
        let rkey = key;
        let operation = if write {
            RcOperation::Write {
                rkey,
                remote_addr,
                immediate: None,
            }
        } else {
            RcOperation::Read { rkey, remote_addr }
        };
        Piece {
            operation,
            local: (index, offset, PIECE.min(length - offset)),
        }
    })
}

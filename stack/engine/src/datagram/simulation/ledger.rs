//! Ledger of the applications' messages, and of the part of a message that each datagram is.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use dgiwarp_ddp::RangeMap;
use dgiwarp_sim::{Address, DatagramId};

use super::memory::source;
use super::reads::{End, Talk};

/// Position of a message in the ledger.
pub(super) type MessageId = usize;

/// Kind of a message, and its fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Send,
    Write,
    /// From the target's source memory.
    Read,
}

/// A mistake of an application. The message must be refused, at the sender or at the target, and nothing else be harmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flaw {
    None,
    /// The poster's own memory is not registered.
    LocalKey,
    /// Of a Send: another Q_Key. Else: an STag that nobody has.
    Key,
    /// Of a Write-Record or Read: it ends behind the region.
    Bounds,
    /// Of a Write-Record or Read: the region gives peers no right to it.
    Access,
}

/// A message that an application posts.
#[derive(Debug, Clone)]
pub(super) struct Message {
    pub(super) from: Address,
    pub(super) to: Address,
    pub(super) kind: Kind,
    pub(super) flaw: Flaw,
    /// Where its octets are in the source memory.
    pub(super) start: usize,
    pub(super) length: u32,
    pub(super) immediate: Option<u32>,
    pub(super) solicited: bool,
    pub(super) signaled: bool,
    /// Of a Read.
    pub(super) timeout: Duration,
    /// Known when it was posted.
    pub(super) target: Target,
    /// Known when its first datagram left.
    pub(super) sent_as: Option<SentAs>,
    /// How it ended at the receiver, and in which life of the receiver.
    pub(super) outcome: Option<Outcome>,
    pub(super) ended_in: u32,
}

/// Where a Write-Record goes, or a Read comes from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) stag: u32,
    pub(super) base: u64,
}

/// How a message identifies itself on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SentAs {
    /// A plain Send: nothing does.
    Plain,
    /// With an extension.
    Numbered { epoch: u32, number: u32 },
}

/// Report of a message to the receiving application.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// So many times: a plain Send has no number, so each copy that the network makes is delivered (§2).
    Delivered(u32),
    Recorded(RangeMap),
    /// A Read ended so, with these octets valid.
    Read(End, Vec<(u32, u32)>),
}

impl Message {
    /// Some of its octets.
    pub(super) fn part(&self, offset: usize, length: usize) -> &'static [u8] {
        let start = self.start + offset;
        &source().octets[start..start + length]
    }

    /// Its octets.
    pub(super) fn octets(&self) -> &'static [u8] {
        &source().octets[self.start..self.start + self.length as usize]
    }
}

/// The part of a message that a datagram carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) message: MessageId,
    pub(super) offset: u32,
    pub(super) length: u32,
    pub(super) role: Role,
}

/// Role of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// A plain Send.
    Plain,
    /// A segment with an extension.
    Numbered,
    /// A Read Response.
    Response,
    /// A Terminate about a Read.
    Terminate,
    /// A Read Request or a cookie request, of no message.
    Asking { cookie: bool },
    /// A cookie.
    Answer,
    /// An answer to a QP that is closed.
    Stray,
}

impl Role {
    /// Whether it carries octets of a message.
    pub(super) fn is_of_message(self) -> bool {
        matches!(self, Self::Plain | Self::Numbered | Self::Response)
    }
}

/// Address and keys of a QP, given out of band to the others that send to it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Offer {
    pub(super) qkey: u32,
    pub(super) stag: u32,
    /// An STag of the source memory, without the right to write.
    pub(super) read_only: u32,
    /// First address of the region and its length.
    pub(super) iova: u64,
    pub(super) octets: u64,
    /// Octets of the region given to messages so far: it is used in turn.
    pub(super) used: u64,
}

impl Offer {
    /// Room for a message in the region, apart from that of other recent ones.
    pub(super) fn allocate(&mut self, length: u32) -> u64 {
        let length = u64::from(length);
        if self.used % self.octets + length > self.octets {
            self.used = self.used.next_multiple_of(self.octets);
        }
        let start = self.used % self.octets;
        self.used += length;
        self.iova + start
    }
}

/// Shared by all hosts of a run.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    pub(super) messages: Vec<Message>,
    pieces: Vec<Piece>,
    pub(super) offers: HashMap<Address, Offer>,
    pub(super) talk: Talk,
    /// Trains that exceeded an MTU.
    pub(super) too_big: u64,
}

impl Ledger {
    pub(super) fn new(messages: Vec<Message>) -> Self {
        Self {
            messages,
            ..Self::default()
        }
    }

    /// Notes what a datagram carries. They are noted in the order in which they are sent.
    pub(super) fn note(&mut self, datagram: DatagramId, piece: Piece) {
        assert_eq!(datagram.0, self.pieces.len(), "all datagrams are noted");
        self.pieces.push(piece);
    }

    pub(super) fn piece(&self, datagram: DatagramId) -> Piece {
        self.pieces[datagram.0]
    }

    pub(super) fn pieces(&self) -> &[Piece] {
        &self.pieces
    }
}

/// The socket address of a QP in the simulation.
pub(super) fn socket_addr(address: Address) -> SocketAddr {
    let host = u8::try_from(address.node.0).unwrap();
    SocketAddr::from(([192, 0, 2, 1 + host], address.port))
}

/// And back.
pub(super) fn address(socket: SocketAddr) -> Address {
    let std::net::IpAddr::V4(ip) = socket.ip() else {
        unreachable!("the simulation has IPv4 addresses");
    };
    let [.., last] = ip.octets();
    Address {
        node: dgiwarp_sim::NodeId(usize::from(last) - 1),
        port: socket.port(),
    }
}

//! A connection as RC has it: its messages come in order, once, or the connection is over. Datagrams that are lost are sent again; connections break at any time.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use dgiwarp_sim::{Address, Network};

/// Messages under way at most.
const UNDER_WAY: usize = 16;
/// Octets before the message of a datagram: kind, connection, number.
const HEADER: usize = 17;

/// A datagram: the connection and its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Segment {
    /// The instance of the caller.
    Connect(u64),
    /// The instance of the server.
    Accept(u64),
    /// Number and octets of a message.
    Message(u64, Vec<u8>),
    /// Number of the next message that is awaited.
    Ack(u64),
    /// There is no such connection.
    Reset,
}

pub(super) fn parse(octets: &[u8]) -> (u64, Segment) {
    let number = |at: usize| u64::from_be_bytes(octets[at..at + 8].try_into().unwrap());
    let segment = match octets[0] {
        1 => Segment::Connect(number(9)),
        2 => Segment::Accept(number(9)),
        3 => Segment::Message(number(9), octets[HEADER..].to_vec()),
        4 => Segment::Ack(number(9)),
        _ => Segment::Reset,
    };
    (number(1), segment)
}

/// Addresses of an end and its peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Path {
    pub(super) from: Address,
    pub(super) to: Address,
}

impl Path {
    pub(super) fn send(
        self,
        now: Duration,
        connection: u64,
        segment: &Segment,
        network: &mut Network,
    ) {
        let (kind, number, message) = match segment {
            Segment::Connect(instance) => (1, *instance, &[][..]),
            Segment::Accept(instance) => (2, *instance, &[][..]),
            Segment::Message(number, octets) => (3, *number, octets.as_slice()),
            Segment::Ack(next) => (4, *next, &[][..]),
            Segment::Reset => (5, 0, &[][..]),
        };
        let mut octets = vec![kind];
        octets.extend(connection.to_be_bytes());
        octets.extend(u64::to_be_bytes(number));
        octets.extend(message);
        network.send(now, self.from, self.to, &octets).unwrap();
    }
}

/// One end of a connection that is up.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) id: u64,
    pub(super) path: Path,
    next: u64,
    unacknowledged: VecDeque<(u64, Vec<u8>)>,
    /// Messages behind the window.
    waiting: VecDeque<Vec<u8>>,
    awaited: u64,
    early: BTreeMap<u64, Vec<u8>>,
}

impl Link {
    pub(super) fn new(id: u64, path: Path) -> Self {
        Self {
            id,
            path,
            next: 0,
            unacknowledged: VecDeque::new(),
            waiting: VecDeque::new(),
            awaited: 0,
            early: BTreeMap::new(),
        }
    }

    /// Whether a part of a stream may be sent now.
    pub(super) fn has_room(&self) -> bool {
        self.waiting.is_empty() && self.unacknowledged.len() < UNDER_WAY
    }

    /// Whether all is acknowledged, or nobody is there to do so.
    pub(super) fn is_quiet(&self) -> bool {
        self.id == 0 || (self.waiting.is_empty() && self.unacknowledged.is_empty())
    }

    pub(super) fn send(&mut self, now: Duration, message: Vec<u8>, network: &mut Network) {
        self.waiting.push_back(message);
        self.advance(now, network);
    }

    fn advance(&mut self, now: Duration, network: &mut Network) {
        while self.unacknowledged.len() < UNDER_WAY
            && let Some(message) = self.waiting.pop_front()
        {
            let segment = Segment::Message(self.next, message.clone());
            self.path.send(now, self.id, &segment, network);
            self.unacknowledged.push_back((self.next, message));
            self.next += 1;
        }
    }

    /// Sends again what is not acknowledged, and asks for a sign of life.
    pub(super) fn again(&self, now: Duration, network: &mut Network) {
        for (number, message) in &self.unacknowledged {
            let segment = Segment::Message(*number, message.clone());
            self.path.send(now, self.id, &segment, network);
        }
        self.acknowledge(now, network);
    }

    fn acknowledge(&self, now: Duration, network: &mut Network) {
        let segment = Segment::Ack(self.awaited);
        self.path.send(now, self.id, &segment, network);
    }

    pub(super) fn acknowledged(&mut self, now: Duration, next: u64, network: &mut Network) {
        self.unacknowledged.retain(|(number, _)| *number >= next);
        self.advance(now, network);
    }

    /// Takes a message; returns those that are next.
    pub(super) fn receive(
        &mut self,
        now: Duration,
        number: u64,
        octets: Vec<u8>,
        network: &mut Network,
    ) -> Vec<Vec<u8>> {
        if number >= self.awaited {
            self.early.insert(number, octets);
        }
        let mut received = Vec::new();
        while let Some(message) = self.early.remove(&self.awaited) {
            received.push(message);
            self.awaited += 1;
        }
        self.acknowledge(now, network);
        received
    }
}

//! Traffic of a case, for the report and for packet files.

pub mod sequence;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use crate::clock;

/// Which way octets went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the tester.
    Sent,
    /// From the device.
    Received,
}

/// Octets of one system call.
#[derive(Clone, Debug)]
pub struct Piece {
    /// When.
    pub at: SystemTime,
    /// Which way.
    pub way: Way,
    /// The octets; none stands for the end of that direction.
    pub octets: Vec<u8>,
}

/// One TCP connection, or what went between two UDP ports.
#[derive(Clone, Debug)]
pub struct Conversation {
    /// Whether it is UDP: then each piece is a datagram, and an empty one has no octets.
    pub datagrams: bool,
    /// The tester's address.
    pub ours: SocketAddr,
    /// The device's address.
    pub theirs: SocketAddr,
    /// Whether the tester connected.
    pub we_connected: bool,
    /// Its traffic in order.
    pub pieces: Vec<Piece>,
    /// How long the device left TCP open behind its Terminate, if the tester gave up waiting for the end.
    pub left_open: Option<Duration>,
    /// Whether the tester asked with a Read of nothing whether the connection goes on.
    pub asks_nothing: bool,
}

/// The connections of a case. Clones are the same recorder.
#[derive(Clone, Debug, Default)]
pub struct Recorder(Arc<Mutex<Vec<Conversation>>>);

impl Recorder {
    /// Begins a connection.
    #[must_use]
    pub fn begin(&self, ours: SocketAddr, theirs: SocketAddr, we_connected: bool) -> Tape {
        self.add(Conversation {
            datagrams: false,
            ours,
            theirs,
            we_connected,
            pieces: Vec::new(),
            left_open: None,
            asks_nothing: false,
        })
    }

    /// Begins what goes between two UDP ports.
    #[must_use]
    pub fn begin_datagrams(&self, ours: SocketAddr, theirs: SocketAddr) -> Tape {
        self.add(Conversation {
            datagrams: true,
            ours,
            theirs,
            we_connected: true,
            pieces: Vec::new(),
            left_open: None,
            asks_nothing: false,
        })
    }

    fn add(&self, conversation: Conversation) -> Tape {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(conversation);
        Tape {
            recorder: self.clone(),
            index: all.len() - 1,
        }
    }

    /// The connections so far.
    #[must_use]
    pub fn conversations(&self) -> Vec<Conversation> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// Where one connection is recorded.
#[derive(Clone, Debug)]
pub struct Tape {
    recorder: Recorder,
    index: usize,
}

impl Tape {
    /// Which of the recorder's conversations it is, from 0.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// Keeps octets; none stands for the end of that direction.
    pub fn keep(&self, way: Way, octets: &[u8]) {
        let mut all = self
            .recorder
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(conversation) = all.get_mut(self.index) {
            conversation.pieces.push(Piece {
                at: clock::wall(),
                way,
                octets: octets.to_vec(),
            });
        }
    }

    /// This connection so far.
    #[must_use]
    pub fn conversation(&self) -> Option<Conversation> {
        let all = self
            .recorder
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        all.get(self.index).cloned()
    }

    /// The tester asks with a Read of nothing whether the connection goes on.
    pub fn asks_nothing(&self) {
        let mut all = self
            .recorder
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(conversation) = all.get_mut(self.index) {
            conversation.asks_nothing = true;
        }
    }

    /// The device did not end TCP for so long after it had sent a Terminate.
    pub fn left_open(&self, time: Duration) {
        let mut all = self
            .recorder
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(conversation) = all.get_mut(self.index) {
            conversation.left_open = Some(time);
        }
    }

    /// All octets of one direction, one after the other.
    #[must_use]
    pub fn octets(&self, way: Way) -> Vec<u8> {
        let all = self
            .recorder
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        all.get(self.index)
            .into_iter()
            .flat_map(|conversation| &conversation.pieces)
            .filter(|piece| piece.way == way)
            .flat_map(|piece| piece.octets.iter().copied())
            .collect()
    }
}

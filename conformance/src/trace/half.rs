//! One direction of a TCP connection.

use std::collections::VecDeque;

use super::messages::Sender;
use super::tcp::{Direction, Next};
use crate::wire::framing::Deframer;
use crate::wire::startup::Startup;

/// Where one direction is.
#[derive(Debug)]
pub(super) enum Phase {
    /// Its startup frame is to come.
    Startup,
    /// It waits for the other end's frame.
    Waiting,
    /// FPDUs come.
    Full(Deframer),
    /// The beginning of an FPDU is looked for.
    Seek(Sought),
    /// Nothing more is judged.
    Over,
}

/// Candidates while the beginning of an FPDU is searched for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sought {
    /// The position in MPA's stream, which Markers depend on.
    pub(super) position: Option<u64>,
    /// Octets that were passed over.
    pub(super) passed: u64,
    /// Whether that is told.
    pub(super) quiet: bool,
}

/// One end, and what it sends.
#[derive(Debug)]
pub(super) struct Half {
    pub(super) tcp: Direction,
    /// Input that waits for the other direction.
    pub(super) queue: VecDeque<Next>,
    /// Octets in it.
    pub(super) held: usize,
    /// Octets of the stream that have left it.
    pub(super) released: u64,
    pub(super) buffer: Vec<u8>,
    /// The distance of the buffer's first octet from the beginning.
    pub(super) offset: u64,
    pub(super) phase: Phase,
    pub(super) frame: Option<Startup>,
    /// The distance at which FPDUs begin.
    pub(super) base: u64,
    pub(super) sender: Sender,
    pub(super) told_early: bool,
}

impl Half {
    pub(super) fn new() -> Self {
        Self {
            tcp: Direction::default(),
            queue: VecDeque::new(),
            held: 0,
            released: 0,
            buffer: Vec::new(),
            offset: 0,
            phase: Phase::Startup,
            frame: None,
            base: 0,
            sender: Sender::new(),
            told_early: false,
        }
    }

    pub(super) fn consume(&mut self, octets: usize) -> Vec<u8> {
        let octets = octets.min(self.buffer.len());
        self.offset += u64::try_from(octets).unwrap_or(0);
        let rest = self.buffer.split_off(octets);
        std::mem::replace(&mut self.buffer, rest)
    }

    pub(super) fn end(&mut self) {
        self.phase = Phase::Over;
        self.buffer = Vec::new();
    }
}

//! One direction of a TCP connection.

use std::collections::VecDeque;

use super::tcp::{Direction, Next};
use crate::trace::messages::Sender;
use crate::wire::framing::Deframer;
use crate::wire::startup::Startup;

/// Where one direction is.
#[derive(Debug)]
pub(in crate::trace) enum Phase {
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
pub(in crate::trace) struct Sought {
    /// The position in MPA's stream, which Markers depend on.
    pub(in crate::trace) position: Option<u64>,
    /// Octets that were passed over.
    pub(in crate::trace) passed: u64,
    /// Whether that is told.
    pub(in crate::trace) quiet: bool,
}

/// One end, and what it sends.
#[derive(Debug)]
pub(in crate::trace) struct Half {
    pub(in crate::trace) tcp: Direction,
    /// Input that waits for the other direction.
    pub(in crate::trace) queue: VecDeque<Next>,
    /// Octets in it.
    pub(in crate::trace) held: usize,
    /// Octets of the stream that have left it.
    pub(in crate::trace) released: u64,
    pub(in crate::trace) buffer: Vec<u8>,
    /// The distance of the buffer's first octet from the beginning.
    pub(in crate::trace) offset: u64,
    pub(in crate::trace) phase: Phase,
    pub(in crate::trace) frame: Option<Startup>,
    /// The distance at which FPDUs begin.
    pub(in crate::trace) base: u64,
    pub(in crate::trace) sender: Sender,
    pub(in crate::trace) told_early: bool,
    /// Octets of the other direction that the sender had when it sent what came last.
    pub(in crate::trace) had: u64,
    /// The MSS that this end announced.
    pub(in crate::trace) mss: Option<u16>,
    /// Whether the beginning of an FPDU was searched for and found.
    pub(in crate::trace) resumed: bool,
    /// The FPDU before, where there are neither CRCs nor Markers.
    pub(in crate::trace) before: Vec<u8>,
    /// Segments that a Terminate of the other end may be about.
    pub(in crate::trace) spoken: Spoken,
}

/// FPDUs that an end may have said something wrong with.
#[derive(Debug, Default)]
pub(in crate::trace) struct Spoken {
    /// Length and first octets of the latest ULPDUs.
    latest: VecDeque<(usize, Vec<u8>)>,
    /// Whether there were others.
    others: bool,
}

impl Spoken {
    /// ULPDUs that are kept.
    const MOST: usize = 128;
    /// Octets of each: the longest header, and that of a Read Request.
    const HEAD: usize = 46;

    pub(in crate::trace) fn add(&mut self, ulpdu: &[u8]) {
        if self.latest.len() == Self::MOST {
            self.latest.pop_front();
            self.others = true;
        }
        let head = ulpdu.iter().take(Self::HEAD).copied().collect();
        self.latest.push_back((ulpdu.len(), head));
    }

    /// Something that was said is not known.
    pub(in crate::trace) fn forget(&mut self) {
        self.others = true;
    }

    /// Whether none of them was like this, given length and octets, and there was no other.
    pub(in crate::trace) fn denies(&self, is: impl Fn(usize, &[u8]) -> bool) -> bool {
        !self.others && !self.latest.iter().any(|(length, head)| is(*length, head))
    }
}

impl Half {
    pub(in crate::trace) fn new() -> Self {
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
            had: 0,
            mss: None,
            resumed: false,
            before: Vec::new(),
            spoken: Spoken::default(),
        }
    }

    pub(in crate::trace) fn consume(&mut self, octets: usize) -> Vec<u8> {
        let octets = octets.min(self.buffer.len());
        self.offset += u64::try_from(octets).unwrap_or(0);
        let rest = self.buffer.split_off(octets);
        std::mem::replace(&mut self.buffer, rest)
    }

    /// Gives back all but the first word of octets that were consumed from this offset on.
    pub(in crate::trace) fn back(&mut self, offset: u64, octets: &[u8]) {
        self.buffer.splice(..0, octets.iter().skip(4).copied());
        self.offset = offset + octets.len().min(4) as u64;
    }

    /// The next FPDU begins here, behind a pad of another length than there has to be: words count from here.
    pub(in crate::trace) fn align(&mut self) {
        self.base += self.offset.saturating_sub(self.base) % 4;
    }

    pub(in crate::trace) fn end(&mut self) {
        self.phase = Phase::Over;
        self.buffer = Vec::new();
    }
}

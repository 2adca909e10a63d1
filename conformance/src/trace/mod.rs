//! Recorded traffic: its messages, and the rules that they break.
//!
//! A [`Reader`] gives the packets of a capture file, a [`Trace`] makes TCP connections and UDP conversations of them, finds those that are iWARP or the datagram
//! mapping, and tells a sink, in the order of the file, what was said ([`What`]) and which [`Rule`]s of a sender it breaks. Input that cannot be judged, because the
//! capture is incomplete, is reported as [`Unjudged`]: nobody is accused of what somebody else may have lost. Memory is bounded by connections and, in each, by what
//! waits to become whole.

mod capture;
mod connection;
mod coverage;
mod datagram;
mod flows;
pub mod lint;
mod live;
mod messages;
mod rdmap;
mod reads;
mod reliable;
mod rules;
mod startup;
mod stream;
mod terminate;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::SocketAddr;

pub use self::capture::file::{FileError, Packet, Reader};
pub use self::flows::Trace;
pub use self::live::judge;
pub use self::rules::{ALL, Keyword, Rule};
use crate::wire::datagram::{Datagram, Dropped};
use crate::wire::ddp::Segment;
use crate::wire::framing::Fpdu;
use crate::wire::startup::Startup;

/// The most octets of a frame that go with a finding.
const EVIDENCE: usize = 96;

/// Something in a trace.
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    /// The number of the packet that completed it.
    pub packet: u64,
    /// When that was captured, in nanoseconds since 1970.
    pub at: u64,
    /// Address of the sender.
    pub from: SocketAddr,
    /// To whom.
    pub to: SocketAddr,
    /// Which of the file's TCP connections, from 1; 0 for UDP.
    pub connection: u64,
    /// Kind and contents.
    pub what: What<'a>,
}

/// Items of a trace.
#[derive(Clone, Copy, Debug)]
pub enum What<'a> {
    /// A startup frame of MPA.
    Startup {
        /// It.
        frame: &'a Startup,
        /// Its octets.
        octets: &'a [u8],
    },
    /// An FPDU.
    Fpdu(&'a SeenFpdu<'a>),
    /// A datagram of the mapping to UDP.
    Datagram(&'a SeenDatagram<'a>),
    /// A rule is broken by what came last from this sender.
    Finding(&'a Finding),
    /// Something is left out of the judgement.
    Unjudged(Unjudged),
}

/// An FPDU in its stream.
#[derive(Clone, Copy, Debug)]
pub struct SeenFpdu<'a> {
    /// Its distance from the beginning of the stream, or of what was recorded of it.
    pub offset: u64,
    /// It.
    pub fpdu: &'a Fpdu,
    /// The DDP segment in it, if it is long enough for one and can be believed.
    pub segment: Option<&'a Segment>,
    /// Whether CRCs are in use.
    pub crc: bool,
    /// Its octets, Markers included.
    pub octets: &'a [u8],
}

/// A datagram, as it was sent.
#[derive(Clone, Copy, Debug)]
pub struct SeenDatagram<'a> {
    /// Its octets.
    pub octets: &'a [u8],
    /// The parsed datagram, or the reason for which every receiver drops it.
    pub parsed: Result<&'a Datagram, &'a Dropped>,
    /// Which of how many it is, of those that were recorded as one train before the kernel cut it.
    pub train: (usize, usize),
    /// Comment of the file.
    pub comment: Option<&'a str>,
}

/// A rule that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Which.
    pub rule: &'static Rule,
    /// How.
    pub detail: String,
    /// The frame's octets, the first of them.
    pub octets: Vec<u8>,
}

/// Why something is left out of the judgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unjudged {
    /// The recording began later than the connection.
    Joined {
        /// Octets before the first FPDU that could be told.
        octets: u64,
    },
    /// Octets are not in the file.
    Gap {
        /// How many.
        octets: u64,
    },
    /// The beginning of an FPDU behind a gap was not found, or only from here on.
    Skipped {
        /// Octets that were passed over.
        octets: u64,
    },
    /// Without CRCs the beginning of an FPDU was not found again.
    LostFraming,
    /// The answer to a Request is not of MPA.
    NotMpa,
    /// The stream ends inside of an FPDU.
    Cut {
        /// Octets of it that are there.
        octets: u64,
    },
}

impl fmt::Display for Unjudged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Joined { octets } => write!(
                f,
                "the recording began later than the connection: {octets} octets before the first FPDU are not judged, nor is what depends on them"
            ),
            Self::Gap { octets } => write!(f, "{octets} octets of the stream are not in the file"),
            Self::Skipped { octets } => {
                write!(f, "{octets} octets before the next FPDU are not judged")
            }
            Self::LostFraming => {
                f.write_str("without CRCs the next FPDU was not found: the rest is not judged")
            }
            Self::NotMpa => f.write_str("the answer to the Request is not of MPA"),
            Self::Cut { octets } => {
                write!(f, "the stream ends after {octets} octets of an FPDU")
            }
        }
    }
}

/// Receiver of all items of a trace.
pub type Sink<'s> = dyn FnMut(&Item<'_>) + 's;

/// Where it is told what the two ends of something say.
struct Out<'a, 's> {
    packet: u64,
    at: u64,
    ends: [SocketAddr; 2],
    connection: u64,
    sink: &'a mut Sink<'s>,
}

impl Out<'_, '_> {
    /// Tells what this end, 0 or 1, says.
    fn say(&mut self, way: usize, what: What<'_>) {
        let [a, b] = self.ends;
        let (from, to) = if way == 0 { (a, b) } else { (b, a) };
        (self.sink)(&Item {
            packet: self.packet,
            at: self.at,
            from,
            to,
            connection: self.connection,
            what,
        });
    }

    fn finding(&mut self, way: usize, rule: &'static Rule, detail: String, octets: &[u8]) {
        let octets = octets.iter().take(EVIDENCE).copied().collect();
        let finding = Finding {
            rule,
            detail,
            octets,
        };
        self.say(way, What::Finding(&finding));
    }
}

/// Where a check tells what it finds.
type Report<'a> = dyn FnMut(&'static Rule, String) + 'a;

//! Reliable datagrams (`rfc-notes/reliable-datagrams.md`): the rules of a sender.
//!
//! State is kept by the identifier that the receiver drew: what an opener sends before it knows it is judged by itself alone.

use std::net::SocketAddr;

use dgiwarp_codec::crc;

use super::datagram::Recent;
use super::{Report, rules};
use crate::wire::reliable::{Frame, Hello, Reliable, SegmentFrame, flag};

/// Octets of the envelope, and of a frame's header (Reliable §2, §3).
const ENVELOPE: usize = 24;
const HEADER: usize = 4;
/// Octets of the CRC behind the frames.
const TRAILER: usize = 4;
/// Distance of a message to the one that it comes after, at least too far (Reliable §3.1).
const TOO_FAR: u16 = 4_096;
/// Flags of a HELLO of an RC queue pair: features and reserved octets are its PSN (Reliable §3.7).
const CONNECTION: u8 = 2;

/// Source, destination, epoch, and identifier that the receiver drew.
type Key = (SocketAddr, SocketAddr, u32, u32);

/// Fields in which the segments of a message agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Message {
    receive: bool,
    stream: u16,
    after: u16,
    /// Index of the last segment.
    last: Option<u32>,
}

/// Associations of a recording, each direction by itself.
#[derive(Debug, Default)]
pub(super) struct Associations {
    /// CRC of the datagram with a number: a copy that the network makes is equal.
    numbers: Recent<(Key, u64), u32>,
    /// Fields of a segment, and CRC of its octets.
    segments: Recent<(Key, u32), (SegmentFields, u32)>,
    messages: Recent<(Key, u32), Message>,
    /// Largest packet number with CREDIT, and its receives.
    credits: Recent<Key, (u64, u32)>,
}

/// Message, index, and flag *last*.
type SegmentFields = (u32, u32, bool);

impl Associations {
    /// Judges a datagram; `octets` are all of it.
    pub(super) fn judge(
        &mut self,
        (from, to): (SocketAddr, SocketAddr),
        datagram: &Reliable,
        octets: &[u8],
        report: &mut Report<'_>,
    ) {
        reserved(datagram, octets, report);
        hello(datagram, report);
        for (at, frame) in datagram.frames.iter().enumerate() {
            let next = datagram.frames.get(at + 1);
            match frame {
                Frame::Ack(_) if !matches!(next, Some(Frame::Placed { .. })) => {
                    let next = next.map_or_else(|| "nothing".to_owned(), ToString::to_string);
                    report(rules::RELIABLE_PLACED, format!("behind ACK is {next}"));
                }
                Frame::Close {
                    reason,
                    association,
                    packet,
                } if *reason != 2 && (*association, *packet) != (0, 0) => report(
                    rules::RELIABLE_CLOSE,
                    format!("reason {reason} with association {association:#x}, packet {packet}"),
                ),
                Frame::Segment(segment) if segment.after >= TOO_FAR => report(
                    rules::RELIABLE_AFTER,
                    format!("message {} comes {} after", segment.message, segment.after),
                ),
                _ => {}
            }
        }
        // Associations that begin anew have identifiers of their own; before one is known they look alike. A retry is sent without state.
        if datagram.association == 0 || retries(datagram).is_some() {
            return;
        }
        let key = (from, to, datagram.epoch, datagram.association);
        // Behind its own CRC all octets have one sum.
        let before_crc = octets.len().saturating_sub(TRAILER);
        let sum = crc::crc32c(octets.get(..before_crc).unwrap_or_default());
        let (first, _) = self.numbers.entry((key, datagram.number), sum);
        if *first != sum {
            report(
                rules::RELIABLE_NUMBER,
                format!("number {} again, with other octets", datagram.number),
            );
        }
        for frame in &datagram.frames {
            match frame {
                Frame::Segment(segment) => self.segment(key, segment, report),
                Frame::Credit { receives, .. } => {
                    self.credit(key, datagram.number, *receives, report);
                }
                _ => {}
            }
        }
    }

    fn segment(&mut self, key: Key, segment: &SegmentFrame, report: &mut Report<'_>) {
        let fields = (segment.message, segment.index, segment.last);
        let new = (fields, crc::crc32c(&segment.octets));
        let (before, _) = self.segments.entry((key, segment.number), new);
        if *before != new {
            report(
                rules::RELIABLE_SEGMENT,
                format!("segment {} comes again changed", segment.number),
            );
            return;
        }
        let last = segment.last.then_some(segment.index);
        let (receive, stream, after) = (segment.receive, segment.stream, segment.after);
        let new = Message {
            receive,
            stream,
            after,
            last,
        };
        let (message, _) = self.messages.entry((key, segment.message), new);
        message.last = message.last.or(last);
        let agrees = (message.receive, message.stream, message.after) == (receive, stream, after)
            && last.is_none_or(|it| message.last == Some(it))
            && message.last.is_none_or(|last| segment.index <= last);
        if !agrees {
            report(
                rules::RELIABLE_MESSAGE,
                format!(
                    "segment {} of message {} disagrees with others",
                    segment.number, segment.message
                ),
            );
        }
    }

    fn credit(&mut self, key: Key, number: u64, receives: u32, report: &mut Report<'_>) {
        let (latest, _) = self.credits.entry(key, (number, receives));
        let (newer, older) = if number >= latest.0 {
            (receives, latest.1)
        } else {
            (latest.1, receives)
        };
        // Serial: half the range ahead is newer.
        if newer.wrapping_sub(older) > 1 << 31 {
            report(
                rules::RELIABLE_CREDIT,
                format!("{newer} receives behind {older}"),
            );
        }
        if number >= latest.0 {
            *latest = (number, receives);
        }
    }
}

/// Flags that each type of frame has (Reliable §3).
const fn flags_of(kind: u8) -> u8 {
    match kind {
        0x01 | 0x07 => 3,
        0x02 => 1,
        _ => 0,
    }
}

fn reserved(datagram: &Reliable, octets: &[u8], report: &mut Report<'_>) {
    let mut tell = |detail| report(rules::RELIABLE_RESERVED, detail);
    if datagram.flags & !(flag::EAGER | flag::HELLO) != 0 {
        return tell(format!("flags are {:#04x}", datagram.flags));
    }
    if octets.get(2..4) != Some(&[0, 0]) {
        return tell("reserved octets of the envelope".to_owned());
    }
    let end = octets.len().saturating_sub(TRAILER);
    let mut rest = octets.get(ENVELOPE..end).unwrap_or_default();
    while let Some([kind, flags, high, low]) = rest.first_chunk::<HEADER>() {
        if flags & !flags_of(*kind) != 0 {
            return tell(format!("flags of frame {kind:#04x} are {flags:#04x}"));
        }
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        let body = rest.get(HEADER..).unwrap_or_default();
        let plain_hello = *kind == 0x07 && flags & CONNECTION == 0;
        if plain_hello && body.get(1..4) != Some(&[0, 0, 0]) {
            return tell("features or reserved octets of a HELLO".to_owned());
        }
        rest = body.get(length..).unwrap_or_default();
    }
}

/// The HELLO of a datagram that asks for a cookie.
fn retries(datagram: &Reliable) -> Option<&Hello> {
    match datagram.frames.first() {
        Some(Frame::Hello(hello)) if hello.retry => Some(hello),
        _ => None,
    }
}

fn hello(datagram: &Reliable, report: &mut Report<'_>) {
    let comes = matches!(datagram.frames.first(), Some(Frame::Hello(_)));
    let flagged = datagram.flags & flag::HELLO != 0;
    if flagged != comes {
        let detail = format!("flag {flagged}, frame {comes}");
        report(rules::RELIABLE_HELLO, detail);
    }
    if let Some(hello) = retries(datagram)
        && (hello.association != 0 || datagram.frames.len() > 1)
    {
        report(
            rules::RELIABLE_HELLO,
            format!(
                "a retry with association {:#x} and {} frames",
                hello.association,
                datagram.frames.len()
            ),
        );
    }
}

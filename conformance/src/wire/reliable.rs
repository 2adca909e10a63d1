//! Reliable datagrams (`rfc-notes/reliable-datagrams.md`, "Reliable" below): format 4 of the datagram mapping.

use core::fmt;

use super::datagram::Dropped;
use super::ddp::{Segment, word};

/// T 0, L 1, format 4, DV 1.
const FIRST: u8 = 0x51;
/// Octets before the frames (Reliable §2).
const ENVELOPE: usize = 24;
/// The longest list of further ranges of an acknowledgement (Reliable §3.2).
const FURTHER: usize = 31;

/// Flags of the envelope (Reliable §2).
pub mod flag {
    /// The receiver acknowledges at once.
    pub const EAGER: u8 = 1;
    /// The first frame is a HELLO.
    pub const HELLO: u8 = 2;
}

/// A reliable datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reliable {
    /// [`flag`]s.
    pub flags: u8,
    /// Identifier that the receiver drew.
    pub association: u32,
    /// Packet number.
    pub number: u64,
    /// The sender's clock in microseconds.
    pub time: u32,
    /// The sender's epoch.
    pub epoch: u32,
    /// Its frames.
    pub frames: Vec<Frame>,
}

/// A frame (Reliable §3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Octets without meaning, of this number.
    Pad(usize),
    /// A segment of a message.
    Segment(SegmentFrame),
    /// Packet numbers that arrived.
    Ack(Ack),
    /// Segments that are placed.
    Placed {
        /// The first one that is not.
        next: u32,
        /// Bit i: segment next + 1 + i is.
        map: u64,
    },
    /// Room at the receiver.
    Credit {
        /// Messages that may begin.
        receives: u32,
        /// Octets in flight.
        window: u32,
    },
    /// A Send found no posted receive.
    Rnr {
        /// Packet number of its datagram.
        packet: u64,
        /// Number of its message.
        message: u32,
        /// Wait in microseconds.
        delay: u32,
    },
    /// A message failed.
    Error {
        /// Its number.
        message: u32,
        /// Terminate Control.
        control: u32,
    },
    /// Opens an association.
    Hello(Hello),
    /// Requests a PONG.
    Ping(u64),
    /// Response to a PING.
    Pong(u64),
    /// Ends an association.
    Close {
        /// Why.
        reason: u32,
        /// Identifier of the datagram that caused it.
        association: u32,
        /// Packet number of that datagram.
        packet: u64,
    },
}

/// A SEGMENT frame (Reliable §3.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentFrame {
    /// It is the last of its message.
    pub last: bool,
    /// The message consumes a posted receive.
    pub receive: bool,
    /// Segment number.
    pub number: u32,
    /// Message number.
    pub message: u32,
    /// Position in the message.
    pub index: u32,
    /// Stream.
    pub stream: u16,
    /// Distance back to the message before it in its stream, or 0.
    pub after: u16,
    /// The DDP segment.
    pub octets: Vec<u8>,
}

/// An ACK frame (Reliable §3.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ack {
    /// Smallest and largest number of each range, those of the largest numbers first.
    pub ranges: Vec<(u64, u64)>,
    /// Microseconds since the largest number arrived.
    pub delay: u32,
    /// Time field of the datagram with the largest number.
    pub echo: u32,
    /// Counts of ECT(0), ECT(1) and CE.
    pub counts: Option<[u32; 3]>,
}

/// A HELLO frame (Reliable §3.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The sender keeps no state.
    pub retry: bool,
    /// Features; zero.
    pub features: u8,
    /// Identifier that the sender drew.
    pub association: u32,
    /// Messages that may begin.
    pub receives: u32,
    /// Octets in flight.
    pub window: u32,
    /// Cookie that the receiver gave.
    pub proof: u64,
    /// Cookie for the receiver.
    pub cookie: u64,
}

impl Reliable {
    /// Octets before the CRC.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut octets = vec![FIRST, self.flags, 0, 0];
        octets.extend(self.association.to_be_bytes());
        octets.extend(self.number.to_be_bytes());
        octets.extend(self.time.to_be_bytes());
        octets.extend(self.epoch.to_be_bytes());
        self.frames
            .iter()
            .for_each(|frame| frame.write(&mut octets));
        octets
    }

    /// Reads the octets before the CRC, the first of which has format 4 and DV 1.
    pub(super) fn parse(octets: &[u8]) -> Result<Self, Dropped> {
        let (envelope, mut rest) = octets
            .split_at_checked(ENVELOPE)
            .ok_or(Dropped::Malformed("shorter than its envelope"))?;
        let flags = envelope[1];
        let mut frames = Vec::new();
        while !rest.is_empty() {
            let (frame, behind) = frame(rest)?;
            frames.push(frame);
            rest = behind;
        }
        let hellos = frames
            .iter()
            .skip(1)
            .any(|it| matches!(it, Frame::Hello(_)));
        if hellos {
            return Err(Dropped::Malformed("a HELLO that is not the first frame"));
        }
        Ok(Self {
            flags,
            association: word(envelope, 4).unwrap_or_default(),
            number: long(envelope, 8),
            time: word(envelope, 16).unwrap_or_default(),
            epoch: word(envelope, 20).unwrap_or_default(),
            frames,
        })
    }
}

impl Frame {
    fn write(&self, out: &mut Vec<u8>) {
        let (kind, flags, body) = match self {
            Self::Pad(length) => (0x00, 0, vec![0; *length]),
            Self::Segment(it) => {
                let flags = u8::from(it.last) | u8::from(it.receive) << 1;
                let mut body = words(&[it.number, it.message, it.index]);
                body.extend(it.stream.to_be_bytes());
                body.extend(it.after.to_be_bytes());
                body.extend(&it.octets);
                (0x01, flags, body)
            }
            Self::Ack(it) => (0x02, u8::from(it.counts.is_some()), it.to_bytes()),
            Self::Placed { next, map } => (0x03, 0, [words(&[*next]), longs(&[*map])].concat()),
            Self::Credit { receives, window } => (0x04, 0, words(&[*receives, *window])),
            Self::Rnr {
                packet,
                message,
                delay,
            } => {
                let body = [longs(&[*packet]), words(&[*message, *delay])].concat();
                (0x05, 0, body)
            }
            Self::Error { message, control } => (0x06, 0, words(&[*message, *control])),
            Self::Hello(it) => {
                let mut body = vec![1, it.features, 0, 0];
                body.extend(words(&[it.association, it.receives, it.window]));
                body.extend(longs(&[it.proof, it.cookie]));
                (0x07, u8::from(it.retry), body)
            }
            Self::Ping(data) => (0x08, 0, longs(&[*data])),
            Self::Pong(data) => (0x09, 0, longs(&[*data])),
            Self::Close {
                reason,
                association,
                packet,
            } => {
                let body = [words(&[*reason, *association]), longs(&[*packet])].concat();
                (0x0a, 0, body)
            }
        };
        let length = u16::try_from(body.len()).unwrap_or(u16::MAX);
        out.extend([kind, flags]);
        out.extend(length.to_be_bytes());
        out.extend(body);
    }
}

impl Ack {
    fn to_bytes(&self) -> Vec<u8> {
        // Numbers too large for a field are cut: nothing is refused.
        let cut = |number: u64| u32::try_from(number & u64::from(u32::MAX)).unwrap_or_default();
        let (mut smallest, largest) = self.ranges.first().copied().unwrap_or_default();
        let mut body = longs(&[largest]);
        let first = cut(largest.wrapping_sub(smallest));
        body.extend(words(&[self.delay, self.echo, first]));
        for (from, to) in self.ranges.iter().skip(1).copied() {
            let gap = cut(smallest.wrapping_sub(to).wrapping_sub(2));
            body.extend(words(&[gap, cut(to.wrapping_sub(from))]));
            smallest = from;
        }
        body.extend(self.counts.iter().flat_map(|counts| words(counts)));
        body
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn longs(longs: &[u64]) -> Vec<u8> {
    longs.iter().flat_map(|long| long.to_be_bytes()).collect()
}

fn long(octets: &[u8], at: usize) -> u64 {
    let half = |at| u64::from(word(octets, at).unwrap_or_default());
    half(at) << 32 | half(at + 4)
}

fn half(octets: &[u8], at: usize) -> u16 {
    let [a, b, ..] = word(octets, at).unwrap_or_default().to_be_bytes();
    u16::from_be_bytes([a, b])
}

fn frame(octets: &[u8]) -> Result<(Frame, &[u8]), Dropped> {
    const SHORT: Dropped = Dropped::Malformed("a frame that goes beyond its datagram");
    const LENGTH: Dropped = Dropped::Malformed("a frame of another length than its type's");
    let ([kind, flags, high, low], rest) = octets.split_first_chunk().ok_or(SHORT)?;
    let length = u16::from_be_bytes([*high, *low]);
    let (body, behind) = rest.split_at_checked(length.into()).ok_or(SHORT)?;
    let at = |at| word(body, at).unwrap_or_default();
    let frame = match (kind, body.len()) {
        (0x00, length) => Frame::Pad(length),
        (0x01, 18..) => Frame::Segment(SegmentFrame {
            last: flags & 1 != 0,
            receive: flags & 2 != 0,
            number: at(0),
            message: at(4),
            index: at(8),
            stream: half(body, 12),
            // The word behind it would end beyond the shortest segment.
            after: u16::from_be_bytes([body[14], body[15]]),
            octets: body[16..].to_vec(),
        }),
        (0x02, _) => Frame::Ack(ack(flags & 1 != 0, body)?),
        (0x03, 12) => Frame::Placed {
            next: at(0),
            map: long(body, 4),
        },
        (0x04, 8) => Frame::Credit {
            receives: at(0),
            window: at(4),
        },
        (0x05, 16) => Frame::Rnr {
            packet: long(body, 0),
            message: at(8),
            delay: at(12),
        },
        (0x06, 8) => Frame::Error {
            message: at(0),
            control: at(4),
        },
        (0x07, 32) if body[0] == 1 => Frame::Hello(Hello {
            retry: flags & 1 != 0,
            features: body[1],
            association: at(4),
            receives: at(8),
            window: at(12),
            proof: long(body, 16),
            cookie: long(body, 24),
        }),
        (0x07, 32) => return Err(Dropped::Malformed("another version than 1")),
        (0x08, 8) => Frame::Ping(long(body, 0)),
        (0x09, 8) => Frame::Pong(long(body, 0)),
        (0x0a, 16) => Frame::Close {
            reason: at(0),
            association: at(4),
            packet: long(body, 8),
        },
        (0x01 | 0x03..=0x0a, _) => return Err(LENGTH),
        _ => return Err(Dropped::Malformed("a frame of an unknown type")),
    };
    Ok((frame, behind))
}

fn ack(has_counts: bool, body: &[u8]) -> Result<Ack, Dropped> {
    const BELOW: Dropped = Dropped::Malformed("a range that reaches below 0");
    let tail = if has_counts { 12 } else { 0 };
    let further = body
        .len()
        .checked_sub(20 + tail)
        .filter(|octets| octets % 8 == 0 && octets / 8 <= FURTHER)
        .ok_or(Dropped::Malformed("an ACK not of whole ranges"))?;
    let at = |at| word(body, at).unwrap_or_default();
    let largest = long(body, 0);
    let mut smallest = largest.checked_sub(at(16).into()).ok_or(BELOW)?;
    let mut ranges = vec![(smallest, largest)];
    for place in (20..20 + further).step_by(8) {
        let end = smallest.checked_sub(u64::from(at(place)) + 2);
        let end = end.ok_or(BELOW)?;
        smallest = end.checked_sub(at(place + 4).into()).ok_or(BELOW)?;
        ranges.push((smallest, end));
    }
    let counts = 20 + further;
    Ok(Ack {
        ranges,
        delay: at(8),
        echo: at(12),
        counts: has_counts.then(|| [at(counts), at(counts + 4), at(counts + 8)]),
    })
}

impl fmt::Display for Reliable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "association {:#x}, packet {}",
            self.association, self.number
        )?;
        if self.flags & flag::EAGER != 0 {
            f.write_str(", eager")?;
        }
        for frame in &self.frames {
            write!(f, "; {frame}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pad(length) => write!(f, "PAD of {length} octets"),
            Self::Segment(it) => it.fmt(f),
            Self::Ack(it) => it.fmt(f),
            Self::Placed { next, map: 0 } => write!(f, "PLACED before {next}"),
            Self::Placed { next, map } => write!(f, "PLACED before {next} and {map:#x}"),
            Self::Credit { receives, window } => {
                write!(f, "CREDIT {receives} receives, {window} octets")
            }
            Self::Rnr {
                packet,
                message,
                delay,
            } => write!(f, "RNR message {message} in packet {packet}, {delay} µs"),
            Self::Error { message, control } => {
                write!(
                    f,
                    "ERROR message {message}, Terminate Control {control:#010x}"
                )
            }
            Self::Hello(it) => {
                let retry = if it.retry { " retry," } else { "" };
                write!(
                    f,
                    "HELLO{retry} association {:#x}, {} receives, {} octets",
                    it.association, it.receives, it.window
                )
            }
            Self::Ping(data) => write!(f, "PING {data:#x}"),
            Self::Pong(data) => write!(f, "PONG {data:#x}"),
            Self::Close {
                reason: 2,
                association,
                packet,
            } => write!(
                f,
                "CLOSE, unknown association {association:#x} of packet {packet}"
            ),
            Self::Close { reason, .. } => write!(f, "CLOSE, reason {reason}"),
        }
    }
}

impl fmt::Display for SegmentFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "SEGMENT {} of message {}, index {}",
            self.number, self.message, self.index
        )?;
        if self.last {
            f.write_str(", last")?;
        }
        if self.after != 0 {
            write!(f, ", {} after", self.after)?;
        }
        match Segment::parse(&self.octets) {
            Some(segment) => write!(f, ": {segment}"),
            None => write!(f, ": {} octets", self.octets.len()),
        }
    }
}

impl fmt::Display for Ack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ACK")?;
        for (smallest, largest) in &self.ranges {
            if smallest == largest {
                write!(f, " {largest}")?;
            } else {
                write!(f, " {smallest}-{largest}")?;
            }
        }
        write!(f, ", {} µs", self.delay)?;
        if let Some([ect0, ect1, ce]) = self.counts {
            write!(f, ", ECN {ect0}/{ect1}/{ce}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::datagram::Datagram;

    /// The examples of the specification: what each one says of itself, and its octets.
    fn examples() -> Vec<(String, Vec<u8>)> {
        let text = include_str!("../../../rfc-notes/reliable-datagrams.md");
        let blocks = text.split("```example ").skip(1);
        blocks
            .map(|block| {
                let block = block.split("```").next().unwrap_or_default();
                let hex =
                    |line: &&str| line.len() > 1 && line.split(' ').all(|word| word.len() == 2);
                let lines: Vec<_> = block.lines().skip(1).collect();
                let told = lines.iter().filter(|line| !hex(line)).copied();
                let octets = lines.iter().filter(|line| hex(line)).flat_map(|line| {
                    let words = line.split(' ');
                    words.map(|word| u8::from_str_radix(word, 16).unwrap())
                });
                (told.collect::<Vec<_>>().join("\n"), octets.collect())
            })
            .collect()
    }

    #[test]
    fn the_examples_of_the_specification_are_read_and_built() {
        let examples = examples();
        assert!(examples.len() >= 6, "{}", examples.len());
        let mut shown = String::new();
        for (told, octets) in &examples {
            let parsed = Datagram::parse(octets).unwrap();
            assert_eq!(parsed.to_bytes(), *octets, "{told}");
            let Datagram::Reliable(reliable) = parsed else {
                panic!("{told}");
            };
            let number = told.split("number=").nth(1).unwrap();
            let number = number.split(' ').next().unwrap();
            let number = match number.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16),
                None => number.parse(),
            };
            assert_eq!(Ok(reliable.number), number, "{told}");
            assert_eq!(reliable.frames.len() + 1, told.lines().count(), "{told}");
            shown += &format!("{reliable}\n");
        }
        for part in [
            "association 0x0, packet 0, eager; HELLO association 0xa0b0c0d, 16 receives, 262144 octets; SEGMENT 0 of message 0, index 0, last: Send",
            "ACK 99-100 96-97 0-89, 250 µs, ECN 90/0/4; PLACED before 1000 and 0x1; CREDIT 24 receives, 131072 octets",
            "RNR message 5 in packet 41, 1000 µs",
        ] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
    }

    /// A datagram with these octets as its frames.
    fn with(frames: &[u8]) -> Result<Datagram, Dropped> {
        let mut octets = vec![FIRST, 0, 0, 0];
        octets.resize(ENVELOPE, 0);
        octets.extend(frames);
        Datagram::parse(&crate::wire::datagram::sealed(octets))
    }

    #[test]
    fn what_breaks_the_layout_is_named() {
        assert!(with(&[]).is_ok() && with(&[0, 0, 0, 1, 9]).is_ok());
        let ack = |largest: u8, first: u8, more: &[u8]| {
            let [.., high, low] = (20 + more.len()).to_be_bytes();
            let mut octets = vec![2, 0, high, low];
            octets.resize(4 + 20, 0);
            octets[11] = largest;
            octets[23] = first;
            octets.extend(more);
            octets
        };
        assert!(with(&ack(9, 2, &[0, 0, 0, 1, 0, 0, 0, 4])).is_ok());
        let hello = [&[7, 0, 0, 32, 2][..], &[0; 31]].concat();
        let second = [&[0, 0, 0, 0, 7, 0, 0, 32, 1][..], &[0; 31]].concat();
        for (frames, why) in [
            (&[8, 0, 0, 8][..], "a frame that goes beyond its datagram"),
            (&[8, 0], "a frame that goes beyond its datagram"),
            (
                &[8, 0, 0, 1, 0],
                "a frame of another length than its type's",
            ),
            (&[1, 0, 0, 0], "a frame of another length than its type's"),
            (&[11, 0, 0, 0], "a frame of an unknown type"),
            (&ack(1, 2, &[]), "a range that reaches below 0"),
            (
                &ack(9, 2, &[0, 0, 0, 1, 0, 0, 0, 5]),
                "a range that reaches below 0",
            ),
            (&ack(9, 2, &[0; 4]), "an ACK not of whole ranges"),
            (&ack(255, 0, &[0; 8 * 32]), "an ACK not of whole ranges"),
            (&hello, "another version than 1"),
            (&second, "a HELLO that is not the first frame"),
        ] {
            assert_eq!(with(frames), Err(Dropped::Malformed(why)), "{frames:?}");
        }
    }
}

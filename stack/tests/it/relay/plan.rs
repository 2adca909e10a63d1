//! Messages that the sender sends and the receiver expects, computed alike in both from the seed.

use std::fmt;
use std::str::FromStr;

/// Octets of payload of a Write-Record segment in a datagram of MTU 1500: 1500 less 28 of IPv4 and UDP, 14 of the tagged
/// header, 24 of the extension and 4 of the CRC.
pub(crate) const WRITE_SEGMENT: u32 = 1430;
/// Longest message.
pub(crate) const LONGEST: u32 = 256 << 10;
/// Length of the Sends.
pub(crate) const SEND_LENGTH: u32 = 64 << 10;
/// Octets between two messages' places, which nothing may touch.
pub(crate) const GUARD: u32 = 64;
/// Value of memory where nothing was written. Octets of messages have their highest bit set.
pub(crate) const CANARY: u8 = 0x5a;
/// Segments of each message of the [`Kind::Nth`] case.
pub(crate) const NTH_SEGMENTS: u32 = 20;

/// A small generator (SplitMix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        let product = (self.next() >> 32) * u64::from(bound);
        u32::try_from(product >> 32).unwrap()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Write-Records of all lengths; segments are lost, doubled and reordered at random.
    Write,
    /// Write-Records of 20 segments; of message i the segment i modulo 20 is lost, nothing else happens.
    Nth,
    /// Segmented Sends; as `Write`.
    Send,
}

/// One run of the three processes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Case {
    pub(crate) kind: Kind,
    pub(crate) seed: u64,
    /// Segments lost of 100,000.
    pub(crate) loss: u32,
    pub(crate) messages: usize,
    /// Messages between two settlements: then the relay lets go of all it holds, and the receiver checks its memory.
    pub(crate) batch: usize,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Write => "write",
            Kind::Nth => "nth",
            Kind::Send => "send",
        };
        let (seed, loss, messages, batch) = (self.seed, self.loss, self.messages, self.batch);
        write!(f, "{kind} {seed} {loss} {messages} {batch}")
    }
}

impl FromStr for Case {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let words: Vec<&str> = text.split(' ').collect();
        Ok(Self {
            kind: match words[0] {
                "write" => Kind::Write,
                "nth" => Kind::Nth,
                "send" => Kind::Send,
                other => panic!("no kind {other}"),
            },
            seed: words[1].parse()?,
            loss: words[2].parse()?,
            messages: words[3].parse()?,
            batch: words[4].parse()?,
        })
    }
}

/// A message and its place in the receiver's memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Message {
    pub(crate) index: u32,
    pub(crate) length: u32,
    pub(crate) place: u32,
}

impl Case {
    /// All messages in batches, none longer than `longest`.
    pub(crate) fn batches(&self, longest: u32) -> Vec<Vec<Message>> {
        let mut random = Random(self.seed);
        let mut batches = Vec::new();
        for first in (0..self.messages).step_by(self.batch) {
            let mut place = GUARD;
            let last = self.messages.min(first + self.batch);
            let messages = (first..last).map(|index| {
                let length = self.length(&mut random, index).min(longest);
                let message = Message {
                    index: u32::try_from(index).unwrap(),
                    length,
                    place,
                };
                place += length + GUARD;
                message
            });
            batches.push(messages.collect());
        }
        batches
    }

    fn length(&self, random: &mut Random, index: usize) -> u32 {
        match self.kind {
            Kind::Write => {
                // Logarithmically uniform; every fourth message has 23 segments or more.
                let shortest = if index.is_multiple_of(4) { 15 } else { 0 };
                let octave = shortest + random.below(18 - shortest);
                (1 << octave) + random.below(1 << octave)
            }
            Kind::Nth => NTH_SEGMENTS * WRITE_SEGMENT - random.below(WRITE_SEGMENT),
            Kind::Send => SEND_LENGTH,
        }
    }

    /// Octets of memory that the largest batch needs.
    pub(crate) fn memory(&self) -> u32 {
        let ends = self.batches(LONGEST).into_iter().map(|batch| {
            let last = batch.last().unwrap();
            last.place + last.length + GUARD
        });
        ends.max().unwrap()
    }

    /// The octets of a message. No two messages, and no two parts of one, are alike.
    pub(crate) fn pattern(&self, message: u32, length: u32) -> Vec<u8> {
        let mut random = Random(self.seed ^ u64::from(message) << 32);
        let words = (0..length.div_ceil(8)).map(|_| random.next() | 0x8080_8080_8080_8080);
        let mut octets: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        octets.truncate(usize::try_from(length).unwrap());
        octets
    }
}

/// Ranges `(start, end)` in ascending order, those that touch made one.
pub(crate) fn union(mut ranges: Vec<(u32, u32)>) -> Vec<(u32, u32)> {
    ranges.sort_unstable();
    let mut merged: Vec<(u32, u32)> = Vec::new();
    for (start, end) in ranges {
        match merged.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            Some(_) | None => merged.push((start, end)),
        }
    }
    merged
}

//! Acknowledgement frame (§3.2): ranges of packet numbers that arrived and whose segments were accepted.

use std::fmt;
use std::ops::RangeInclusive;

use smallvec::{SmallVec, smallvec};

use super::super::malformed::Malformed;
use super::super::octets::{HEADER_LEN, Reader, emit_header};

pub(super) const KIND: u8 = 0x02;
/// Most ranges of one frame.
pub const MAX_RANGES: usize = 32;
/// Octets up to the ranges behind the first.
const FIXED: usize = 20;
const RANGE: usize = 8;
const ECN: usize = 12;
pub(super) const MAX_LEN: usize = FIXED + (MAX_RANGES - 1) * RANGE + ECN;

const COUNTS: u8 = 0x01;

/// Datagrams that arrived with each mark of ECN, modulo 2^32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EcnCounts {
    /// ECT(0).
    pub ect0: u32,
    /// ECT(1).
    pub ect1: u32,
    /// Congestion experienced.
    pub ce: u32,
}

/// An acknowledgement. Its ranges are in descending order, with a gap of at least one number between two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ack {
    /// Microseconds from the arrival of the largest number to the acknowledgement.
    pub delay: u32,
    /// Time field of the datagram with the largest number.
    pub echo: u32,
    /// Counts of ECN, where the receiver sees them.
    pub ecn: Option<EcnCounts>,
    /// Largest and smallest number of each range, 1 to 32. Without loss there is one, or two behind a number that was skipped.
    ranges: SmallVec<[(u64, u64); 2]>,
}

impl Ack {
    /// An acknowledgement of one range.
    #[must_use]
    pub fn new(first: RangeInclusive<u64>, delay: u32, echo: u32) -> Self {
        Self {
            delay,
            echo,
            ecn: None,
            ranges: smallvec![(*first.end(), *first.start())],
        }
    }

    /// Adds a range below all others. Returns whether there was room, and a gap.
    pub fn add(&mut self, range: &RangeInclusive<u64>) -> bool {
        let gap = range
            .end()
            .checked_add(1)
            .is_some_and(|next| next < self.smallest());
        if !gap || range.is_empty() || self.ranges.len() == MAX_RANGES {
            return false;
        }
        self.ranges.push((*range.end(), *range.start()));
        true
    }

    /// The largest number.
    #[must_use]
    pub fn largest(&self) -> u64 {
        self.ranges.first().map_or(0, |range| range.0)
    }

    /// The smallest number.
    #[must_use]
    pub fn smallest(&self) -> u64 {
        self.ranges().last().map_or(0, |range| *range.start())
    }

    /// The ranges, those of the largest numbers first.
    pub fn ranges(&self) -> impl DoubleEndedIterator<Item = RangeInclusive<u64>> + '_ {
        self.ranges
            .iter()
            .map(|&(largest, smallest)| smallest..=largest)
    }

    /// `None` for another length than that of whole ranges.
    pub(super) fn parse(flags: u8, octets: &[u8]) -> Option<Result<Self, Malformed>> {
        let counts = flags & COUNTS != 0;
        let tail = if counts { ECN } else { 0 };
        let more = octets.len().checked_sub(FIXED + tail)?;
        if !more.is_multiple_of(RANGE) || more / RANGE >= MAX_RANGES {
            return None;
        }
        let mut reader = Reader::new(octets);
        let largest = reader.u64()?;
        let below = Err(Malformed::Ranges(largest));
        let (delay, echo) = (reader.u32()?, reader.u32()?);
        let Some(smallest) = largest.checked_sub(reader.u32()?.into()) else {
            return Some(below);
        };
        let mut ack = Self::new(smallest..=largest, delay, echo);
        for _ in 0..more / RANGE {
            let (gap, length) = (u64::from(reader.u32()?), u64::from(reader.u32()?));
            // A gap of g is g + 1 missing numbers.
            let range = ack
                .smallest()
                .checked_sub(gap + 2)
                .and_then(|largest| Some(largest.checked_sub(length)?..=largest));
            match range {
                Some(range) if ack.add(&range) => {}
                Some(_) | None => return Some(below),
            }
        }
        if counts {
            ack.ecn = Some(EcnCounts {
                ect0: reader.u32()?,
                ect1: reader.u32()?,
                ce: reader.u32()?,
            });
        }
        reader.end(Ok(ack))
    }

    /// Appends the frame. A range or gap of more than 2^32 numbers ends it.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let start = out.len();
        emit_header(out, KIND, u8::from(self.ecn.is_some()), 0);
        out.extend(self.largest().to_be_bytes());
        out.extend(self.delay.to_be_bytes());
        out.extend(self.echo.to_be_bytes());
        let mut before: Option<u64> = None;
        for range in self.ranges() {
            let (smallest, largest) = range.into_inner();
            let length = u32::try_from(largest - smallest);
            match (before, length) {
                (None, length) => out.extend(length.unwrap_or(u32::MAX).to_be_bytes()),
                (Some(below), Ok(length)) => {
                    let Ok(gap) = u32::try_from(below - largest - 2) else {
                        break;
                    };
                    out.extend(gap.to_be_bytes());
                    out.extend(length.to_be_bytes());
                }
                (Some(_), Err(_)) => break,
            }
            before = Some(smallest);
            if length.is_err() {
                break;
            }
        }
        if let Some(counts) = self.ecn {
            out.extend(counts.ect0.to_be_bytes());
            out.extend(counts.ect1.to_be_bytes());
            out.extend(counts.ce.to_be_bytes());
        }
        let body = u16::try_from(out.len() - start - HEADER_LEN).unwrap_or(u16::MAX);
        if let Some([_, _, high, low, ..]) = out.get_mut(start..) {
            [*high, *low] = body.to_be_bytes();
        }
    }
}

impl fmt::Display for Ack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("acknowledgement")?;
        for range in self.ranges() {
            write!(f, " {}-{}", range.start(), range.end())?;
        }
        write!(f, " delay {} µs", self.delay)?;
        if let Some(EcnCounts { ect0, ect1, ce }) = self.ecn {
            write!(f, " ECN {ect0}/{ect1}/{ce}")?;
        }
        Ok(())
    }
}

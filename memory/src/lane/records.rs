//! Records of a lane: datagrams, each with its length in front (rfc-notes/same-host.md).

use super::ends::{LaneInput, LaneOutput};
use super::part::LanePart;
use super::protocol::LaneCorrupt;
use crate::Piece;

/// Octets of a record's header.
const HEADER: usize = 8;

/// A datagram, or a train of equal ones and a last one, of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// Octets in all, at least 1.
    pub octets: u32,
    /// Octets of each datagram but the last.
    pub stride: u16,
}

impl Record {
    /// Octets that the record takes in its lane.
    #[must_use]
    pub const fn octets_in_lane(&self) -> usize {
        HEADER + self.octets as usize
    }

    const fn emit(self) -> [u8; HEADER] {
        let [a, b, c, d] = self.octets.to_le_bytes();
        let [e, f] = self.stride.to_le_bytes();
        [a, b, c, d, e, f, 0, 0]
    }

    const fn parse([a, b, c, d, e, f, ..]: [u8; HEADER]) -> Self {
        Self {
            octets: u32::from_le_bytes([a, b, c, d]),
            stride: u16::from_le_bytes([e, f]),
        }
    }
}

impl LaneOutput {
    /// Copies a datagram, or a train, into the lane as one record, or nothing where there is no room for it now. Returns whether it did.
    /// [`takes_bell`](Self::takes_bell) comes next.
    ///
    /// # Errors
    /// [`LaneCorrupt`]; nothing was sent.
    #[inline]
    pub fn write_record(
        &mut self,
        record: Record,
        pieces: &[Piece<'_>],
    ) -> Result<bool, LaneCorrupt> {
        self.write_whole_behind(&record.emit(), pieces, record.octets as usize)
    }
}

impl LaneInput {
    /// The next record, which stays in the lane until it is [taken](Self::take_record). `None` if the lane is empty.
    ///
    /// # Errors
    /// [`LaneCorrupt`]: the record is not there whole, or has none of `most` octets or fewer.
    #[inline]
    pub fn next_record(&mut self, most: usize) -> Result<Option<Record>, LaneCorrupt> {
        let published = self.available()?;
        if published == 0 {
            return Ok(None);
        }
        let mut header = [0; HEADER];
        let Some(behind) = published.checked_sub(HEADER) else {
            let (octets, stride) = (0, 0);
            return Err(LaneCorrupt::Record { octets, stride });
        };
        self.copy_out(0, &mut header);
        let record = Record::parse(header);
        let Record { octets, stride } = record;
        let is_whole = (1..=most.min(behind)).contains(&(octets as usize));
        if !is_whole || !(1..=octets).contains(&stride.into()) {
            return Err(LaneCorrupt::Record { octets, stride });
        }
        Ok(Some(record))
    }

    /// The octets of the record that is the [next](Self::next_record) one, until it is [released](Self::release_record).
    ///
    /// # Panics
    /// If there is no such record.
    #[inline]
    #[must_use]
    pub fn record_part(&self, record: Record) -> LanePart<'_> {
        self.part(HEADER, record.octets as usize)
    }

    /// Releases that record. Returns whether the sending end is to be rung.
    ///
    /// # Panics
    /// If there is no such record.
    #[inline]
    pub fn release_record(&mut self, record: Record) -> bool {
        self.release(record.octets_in_lane())
    }

    /// Copies the record that is the [next](Self::next_record) one, which stays in the lane until it is [released](Self::release_record).
    ///
    /// # Panics
    /// If `into` is shorter, or there is no such record.
    #[inline]
    pub fn peek_record(&self, record: Record, into: &mut [u8]) {
        self.copy_out(HEADER, &mut into[..record.octets as usize]);
    }

    /// Copies the record out that is the [next](Self::next_record) one. Returns whether the sending end is to be rung.
    ///
    /// # Panics
    /// If `into` is shorter, or there is no such record.
    #[inline]
    pub fn take_record(&mut self, record: Record, into: &mut [u8]) -> bool {
        self.peek_record(record, into);
        self.release_record(record)
    }
}

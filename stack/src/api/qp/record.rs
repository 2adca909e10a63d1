//! Records of Write-Records, as programs see them.

use std::net::SocketAddr;

use dgiwarp_llp_udp::Peer;
use dgiwarp_rdmap::datagram::Record;

/// Completions that the records of a queue pair make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum RecordCompletions {
    /// Each record, once it is closed: [`WcOpcode::WriteRecord`](crate::WcOpcode::WriteRecord).
    #[default]
    PerMessage,
    /// As `PerMessage`, and before it one for each segment that was placed: [`WcOpcode::WriteRecordSegment`](crate::WcOpcode::WriteRecordSegment). A segment that finds no
    /// slot is counted ([`DropReason::SegmentUnreported`](crate::DropReason::SegmentUnreported)); its octets are in the record's map all the same.
    PerSegment,
}

/// A record where it lies, for as long as a call of `with_record` lasts.
#[derive(Debug, Clone, Copy)]
pub struct RecordRef<'a>(&'a Record<Peer>);

impl<'a> RecordRef<'a> {
    pub(crate) fn new(record: &'a Record<Peer>) -> Self {
        Self(record)
    }

    /// Source of the Write-Record.
    #[must_use]
    pub fn source(&self) -> Option<SocketAddr> {
        self.0.source.socket_addr()
    }

    /// The rkey written to.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.0.stag.get()
    }

    /// Where the message starts, in the region's address space.
    #[must_use]
    pub fn remote_addr(&self) -> u64 {
        self.0.base.get()
    }

    /// Octets of the whole message.
    #[must_use]
    pub fn length(&self) -> u32 {
        self.0.length
    }

    /// Octets that are valid.
    #[must_use]
    pub fn valid(&self) -> u32 {
        self.0.map.octets()
    }

    /// The immediate, if one came.
    #[must_use]
    pub fn immediate(&self) -> Option<u32> {
        self.0.immediate
    }

    /// The valid octets, as [`RecordView::ranges`].
    #[must_use]
    pub fn ranges(&self) -> &'a [(u32, u32)] {
        self.0.map.ranges()
    }

    /// The validity map as a bitmap, as [`RecordView::bitmap`], into `out`, of which all octets are written. Returns how many octets the bitmap has;
    /// the part beyond `out` is left out.
    ///
    /// # Panics
    /// If `granule` is 0.
    pub fn bitmap_into(&self, granule: u32, out: &mut [u8]) -> usize {
        bitmap_into(self.length(), self.ranges(), granule, out)
    }

    /// A copy of it.
    #[must_use]
    pub fn to_view(&self) -> RecordView {
        RecordView {
            source: self.source(),
            rkey: self.rkey(),
            remote_addr: self.remote_addr(),
            length: self.length(),
            valid: self.valid(),
            immediate: self.immediate(),
            ranges: self.ranges().to_vec(),
        }
    }
}

/// A record as it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordView {
    /// Source of the Write-Record.
    pub source: Option<SocketAddr>,
    /// The rkey written to.
    pub rkey: u32,
    /// Where the message starts, in the region's address space.
    pub remote_addr: u64,
    /// Octets of the whole message.
    pub length: u32,
    /// Octets that are valid.
    pub valid: u32,
    /// The immediate, if one came.
    pub immediate: Option<u32>,
    /// The valid octets as ranges `(start, end)` relative to `remote_addr`, ascending, `end` excluded.
    pub ranges: Vec<(u32, u32)>,
}

impl RecordView {
    /// The validity map as a bitmap: bit i % 8 of octet i / 8 is set if all of the octets i × `granule` to
    /// (i + 1) × `granule` of the message are valid.
    ///
    /// # Panics
    /// If `granule` is 0.
    #[must_use]
    pub fn bitmap(&self, granule: u32) -> Vec<u8> {
        bitmap(self.length, &self.ranges, granule)
    }
}

/// A bit for each whole `granule` of a message that is valid.
pub(crate) fn bitmap(length: u32, ranges: &[(u32, u32)], granule: u32) -> Vec<u8> {
    let mut bitmap = vec![0; length.div_ceil(granule).div_ceil(8) as usize];
    bitmap_into(length, ranges, granule, &mut bitmap);
    bitmap
}

/// Writes the bitmap into memory of the caller. Returns how many octets it takes.
pub(crate) fn bitmap_into(
    length: u32,
    ranges: &[(u32, u32)],
    granule: u32,
    out: &mut [u8],
) -> usize {
    out.fill(0);
    let bits = length.div_ceil(granule);
    for &(start, end) in ranges {
        let first = start.div_ceil(granule);
        let after = if end == length { bits } else { end / granule };
        for bit in first..after {
            if let Some(octet) = out.get_mut((bit / 8) as usize) {
                *octet |= 1 << (bit % 8);
            }
        }
    }
    bits.div_ceil(8) as usize
}

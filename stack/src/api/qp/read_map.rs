//! Valid octets of a failed Read.

/// Which octets of a Read that failed are in place. It may have been refused, run out of time, or been flushed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadMap {
    /// Octets of the whole message.
    pub length: u32,
    /// The valid octets as ranges `(start, end)` relative to the start of the message, ascending, `end` excluded.
    pub ranges: Vec<(u32, u32)>,
}

impl ReadMap {
    /// Number of valid octets.
    #[must_use]
    pub fn valid(&self) -> u32 {
        self.ranges.iter().map(|(start, end)| end - start).sum()
    }

    /// The validity map as a bitmap, as [`RecordView::bitmap`](crate::RecordView::bitmap).
    ///
    /// # Panics
    /// If `granule` is 0.
    #[must_use]
    pub fn bitmap(&self, granule: u32) -> Vec<u8> {
        crate::api::qp::record::bitmap(self.length, &self.ranges, granule)
    }

    /// Writes the validity map into `out`, as [`RecordRef::bitmap_into`](crate::RecordRef::bitmap_into).
    ///
    /// # Panics
    /// If `granule` is 0.
    pub fn bitmap_into(&self, granule: u32, out: &mut [u8]) -> usize {
        crate::api::qp::record::bitmap_into(self.length, &self.ranges, granule, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bit_stands_for_a_whole_granule() {
        let map = ReadMap {
            length: 1000,
            ranges: vec![(0, 250), (300, 1000)],
        };
        assert_eq!(map.valid(), 950);
        assert_eq!(map.bitmap(100), [0b1111_1011, 0b11]);
        let mut longer = [0xff; 3];
        assert_eq!(map.bitmap_into(100, &mut longer), 2);
        assert_eq!(longer, [0b1111_1011, 0b11, 0]);
        let mut shorter = [0xff];
        assert_eq!(map.bitmap_into(100, &mut shorter), 2);
        assert_eq!(shorter, [0b1111_1011]);
    }
}

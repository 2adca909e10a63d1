//! Octets of a lane that are placed from where they lie.

use dgiwarp_codec::{Payload, crc};

use super::ends::LaneInput;
use super::protocol::LaneCorrupt;
use crate::{Placeable, RegionSlice};

/// Octets that are copied for a CRC at a time.
const CHUNK: usize = 4096;

/// Octets that are in a lane, and stay there while they are held. The other process may change them at any time.
#[derive(Debug, Clone, Copy)]
pub struct LanePart<'a> {
    /// Up to the end of the ring.
    before: RegionSlice<'a>,
    /// From its beginning on.
    behind: RegionSlice<'a>,
}

impl LaneInput {
    /// Whether `octets` are in the lane. `None` where they need not all be there before some of them are released.
    ///
    /// # Errors
    /// [`LaneCorrupt`].
    #[inline]
    pub fn holds(&mut self, octets: usize) -> Result<Option<bool>, LaneCorrupt> {
        let is_there = octets <= self.available()?;
        // A sender that waits for room goes on when half of the ring is free.
        let will_be = octets as u64 <= self.ring_size() / 2;
        Ok((is_there || will_be).then_some(is_there))
    }

    /// `len` octets behind the first `at` that the lane [holds](Self::holds), until they are [released](Self::release).
    ///
    /// # Panics
    /// If it does not hold them.
    #[inline]
    #[must_use]
    pub fn part(&self, at: usize, len: usize) -> LanePart<'_> {
        let [before, behind] = self.slices(at, len);
        LanePart { before, behind }
    }
}

impl LanePart<'_> {
    /// Calls `each` with the parts of `len` octets at `offset`, and the offset of each in them.
    #[inline]
    fn parts(&self, offset: usize, len: usize, mut each: impl FnMut(usize, &RegionSlice<'_>)) {
        let before = self.before.len();
        let inside = "the caller stays inside the payload";
        let first = before.saturating_sub(offset).min(len);
        if first > 0 {
            each(0, &self.before.subslice(offset, first).expect(inside));
        }
        if first < len {
            let at = (offset + first) - before;
            let rest = self.behind.subslice(at, len - first);
            each(first, &rest.expect(inside));
        }
    }
}

impl Payload for LanePart<'_> {
    #[inline]
    fn len(&self) -> usize {
        self.before.len() + self.behind.len()
    }

    #[inline]
    fn copy(&self, offset: usize, dst: &mut [u8]) {
        self.parts(offset, dst.len(), |at, part| {
            part.copy_to(&mut dst[at..at + part.len()]);
        });
    }

    fn crc(&self, offset: usize, length: usize, mut crc: u32) -> u32 {
        let mut chunk = [0; CHUNK];
        let mut at = 0;
        while at < length {
            let copy = &mut chunk[..CHUNK.min(length - at)];
            self.copy(offset + at, copy);
            crc = crc::crc32c_append(crc, copy);
            at += copy.len();
        }
        crc
    }
}

impl Placeable for LanePart<'_> {
    #[inline]
    fn place(&self, offset: usize, to: &RegionSlice<'_>) {
        self.parts(offset, to.len(), |at, part| {
            let to = to.subslice(at, part.len());
            to.expect("a part of the slice").place_region(part);
        });
    }
}

//! Payload that can be placed into registered memory.

use dgiwarp_codec::{Payload, PayloadSlice};

use crate::RegionSlice;

/// Payload that can be placed into a region.
///
/// Octets of a receive buffer are a slice; those in memory that another process writes are a region, of which nobody has a
/// reference.
pub trait Placeable: Payload {
    /// Places the octets from `offset` on that `to` has room for, the last ones last ([`RegionSlice::place`]).
    ///
    /// # Panics
    /// If there are fewer.
    fn place(&self, offset: usize, to: &RegionSlice<'_>);
}

impl Placeable for [u8] {
    #[inline]
    fn place(&self, offset: usize, to: &RegionSlice<'_>) {
        to.place(&self[offset..offset + to.len()]);
    }
}

impl Placeable for Vec<u8> {
    #[inline]
    fn place(&self, offset: usize, to: &RegionSlice<'_>) {
        self.as_slice().place(offset, to);
    }
}

impl Placeable for RegionSlice<'_> {
    #[inline]
    fn place(&self, offset: usize, to: &RegionSlice<'_>) {
        let from = self.subslice(offset, to.len());
        to.place_region(&from.expect("the caller stays inside the payload"));
    }
}

impl<P: Placeable + ?Sized> Placeable for PayloadSlice<'_, P> {
    #[inline]
    fn place(&self, offset: usize, to: &RegionSlice<'_>) {
        let inside = offset
            .checked_add(to.len())
            .is_some_and(|end| end <= self.len());
        assert!(inside, "the caller stays inside the slice");
        let (of, start) = self.origin();
        of.place(start + offset, to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Buffer;
    use proptest::prelude::*;

    proptest! {
        /// Octets arrive whole and nowhere else, whatever they come from and however long they are.
        #[test]
        fn slices_and_regions_are_placed_alike(
            octets in proptest::collection::vec(1u8.., 0..200),
            start in 0usize..40,
            at in 0usize..40,
        ) {
            let start = start.min(octets.len());
            let len = octets.len() - start;
            let source = Buffer::zeroed(octets.len().max(1)).unwrap();
            let source = source.region();
            source.slice(0, octets.len()).unwrap().place(&octets);
            let source = source.slice(0, octets.len()).unwrap();
            let as_slice = PayloadSlice::new(&octets[..]).after(start).unwrap();
            let as_region = PayloadSlice::new(&source).after(start).unwrap();
            for from_region in [false, true] {
                let target = Buffer::zeroed(300).unwrap();
                let target = target.region();
                let slice = target.slice(at, len).unwrap();
                if from_region {
                    as_region.place(0, &slice);
                } else {
                    as_slice.place(0, &slice);
                }
                let mut found = vec![0; 300];
                target.slice(0, 300).unwrap().copy_to(&mut found);
                let mut expected = vec![0; 300];
                expected[at..at + len].copy_from_slice(&octets[start..]);
                prop_assert_eq!(found, expected);
            }
        }
    }

    #[test]
    fn octets_are_placed_from_an_offset_on() {
        let octets: Vec<u8> = (1..=9).collect();
        let source = Buffer::zeroed(9).unwrap();
        source.write(0, &octets);
        let source = source.region();
        let source = source.slice(0, 9).unwrap();
        let placed = |place: &dyn Fn(&RegionSlice<'_>)| {
            let target = Buffer::zeroed(5).unwrap();
            place(&target.region().slice(1, 3).unwrap());
            target.to_vec(0, 5)
        };
        let slice = PayloadSlice::new(&octets).after(2).unwrap();
        let of_region = PayloadSlice::new(&source).after(2).unwrap();
        assert_eq!(placed(&|to| slice.place(1, to)), [0, 4, 5, 6, 0]);
        assert_eq!(placed(&|to| slice.place(4, to)), [0, 7, 8, 9, 0]);
        assert_eq!(placed(&|to| of_region.place(4, to)), [0, 7, 8, 9, 0]);
        assert_eq!(placed(&|to| octets.place(6, to)), [0, 7, 8, 9, 0]);
        assert_eq!(placed(&|to| octets[..].place(5, to)), [0, 6, 7, 8, 0]);
        assert_eq!(
            placed(&|to| Placeable::place(&source, 5, to)),
            [0, 6, 7, 8, 0]
        );
    }

    #[test]
    #[should_panic(expected = "inside the slice")]
    fn nothing_is_placed_from_behind_the_end() {
        let target = Buffer::zeroed(8).unwrap();
        let octets = [1; 8];
        let slice = PayloadSlice::new(&octets[..]).first(4).unwrap();
        slice.place(1, &target.region().slice(0, 4).unwrap());
    }
}

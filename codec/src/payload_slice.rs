//! A range of a payload.

use crate::Payload;

/// Octets of a payload: a range inside it, checked where it was made.
///
/// Received datagrams travel as these from the lower layer to placement. The octets may lie in memory that another process
/// writes, and nothing refers to those as `&[u8]`: headers are copied out once ([`head`](Self::head)) and parsed as a copy.
#[derive(Debug)]
pub struct PayloadSlice<'a, P: ?Sized> {
    of: &'a P,
    start: usize,
    len: usize,
}

impl<P: ?Sized> Clone for PayloadSlice<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: ?Sized> Copy for PayloadSlice<'_, P> {}

impl<'a, P: Payload + ?Sized> PayloadSlice<'a, P> {
    /// All of a payload.
    #[must_use]
    #[inline]
    pub fn new(of: &'a P) -> Self {
        Self {
            of,
            start: 0,
            len: of.len(),
        }
    }

    /// Number of octets.
    #[must_use]
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no octets.
    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first `len` octets; `None` if there are fewer.
    #[must_use]
    #[inline]
    pub const fn first(self, len: usize) -> Option<Self> {
        if len > self.len {
            return None;
        }
        Some(Self { len, ..self })
    }

    /// Octets behind the first `skip`; `None` if there are fewer.
    #[must_use]
    #[inline]
    pub const fn after(self, skip: usize) -> Option<Self> {
        if skip > self.len {
            return None;
        }
        Some(Self {
            start: self.start + skip,
            len: self.len - skip,
            ..self
        })
    }

    /// Consecutive slices of `len` octets, at least 1, and a shorter last one.
    pub fn chunks(self, len: usize) -> impl Iterator<Item = Self> + 'a {
        let len = len.max(1);
        let mut rest = self;
        std::iter::from_fn(move || {
            let chunk = rest.first(len.min(rest.len))?;
            rest = rest.after(chunk.len)?;
            (!chunk.is_empty()).then_some(chunk)
        })
    }

    /// The first `N` octets, or all if there are fewer, to be read more than once: in `copy`, each loaded once, unless nobody
    /// writes them where they lie.
    #[must_use]
    #[inline]
    pub fn head<'b, const N: usize>(self, copy: &'b mut [u8; N]) -> &'b [u8]
    where
        'a: 'b,
    {
        let copy = copy.get_mut(..self.len.min(N)).unwrap_or_default();
        self.of.steady(self.start, copy)
    }

    /// The last `N` octets, each loaded once, and those before them; `None` if there are fewer.
    #[must_use]
    #[inline]
    pub fn split_last<const N: usize>(self) -> Option<(Self, [u8; N])> {
        let len = self.len.checked_sub(N)?;
        let mut octets = [0; N];
        self.of.copy(self.start + len, &mut octets);
        Some((Self { len, ..self }, octets))
    }

    /// The CRC32c of the octets, read where they lie.
    #[must_use]
    #[inline]
    pub fn crc32c(self) -> u32 {
        self.of.crc(self.start, self.len, 0)
    }

    /// The payload, and where the slice starts in it.
    #[must_use]
    #[inline]
    pub const fn origin(self) -> (&'a P, usize) {
        (self.of, self.start)
    }
}

impl<'a> PayloadSlice<'a, [u8]> {
    /// The octets of a payload that nobody else writes.
    #[must_use]
    #[inline]
    pub fn octets(self) -> &'a [u8] {
        self.of
            .get(self.start..)
            .and_then(|rest| rest.get(..self.len))
            .unwrap_or_default()
    }
}

impl<P: Payload + ?Sized> Payload for PayloadSlice<'_, P> {
    #[inline]
    fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn copy(&self, offset: usize, dst: &mut [u8]) {
        self.check(offset, dst.len());
        self.of.copy(self.start + offset, dst);
    }

    #[inline]
    fn steady<'a>(&'a self, offset: usize, copy: &'a mut [u8]) -> &'a [u8] {
        self.check(offset, copy.len());
        self.of.steady(self.start + offset, copy)
    }

    #[inline]
    fn crc(&self, offset: usize, length: usize, crc: u32) -> u32 {
        self.check(offset, length);
        self.of.crc(self.start + offset, length, crc)
    }
}

impl<P: Payload + ?Sized> PayloadSlice<'_, P> {
    #[inline]
    fn check(&self, offset: usize, length: usize) {
        let inside = offset
            .checked_add(length)
            .is_some_and(|end| end <= self.len);
        assert!(inside, "the caller stays inside the slice");
    }
}

impl<'a, P: Payload + ?Sized> From<&'a P> for PayloadSlice<'a, P> {
    #[inline]
    fn from(of: &'a P) -> Self {
        Self::new(of)
    }
}

/// Slices are equal where their octets are.
impl<P: Payload + ?Sized> PartialEq for PayloadSlice<'_, P> {
    fn eq(&self, other: &Self) -> bool {
        let octets = |slice: &Self| {
            let mut octets = vec![0; slice.len];
            slice.copy(0, &mut octets);
            octets
        };
        self.len == other.len && octets(self) == octets(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crc;
    use proptest::prelude::*;

    #[test]
    fn ends_are_inside_and_no_further() {
        let whole = PayloadSlice::new(&b"header payload"[..]);
        assert_eq!(whole.first(6).unwrap().octets(), b"header");
        assert_eq!(whole.after(7).unwrap().octets(), b"payload");
        assert_eq!(whole.first(14).unwrap().octets(), b"header payload");
        assert!(whole.after(14).unwrap().is_empty());
        assert!(!whole.is_empty());
        assert!(whole.first(15).is_none());
        assert!(whole.after(15).is_none());
        let (before, last) = whole.split_last::<7>().unwrap();
        assert_eq!((before.octets(), last), (&b"header "[..], *b"payload"));
        assert!(whole.after(8).unwrap().split_last::<7>().is_none());
        assert_eq!(whole.first(0), whole.after(14));
        assert_ne!(whole.first(1), whole.after(13));
        assert_ne!(whole.first(2), whole.after(13));
        let (of, start) = whole.after(7).unwrap().origin();
        assert_eq!((of.len(), start), (14, 7));
    }

    #[test]
    fn a_head_is_the_first_octets() {
        let rest = PayloadSlice::new(&b"abcdef"[..]).after(2).unwrap();
        assert_eq!(rest.head(&mut [0; 3]), b"cde");
        assert_eq!(rest.head(&mut [0; 4]), b"cdef");
        assert_eq!(rest.head(&mut [0; 9]), b"cdef");
        assert_eq!(rest.after(4).unwrap().head(&mut [0; 9]), b"");
    }

    /// Octets that somebody else may write.
    struct Shared<'a>(&'a [u8]);

    impl Payload for Shared<'_> {
        fn len(&self) -> usize {
            self.0.len()
        }

        fn copy(&self, offset: usize, dst: &mut [u8]) {
            self.0.copy(offset, dst);
        }

        fn crc(&self, offset: usize, length: usize, crc: u32) -> u32 {
            Payload::crc(self.0, offset, length, crc)
        }
    }

    #[test]
    fn a_head_is_a_copy_where_others_write() {
        let (shared, mut copy) = (Shared(b"abcdef"), [0; 4]);
        let whole = PayloadSlice::new(&shared);
        let nested = PayloadSlice::new(&whole).after(1).unwrap();
        assert_eq!(nested.head(&mut copy), b"bcde");
        assert_eq!(&copy, b"bcde");
        assert_eq!(nested.after(3).unwrap().head(&mut copy), b"ef");
        assert_eq!(&copy, b"efde");
        let (octets, mut copy) = (b"abcdef".to_vec(), [0; 4]);
        let nested = PayloadSlice::new(&octets).after(1).unwrap();
        let nested = PayloadSlice::new(&nested);
        assert_eq!(nested.head(&mut copy), b"bcde");
        assert_eq!(copy, [0; 4]);
    }

    #[test]
    #[should_panic(expected = "inside the slice")]
    fn nothing_is_copied_from_behind_the_end() {
        let slice = PayloadSlice::new(&b"abcdef"[..]).first(3).unwrap();
        slice.copy(1, &mut [0; 3]);
    }

    proptest! {
        /// A slice of a slice reads what the same range of the octets holds.
        #[test]
        fn slices_agree_with_ranges(
            octets: Vec<u8>,
            cuts in [any::<prop::sample::Index>(), any::<prop::sample::Index>()],
            chunk in 1usize..40,
        ) {
            let start = cuts[0].index(octets.len() + 1);
            let len = cuts[1].index(octets.len() - start + 1);
            let slice = PayloadSlice::from(&octets).after(start).unwrap().first(len).unwrap();
            let expected = &octets[start..start + len];
            let mut copied = vec![0; len];
            slice.copy(0, &mut copied);
            prop_assert_eq!(&copied[..], expected);
            prop_assert_eq!(slice.len(), len);
            prop_assert_eq!(Payload::len(&slice), len);
            prop_assert_eq!(slice.crc32c(), crc::crc32c(expected));
            prop_assert_eq!(Payload::crc(&slice, 0, len, 0), crc::crc32c(expected));
            // A range of the slice, behind other octets for the CRC.
            let offset = cuts[0].index(len + 1);
            let mut tail = vec![0; len - offset];
            slice.copy(offset, &mut tail);
            prop_assert_eq!(&tail[..], &expected[offset..]);
            let before = crc::crc32c(b"header");
            let joined = [b"header", &expected[offset..]].concat();
            let crc = Payload::crc(&slice, offset, len - offset, before);
            prop_assert_eq!(crc, crc::crc32c(&joined));
            // One more than there are octets: an endless iterator fails at once.
            let chunks: Vec<_> = slice.chunks(chunk).take(len + 1).collect();
            let lengths: Vec<usize> = chunks.iter().map(|it| it.len()).collect();
            let expected: Vec<usize> = expected.chunks(chunk).map(<[u8]>::len).collect();
            prop_assert_eq!(lengths, expected);
            let rejoined: Vec<u8> = chunks.iter().flat_map(|it| {
                let mut octets = vec![0; it.len()];
                it.copy(0, &mut octets);
                octets
            }).collect();
            prop_assert_eq!(&rejoined, &copied);
        }
    }
}

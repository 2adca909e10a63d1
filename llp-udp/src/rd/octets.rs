//! Numbers in network byte order, and the header of frames (§3).

/// Octets of a frame's header: type, flags, length of the body.
pub const HEADER_LEN: usize = 4;

/// Appends a frame's header.
pub(super) fn emit_header(out: &mut Vec<u8>, kind: u8, flags: u8, length: u16) {
    out.extend([kind, flags]);
    out.extend(length.to_be_bytes());
}

/// Octets of a header of fixed length, put one behind the other and appended in one piece.
#[derive(Debug)]
pub(super) struct Fixed<const N: usize> {
    octets: [u8; N],
    length: usize,
}

impl<const N: usize> Fixed<N> {
    pub(super) const fn new() -> Self {
        Self {
            octets: [0; N],
            length: 0,
        }
    }

    /// Puts octets behind those that are there; they fit.
    #[inline(always)]
    pub(super) fn put<const M: usize>(mut self, octets: [u8; M]) -> Self {
        let place = self.octets.get_mut(self.length..self.length + M);
        debug_assert!(place.is_some(), "the header has its length");
        if let Some(place) = place {
            place.copy_from_slice(&octets);
        }
        self.length += M;
        self
    }

    /// Appends the header.
    #[inline(always)]
    pub(super) fn emit(self, out: &mut Vec<u8>) {
        debug_assert_eq!(self.length, N, "the header is whole");
        out.extend_from_slice(&self.octets);
    }
}

/// Takes numbers in network byte order off the front of octets.
#[derive(Debug)]
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) const fn new(octets: &'a [u8]) -> Self {
        Self(octets)
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.take().map(u8::from_be_bytes)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }

    /// The value, if nothing is left behind it.
    pub(super) fn end<T>(&self, value: T) -> Option<T> {
        self.0.is_empty().then_some(value)
    }
}

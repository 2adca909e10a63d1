//! Numbers in network byte order, and the header of frames (§3).

/// Octets of a frame's header: type, flags, length of the body.
pub const HEADER_LEN: usize = 4;

/// Appends a frame's header.
pub(super) fn emit_header(out: &mut Vec<u8>, kind: u8, flags: u8, length: u16) {
    out.extend([kind, flags]);
    out.extend(length.to_be_bytes());
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

//! Payload that a layer reads without owning it.

use crate::crc;

/// Payload that a lower layer sends on behalf of its ULP: the layer copies it, or computes the CRC where it
/// lies, without holding a reference to it.
///
/// Registered memory implements the trait without ever yielding `&[u8]`, because the application and a
/// peer may write it at any moment; byte slices implement it for tests and staged data.
pub trait Payload {
    /// Number of bytes.
    fn len(&self) -> usize;

    /// Whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `dst.len()` bytes from `offset` into `dst`, loading each byte once.
    ///
    /// # Panics
    /// If `offset + dst.len()` exceeds [`len`](Self::len): the caller cuts its own segments.
    fn copy(&self, offset: usize, dst: &mut [u8]);

    /// `copy.len()` bytes from `offset`, to be read more than once: where they lie if nobody writes them meanwhile, else in `copy`, each
    /// loaded once.
    ///
    /// # Panics
    /// As [`copy`](Self::copy).
    #[inline]
    fn steady<'a>(&'a self, offset: usize, copy: &'a mut [u8]) -> &'a [u8] {
        self.copy(offset, copy);
        copy
    }

    /// Copies as [`copy`](Self::copy) does and returns `crc` extended by the bytes as copied.
    ///
    /// # Panics
    /// As [`copy`](Self::copy).
    #[inline]
    fn copy_crc(&self, offset: usize, dst: &mut [u8], crc: u32) -> u32 {
        self.copy(offset, dst);
        crc::crc32c_append(crc, dst)
    }

    /// Returns `crc` extended by `length` bytes from `offset`, read where they lie.
    ///
    /// # Panics
    /// If `offset + length` exceeds [`len`](Self::len).
    fn crc(&self, offset: usize, length: usize, crc: u32) -> u32;
}

impl Payload for [u8] {
    #[inline]
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    #[inline]
    fn copy(&self, offset: usize, dst: &mut [u8]) {
        let end = offset + dst.len();
        dst.copy_from_slice(&self[offset..end]);
    }

    #[inline]
    fn steady<'a>(&'a self, offset: usize, copy: &'a mut [u8]) -> &'a [u8] {
        &self[offset..offset + copy.len()]
    }

    #[inline]
    fn crc(&self, offset: usize, length: usize, crc: u32) -> u32 {
        crc::crc32c_append(crc, &self[offset..offset + length])
    }
}

impl Payload for Vec<u8> {
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    fn copy(&self, offset: usize, dst: &mut [u8]) {
        self.as_slice().copy(offset, dst);
    }

    fn steady<'a>(&'a self, offset: usize, copy: &'a mut [u8]) -> &'a [u8] {
        self.as_slice().steady(offset, copy)
    }

    fn crc(&self, offset: usize, length: usize, crc: u32) -> u32 {
        Payload::crc(self.as_slice(), offset, length, crc)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copying_and_reading_in_place_agree() {
        let bytes: Vec<u8> = (0..=255).collect();
        let mut copy = [0; 100];
        let copied = bytes.copy_crc(10, &mut copy, crc::crc32c(b"header"));
        assert_eq!(copy, bytes[10..110]);
        assert_eq!(
            copied,
            Payload::crc(&bytes, 10, 100, crc::crc32c(b"header"))
        );
    }

    #[test]
    fn slices_and_vectors_are_payload_of_their_length() {
        for length in 0..3 {
            let bytes = vec![7; length];
            assert_eq!(Payload::len(&bytes), length);
            assert_eq!(Payload::len(&bytes[..]), length);
            assert_eq!(Payload::is_empty(&bytes), length == 0);
            assert_eq!(Payload::is_empty(&bytes[..]), length == 0);
        }
    }
}
